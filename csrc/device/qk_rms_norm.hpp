/// RMS normalisation of queries and keys whose rows are spread over the ranks: every rank sums its squares,
/// the ranks exchange the two sums of a token, and everyone scales its own part. 8 bytes a token and rank
/// travel.
///
///   S = sum of x^2 over the row of all ranks;  out = x * (1 / sqrt(S / full + eps)) * weight, rounded once
///
/// The formula is that of vLLM's MiniMax Q/K norm. A packet carries the sums of as many tokens as fit, (q, k)
/// after (q, k); it belongs to one work-group, which computes them together. No sum looks like kEmpty: a sum
/// of squares is +0, positive or NaN, and kEmpty is -0.
///
/// The protocol is that of the one-shot all-reduce: item 0 of the owning group publishes and collects a
/// packet, and the group owns the same packet index in every chunk. Items of a group wait for each other in
/// group_sum and group_share; each arrives there after bounded work, and all leave together when a wait ran out.
#pragma once
#include "fused_args.hpp"
#include "lamport.hpp"
#include "row_math.hpp"

namespace lamport {

/// A GPU's item mostly has one packet of a token's queries or keys, and memory is far: the first packets of a block
/// are kept between its sum and its scaling, and those of the weights are fetched at the start (Target::kKeepsFirst).
template <class Target, class T>
class QkBlocks {
 public:
  /// That share a packet, and so a work-group. On a GPU another group costs nothing, and a longer one time.
  static constexpr int kTokens = Target::kKeepsFirst ? 1 : Target::kPacketWords / 2;
  static constexpr int kSums = 2 * kTokens;
  /// What item 0 tells the others: a scale for each sum, and whether a rank did not come.
  static constexpr int kShared = kSums + 1;
  using Packet = typename Target::Packet;
  using Half = typename Target::Half;
  using Real = lamport::Real<Target, T>;
  static_assert(sizeof(Packet) >= kSums * sizeof(float), "two sums a token fit a packet");

  LAMPORT_FN QkBlocks(Target& target, const QkNormArgs& args) : target_(target), args_(args) {
    if constexpr (Target::kKeepsFirst) {
      q_weight_ = target_.load_tensor(args_.q_weight, target_.item(), args_.q_bytes);
      k_weight_ = target_.load_tensor(args_.k_weight, target_.item(), args_.k_bytes);
    }
  }

  LAMPORT_FN uint32_t count() const { return (args_.tokens + kTokens - 1) / kTokens; }

  /// This rank's sums of the tokens of `block`, on every item of the group; 0 for tokens past the end. Keeps the
  /// block's first packets.
  LAMPORT_FN void sum(uint64_t block, float (&rounded_sums)[kSums]) {
    if constexpr (Target::kKeepsFirst) {  // all of them before the first is needed
      LAMPORT_UNROLL
      for (int t = 0; t < kTokens; ++t) {
        if (!real(block, t)) continue;
        first_[2 * t] = target_.load_tensor(queries(block, t), target_.item(), args_.q_bytes);
        first_[2 * t + 1] = target_.load_tensor(keys(block, t), target_.item(), args_.k_bytes);
      }
    }
    Real sums[kSums];
    LAMPORT_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      const bool there = real(block, t);
      sums[2 * t] = there ? squares(queries(block, t), args_.q_bytes, first(2 * t)) : 0;
      sums[2 * t + 1] = there ? squares(keys(block, t), args_.k_bytes, first(2 * t + 1)) : 0;
    }
    target_.group_sum(sums);
    for (int i = 0; i < kSums; ++i) rounded_sums[i] = static_cast<float>(sums[i]);
  }

  /// Of a block's sums over all ranks.
  LAMPORT_FN void scales(const Real (&sums)[kSums], Real (&scales)[kShared]) const {
    LAMPORT_UNROLL
    for (int i = 0; i < kSums; ++i) {
      scales[i] = rms_scale(target_, sums[i], i % 2 == 0 ? args_.q_full : args_.k_full, args_.eps);
    }
  }

