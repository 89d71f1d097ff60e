#pragma once
#include "csrc/host/engine.hpp"
#include "csrc/host/fused_checks.hpp"
#include "csrc/host/shm/host_collectives.hpp"

namespace lamport {

/// The host's collectives with their checks.
class HostEngine : public Engine {
 public:
  HostEngine(HostCollectives& collectives, uint64_t max_bytes);

  bool all_reduce(const StridedView& x, const StridedView& out, Library library) override;
  bool add_all_reduce(const StridedView& routed, const StridedView& shared, const StridedView& out,
                      Library library) override;
  void qk_rms_norm(const StridedView& qkv, const StridedView& q_weight, const StridedView& k_weight,
                   int64_t q_size, int64_t kv_size, double eps, const StridedView& q,
                   const StridedView& k) override;
  void add_all_reduce_rms_norm(const StridedView& routed, const StridedView* shared,
                               const StridedView& residual, const StridedView& weight, double eps, bool gemma,
                               const StridedView& normed, const StridedView& new_residual) override;

  void rs_sconv_ag_norm(const SconvTensors& tensors, int64_t channel_offset, double eps) override;

  void check_usable() const {
    if (unusable != nullptr) throw Error("ClosedError", unusable);
  }

  const char* unusable = nullptr;  ///< why no further call may be made
  static constexpr const char* kAbandoned =
      "an earlier collective was abandoned half-way; close this communicator and create a new one";

 private:
  template <class Call>
  auto run(const char* op, uint64_t bytes, Call call);

  HostCollectives& collectives_;
  const Limits limits_;
};

}  // namespace lamport
