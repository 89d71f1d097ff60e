#pragma once
#include <cstdint>
#include <string>

#include "csrc/host/errors.hpp"
#include "csrc/host/strided_view.hpp"

namespace lamport {

/// A peer did not come; the communicator can only be closed.
struct CollectiveTimeout : Error {
  CollectiveTimeout(const char* op, uint32_t peer, uint32_t epoch, uint64_t bytes, const std::string& detail)
      : Error("CollectiveTimeout", std::string(op) + " of " + std::to_string(bytes) + " bytes (epoch " +
                                       std::to_string(epoch) + ") gave up waiting for rank " +
                                       std::to_string(peer) + detail),
        op(op),
        peer(peer),
        epoch(epoch),
        bytes(bytes),
        detail(detail) {}
  const char* op;
  uint32_t peer;
  uint32_t epoch;
  uint64_t bytes;
  std::string detail;
};

/// Whether sizes that belong to the library the communicator was created from are left to it.
enum class Library { large_sizes, never };

/// The tensors of rs_sconv_ag_norm; comm/fused.py says what each is. Those behind pointers may be null.
struct SconvTensors {
  const StridedView* shared;
  const StridedView* norm_weight;
  const StridedView* normed;
  StridedView routed, residual, conv_weight, cache, positions, slots, block_table, sequences, new_residual;
};

/// A communicator's collectives as any caller from C++ sees them, whatever the device. Knows nothing of
/// Python.
///
/// Every call checks its tensors before anything is sent and throws Error; see fused_checks.hpp. Where a bool
/// is returned, false means that the size belongs to the library the communicator was created from, and that
/// nothing was done. comm/communicator.py documents what each collective computes.
class Engine {
 public:
  virtual ~Engine() = default;
  virtual bool all_reduce(const StridedView& x, const StridedView& out, Library library) = 0;
  virtual bool add_all_reduce(const StridedView& routed, const StridedView& shared, const StridedView& out,
                              Library library) = 0;
  virtual void qk_rms_norm(const StridedView& qkv, const StridedView& q_weight, const StridedView& k_weight,
                           int64_t q_size, int64_t kv_size, double eps, const StridedView& q,
                           const StridedView& k) = 0;
  /// `shared` may be null.
  virtual void add_all_reduce_rms_norm(const StridedView& routed, const StridedView* shared,
                                       const StridedView& residual, const StridedView& weight, double eps,
                                       bool gemma, const StridedView& normed,
                                       const StridedView& new_residual) = 0;
  /// `channel_offset`: in elements, from a token's place in the cache to its first channel.
  virtual void rs_sconv_ag_norm(const SconvTensors& tensors, int64_t channel_offset, double eps) = 0;
};

}  // namespace lamport
