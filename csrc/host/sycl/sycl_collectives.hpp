/// Collectives as kernel launches on a sycl::queue.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <sycl/sycl.hpp>
#include <vector>

#include "csrc/device/fused_args.hpp"
#include "csrc/host/engine.hpp"
#include "csrc/host/layout.hpp"
#include "csrc/host/sycl/kernel_cache.hpp"
#include "csrc/host/thresholds.hpp"

namespace lamport {

/// A workspace that is open to all peers: base address of every rank's exchange memory, as this process sees
/// it.
struct ExchangeMemory {
  std::vector<uintptr_t> bases;  ///< by rank, this one's own among them
  uintptr_t status;              ///< host-visible Status
  uint32_t rank;
  Layout layout;
};

/// Picks the algorithm and the grid and launches on the caller's queue; never waits for the device, and allocates
/// nothing of its own per call. Arguments have been checked.
///
/// Every call throws Timeout if a kernel that has run so far gave up; then no further call may be made.
class SyclCollectives {
 public:
  /// On a GPU all kernels of this world size are built now, side by side, for the context of `queue`: one that is built
  /// later would delay a token, or fall into the recording of a graph. The driver keeps what it has compiled, so that
  /// this takes seconds once on a machine and hundredths from then on. The CPU device keeps nothing and stands in for a
  /// GPU in tests: there the fused kernels are built at their first call.
  ///
  /// `current_queue` is asked at every call; it must be in-order and of that context. `timeout_seconds` bounds a wait.
  /// `yielding` kernels need the CPU device, see KernelKey; without a word they are used wherever they can.
  SyclCollectives(const sycl::queue& queue, const ExchangeMemory& memory, const Thresholds (&thresholds)[3],
                  double timeout_seconds, std::optional<bool> yielding,
                  std::function<sycl::queue&()> current_queue);

  /// False: too large for our algorithms, nothing was launched.
  bool all_reduce(AllReduceArgs args, Format format, Library library);
  bool add_all_reduce(AddAllReduceArgs args, Format format, Library library);

  void qk_rms_norm(const QkNormArgs& args, Format format);
  void add_all_reduce_rms_norm(const AddNormArgs& args, Format format);
  void rs_sconv_ag_norm(const SconvArgs& args, Format format);

  void check() const;

  bool on_cpu() const { return on_cpu_; }
  const Layout& layout() const { return layout_; }

 private:
  static constexpr uint32_t kLanes = 16;  // of a sub-group
  static constexpr uint32_t kMaxLocal = 1024;
  struct Kernel {
    const sycl::kernel* function;
    uint32_t max_local;  ///< work-items that a group may have
    /// By local size over kLanes: groups that the device can hold at once (P5); 0: not asked yet.
    uint32_t resident_groups[kMaxLocal / kLanes + 1];
  };

  void build_needed();
  bool needed(SyclKernel which, const Thresholds& limit) const;
  /// Built, if it was not yet.
  Kernel& kernel(SyclKernel which, Format format);
  uint32_t resident_groups(Kernel& kernel, uint32_t local) const;
  template <class Args>
  bool reduce(SyclKernel one_shot, Args& args, Format format, Library library);
  template <class Args>
  void launch_for_rows(SyclKernel which, const Args& args, Format format, uint64_t rows, uint64_t row_bytes);
  template <class Args>
  void launch(SyclKernel which, Kernel& kernel, uint64_t groups, uint32_t local, const Args& args);

  sycl::queue queue_;
  sycl::context context_;
  std::function<sycl::queue&()> current_queue_;
  Layout layout_;
  WorkspaceView view_;
  bool on_cpu_;
  bool yielding_;
  uint32_t world_;
  uint32_t capacity_packets_[2];
  Thresholds thresholds_[3];
  Kernel kernels_[kSyclKernels][3];
};

}  // namespace lamport
