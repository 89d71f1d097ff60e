/// The collectives compiled for CUDA; see kernels.inl.
#pragma once
#include <cuda_runtime_api.h>

#include "csrc/device/fused_args.hpp"
#include "csrc/device/packet.hpp"

namespace lamport {

/// How a kernel behaves towards its neighbours on the stream.
enum class Overlap : uint32_t {
  none = 0,  ///< it starts when the kernel before it has ended
  prepare,   ///< it is set up on the GPU before that, and waits there for the kernel before it to end
  chain      ///< and lets the kernel after it be set up while it runs, if that asks for it too
};

enum class CudaKernel : uint32_t {
  all_reduce_one_shot = 0,
  all_reduce_two_shot,
  add_all_reduce_one_shot,
  add_all_reduce_two_shot,
  qk_rms_norm,
  add_all_reduce_rms_norm,
  rs_sconv_ag_norm
};
inline constexpr int kCudaKernels = 7;
/// By CudaKernel: which method of Communicator that is.
inline constexpr const char* kCudaMethod[kCudaKernels] = {"all_reduce",      "all_reduce",
                                                          "add_all_reduce",  "add_all_reduce",
                                                          "qk_rms_norm",     "add_all_reduce_rms_norm",
                                                          "rs_sconv_ag_norm"};

/// An all-reduce alone is then a copy, and nothing needs two shots.
constexpr bool serves_world_of_one(CudaKernel kernel) {
  return kernel == CudaKernel::add_all_reduce_one_shot || kernel >= CudaKernel::qk_rms_norm;
}

/// Threads of a block at most: where packets are shared out over the whole grid, where a block has a token, and where a
/// cluster of blocks has a row.
inline constexpr uint32_t kMaxThreads = 256;
inline constexpr uint32_t kMaxTokenThreads = 512;
inline constexpr uint32_t kClusterThreads = 64;
/// A single block is not a cluster to the hardware: its st.async is an illegal instruction.
inline constexpr uint32_t kMinCluster = 2, kMaxCluster = 8;
constexpr bool has_clusters(CudaKernel kernel) { return kernel > CudaKernel::qk_rms_norm; }
constexpr uint32_t max_threads(CudaKernel kernel) {
  return kernel < CudaKernel::qk_rms_norm    ? kMaxThreads
         : kernel == CudaKernel::qk_rms_norm ? kMaxTokenThreads
                                             : kClusterThreads;
}

/// [kWhole][Format][world]: kernels of (WorkspaceView, arguments, Overlap); null where there is none.
struct CudaKernels {
  const void* function[2][3][kMaxWorld + 1];
};
template <CudaKernel>
const CudaKernels& cuda_kernels();
template <>
const CudaKernels& cuda_kernels<CudaKernel::all_reduce_one_shot>();
template <>
const CudaKernels& cuda_kernels<CudaKernel::all_reduce_two_shot>();
template <>
const CudaKernels& cuda_kernels<CudaKernel::add_all_reduce_one_shot>();
template <>
const CudaKernels& cuda_kernels<CudaKernel::add_all_reduce_two_shot>();
template <>
const CudaKernels& cuda_kernels<CudaKernel::qk_rms_norm>();
template <>
const CudaKernels& cuda_kernels<CudaKernel::add_all_reduce_rms_norm>();
template <>
const CudaKernels& cuda_kernels<CudaKernel::rs_sconv_ag_norm>();

/// Writes `value` to `count` words of the current device, on its default stream.
cudaError_t fill_words(void* words, uint64_t count, uint32_t value);

}  // namespace lamport
