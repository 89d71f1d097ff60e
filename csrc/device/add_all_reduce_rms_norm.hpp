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

template <class Target, class T>
class NormRows {
 public:
  using Packet = typename Target::Packet;
  using Half = typename Target::Half;

  LAMPORT_FN NormRows(Target& target, const AddNormArgs& args)
      : target_(target), args_(args), packets_(packets_of<Target>(args.row_bytes)) {}

  LAMPORT_FN uint32_t packets() const { return packets_; }
  LAMPORT_FN bool real(uint64_t row) const { return row < args_.tokens; }

  /// Puts a sum of two where the result will be, before anything is published (see contribution.hpp).
  LAMPORT_FN void prepare(uint64_t row, uint32_t p) const {
    if (args_.shared == nullptr || !real(row)) return;
    const Pair<Packet> pair{load(args_.in, row, p), load(args_.shared, row, p)};
    store(args_.normed, row, p, lamport::contribution<Target, T>(pair));
  }
  /// What this rank adds to packet p of a row; zeros in a row past the end.
  LAMPORT_FN Packet contribution(uint64_t row, uint32_t p) const {
    if (!real(row)) return Packet{};
    return args_.shared == nullptr ? without_empty(load(args_.in, row, p)) : load(args_.normed, row, p);
  }

  /// The sum of a world of one: as it is, signed zeros included.
  LAMPORT_FN Packet alone(uint64_t row, uint32_t p) const {
    const Packet in = load(args_.in, row, p);
    if (args_.shared == nullptr) return in;
    auto sum = widen<T, Half>(in);
    add(sum, widen<T, Half>(load(args_.shared, row, p)));
    return rounded<T, Half>(sum);
  }

  /// Takes a reduced packet, which `normed` keeps until the row's scale is known.
  template <class Squares>
  LAMPORT_FN void take(uint64_t row, uint32_t p, const Packet& reduced, Squares& squares) const {
    store(args_.normed, row, p, reduced);
    auto x = widen<T, Half>(reduced);
    add(x, widen<T, Half>(load(args_.residual, row, p)));
    add_squares(squares, x);
  }

  /// Both results, from a row's sum of squares. An item reads back what it wrote itself.
  LAMPORT_FN void finish(uint64_t row, Real<Target, T> sum) const {
    const auto scale = rms_scale(target_, sum, args_.full, args_.eps);
    for (uint32_t p = target_.item(); p < packets_; p += target_.items()) {
      auto x = widen<T, Half>(load(args_.normed, row, p));
      add(x, widen<T, Half>(load(args_.residual, row, p)));
      store(args_.new_residual, row, p, rounded<T, Half>(x));
      const auto weight = widen<T, Half>(target_.load_tensor(args_.weight, p, args_.row_bytes));
      store(args_.normed, row, p, rounded<T, Half>(scaled(x, scale, weight, args_.gemma)));
    }
  }

 private:
  LAMPORT_FN Packet load(const void* base, uint64_t row, uint32_t p) const {
    return target_.load_tensor(static_cast<const char*>(base) + row * args_.row_bytes, p, args_.row_bytes);
  }
  LAMPORT_FN void store(void* base, uint64_t row, uint32_t p, const Packet& packet) const {
    target_.store_tensor(static_cast<char*>(base) + row * args_.row_bytes, p, args_.row_bytes, packet);
  }

  Target& target_;
  const AddNormArgs& args_;
  const uint32_t packets_;
};

/// Rows [base, base + length), through the slots of `generation`.
template <class Target, class T, int W>
LAMPORT_FN bool add_norm_chunk(Target& target, Lamport<Target, W>& lamport, const NormRows<Target, T>& rows,
                               uint32_t slot_packets, uint32_t generation, uint64_t base, uint32_t length) {
  using Packet = typename Target::Packet;
  const uint32_t stride = slot_packets * Target::kPacketWords;
  for (uint32_t r = target.group(); r < length; r += target.groups()) {
    for (uint32_t p = target.item(); p < rows.packets(); p += target.items()) rows.prepare(base + r, p);
  }
  for (uint32_t r = target.group(); r < length; r += target.groups()) {
    for (uint32_t p = target.item(); p < rows.packets(); p += target.items()) {
      lamport.publish(generation + lamport.rank() * stride + (r * rows.packets() + p) * Target::kPacketWords,
                      rows.contribution(base + r, p));
    }
  }
  if (base == 0) lamport.sign();
  lamport.watch(generation, stride, length * rows.packets() - 1);
  for (uint32_t r = target.group(); r < length; r += target.groups()) {
    TargetSquares<Target, T> squares{};
    bool came = true;
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
  const NormRows<Target, T> rows(target, args);
  if constexpr (W == 1) {
    for (uint64_t r = target.group(); r < args.tokens; r += target.groups()) {
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
