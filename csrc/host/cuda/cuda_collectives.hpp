#pragma once
#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <string>

#include "csrc/host/cuda/cuda_workspace.hpp"
#include "csrc/host/cuda/kernels.hpp"
#include "csrc/host/engine.hpp"
#include "csrc/host/thresholds.hpp"

namespace lamport {

/// How kernels are launched, where that is not left to this library. A benchmark's business.
struct LaunchChoice {
  uint32_t threads = 0;  ///< of an all-reduce's block: 64, 128 or 256; 0: by size
  Overlap overlap = Overlap::chain;
};

/// Collectives over a ready workspace as kernel launches on the caller's stream: picks algorithm and grid.
/// Never waits for the GPU, allocates nothing per call, and may be captured in a CUDA graph. Arguments have been checked.
///
/// Every call throws Timeout if a kernel that has run so far gave up; then no further call may be made.
class CudaCollectives {
 public:
  /// `current_stream` is asked at every call.
  CudaCollectives(std::shared_ptr<CudaWorkspace> workspace, const Thresholds (&thresholds)[3],
                  std::function<cudaStream_t()> current_stream);

  /// False: too large for our algorithms, nothing was launched.
  bool all_reduce(AllReduceArgs args, Format format, Library library);
  bool add_all_reduce(AddAllReduceArgs args, Format format, Library library);

  void qk_rms_norm(const QkNormArgs& args, Format format);
  void add_all_reduce_rms_norm(const AddNormArgs& args, Format format);
  void rs_sconv_ag_norm(const SconvArgs& args, Format format);

  void check() const;

  void set_launch(const LaunchChoice& choice) { choice_ = choice; }
  int device() const { return workspace_->device(); }
  const Layout& layout() const { return workspace_->layout(); }

 private:
  static constexpr uint32_t kThreadStep = 64;
  struct Kernel {
    const void* function;
    /// By number of threads over kThreadStep: this rank's share of the blocks that the GPU can hold at once.
    uint32_t resident_blocks[kMaxTokenThreads / kThreadStep + 1];
    /// The same of clusters, by their blocks of kClusterThreads.
    uint32_t resident_clusters[kMaxCluster + 1];
  };
  struct Grid {
    uint32_t blocks;
    uint32_t threads;
    uint32_t cluster = 0;  ///< blocks, where work-groups are clusters
  };
  struct Launch;

  Kernel load(const void* function, CudaKernel which, uint32_t processors, uint32_t share) const;
  template <class Args>
  const Kernel& kernel(CudaKernel which, Format format, const Args& args) const;
  /// Which of an all-reduce's two kernels, or -1: the library's.
  int algorithm_for(uint64_t bytes, Format format, Library library) const;
  template <class Args>
  bool reduce(CudaKernel one_shot, Args& args, Format format, Library library);

  Grid grid_for_packets(const Kernel& kernel, uint64_t packets) const;
  Grid grid_for_tokens(const Kernel& kernel, uint32_t tokens, uint64_t packets) const;
  Grid grid_for_rows(const Kernel& kernel, uint32_t rows, uint64_t packets) const;
  uint32_t at_once(uint32_t resident) const;
  template <class Args>
  void launch(const Kernel& kernel, Grid grid, const Args& args);

  std::shared_ptr<CudaWorkspace> workspace_;
  std::function<cudaStream_t()> current_stream_;
  WorkspaceView view_;
  uint32_t world_;
  uint32_t processors_;  ///< of the GPU, this rank's share
  uint32_t capacity_packets_[2];
  Thresholds thresholds_[3];
  Kernel kernels_[kCudaKernels][2][3];  ///< [CudaKernel][kWhole][Format]
  LaunchChoice choice_;
};

}  // namespace lamport
