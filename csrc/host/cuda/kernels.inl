// Instantiates one collective. The including file defines LAMPORT_HEADER, LAMPORT_COLLECTIVE (a template of that
// header), LAMPORT_ARGS and LAMPORT_KERNEL (its name in CudaKernel); a file
// per collective, so that they compile side by side.
#include <type_traits>
#include <utility>

#include "csrc/device/target_cuda.hpp"
// target_cuda.hpp first: it sets how functions are declared.
#include LAMPORT_HEADER
#include "csrc/host/cuda/kernels.hpp"

namespace lamport {
namespace {

constexpr auto kKernel = CudaKernel::LAMPORT_KERNEL;
using Group = std::conditional_t<has_clusters(kKernel), CudaCluster, CudaBlock>;

template <class T, int W, bool kWhole>
__global__ void __launch_bounds__(max_threads(kKernel), 1)
    kernel(const __grid_constant__ WorkspaceView ws, const __grid_constant__ LAMPORT_ARGS args,
           Overlap overlap) {
  // Nothing of an earlier kernel is read above this line: input, epoch and armed slots are its results.
  asm volatile("griddepcontrol.wait;" ::: "memory");
  if (overlap == Overlap::chain) asm volatile("griddepcontrol.launch_dependents;");
  CudaTarget<kWhole, Group> target(static_cast<uint32_t>(kKernel), sent_bytes(args), ws.control);
  LAMPORT_COLLECTIVE<CudaTarget<kWhole, Group>, T, W>(target, ws, args);
}

template <class T, int W, bool kWhole>
const void* address() {
  if constexpr (W == 1 && !serves_world_of_one(kKernel))
    return nullptr;
  else
    return reinterpret_cast<const void*>(kernel<T, W, kWhole>);
}

template <bool kWhole, class T, int... W>
void enter_worlds(const void* (&worlds)[kMaxWorld + 1], std::integer_sequence<int, W...>) {
  ((worlds[W + 1] = address<T, W + 1, kWhole>()), ...);
}

template <bool kWhole>
void enter(CudaKernels& kernels) {
  constexpr auto worlds = std::make_integer_sequence<int, kMaxWorld>();
  enter_worlds<kWhole, F32>(kernels.function[kWhole][0], worlds);
  enter_worlds<kWhole, F16>(kernels.function[kWhole][1], worlds);
  enter_worlds<kWhole, BF16>(kernels.function[kWhole][2], worlds);
}

}  // namespace

template <>
const CudaKernels& cuda_kernels<kKernel>() {
  static const CudaKernels kernels = [] {
    CudaKernels found{};
    enter<false>(found);
    enter<true>(found);
    return found;
  }();
  return kernels;
}

}  // namespace lamport
