/// Two-shot all-reduce: reduce-scatter, then all-gather. Each rank reduces one slice and pushes the result to
/// all: 2 (W-1)/W of the tensor over the link instead of W-1 times the tensor, for a second trip.
#pragma once
#include "all_reduce_one_shot.hpp"

namespace lamport {

/// Packets [base, base + n) of the tensor, n at most W * slot_packets. A generation holds the W slots of the
/// scatter, then the W slots of the gather.
template <class Target, class T, int W>
LAMPORT_FN bool two_shot_chunk(Target& target, Lamport<Target, W>& lamport, const AllReduceArgs& args,
                               uint32_t generation, uint64_t base, uint32_t n) {
  using Packet = typename Target::Packet;
  const uint32_t rank = lamport.rank();
  const uint32_t slice = (n + W - 1) / W;  // the last ranks' slices may be short, or empty
  const uint32_t stride = args.slot_packets * Target::kPacketWords;
  const uint32_t scatter = generation;
  const uint32_t gather = generation + W * stride;

  for (uint32_t p = target.first(); p < slice; p += target.step()) {
    LAMPORT_UNROLL
    for (int i = 0; i < W - 1; ++i) {
      const uint32_t q = (rank + 1 + i) % W * slice + p;
      if (q < n) {
        const Packet mine = without_empty(target.load_tensor(args.in, base + q, args.bytes));
        lamport.publish_to(i, scatter + rank * stride + p * Target::kPacketWords, mine);
      }
    }
  }
  const uint32_t own = rank * slice < n ? least(n - rank * slice, slice) : 0;
  if (own > 0) lamport.watch(scatter, stride, W, own - 1);
  for (uint32_t p = target.first(); p < own; p += target.step()) {
    const uint64_t q = base + rank * slice + p;
    const Packet mine = without_empty(target.load_tensor(args.in, q, args.bytes));
    Packet all[W];
    if (!lamport.collect(scatter + p * Target::kPacketWords, stride, W, mine, all)) return false;
    const Packet sum = sum_in_rank_order<Target, T, W>(all);
    lamport.publish(gather + rank * stride + p * Target::kPacketWords, sum);
    target.store_tensor(args.out, q, args.bytes, sum);
  }
  lamport.watch(gather, stride, n / slice, slice - 1);  // those with a full slice
  for (uint32_t p = target.first(); p < slice; p += target.step()) {
    const uint32_t owners = (n - p + slice - 1) / slice;  // those whose slice reaches p
    Packet all[W];
    if (!lamport.collect(gather + p * Target::kPacketWords, stride, owners, Packet{}, all)) return false;
    LAMPORT_UNROLL
    for (uint32_t s = 0; s < W; ++s) {
      if (s != rank && s < owners) target.store_tensor(args.out, base + s * slice + p, args.bytes, all[s]);
    }
  }
  return true;
}

template <class Target, class T, int W>
LAMPORT_FN void all_reduce_two_shot(Target& target, const WorkspaceView& ws, const AllReduceArgs& args) {
  Lamport<Target, W> lamport(target, ws);
  const uint64_t packets = packets_of<Target>(args.bytes);
  const uint32_t capacity = W * args.slot_packets;
  uint32_t chunk = 0;
  for (uint64_t base = 0; base < packets; base += capacity, ++chunk) {
    if (chunk > 0) lamport.next_chunk();
    const uint32_t n = least(packets - base, capacity);
    if (!two_shot_chunk<Target, T, W>(target, lamport, args, lamport.generation(chunk), base, n)) break;
  }
  lamport.leave(chunk);
}

}  // namespace lamport
