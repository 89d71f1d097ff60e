/// The collectives compiled for CUDA; see kernels.inl.
#pragma once
#include <cuda_runtime_api.h>

#include "csrc/device/packet.hpp"
#include "csrc/device/workspace_view.hpp"

namespace lamport {

/// How a kernel behaves towards its neighbours on the stream.
enum class Overlap : uint32_t {
  none = 0,  ///< it starts when the kernel before it has ended
  prepare,   ///< it is set up on the GPU before that, and waits there for the kernel before it to end
  chain      ///< and lets the kernel after it be set up while it runs, if that asks for it too
};

/// Threads of a block at most; kernels are compiled for this.
inline constexpr uint32_t kMaxThreads = 256;

/// [Format][world], worlds from 2: kernels of (WorkspaceView, AllReduceArgs, Overlap).
extern const void* const kCudaOneShot[3][kMaxWorld + 1];
extern const void* const kCudaTwoShot[3][kMaxWorld + 1];

/// Writes `value` to `count` words of the current device, on its default stream.
cudaError_t fill_words(void* words, uint64_t count, uint32_t value);

}  // namespace lamport
