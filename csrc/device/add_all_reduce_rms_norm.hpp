/// All-reduce (of a sum of two, if there is a second tensor), residual addition and RMS normalisation in one
/// kernel:
///
///   r = all_reduce(in + shared)          rounded to T: the bits the all-reduce alone would return
///   x = r + residual                     in fp32; new_residual = x rounded to T
///   normed = x * (1 / sqrt(sum of x^2 / H + eps)) * weight, rounded once   (gemma: 1 + weight)
///
/// Residual and variance are as in vLLM's fused_add_rms_norm, which rounds x for the new residual only and
/// normalises the fp32 sum.
///
/// The protocol is that of the one-shot all-reduce. A chunk is a number of whole rows; a work-group owns row
/// r of every chunk, and in it an item owns the packets item(), item() + items(), ...; so an index keeps its
/// owner. Items of a group wait for each other in group_sum; each arrives there after bounded waits, and all
/// leave together when one ran out.
#pragma once
#include "contribution.hpp"
#include "lamport.hpp"
#include "row_math.hpp"

namespace lamport {

/// A GPU's item mostly has one packet of a row, and memory is far: that packet is fetched early and then kept
/// (Target::kKeepsFirst). A host reads everything from its caches when it is needed.
template <class Target, class T>
class NormRows {
 public:
  using Packet = typename Target::Packet;
  using Half = typename Target::Half;
  using Wide = WideOf<Target, T>;

  LAMPORT_FN NormRows(Target& target, const AddNormArgs& args)
      : target_(target), args_(args), packets_(packets_of<Target>(args.row_bytes)) {
    if constexpr (Target::kKeepsFirst) weight_ = load(args_.weight, 0, target_.item());
  }

  LAMPORT_FN uint32_t packets() const { return packets_; }
  LAMPORT_FN bool real(uint64_t row) const { return row < args_.tokens; }

  /// Starts to fetch all that this item's first packet of the group's first row needs: under way before anything waits.
  LAMPORT_FN void begin() {
    if constexpr (Target::kKeepsFirst) {
      if (real(target_.group())) in_ = fetched(target_.group(), target_.item());
      expect(target_.group());
    }
  }
  /// What this rank adds to that packet, before it is published.
  LAMPORT_FN void settle() {
    if constexpr (Target::kKeepsFirst) mine_ = contribution(in_);
  }
  /// Starts to fetch the residual of this item's first packet of a row, the next that `take` and `finish` are called for.
  LAMPORT_FN void expect(uint64_t row) {
    if constexpr (Target::kKeepsFirst) {
      row_ = row;
      if (real(row)) residual_ = load(args_.residual, row, target_.item());
    }
  }

  /// Puts a sum of two where the result will be, before anything is published (see contribution.hpp).
  LAMPORT_FN void prepare(uint64_t row, uint32_t p) const {
    if (args_.shared != nullptr && real(row)) store(args_.normed, row, p, summed(fetched(row, p)));
  }
  /// What this rank adds to packet p of a row; zeros in a row past the end.
  LAMPORT_FN Packet contribution(uint64_t row, uint32_t p) const {
    if (!real(row)) return Packet{};
    if constexpr (Target::kKeepsFirst) {
      return row == target_.group() && p == target_.item() ? mine_ : contribution(fetched(row, p));
    } else {
      return args_.shared == nullptr ? without_empty(load(args_.in, row, p)) : load(args_.normed, row, p);
    }
  }

  /// The sum of a world of one: as it is, signed zeros included.
  LAMPORT_FN Packet alone(uint64_t row, uint32_t p) const {
    const Pair<Packet> pair = fetched(row, p);
    if (args_.shared == nullptr) return pair.in;
    auto sum = widen<T, Half>(pair.in);
    add(sum, widen<T, Half>(pair.shared));
    return rounded<T, Half>(sum);
  }

  /// Takes a reduced packet, which is kept, or `normed` holds, until the row's scale is known.
  template <class Squares>
  LAMPORT_FN void take(uint64_t row, uint32_t p, const Packet& reduced, Squares& squares) {
    const Wide x = with_residual(row, p, reduced);
    if constexpr (Target::kKeepsFirst) {
      if (kept(row, p)) {
        x_ = x;
      } else {
        store(args_.normed, row, p, reduced);
      }
    } else {
      store(args_.normed, row, p, reduced);
    }
    add_squares(squares, x);
  }

  /// Both results, from a row's sum of squares. An item reads back what it wrote itself.
  LAMPORT_FN void finish(uint64_t row, Real<Target, T> sum) const {
    const auto scale = rms_scale(target_, sum, args_.full, args_.eps);
    LAMPORT_ROLLED
    for (uint32_t p = target_.item(); p < packets_; p += target_.items()) {
      if (Target::kKeepsFirst && kept(row, p)) {
        finish(row, p, x_, scale, weight_);
      } else {
        finish(row, p, with_residual(row, p, load(args_.normed, row, p)), scale, load(args_.weight, 0, p));
      }
    }
  }

 private:
  LAMPORT_FN void finish(uint64_t row, uint32_t p, const Wide& x, Real<Target, T> scale,
                         const Packet& weight) const {
    store(args_.new_residual, row, p, rounded<T, Half>(x));
    store(args_.normed, row, p, rounded<T, Half>(scaled(x, scale, widen<T, Half>(weight), args_.gemma)));
  }

