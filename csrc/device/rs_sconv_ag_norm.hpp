/// Reduce-scatter, short causal convolution, all-gather, residual addition and RMS normalisation in one kernel: the
/// collective around each half of a layer of Inkling. A rank owns a shard of the channels. For each token:
///
///   r = all_reduce(in + shared), its shard; rounded to T             cache[slot] = r
///   c = sum over the last 4 positions of the sequence, oldest first, of (cached input * weight)         in fp32
///   h = residual + (c + r), each sum rounded to T                    -> to all ranks: new_residual
///   normed = h * (1 / sqrt(sum of h^2 / H + eps)) * weight, rounded once
///
/// Positions before 0 count as zeros. A token whose slot is negative is padding: h = residual, nothing is cached.
/// Semantics and roundings are those of vLLM's Inkling (models/inkling). Tokens of one sequence come in ascending
/// positions: then what a convolution needs is in the cache, from earlier calls or from rows above.
///
/// WHO DOES WHAT. All rows of a sequence belong to one work-group, sequence mod number of groups, and in it a packet
/// p of the shard's columns belongs to one work-item, for the scatter, the cache and the gather's publish alike. So the
/// taps that come from rows above were cached by the work-item that reads them, and a row's sum of squares is one
/// group_sum: no work-group waits for another of its rank. What is gathered, W times as much, is shared out anew among
/// the group's items; a rank publishes its part to itself too, so that every packet is collected alike. A call is one chunk; the host cuts longer ones into
/// several, between which the cache carries the state.
///
/// LIVENESS. Two dependencies, in this order on every rank and in every work-group:
///   scatter  published for all of the group's rows before the group's first poll; waits for nothing
///   poll 1   of a row's scatter packets: waits for scatter publishes of the same call, which wait for nothing
///   gather   published for a row once this work-item has polled the row's scatter packets: waits for poll 1 only
///   poll 2   of a row's gather packets, after a group_sum that follows this group's last gather publish: waits for
///            gather publishes of the same call
/// So poll 1 ends because every scatter publish happens (all work-groups are resident, P5), hence every gather
/// publish happens, hence poll 2 ends. The wait-for graph has the edges poll 2 -> gather -> poll 1 -> scatter and no
/// other between ranks; group_sum adds waits between the items of a group, all of which have passed the same polls
/// or gave up; they arrive in any case and leave together. That grids differ between ranks, and so who handles a
/// row, changes nothing: no edge depends on it.
///
/// REUSE. A call is one chunk n of the count that the epoch keeps, and has the layout of a two-shot: W slots of
/// scatter, then W of gather. Word X of generation n mod 2 is restored in call n by the work-item that polled it.
/// A peer may write X again in chunk n + 2, and then has ended or is in a call that contains chunk n + 1, having
/// collected a packet of it:
///  - n + 1 is another such call. The peer's kernel has ended, so it has polled gather packets of every rank (there
///    is at least one row and each shard has at least one packet), ours among them, which we published in a kernel
///    that began after the one of chunk n, restores included, had ended.
///  - n + 1 begins a call of another collective: its own proof (lamport.hpp) asks no more than that the kernel of
///    chunk n has ended before we publish in n + 1, which holds.
///  - n + 1 ends an earlier call of another collective and n + 2 is ours: its proof covers any chunk that follows it.
/// Which work-item owns X may change from call to call, as with different grids: a kernel's end lies between.
#pragma once
#include <type_traits>

#include "contribution.hpp"
#include "lamport.hpp"
#include "row_math.hpp"

namespace lamport {

inline constexpr int kSconvWindow = 4;

template <class Target, class T>
class SconvRows {
 public:
  using Packet = typename Target::Packet;
  using Half = typename Target::Half;
  using InOrder = Order<WideOf<Target, T>>;
  using Elements = typename InOrder::Elements;

  LAMPORT_FN SconvRows(Target& target, const SconvArgs& args)
      : target_(target), args_(args), packets_(packets_of<Target>(args.shard_bytes)) {}

