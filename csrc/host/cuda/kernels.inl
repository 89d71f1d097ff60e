// Instantiates one collective. The including file defines LAMPORT_HEADER, LAMPORT_COLLECTIVE (a template of that
// header), LAMPORT_ARGS and LAMPORT_KERNEL (its name in CudaKernel); a file
// per collective, so that they compile side by side.
#include "csrc/device/target_cuda.hpp"
// target_cuda.hpp first: it sets how functions are declared.
#include LAMPORT_HEADER
#include "csrc/host/cuda/kernels.hpp"

namespace lamport {
namespace {

constexpr auto kKernel = CudaKernel::LAMPORT_KERNEL;

template <class T, int W>
__global__ void __launch_bounds__(max_threads(kKernel), 1)
    kernel(const __grid_constant__ WorkspaceView ws, const __grid_constant__ LAMPORT_ARGS args,
           Overlap overlap) {
  // Nothing of an earlier kernel is read above this line: input, epoch and armed slots are its results.
  asm volatile("griddepcontrol.wait;" ::: "memory");
  if (overlap == Overlap::chain) asm volatile("griddepcontrol.launch_dependents;");
  CudaTarget target(static_cast<uint32_t>(kKernel), sent_bytes(args), ws.control);
  LAMPORT_COLLECTIVE<CudaTarget, T, W>(target, ws, args);
}

template <class T, int W>
const void* address() {
  if constexpr (W == 1 && !serves_world_of_one(kKernel))
    return nullptr;
  else
    return reinterpret_cast<const void*>(kernel<T, W>);
}

#define LAMPORT_WORLDS(T)                                                               \
  {nullptr,         address<T, 1>(), address<T, 2>(), address<T, 3>(), address<T, 4>(), \
   address<T, 5>(), address<T, 6>(), address<T, 7>(), address<T, 8>()}

}  // namespace

template <>
const CudaKernels& cuda_kernels<kKernel>() {
  static const CudaKernels kernels = {{LAMPORT_WORLDS(F32), LAMPORT_WORLDS(F16), LAMPORT_WORLDS(BF16)}};
  return kernels;
}

}  // namespace lamport
