/// From tensors to the arguments of a fused kernel, on any device. Everything that can be wrong with a call
/// is found here, before anything is published: a rank that refuses leaves its peers waiting for a time-out
/// that names it, and its communicator usable.
#pragma once
#include "csrc/device/fused_args.hpp"
#include "csrc/host/engine.hpp"
#include "csrc/host/strided_view.hpp"

namespace lamport {

/// What the checks need to know of the communicator.
struct Limits {
  static constexpr int32_t kCpu = 1, kCuda = 2, kOneApi = 14;  ///< DLPack's device types
  static constexpr int32_t kAnyId = -1;

  int32_t device_type;
  int32_t device_id;  ///< or kAnyId: there is one CPU, whose number libraries disagree on
  uint32_t world;
  uint64_t max_bytes;
  uint64_t slot_bytes;    ///< one-shot: capacity of a source rank's slot
  uint64_t slice_bytes;   ///< two-shot: capacity of a rank's slice
  uint32_t packet_bytes;  ///< the target's
};

/// All checks throw Error: UnsupportedDtypeError, NonContiguousError, WrongDeviceError, TooLargeError, or
/// TensorError for shapes, dtypes that differ, eps and overlapping memory.
AllReduceArgs check_all_reduce(const Limits& limits, const StridedView& x, const StridedView& out);

AddAllReduceArgs check_add_all_reduce(const Limits& limits, const StridedView& routed,
                                      const StridedView& shared, const StridedView& out);

/// Tokens that qk_rms_norm takes in one call; more than a decode step has.
inline constexpr int64_t kMaxQkTokens = 2048;

QkNormArgs check_qk_rms_norm(const Limits& limits, const StridedView& qkv, const StridedView& q_weight,
                             const StridedView& k_weight, int64_t q_size, int64_t kv_size, double eps,
                             const StridedView& q, const StridedView& k);

AddNormArgs check_add_all_reduce_rms_norm(const Limits& limits, const StridedView& routed,
                                          const StridedView* shared, const StridedView& residual,
                                          const StridedView& weight, double eps, bool gemma,
                                          const StridedView& normed, const StridedView& new_residual);

/// For all tokens; see sconv_part.
SconvArgs check_rs_sconv_ag_norm(const Limits& limits, const SconvTensors& tensors, int64_t channel_offset,
                                 double eps);

/// The rows from `first` on, as many as a kernel takes in one call.
SconvArgs sconv_part(const SconvArgs& all, uint32_t first, uint32_t packet_bytes);

/// What only the host can check, in memory it can read: that positions, slots, sequences and blocks exist, and that
/// the positions of a sequence ascend.
void check_sconv_indices(const SconvTensors& tensors);

}  // namespace lamport