  /// Of a shard.
  LAMPORT_FN uint32_t packets() const { return packets_; }
  /// Whether this work-group has the row.
  LAMPORT_FN bool mine(uint32_t row) const {
    return target_.groups() == 1 ||
           static_cast<uint32_t>(args_.sequences[row]) % target_.groups() == target_.group();
  }

  /// What this rank adds to packet p of a rank's shard of a row.
  LAMPORT_FN Packet contribution(uint32_t row, uint32_t shard, uint32_t p) const {
    const Packet in = load(args_.in, row, shard, p);
    if (args_.shared == nullptr) return without_empty(in);
    const Pair<Packet> pair{in, load(args_.shared, row, shard, p)};
    return lamport::contribution<Target, T>(pair);
  }

  /// Where a row's token is. In 32 bits, which a GPU divides five times faster; the host has checked that they suffice.
  struct Token {
    int32_t slot;
    int32_t position;
    int32_t sequence;
  };
  LAMPORT_FN Token token(uint32_t row) const {
    return {static_cast<int32_t>(args_.slots[row]), static_cast<int32_t>(args_.positions[row]),
            args_.sequences[row]};
  }

  /// All that packet p of a row needs besides the reduced packet, and that memory can bring while that travels.
  struct Operands {
    Packet past[kSconvWindow - 1];
    Packet weight[kSconvWindow];
    Packet residual;
  };
  LAMPORT_FN Operands operands(const Token& token, uint32_t row, uint32_t shard, uint32_t p) const {
    Operands found{};
    found.residual = load(args_.residual, row, shard, p);
    if (token.slot < 0) return found;
    LAMPORT_UNROLL
    for (int k = 0; k < kSconvWindow; ++k) {
      found.weight[k] = target_.load_tensor(args_.conv_weight, p * kSconvWindow + k,
                                            uint64_t{kSconvWindow} * args_.shard_bytes);
    }
    const int32_t* blocks = args_.block_table + uint64_t(token.sequence) * args_.table_stride;
    LAMPORT_UNROLL
    for (int k = 0; k < kSconvWindow - 1; ++k) {
      if (token.position < kSconvWindow - 1 - k) continue;
      const uint32_t source = static_cast<uint32_t>(token.position) - (kSconvWindow - 1) + k;
      const uint32_t logical = source / args_.block_size, last = args_.max_blocks - 1;
      const int32_t block = blocks[logical < last ? logical : last];
      found.past[k] = move_cached<false>(place(block, source - logical * args_.block_size), p, Packet{});
    }
    return found;
  }

  /// Caches the reduced packet p of this rank's shard, convolves, adds the residual: the new residual, publishable.
  LAMPORT_FN Packet convolve(const Token& token, uint32_t row, uint32_t shard, uint32_t p,
                             const Packet& reduced, const Operands& operands) const {
    Packet skip{};  // of padding: zero
    if (token.slot >= 0) {
      const uint32_t slot = static_cast<uint32_t>(token.slot), block = slot / args_.block_size;
      move_cached<true>(place(block, slot - block * args_.block_size), p, reduced);
      skip = convolution(token.position, reduced, operands);
    }
    auto h = widen<T, Half>(operands.residual);
    add(h, widen<T, Half>(skip));
    return narrow<T, Half>(h);
  }

  LAMPORT_FN Packet load_result(uint32_t row, uint32_t shard, uint32_t p) const {
    return load(args_.new_residual, row, shard, p);
  }
  LAMPORT_FN void store_result(uint32_t row, uint32_t shard, uint32_t p, const Packet& packet) const {
    store(args_.new_residual, row, shard, p, packet);
  }

  /// A rank's packet p of the norm's weight.
  LAMPORT_FN Packet load_weight(uint32_t shard, uint32_t p) const {
    return args_.norm_weight == nullptr ? Packet{} : load(args_.norm_weight, 0, shard, p);
  }
  LAMPORT_FN Real<Target, T> scale(Real<Target, T> sum) const {
    return rms_scale(target_, sum, args_.full, args_.eps);
  }
  LAMPORT_FN void normalise(uint32_t row, uint32_t shard, uint32_t p, const Packet& h, const Packet& weight,
                            Real<Target, T> scale) const {
    const auto x = scaled(widen<T, Half>(h), scale, widen<T, Half>(weight), false);
    store(args_.normed, row, shard, p, rounded<T, Half>(x));
  }

