#include "csrc/host/shm/fused_kernels.hpp"

#include <string>

namespace lamport {

const FusedKernelTable& best_fused_kernels() {
  static const FusedKernelTable& table = []() -> const FusedKernelTable& {
#if defined(__x86_64__)
    const std::string isa = best_kernels().isa;
    if (isa == kAvx512FusedKernels.isa) return kAvx512FusedKernels;
    if (isa == kAvx2FusedKernels.isa) return kAvx2FusedKernels;
#endif
    return kPlainFusedKernels;
  }();
  return table;
}

}  // namespace lamport
