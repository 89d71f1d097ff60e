/// The right cache policy without volatile: the compiler is free to load once and spin on the register.
#include "tests/isa/controls/control.hpp"

struct Target : Shipped {
  using Shipped::Shipped;
  Packet load_own(const uint32_t* at) const {
    const auto* p = reinterpret_cast<const lamport::Words4*>(at);
    const lamport::Words4 v = *LAMPORT_HINTED(p, "sycl-cache-read-hint", lamport::kLoadHint);
    return {{v.x, v.y, v.z, v.w}};
  }
};
CONTROL_KERNEL(hoisted_load, Target)