 private:
  static constexpr int kElements = Elements::kCount;
  static constexpr uint32_t kPacketBytes = 4 * Target::kPacketWords;

  LAMPORT_FN Packet load(const void* base, uint32_t row, uint32_t shard, uint32_t p) const {
    const char* from = static_cast<const char*>(base) + uint64_t{row} * args_.row_bytes;
    return target_.load_tensor(from + shard * args_.shard_bytes, p, args_.shard_bytes);
  }
  LAMPORT_FN void store(void* base, uint32_t row, uint32_t shard, uint32_t p, const Packet& packet) const {
    char* to = static_cast<char*>(base) + uint64_t{row} * args_.row_bytes;
    target_.store_tensor(to + shard * args_.shard_bytes, p, args_.shard_bytes, packet);
  }

  /// Where the cache keeps head 0 of a token.
  LAMPORT_FN char* place(int64_t block, int64_t token) const {
    return static_cast<char*>(args_.cache) + block * static_cast<int64_t>(args_.block_stride) +
           token * static_cast<int64_t>(args_.token_stride) + args_.cache_offset;
  }

  /// (c + r) rounded.
  LAMPORT_FN Packet convolution(int32_t position, const Packet& reduced, const Operands& operands) const {
    Elements weight[kSconvWindow];
    LAMPORT_UNROLL
    for (int k = 0; k < kSconvWindow; ++k) {
      weight[k] = InOrder::elements(widen<T, Half>(operands.weight[k]));
    }
    const Elements current = InOrder::elements(widen<T, Half>(reduced));
    Elements sum{};
    LAMPORT_UNROLL
    for (int k = 0; k < kSconvWindow; ++k) {
      if (position - (kSconvWindow - 1) + k < 0) continue;
      Elements value = current;
      if (k < kSconvWindow - 1) value = InOrder::elements(widen<T, Half>(operands.past[k]));
      LAMPORT_UNROLL
      for (int i = 0; i < kElements; ++i) {
        const int tap = i * kSconvWindow + k;
        sum.v[i] += value.v[i] * weight[tap / kElements].v[tap % kElements];
      }
    }
    LAMPORT_UNROLL
    for (int i = 0; i < kElements; ++i) sum.v[i] += current.v[i];
    return rounded<T, Half>(InOrder::packed(sum));
  }

  /// Packet p of a token's shard to (kStore) or from the cache at `token`, a head at a time.
  template <bool kStore>
  LAMPORT_FN Packet move_cached(char* token, uint32_t p, const Packet& packet) const {
    const uint32_t first = p * kPacketBytes;
    const uint32_t head = args_.head_bytes;
    if (head % kPacketBytes == 0) {  // the usual case: it lies within one
      char* at = token + first / head * args_.head_stride + first % head;
      const uint32_t left = args_.shard_bytes - first;
      if constexpr (!kStore) return target_.load_tensor(at, 0, left);
      target_.store_tensor(at, 0, left, packet);
      return packet;
    }
    return move_split<kStore>(token, first, head, args_.head_stride, args_.shard_bytes, packet);
  }

  /// A packet that may lie in several heads: a word at a time, so that a GPU needs no array in memory.
  template <bool kStore>
  LAMPORT_COLD static Packet move_split(char* token, uint32_t first, uint32_t head, uint64_t head_stride,
                                        uint32_t shard_bytes, Packet packet) {
    uint32_t words[Target::kPacketWords] = {};
    if constexpr (kStore) __builtin_memcpy(words, &packet, kPacketBytes);
    char* at = token + first / head * head_stride + first % head;
    uint32_t left_in_head = head - first % head;
    LAMPORT_UNROLL
    for (uint32_t i = 0; i < kPacketBytes; i += T::kBytes) {
      if (first + i < shard_bytes) {
        move_element<kStore>(at, words[i / 4], 8 * (i % 4));
        at += T::kBytes;
        left_in_head -= T::kBytes;
        if (left_in_head == 0) {
          at += head_stride - head;
          left_in_head = head;
        }
      }
    }
    Packet out;
    __builtin_memcpy(&out, words, kPacketBytes);
    return out;
  }

