/// Publishes through annotated_ptr<volatile>, whose assignment reads the stored value back: a round trip to
/// the peer.
#include <sycl/ext/oneapi/experimental/annotated_ptr/annotated_ptr.hpp>
#include <sycl/marray.hpp>
#include <sycl/multi_ptr.hpp>

#include "tests/isa/controls/control.hpp"

namespace intel = sycl::ext::intel::experimental;
using Uncached =
    intel::cache_control<intel::cache_mode::uncached, syclex::cache_level::L1, syclex::cache_level::L3>;
using Annotated = syclex::annotated_ptr<volatile lamport::Words4,
                                        decltype(syclex::properties{intel::write_hint<Uncached>})>;

struct Target : Shipped {
  using Shipped::Shipped;
  void store_peer(uint32_t* at, const Packet& p) const {
    Annotated pointer(reinterpret_cast<volatile lamport::Words4*>(at));
    *pointer = lamport::Words4{p.w[0], p.w[1], p.w[2], p.w[3]};
  }
};
CONTROL_KERNEL(read_back_store, Target)
