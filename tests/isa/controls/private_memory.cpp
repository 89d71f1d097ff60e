/// Indexes an array by a number known at run time only: the array moves from registers to memory.
#include "tests/isa/controls/control.hpp"

struct Target : Shipped {
  using Shipped::Shipped;
  Packet load_own(const uint32_t* at) const {
    uint32_t table[64];
    for (uint32_t i = 0; i < 64; ++i) table[i] = at[i];
    Packet packet = Shipped::load_own(at);
    packet.w[0] ^= table[packet.w[1] & 63];
    return packet;
  }
};
CONTROL_KERNEL(private_memory, Target)
