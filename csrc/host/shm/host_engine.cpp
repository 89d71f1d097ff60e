#include "csrc/host/shm/host_engine.hpp"

namespace lamport {
namespace {

constexpr int32_t kCpu = 1;
constexpr uint32_t kPacketBytes = 64;

}  // namespace

HostEngine::HostEngine(HostCollectives& collectives, uint64_t max_bytes)
    : collectives_(collectives),
      limits_{kCpu,
              collectives.layout().world,
              max_bytes,
              collectives.layout().slot_bytes,
              collectives.layout().slice_bytes,
              kPacketBytes} {}

/// A wait that runs out leaves half-finished traffic behind, after which nothing can be trusted.
template <class Call>
auto HostEngine::run(const char* op, uint64_t bytes, Call call) {
  try {
    return call();
  } catch (const Timeout& timeout) {
    unusable = kAbandoned;
    throw CollectiveTimeout(op, timeout.peer, timeout.epoch, bytes);
  }
}

bool HostEngine::all_reduce(const StridedView& x, const StridedView& out, Library library) {
  check_usable();
  const AllReduceArgs args = check_all_reduce(limits_, x, out);
  return run("all_reduce", args.bytes,
             [&] { return collectives_.all_reduce(args.in, args.out, args.bytes, x.format(), library); });
}

bool HostEngine::add_all_reduce(const StridedView& routed, const StridedView& shared, const StridedView& out,
                                Library library) {
  check_usable();
  const AddAllReduceArgs args = check_add_all_reduce(limits_, routed, shared, out);
  return run("add_all_reduce", args.bytes,
             [&] { return collectives_.add_all_reduce(args, routed.format(), library); });
}

void HostEngine::qk_rms_norm(const StridedView& qkv, const StridedView& q_weight, const StridedView& k_weight,
                             int64_t q_size, int64_t kv_size, double eps, const StridedView& q,
                             const StridedView& k) {
  check_usable();
  const QkNormArgs args = check_qk_rms_norm(limits_, qkv, q_weight, k_weight, q_size, kv_size, eps, q, k);
  run("qk_rms_norm", uint64_t{args.tokens} * 8, [&] { collectives_.qk_rms_norm(args, qkv.format()); });
}

void HostEngine::add_all_reduce_rms_norm(const StridedView& routed, const StridedView* shared,
                                         const StridedView& residual, const StridedView& weight, double eps,
                                         bool gemma, const StridedView& normed,
                                         const StridedView& new_residual) {
  check_usable();
  const AddNormArgs args = check_add_all_reduce_rms_norm(limits_, routed, shared, residual, weight, eps,
                                                         gemma, normed, new_residual);
  run("add_all_reduce_rms_norm", uint64_t{args.tokens} * args.row_bytes,
      [&] { collectives_.add_all_reduce_rms_norm(args, routed.format()); });
}

void HostEngine::rs_sconv_ag_norm(const SconvTensors& tensors, int64_t channel_offset, double eps) {
  check_usable();
  const SconvArgs args = check_rs_sconv_ag_norm(limits_, tensors, channel_offset, eps);
  check_sconv_indices(tensors);
  run("rs_sconv_ag_norm", uint64_t{args.tokens} * args.row_bytes,
      [&] { collectives_.rs_sconv_ag_norm(args, tensors.routed.format()); });
}

}  // namespace lamport
