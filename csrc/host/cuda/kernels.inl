// Instantiates one collective. The including file defines LAMPORT_COLLECTIVE (a template of the device
// headers) and LAMPORT_TABLE; a file per collective, so that they compile side by side.
#include "csrc/device/target_cuda.hpp"
// target_cuda.hpp first: it sets how functions are declared.
#include LAMPORT_HEADER
#include "csrc/host/cuda/kernels.hpp"

namespace lamport {
namespace {

template <class T, int W>
__global__ void __launch_bounds__(kMaxThreads, 1)
    kernel(const __grid_constant__ WorkspaceView ws, const __grid_constant__ AllReduceArgs args,
           Overlap overlap) {
  // Nothing of an earlier kernel is read above this line: input, epoch and armed slots are its results.
  asm volatile("griddepcontrol.wait;" ::: "memory");
  if (overlap == Overlap::chain) asm volatile("griddepcontrol.launch_dependents;");
  CudaTarget target(args.bytes, ws.control);
  LAMPORT_COLLECTIVE<CudaTarget, T, W>(target, ws, args);
}

#define LAMPORT_KERNEL(T, W) reinterpret_cast<const void*>(kernel<T, W>)
#define LAMPORT_WORLDS(T) \
  {nullptr,               \
   nullptr,               \
   LAMPORT_KERNEL(T, 2),  \
   LAMPORT_KERNEL(T, 3),  \
   LAMPORT_KERNEL(T, 4),  \
   LAMPORT_KERNEL(T, 5),  \
   LAMPORT_KERNEL(T, 6),  \
   LAMPORT_KERNEL(T, 7),  \
   LAMPORT_KERNEL(T, 8)}

}  // namespace

const void* const LAMPORT_TABLE[3][kMaxWorld + 1] = {LAMPORT_WORLDS(F32), LAMPORT_WORLDS(F16),
                                                     LAMPORT_WORLDS(BF16)};

}  // namespace lamport
