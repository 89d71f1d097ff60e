/// LAMPORT_KERNELS(collective, Args): entry points lamport_<collective>_<type> for the three element types.
///
/// Sources that use it are compiled to SPIR-V once per world size (LAMPORT_WORLD) for GPUs, and once more for the CPU
/// device (LAMPORT_CPU): a process has one world size, so it loads and finalises no kernel it cannot use.
#pragma once
#include <sycl/ext/oneapi/kernel_properties/properties.hpp>

#include "csrc/device/target_sycl.hpp"
// target_sycl.hpp first: it sets how functions are declared.
#include "csrc/device/fused_args.hpp"
#include "csrc/sycl/kernel_args.hpp"

namespace syclex = sycl::ext::oneapi::experimental;

// Sub-groups of 16 exist on every Intel GPU from DG2 on; the attribute form of the request is ignored.
#define LAMPORT_KERNEL(name, Args, type, suffix)                                                            \
  extern "C" SYCL_EXTERNAL SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((syclex::nd_range_kernel<1>))                  \
      SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((syclex::sub_group_size<16>)) void lamport_##name##_##suffix(       \
          lamport::SyclKernelArgs<lamport::Args> args) {                                                    \
    auto target = lamport::make_target(args.yield, {args.id, lamport::sent_bytes(args.collective)});        \
    lamport::name<decltype(target), lamport::type, LAMPORT_WORLD>(target, args.workspace, args.collective); \
  }

#define LAMPORT_KERNELS(name, Args)    \
  LAMPORT_KERNEL(name, Args, F32, f32) \
  LAMPORT_KERNEL(name, Args, F16, f16) \
  LAMPORT_KERNEL(name, Args, BF16, bf16)

namespace lamport {

#ifdef LAMPORT_CPU
inline SyclTarget<CpuPause> make_target(uint64_t yield, const SyclCall& call) {
  return SyclTarget<CpuPause>(CpuPause(reinterpret_cast<uint64_t (*)()>(yield)), call);
}
#else
inline SyclTarget<GpuPause> make_target(uint64_t, const SyclCall& call) {
  return SyclTarget<GpuPause>(GpuPause(), call);
}
#endif

}  // namespace lamport
