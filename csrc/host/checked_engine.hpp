#pragma once
#include "csrc/host/engine.hpp"
#include "csrc/host/fused_checks.hpp"
#include "csrc/host/thresholds.hpp"

namespace lamport {

/// A device's collectives with their checks. `Collectives` takes checked arguments, has members of the same names, and
/// throws Timeout where it learns that a peer did not come.
template <class Collectives>
class CheckedEngine : public Engine {
 public:
  CheckedEngine(Collectives& collectives, const Limits& limits)
      : collectives_(collectives), limits_(limits) {}

  bool all_reduce(const StridedView& x, const StridedView& out, Library library) override {
    check_usable();
    const AllReduceArgs args = check_all_reduce(limits_, x, out);
    return run("all_reduce", sent_bytes(args),
               [&] { return collectives_.all_reduce(args, x.format(), library); });
  }

  bool add_all_reduce(const StridedView& routed, const StridedView& shared, const StridedView& out,
                      Library library) override {
    check_usable();
    const AddAllReduceArgs args = check_add_all_reduce(limits_, routed, shared, out);
    return run("add_all_reduce", sent_bytes(args),
               [&] { return collectives_.add_all_reduce(args, routed.format(), library); });
  }

  void qk_rms_norm(const StridedView& qkv, const StridedView& q_weight, const StridedView& k_weight,
                   int64_t q_size, int64_t kv_size, double eps, const StridedView& q,
                   const StridedView& k) override {
    check_usable();
    const QkNormArgs args = check_qk_rms_norm(limits_, qkv, q_weight, k_weight, q_size, kv_size, eps, q, k);
    run("qk_rms_norm", sent_bytes(args), [&] { collectives_.qk_rms_norm(args, qkv.format()); });
  }

  void add_all_reduce_rms_norm(const StridedView& routed, const StridedView* shared,
                               const StridedView& residual, const StridedView& weight, double eps, bool gemma,
                               const StridedView& normed, const StridedView& new_residual) override {
    check_usable();
    const AddNormArgs args = check_add_all_reduce_rms_norm(limits_, routed, shared, residual, weight, eps,
                                                           gemma, normed, new_residual);
    run("add_all_reduce_rms_norm", sent_bytes(args),
        [&] { collectives_.add_all_reduce_rms_norm(args, routed.format()); });
  }

  void rs_sconv_ag_norm(const SconvTensors& tensors, int64_t channel_offset, double eps) override {
    check_usable();
    const SconvArgs args = check_rs_sconv_ag_norm(limits_, tensors, channel_offset, eps);
    if (limits_.device_type == Limits::kCpu) check_sconv_indices(tensors);
    run("rs_sconv_ag_norm", sent_bytes(args), [&] {
      for (uint32_t first = 0; first < args.tokens;) {
        const SconvArgs part = sconv_part(args, first, limits_.packet_bytes);
        collectives_.rs_sconv_ag_norm(part, tensors.routed.format());
        first += part.tokens;
      }
    });
  }

  /// Runs `call`, of which a time-out report knows `op` and `bytes`. A wait that runs out leaves half-finished traffic
  /// behind, after which nothing can be trusted.
  template <class Call>
  auto run(const char* op, uint64_t bytes, Call call) {
    try {
      return call();
    } catch (const Timeout& timeout) {
      unusable = "an earlier collective was abandoned half-way; close this communicator and create a new one";
      throw CollectiveTimeout(timeout.op != nullptr ? timeout.op : op, timeout.peer, timeout.epoch,
                              timeout.op != nullptr ? timeout.bytes : bytes, timeout.detail);
    }
  }

  void check_usable() const {
    if (unusable != nullptr) throw Error("ClosedError", unusable);
  }

  const char* unusable = nullptr;  ///< why no further call may be made

 private:
  Collectives& collectives_;
  const Limits limits_;
};

}  // namespace lamport
