/// Polls through an ordinary volatile pointer: the default cache policy may answer from a stale L1 for ever.
#include "tests/isa/controls/control.hpp"

struct Target : Shipped {
  using Shipped::Shipped;
  Packet load_own(const uint32_t* at) const {
    const lamport::Words4 v = *reinterpret_cast<const volatile lamport::Words4*>(at);
    return {{v.x, v.y, v.z, v.w}};
  }
};
CONTROL_KERNEL(plain_volatile_load, Target)
