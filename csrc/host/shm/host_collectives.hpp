#pragma once
#include <memory>

#include "csrc/device/fused_args.hpp"
#include "csrc/host/engine.hpp"
#include "csrc/host/shm/kernels.hpp"
#include "csrc/host/shm/shm_workspace.hpp"

namespace lamport {

/// The host's collectives over a ready workspace: picks the algorithm, runs the kernel on the calling thread.
class HostCollectives {
 public:
  HostCollectives(std::shared_ptr<ShmWorkspace> workspace, const Thresholds (&thresholds)[3],
                  uint32_t spins_before_yield);

  /// False: too large for our algorithms, nothing was done. Throws Timeout, after which the workspace holds
  /// half-finished traffic and no further call may be made.
  bool all_reduce(AllReduceArgs args, Format format, Library library);

  /// The fused collectives (host_fused.cpp), with arguments that have been checked; otherwise as all_reduce.
  bool add_all_reduce(AddAllReduceArgs args, Format format, Library library);
  void qk_rms_norm(const QkNormArgs& args, Format format);
  void add_all_reduce_rms_norm(const AddNormArgs& args, Format format);
  void rs_sconv_ag_norm(const SconvArgs& args, Format format);

  const Layout& layout() const { return workspace_->layout(); }

  HostWait wait;

 private:
  void throw_if_late() const;

  std::shared_ptr<ShmWorkspace> workspace_;
  WorkspaceView view_;
  uint32_t world_;
  uint32_t capacity_packets_[2];
  Thresholds thresholds_[3];
};

}  // namespace lamport