  /// The block that was summed last.
  LAMPORT_FN void scale(uint64_t block, const Real (&scales)[kShared]) const {
    LAMPORT_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      if (!real(block, t)) break;
      const uint64_t token = block * kTokens + t;
      scale_row(queries(block, t), args_.q_bytes, args_.q_weight,
                static_cast<char*>(args_.q) + token * args_.q_stride, scales[2 * t], first(2 * t), q_weight_);
      scale_row(keys(block, t), args_.k_bytes, args_.k_weight,
                static_cast<char*>(args_.k) + token * args_.k_stride, scales[2 * t + 1], first(2 * t + 1),
                k_weight_);
    }
  }

 private:
  LAMPORT_FN bool real(uint64_t block, int t) const { return block * kTokens + t < args_.tokens; }
  LAMPORT_FN const char* queries(uint64_t block, int t) const {
    return static_cast<const char*>(args_.qkv) + (block * kTokens + t) * args_.qkv_stride;
  }
  LAMPORT_FN const char* keys(uint64_t block, int t) const { return queries(block, t) + args_.q_bytes; }

  /// Packet p of a row: `first` if that was kept.
  LAMPORT_FN Packet load(const void* row, uint32_t p, uint32_t bytes, const Packet& first) const {
    return Target::kKeepsFirst && p == target_.item() ? first : target_.load_tensor(row, p, bytes);
  }

  /// This item's share of a row's sum of squares.
  LAMPORT_FN Real squares(const char* row, uint32_t bytes, const Packet& first) const {
    TargetSquares<Target, T> sum{};
    const uint32_t packets = packets_of<Target>(bytes);
    LAMPORT_ROLLED
    for (uint32_t p = target_.item(); p < packets; p += target_.items()) {
      add_squares(sum, widen<T, Half>(load(row, p, bytes, first)));
    }
    return total(sum);
  }

  LAMPORT_FN void scale_row(const char* row, uint32_t bytes, const void* weights, char* out, Real scale,
                            const Packet& first, const Packet& first_weight) const {
    const uint32_t packets = packets_of<Target>(bytes);
    LAMPORT_ROLLED
    for (uint32_t p = target_.item(); p < packets; p += target_.items()) {
      const auto x = widen<T, Half>(load(row, p, bytes, first));
      const auto w = widen<T, Half>(load(weights, p, bytes, first_weight));
      target_.store_tensor(out, p, bytes, rounded<T, Half>(scaled(x, scale, w, false)));
    }
  }

  Target& target_;
  const QkNormArgs& args_;
  /// Of token t the queries' (2t) and the keys' (2t + 1).
  static constexpr int kKept = Target::kKeepsFirst ? kSums : 1;
  LAMPORT_FN const Packet& first(int i) const { return first_[Target::kKeepsFirst ? i : 0]; }
  Packet first_[kKept] = {};
  Packet q_weight_{}, k_weight_{};
};

template <class Packet, int N>
LAMPORT_FN Packet to_packet(const float (&values)[N]) {
  Packet packet{};
  __builtin_memcpy(&packet, values, sizeof values);
  return packet;
}

/// Blocks [base, base + length) of tokens, through the slots of `generation`.
template <class Target, class T, int W>
LAMPORT_FN bool qk_rms_norm_chunk(Target& target, Lamport<Target, W>& lamport, QkBlocks<Target, T>& blocks,
                                  uint32_t slot_packets, uint32_t generation, uint64_t base,
                                  uint32_t length) {
  using Packet = typename Target::Packet;
  constexpr int kSums = QkBlocks<Target, T>::kSums;
  const uint32_t stride = slot_packets * Target::kPacketWords;
  const uint32_t first = target.group(), step = target.groups();
  float sums[kSums];
  uint32_t end = first;  // of this group's blocks
  LAMPORT_ROLLED
  for (; end < length; end += step) {
    blocks.sum(base + end, sums);
    if (target.item() == 0) {
      lamport.publish(generation + lamport.rank() * stride + end * Target::kPacketWords,
                      to_packet<Packet>(sums));
    }
  }
  if (base == 0) lamport.sign();
  lamport.watch(generation, stride, length - 1);
  LAMPORT_ROLLED
  for (uint32_t b = end; b != first;) {  // from the end: the last block's sums are still at hand
    b -= step;
    if (b + step != end) blocks.sum(base + b, sums);
    Real<Target, T> shared[QkBlocks<Target, T>::kShared] = {};
    if (target.item() == 0) {
      Packet all[W];
      const bool came =
          lamport.collect(generation + b * Target::kPacketWords, stride, to_packet<Packet>(sums), all);
      if (came) {
        Real<Target, T> totals[kSums] = {};
        for (int s = 0; s < W; ++s) {
          float theirs[kSums];
          __builtin_memcpy(theirs, &all[s], sizeof theirs);
          for (int j = 0; j < kSums; ++j) totals[j] += theirs[j];  // from +0, which changes no sum of squares
        }
        blocks.scales(totals, shared);
      }
      shared[kSums] = came ? 0 : 1;
    }
    target.group_share(shared);
    if (shared[kSums] != 0) return false;
    blocks.scale(base + b, shared);
  }
  return true;
}

template <class Target, class T, int W>
LAMPORT_FN void qk_rms_norm(Target& target, const WorkspaceView& ws, const QkNormArgs& args) {
  QkBlocks<Target, T> blocks(target, args);
  if constexpr (W == 1) {
    for (uint32_t b = target.group(); b < blocks.count(); b += target.groups()) {
      float sums[QkBlocks<Target, T>::kSums];
      Real<Target, T> totals[QkBlocks<Target, T>::kSums], scales[QkBlocks<Target, T>::kShared];
      blocks.sum(b, sums);
      for (int i = 0; i < QkBlocks<Target, T>::kSums; ++i) totals[i] = sums[i];
      blocks.scales(totals, scales);
      blocks.scale(b, scales);
    }
  } else {
    Lamport<Target, W> lamport(target, ws);
    const auto [chunks, length] = cut(blocks.count(), args.slot_packets);
    LAMPORT_ROLLED
    for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
      if (chunk > 0) lamport.next_chunk();
      if (!qk_rms_norm_chunk<Target, T, W>(target, lamport, blocks, args.slot_packets,
                                           lamport.generation(chunk), uint64_t{chunk} * length, length))
        break;
    }
    lamport.leave(chunks, lamport.rank() * args.slot_packets * Target::kPacketWords);
  }
}

}  // namespace lamport