  /// The element at bit `shift` of `word` to (kStore) or from memory.
  template <bool kStore>
  LAMPORT_FN static void move_element(char* at, uint32_t& word, uint32_t shift) {
    using Bits = std::conditional_t<T::kBytes == 4, uint32_t, uint16_t>;
    auto* element = reinterpret_cast<Bits*>(at);
    if constexpr (kStore) {
      *element = static_cast<Bits>(word >> shift);
    } else {
      word |= uint32_t{*element} << shift;
    }
  }

  Target& target_;
  const SconvArgs& args_;
  const uint32_t packets_;
};

/// Scatter, poll 1 and gather. False if this item gave up.
template <class Target, class T, int W>
LAMPORT_FN bool sconv_exchange(Target& target, Lamport<Target, W>& lamport, const SconvRows<Target, T>& rows,
                               const SconvArgs& args, uint32_t scatter, uint32_t gather, uint32_t stride) {
  using Packet = typename Target::Packet;
  using Rows = SconvRows<Target, T>;
  const uint32_t rank = lamport.rank();
  const typename Rows::Token first = rows.token(0);  // under way before anything waits
  LAMPORT_ROLLED
  for (uint32_t r = 0; r < args.tokens; ++r) {
    if (!rows.mine(r)) continue;
    LAMPORT_ROLLED
    for (uint32_t p = target.item(); p < rows.packets(); p += target.items()) {
      Packet mine[W - 1];  // all loads before the first store, which no compiler moves a load over
      LAMPORT_UNROLL
      for (int i = 0; i < W - 1; ++i) mine[i] = rows.contribution(r, (rank + 1 + i) % W, p);
      LAMPORT_UNROLL
      for (int i = 0; i < W - 1; ++i) {
        lamport.publish_to(i, scatter + rank * stride + (r * rows.packets() + p) * Target::kPacketWords,
                           mine[i]);
      }
    }
  }
  lamport.sign();
  lamport.watch(scatter, stride, args.tokens * rows.packets() - 1);
  LAMPORT_ROLLED
  for (uint32_t r = 0; r < args.tokens; ++r) {
    if (!rows.mine(r)) continue;
    const typename Rows::Token token = r == 0 ? first : rows.token(r);
    LAMPORT_ROLLED
    for (uint32_t p = target.item(); p < rows.packets(); p += target.items()) {
      const uint32_t at = (r * rows.packets() + p) * Target::kPacketWords;
      typename Rows::Operands operands;
      if constexpr (Target::kKeepsFirst) operands = rows.operands(token, r, rank, p);
      Packet all[W];
      if (!lamport.collect(scatter + at, stride, rows.contribution(r, rank, p), all)) return false;
      if constexpr (!Target::kKeepsFirst) operands = rows.operands(token, r, rank, p);
      const Packet reduced = sum_in_rank_order<Target, T, W>(all);
      lamport.publish_to_all(gather + rank * stride + at,
                             rows.convolve(token, r, rank, p, reduced, operands));
    }
  }
  return true;
}

/// Which packet of a row an item has: the shards' packets in one line, shared out among the items.
class InRow {
 public:
  uint32_t shard = 0, p;

  /// `packets`: of a shard.
  LAMPORT_FN InRow(uint32_t item, uint32_t packets) : p(item), packets_(packets) { wrap(); }
  LAMPORT_FN bool is(const InRow& other) const { return shard == other.shard && p == other.p; }
  LAMPORT_FN void advance(uint32_t items) {
    p += items;
    wrap();
  }

