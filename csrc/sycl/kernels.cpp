/// Entry points. Compiled to SPIR-V once per world size (LAMPORT_WORLD) for GPUs, and once more for the CPU
/// device (LAMPORT_CPU): a process has one world size, so it loads and finalises no kernel it cannot use.
#include <sycl/ext/oneapi/kernel_properties/properties.hpp>

#include "csrc/device/all_reduce_one_shot.hpp"
#include "csrc/device/all_reduce_two_shot.hpp"
#include "csrc/device/target_sycl.hpp"
#include "csrc/sycl/kernel_args.hpp"

namespace syclex = sycl::ext::oneapi::experimental;

// Sub-groups of 16 exist on every Intel GPU from DG2 on; the attribute form of the request is ignored.
#define LAMPORT_KERNEL(collective, type, suffix)                                                            \
  extern "C" SYCL_EXTERNAL SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((syclex::nd_range_kernel<1>))                  \
      SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((syclex::sub_group_size<16>)) void lamport_##collective##_##suffix( \
          lamport::SyclKernelArgs args) {                                                                   \
    Target target = make_target(args);                                                                      \
    lamport::collective<Target, lamport::type, LAMPORT_WORLD>(target, args.workspace, args.all_reduce);     \
  }

#define LAMPORT_KERNELS(collective)    \
  LAMPORT_KERNEL(collective, F32, f32) \
  LAMPORT_KERNEL(collective, F16, f16) \
  LAMPORT_KERNEL(collective, BF16, bf16)

namespace {

#ifdef LAMPORT_CPU
using Target = lamport::SyclTarget<lamport::CpuPause>;
inline Target make_target(const lamport::SyclKernelArgs& args) {
  return Target(lamport::CpuPause(reinterpret_cast<uint64_t (*)()>(args.yield)));
}
#else
using Target = lamport::SyclTarget<lamport::GpuPause>;
inline Target make_target(const lamport::SyclKernelArgs&) { return Target(lamport::GpuPause()); }
#endif

}  // namespace

LAMPORT_KERNELS(all_reduce_one_shot)
LAMPORT_KERNELS(all_reduce_two_shot)