  LAMPORT_FN bool kept(uint64_t row, uint32_t p) const { return p == target_.item() && row == row_; }
  LAMPORT_FN Pair<Packet> fetched(uint64_t row, uint32_t p) const {
    return {load(args_.in, row, p), args_.shared == nullptr ? Packet{} : load(args_.shared, row, p)};
  }
  LAMPORT_FN Packet contribution(const Pair<Packet>& pair) const {
    return args_.shared == nullptr ? without_empty(pair.in) : summed(pair);
  }
  LAMPORT_FN static Packet summed(const Pair<Packet>& pair) { return lamport::contribution<Target, T>(pair); }
  LAMPORT_FN Wide with_residual(uint64_t row, uint32_t p, const Packet& reduced) const {
    auto x = widen<T, Half>(reduced);
    const Packet residual = Target::kKeepsFirst && kept(row, p) ? residual_ : load(args_.residual, row, p);
    add(x, widen<T, Half>(residual));
    return x;
  }
  LAMPORT_FN Packet load(const void* base, uint64_t row, uint32_t p) const {
    return target_.load_tensor(static_cast<const char*>(base) + row * args_.row_bytes, p, args_.row_bytes);
  }
  LAMPORT_FN void store(void* base, uint64_t row, uint32_t p, const Packet& packet) const {
    target_.store_tensor(static_cast<char*>(base) + row * args_.row_bytes, p, args_.row_bytes, packet);
  }

  Target& target_;
  const AddNormArgs& args_;
  const uint32_t packets_;
  uint64_t row_ = ~uint64_t{0};  // of which residual_ and x_ are
  Pair<Packet> in_{};
  Packet mine_{}, residual_{}, weight_{};
  Wide x_{};
};

/// Rows [base, base + length), through the slots of `generation`.
template <class Target, class T, int W>
LAMPORT_FN bool add_norm_chunk(Target& target, Lamport<Target, W>& lamport, NormRows<Target, T>& rows,
                               uint32_t slot_packets, uint32_t generation, uint64_t base, uint32_t length) {
  using Packet = typename Target::Packet;
  const uint32_t stride = slot_packets * Target::kPacketWords;
  if constexpr (!Target::kKeepsFirst) {
    for (uint32_t r = target.group(); r < length; r += target.groups()) {
      for (uint32_t p = target.item(); p < rows.packets(); p += target.items()) rows.prepare(base + r, p);
    }
  }
  if (base == 0) rows.settle();
  LAMPORT_ROLLED
  for (uint32_t r = target.group(); r < length; r += target.groups()) {
    LAMPORT_ROLLED
    for (uint32_t p = target.item(); p < rows.packets(); p += target.items()) {
      lamport.publish(generation + lamport.rank() * stride + (r * rows.packets() + p) * Target::kPacketWords,
                      rows.contribution(base + r, p));
    }
  }
  if (base == 0) lamport.sign();
  lamport.watch(generation, stride, length * rows.packets() - 1);
  LAMPORT_ROLLED
  for (uint32_t r = target.group(); r < length; r += target.groups()) {
    if (r != target.group() || base != 0) rows.expect(base + r);
    TargetSquares<Target, T> squares{};
    bool came = true;
    LAMPORT_ROLLED
    for (uint32_t p = target.item(); came && p < rows.packets(); p += target.items()) {
      Packet all[W];
      came = lamport.collect(generation + (r * rows.packets() + p) * Target::kPacketWords, stride,
                             rows.contribution(base + r, p), all);
      if (came && rows.real(base + r)) rows.take(base + r, p, sum_in_rank_order<Target, T, W>(all), squares);
    }
    Real<Target, T> sums[2] = {total(squares), came ? 0.0f : 1.0f};
    target.group_sum(sums);
    if (sums[1] != 0) return false;
    if (rows.real(base + r)) rows.finish(base + r, sums[0]);
  }
  return true;
}

template <class Target, class T, int W>
LAMPORT_FN void add_all_reduce_rms_norm(Target& target, const WorkspaceView& ws, const AddNormArgs& args) {
  NormRows<Target, T> rows(target, args);
  rows.begin();
  if constexpr (W == 1) {
    for (uint64_t r = target.group(); r < args.tokens; r += target.groups()) {
      if (r != target.group()) rows.expect(r);
      TargetSquares<Target, T> squares{};
      for (uint32_t p = target.item(); p < rows.packets(); p += target.items()) {
        rows.take(r, p, rows.alone(r, p), squares);
      }
      Real<Target, T> sums[1] = {total(squares)};
      target.group_sum(sums);
      rows.finish(r, sums[0]);
    }
  } else {
    Lamport<Target, W> lamport(target, ws);
    const auto [chunks, length] = cut(args.tokens, args.slot_packets / rows.packets());
    LAMPORT_ROLLED
    for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
      if (chunk > 0) lamport.next_chunk();
      if (!add_norm_chunk<Target, T, W>(target, lamport, rows, args.slot_packets, lamport.generation(chunk),
                                        uint64_t{chunk} * length, length))
        break;
    }
    lamport.leave(chunks, lamport.rank() * args.slot_packets * Target::kPacketWords);
  }
}

}  // namespace lamport
