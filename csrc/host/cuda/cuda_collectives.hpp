#pragma once
#include <cuda_runtime_api.h>

#include <memory>
#include <string>

#include "csrc/host/cuda/cuda_workspace.hpp"
#include "csrc/host/cuda/kernels.hpp"
#include "csrc/host/thresholds.hpp"

namespace lamport {

/// How kernels are launched, where that is not left to this library. A benchmark's business.
struct LaunchChoice {
  uint32_t threads = 0;  ///< of a block: 64, 128 or 256; 0: by size
  Overlap overlap = Overlap::none;
};

/// Collectives over a ready workspace as kernel launches on the caller's stream: picks algorithm and grid.
/// Never waits for the GPU, allocates nothing per call, and may be captured in a CUDA graph.
class CudaCollectives {
 public:
  CudaCollectives(std::shared_ptr<CudaWorkspace> workspace, const Thresholds (&thresholds)[3]);

  /// False: too large for our algorithms, nothing was launched.
  bool all_reduce(const void* in, void* out, uint64_t bytes, Format format, cudaStream_t stream);

  /// Throws Timeout if a kernel that has run so far gave up; then no further call may be made.
  void check() const;
  /// Of the call that gave up: its size, and, if parts of this rank's kernel had not started, how much of it had.
  uint64_t timed_out_bytes() const { return workspace_->status()->bytes; }
  std::string timed_out_detail() const;

  void set_launch(const LaunchChoice& choice) { choice_ = choice; }
  int device() const { return workspace_->device(); }

 private:
  static constexpr uint32_t kThreads[] = {64, 128, kMaxThreads};
  struct Kernel {
    const void* function;
    uint32_t
        resident_blocks[3];  ///< by index in kThreads: this rank's share of what the GPU can hold at once
  };

  uint32_t threads_for(uint64_t packets) const;
  uint32_t block_limit(const Kernel& kernel, uint32_t threads) const;

  std::shared_ptr<CudaWorkspace> workspace_;
  WorkspaceView view_;
  uint32_t world_;
  uint32_t processors_;  ///< of the GPU, this rank's share
  uint32_t capacity_packets_[2];
  Thresholds thresholds_[3];
  Kernel kernels_[2][3];  // [Algorithm][Format]
  LaunchChoice choice_;
};

}  // namespace lamport
