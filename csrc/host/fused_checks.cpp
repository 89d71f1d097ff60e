#include "csrc/host/fused_checks.hpp"

#include "csrc/host/check_helpers.hpp"

namespace lamport {
namespace {

using namespace checks;

StridedView columns(const StridedView& matrix, int64_t first, int64_t count) {
  StridedView part = matrix;
  part.data += first * static_cast<int64_t>(matrix.item_bytes());
  part.sizes[1] = count;
  return part;
}

}  // namespace

AllReduceArgs check_all_reduce(const Limits& limits, const StridedView& x, const StridedView& out) {
  const Named in{x, "x"}, o{out, "out"};
  check_device(limits, {in, o});
  check_type(in, {o});
  check_contiguous({in, o});
  if (x.count() != out.count()) refuse("x and out must have the same number of elements");
  check_bytes(limits, in);
  check_alias(o, {in}, {});
  return {x.data, out.data, static_cast<uint64_t>(x.count()) * x.item_bytes(), 0};
}

AddAllReduceArgs check_add_all_reduce(const Limits& limits, const StridedView& routed,
                                      const StridedView& shared, const StridedView& out) {
  const Named r{routed, "routed"}, s{shared, "shared"}, o{out, "out"};
  check_device(limits, {r, s, o});
  check_type(r, {s, o});
  check_same_shape(r, {s, o});
  check_contiguous({r, s, o});
  check_bytes(limits, r);
  check_alias(o, {r, s}, {});
  AddAllReduceArgs args{};
  args.in = routed.data;
  args.shared = shared.data;
  args.out = out.data;
  args.bytes = static_cast<uint64_t>(routed.count()) * routed.item_bytes();
  return args;
}

QkNormArgs check_qk_rms_norm(const Limits& limits, const StridedView& qkv, const StridedView& q_weight,
                             const StridedView& k_weight, int64_t q_size, int64_t kv_size, double eps,
                             const StridedView& q, const StridedView& k) {
  const Named in{qkv, "qkv"}, qw{q_weight, "q_weight"}, kw{k_weight, "k_weight"}, qo{q, "q"}, ko{k, "k"};
  check_device(limits, {in, qw, kw, qo, ko});
  check_type(in, {qw, kw, qo, ko});
  if (q_size < 1 || kv_size < 1) refuse("q_size and kv_size must be positive");
  check_rows(in);
  const int64_t tokens = qkv.sizes[0];
  if (qkv.sizes[1] != q_size + 2 * kv_size) {
    refuse("qkv has " + std::to_string(qkv.sizes[1]) + " columns and q_size + 2 * kv_size is " +
           std::to_string(q_size + 2 * kv_size));
  }
  if (tokens > kMaxQkTokens) {
    throw Error("TooLargeError", "qkv has " + std::to_string(tokens) +
                                     " tokens and qk_rms_norm takes up to " + std::to_string(kMaxQkTokens) +
                                     "; split the call, or reduce the sums with "
                                     "all_reduce");
  }
  check_bytes(limits, in);
  check_vector(qw, q_size);
  check_vector(kw, kv_size);
  check_contiguous({qw, kw});
  check_rows(qo);
  check_rows(ko);
  const StridedView queries = columns(qkv, 0, q_size), keys = columns(qkv, q_size, kv_size);
  check_same_shape({queries, "the queries"}, {qo});
  check_same_shape({keys, "the keys"}, {ko});
  // In place, the extents of the three parts of qkv interleave: exactly its own part, or nothing of qkv.
  if (!same_memory(q, queries)) check_alias(qo, {}, {in});
  if (!same_memory(k, keys)) check_alias(ko, {}, {in});
  check_alias(qo, {}, {qw, kw});
  check_alias(ko, {}, {qw, kw});
  if (!(same_memory(q, queries) && same_memory(k, keys))) check_alias(qo, {}, {ko});
  const uint64_t item = qkv.item_bytes();
  QkNormArgs args{};
  args.qkv = qkv.data;
  args.q_weight = q_weight.data;
  args.k_weight = k_weight.data;
  args.q = q.data;
  args.k = k.data;
  args.qkv_stride = static_cast<uint64_t>(qkv.strides[0]) * item;
  args.q_stride = static_cast<uint64_t>(q.strides[0]) * item;
  args.k_stride = static_cast<uint64_t>(k.strides[0]) * item;
  args.q_bytes = static_cast<uint32_t>(q_size * static_cast<int64_t>(item));
  args.k_bytes = static_cast<uint32_t>(kv_size * static_cast<int64_t>(item));
  args.tokens = static_cast<uint32_t>(tokens);
  args.q_full = static_cast<float>(q_size * limits.world);
  args.k_full = static_cast<float>(kv_size * limits.world);
  args.eps = check_eps(eps);
  args.slot_packets = static_cast<uint32_t>(limits.slot_bytes / limits.packet_bytes);
  return args;
}

AddNormArgs check_add_all_reduce_rms_norm(const Limits& limits, const StridedView& routed,
                                          const StridedView* shared, const StridedView& residual,
                                          const StridedView& weight, double eps, bool gemma,
                                          const StridedView& normed, const StridedView& new_residual) {
  const Named r{routed, "routed"},
      s{shared != nullptr ? *shared : routed, shared != nullptr ? "shared" : "routed"},
      x{residual, "residual"}, w{weight, "weight"}, n{normed, "normed"}, o{new_residual, "new_residual"};
  check_device(limits, {r, s, x, w, n, o});
  check_type(r, {s, x, w, n, o});
  if (routed.ndim < 1) refuse("routed has no dimensions and must have the hidden size as its last");
  check_same_shape(r, {s, x, n, o});
  check_contiguous({r, s, x, w, n, o});
  const int64_t hidden = routed.sizes[routed.ndim - 1];
  check_vector(w, hidden);
  check_bytes(limits, r);
  check_alias(n, {r}, {x, w});
  if (shared != nullptr) check_alias(n, {}, {s});
  check_alias(o, {x}, {r, s, w, n});
  const uint64_t row_bytes = static_cast<uint64_t>(hidden) * routed.item_bytes();
  if (row_bytes > limits.slot_bytes) {
    throw Error("TooLargeError", "a row of routed has " + std::to_string(row_bytes) + " bytes and a slot " +
                                     std::to_string(limits.slot_bytes) +
                                     "; use all_reduce and a separate norm");
  }
  AddNormArgs args{};
  args.in = routed.data;
  args.shared = shared != nullptr ? shared->data : nullptr;
  args.residual = residual.data;
  args.weight = weight.data;
  args.normed = normed.data;
  args.new_residual = new_residual.data;
  args.row_bytes = static_cast<uint32_t>(row_bytes);
  args.tokens = hidden == 0 ? 0 : static_cast<uint32_t>(routed.count() / hidden);
  args.full = static_cast<float>(hidden);
  args.eps = check_eps(eps);
  args.gemma = gemma;
  args.slot_packets = static_cast<uint32_t>(limits.slot_bytes / limits.packet_bytes);
  return args;
}

}  // namespace lamport
