/// Collectives as kernel launches on a sycl::queue.
#pragma once
#include <cstdint>
#include <optional>
#include <sycl/sycl.hpp>
#include <vector>

#include "csrc/host/layout.hpp"
#include "csrc/host/sycl/kernel_cache.hpp"
#include "csrc/sycl/kernel_args.hpp"

namespace lamport {

/// A workspace that is open to all peers: base address of every rank's exchange memory, as this process sees
/// it.
struct ExchangeMemory {
  std::vector<uintptr_t> bases;  ///< by rank, this one's own among them
  uintptr_t status;              ///< host-visible Status
  uint32_t rank;
  Layout layout;
};

/// Up to which size, in bytes, an algorithm is used; above two_shot_max the caller's library takes over.
struct SyclThresholds {
  uint64_t one_shot_max;
  uint64_t two_shot_max;
};

/// Picks the algorithm and the grid and launches; never blocks, and allocates nothing of its own per call.
class SyclCollectives {
 public:
  /// Builds the kernels now, for the context of `queue`. `timeout_seconds` bounds a wait. `yielding` kernels
  /// need the CPU device, see KernelKey; without a word they are used wherever they can.
  SyclCollectives(const sycl::queue& queue, const ExchangeMemory& memory,
                  const SyclThresholds (&thresholds)[3], double timeout_seconds,
                  std::optional<bool> yielding = std::nullopt);

  /// False: too large for our algorithms, nothing was launched. `queue` must be in-order and of the context
  /// given at construction. Once a wait has expired, `expired` says so and further calls are futile.
  bool all_reduce(sycl::queue& queue, const void* in, void* out, uint64_t bytes, Format format);

  /// Reads the status word: which rank a poll gave up on, if any has.
  struct Expired {
    uint32_t peer;
    uint32_t epoch;
  };
  std::optional<Expired> expired() const;

  const sycl::queue& queue() const { return queue_; }
  bool on_cpu() const { return on_cpu_; }

 private:
  struct Launch {
    const sycl::kernel* kernel;
    uint32_t max_groups;  ///< that the device can hold at once (P5)
    uint32_t capacity_packets;
  };

  void prepare(Collective collective, Format format);
  Launch& launch_of(Collective collective, Format format) {
    return launches_[static_cast<int>(collective)][static_cast<int>(format)];
  }

  sycl::queue queue_;
  sycl::context context_;
  bool on_cpu_;
  bool yielding_;
  uint32_t world_;
  uint32_t local_size_;
  uint32_t slot_packets_[kCollectives];
  SyclThresholds thresholds_[3];
  Launch launches_[kCollectives][3];
  SyclKernelArgs args_;
};

}  // namespace lamport