 private:
  LAMPORT_FN void wrap() {  // a few rounds at most: cheaper than a division
    LAMPORT_ROLLED
    for (; p >= packets_; ++shard) p -= packets_;
  }
  const uint32_t packets_;
};

/// Poll 2 and the norm, row by row. A GPU's item keeps its first packet of a row until the scale is known, and reads
/// others back.
template <class Target, class T, int W>
LAMPORT_FN bool sconv_gather(Target& target, Lamport<Target, W>& lamport, const SconvRows<Target, T>& rows,
                             const SconvArgs& args, uint32_t gather, uint32_t stride) {
  using Packet = typename Target::Packet;
  const InRow first(target.item(), rows.packets());
  Packet kept{}, weight{};
  if constexpr (Target::kKeepsFirst) {
    if (first.shard < W) weight = rows.load_weight(first.shard, first.p);
  }
  lamport.watch(gather, stride, args.tokens * rows.packets() - 1);
  LAMPORT_ROLLED
  for (uint32_t r = 0; r < args.tokens; ++r) {
    if (!rows.mine(r)) continue;
    TargetSquares<Target, T> squares{};
    bool came = true;
    LAMPORT_ROLLED
    for (InRow at = first; at.shard < W; at.advance(target.items())) {
      Packet h;
      came = lamport.collect_from(at.shard, gather + (r * rows.packets() + at.p) * Target::kPacketWords,
                                  stride, h);
      if (!came) break;
      add_squares(squares, widen<T, typename Target::Half>(h));
      rows.store_result(r, at.shard, at.p, h);
      if (Target::kKeepsFirst && at.is(first)) kept = h;
    }
    Real<Target, T> sums[2] = {total(squares), came ? 0.0f : 1.0f};
    target.group_sum(sums);
    if (sums[1] != 0) return false;
    if (args.norm_weight == nullptr) continue;
    const auto scale = rows.scale(sums[0]);
    InRow at = first;
    if (Target::kKeepsFirst && at.shard < W) {
      rows.normalise(r, at.shard, at.p, kept, weight, scale);
      at.advance(target.items());
    }
    LAMPORT_ROLLED
    for (; at.shard < W; at.advance(target.items())) {
      rows.normalise(r, at.shard, at.p, rows.load_result(r, at.shard, at.p), rows.load_weight(at.shard, at.p),
                     scale);
    }
  }
  return true;
}

template <class Target, class T, int W>
LAMPORT_FN void rs_sconv_ag_norm(Target& target, const WorkspaceView& ws, const SconvArgs& args) {
  const SconvRows<Target, T> rows(target, args);
  if constexpr (W == 1) {
    for (uint32_t r = 0; r < args.tokens; ++r) {
      if (!rows.mine(r)) continue;
      const auto token = rows.token(r);
      TargetSquares<Target, T> squares{};
      for (uint32_t p = target.item(); p < rows.packets(); p += target.items()) {
        const auto h =
            rows.convolve(token, r, 0, p, rows.contribution(r, 0, p), rows.operands(token, r, 0, p));
        rows.store_result(r, 0, p, h);
        add_squares(squares, widen<T, typename Target::Half>(h));
      }
      Real<Target, T> sums[1] = {total(squares)};
      target.group_sum(sums);
      if (args.norm_weight == nullptr) continue;
      const auto scale = rows.scale(sums[0]);
      for (uint32_t p = target.item(); p < rows.packets(); p += target.items()) {
        rows.normalise(r, 0, p, rows.load_result(r, 0, p), rows.load_weight(0, p), scale);
      }
    }
  } else {
    Lamport<Target, W> lamport(target, ws);
    const uint32_t stride = args.slot_packets * Target::kPacketWords;
    const uint32_t scatter = lamport.generation(0);
    const uint32_t gather = scatter + W * stride;
    float gave_up[1] = {0};
    if (!sconv_exchange<Target, T, W>(target, lamport, rows, args, scatter, gather, stride)) gave_up[0] = 1;
    target.group_sum(gave_up);
    if (gave_up[0] == 0) sconv_gather<Target, T, W>(target, lamport, rows, args, gather, stride);
    lamport.leave(1, lamport.rank() * stride);
  }
}

}  // namespace lamport
