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
/// group_sum; each arrives there after bounded work, and all leave together when a wait ran out.
#pragma once
#include "lamport.hpp"
#include "row_math.hpp"

namespace lamport {

template <class Target, class T>
class QkBlocks {
 public:
  static constexpr int kTokens = Target::kPacketWords / 2;
  static constexpr int kSums = 2 * kTokens;
  using Packet = typename Target::Packet;
  using Real = lamport::Real<Target, T>;
  static_assert(sizeof(Packet) == kSums * sizeof(float), "two sums a token fill a packet");

  LAMPORT_FN QkBlocks(Target& target, const QkNormArgs& args) : target_(target), args_(args) {}

  LAMPORT_FN uint32_t count() const { return (args_.tokens + kTokens - 1) / kTokens; }

  /// This rank's sums of the tokens of `block`, on every item of the group; 0 for tokens past the end.
  LAMPORT_FN void sum(uint64_t block, float (&rounded_sums)[kSums]) const {
    Real sums[kSums];
    for (int t = 0; t < kTokens; ++t) {
      const uint64_t token = block * kTokens + t;
      const bool real = token < args_.tokens;
      sums[2 * t] = real ? sum_of_squares<T>(target_, queries(token), args_.q_bytes) : 0;
      sums[2 * t + 1] = real ? sum_of_squares<T>(target_, queries(token) + args_.q_bytes, args_.k_bytes) : 0;
    }
    target_.group_sum(sums);
    for (int i = 0; i < kSums; ++i) rounded_sums[i] = static_cast<float>(sums[i]);
  }

  /// `sums`: of all ranks.
  LAMPORT_FN void scale(uint64_t block, const Real (&sums)[kSums]) const {
    for (int t = 0; t < kTokens; ++t) {
      const uint64_t token = block * kTokens + t;
      if (token >= args_.tokens) break;
      scale_row(queries(token), args_.q_bytes, args_.q_weight,
                static_cast<char*>(args_.q) + token * args_.q_stride,
                rms_scale(target_, sums[2 * t], args_.q_full, args_.eps));
      scale_row(queries(token) + args_.q_bytes, args_.k_bytes, args_.k_weight,
                static_cast<char*>(args_.k) + token * args_.k_stride,
                rms_scale(target_, sums[2 * t + 1], args_.k_full, args_.eps));
    }
  }

 private:
  LAMPORT_FN const char* queries(uint64_t token) const {
    return static_cast<const char*>(args_.qkv) + token * args_.qkv_stride;
  }

  LAMPORT_FN void scale_row(const char* row, uint32_t bytes, const void* weight, char* out,
                            Real scale) const {
    using Half = typename Target::Half;
    const uint32_t packets = packets_of<Target>(bytes);
    for (uint32_t p = target_.item(); p < packets; p += target_.items()) {
      const auto x = widen<T, Half>(target_.load_tensor(row, p, bytes));
      const auto w = widen<T, Half>(target_.load_tensor(weight, p, bytes));
      target_.store_tensor(out, p, bytes, rounded<T, Half>(scaled(x, scale, w, false)));
    }
  }

  Target& target_;
  const QkNormArgs& args_;
};

template <class Packet, int N>
LAMPORT_FN Packet to_packet(const float (&values)[N]) {
  Packet packet;
  __builtin_memcpy(&packet, values, sizeof packet);
  return packet;
}

/// Blocks [base, base + length) of tokens, through the slots of `generation`.
template <class Target, class T, int W>
LAMPORT_FN bool qk_rms_norm_chunk(Target& target, Lamport<Target, W>& lamport,
                                  const QkBlocks<Target, T>& blocks, uint32_t slot_packets,
                                  uint32_t generation, uint64_t base, uint32_t length) {
  using Packet = typename Target::Packet;
  constexpr int kSums = QkBlocks<Target, T>::kSums;
  const uint32_t stride = slot_packets * Target::kPacketWords;
  const uint32_t first = target.group(), step = target.groups();
  const uint32_t count = first < length ? (length - first + step - 1) / step : 0;
  float sums[kSums];
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t b = first + i * step;
    blocks.sum(base + b, sums);
    if (target.item() == 0) {
      lamport.publish(generation + lamport.rank() * stride + b * Target::kPacketWords,
                      to_packet<Packet>(sums));
    }
  }
  if (base == 0) lamport.sign();
  lamport.watch(generation, stride, length - 1);
  for (uint32_t i = count; i-- > 0;) {  // from the end: the last block's sums are still at hand
    const uint32_t b = first + i * step;
    if (i + 1 != count) blocks.sum(base + b, sums);
    Real<Target, T> shared[kSums + 1] =
        {};  // item 0 alone knows; as the others hold zeros, group_sum spreads it exactly
    if (target.item() == 0) {
      Packet all[W];
      const bool came =
          lamport.collect(generation + b * Target::kPacketWords, stride, to_packet<Packet>(sums), all);
      if (came) {
        for (int s = 0; s < W; ++s) {
          float theirs[kSums];
          __builtin_memcpy(theirs, &all[s], sizeof theirs);
          for (int j = 0; j < kSums; ++j) shared[j] += theirs[j];  // from +0, which changes no sum of squares
        }
      }
      shared[kSums] = came ? 0 : 1;
    }
    target.group_sum(shared);
    if (shared[kSums] != 0) return false;
    Real<Target, T> totals[kSums];
    for (int j = 0; j < kSums; ++j) totals[j] = shared[j];
    blocks.scale(base + b, totals);
  }
  return true;
}

template <class Target, class T, int W>
LAMPORT_FN void qk_rms_norm(Target& target, const WorkspaceView& ws, const QkNormArgs& args) {
  const QkBlocks<Target, T> blocks(target, args);
  if constexpr (W == 1) {
    for (uint32_t b = target.group(); b < blocks.count(); b += target.groups()) {
      float sums[QkBlocks<Target, T>::kSums];
      Real<Target, T> totals[QkBlocks<Target, T>::kSums];
      blocks.sum(b, sums);
      for (int i = 0; i < QkBlocks<Target, T>::kSums; ++i) totals[i] = sums[i];
      blocks.scale(b, totals);
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
