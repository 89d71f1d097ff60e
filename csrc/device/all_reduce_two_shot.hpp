/// Two-shot all-reduce: reduce-scatter, then all-gather. Each rank reduces one slice and pushes the result to
/// all: 2 (W-1)/W of the tensor over the link instead of W-1 times the tensor, for a second trip.
#pragma once
#include "contribution.hpp"
#include "lamport.hpp"

namespace lamport {

/// A generation holds the W slots of the scatter, then the W slots of the gather.
template <class Target, class T, int W, class Args>
LAMPORT_FN bool two_shot_chunk(Target& target, Lamport<Target, W>& lamport, const Args& args, uint32_t chunk,
                               uint32_t slice) {
  using Packet = typename Target::Packet;
  const uint64_t base = uint64_t{chunk} * W * slice;
  using Fetched = decltype(fetch(target, args, base));
  const uint32_t rank = lamport.rank();
  const uint32_t stride = args.slot_packets * Target::kPacketWords;
  const uint32_t scatter = lamport.generation(chunk);
  const uint32_t gather = scatter + W * stride;

  for (uint32_t p = target.first(); p < slice; p += target.step()) {
    Fetched mine[W - 1];  // all loads before the first store, which no compiler moves a load over
    LAMPORT_UNROLL
    for (int i = 0; i < W - 1; ++i) {
      mine[i] = fetch(target, args, base + (rank + 1 + i) % W * slice + p);
    }
    LAMPORT_UNROLL
    for (int i = 0; i < W - 1; ++i) {
      lamport.publish_to(i, scatter + rank * stride + p * Target::kPacketWords,
                         contribution<Target, T>(mine[i]));
    }
  }
  if (chunk == 0) lamport.sign();
  lamport.watch(scatter, stride, slice - 1);
  for (uint32_t p = target.first(); p < slice; p += target.step()) {
    const uint64_t q = base + rank * slice + p;
    const Packet mine = contribution<Target, T>(fetch(target, args, q));
    Packet all[W];
    if (!lamport.collect(scatter + p * Target::kPacketWords, stride, mine, all)) return false;
    const Packet sum = sum_in_rank_order<Target, T, W>(all);
    lamport.publish(gather + rank * stride + p * Target::kPacketWords, sum);
    target.store_tensor(args.out, q, args.bytes, sum);
  }
  lamport.watch(gather, stride, slice - 1);
  for (uint32_t p = target.first(); p < slice; p += target.step()) {
    Packet all[W];
    if (!lamport.collect(gather + p * Target::kPacketWords, stride, Packet{}, all)) return false;
    LAMPORT_UNROLL
    for (uint32_t s = 0; s < W; ++s) {
      if (s != rank) target.store_tensor(args.out, base + s * slice + p, args.bytes, all[s]);
    }
  }
  return true;
}

/// `Args`: AllReduceArgs or AddAllReduceArgs.
template <class Target, class T, int W, class Args>
LAMPORT_FN void all_reduce_two_shot(Target& target, const WorkspaceView& ws, const Args& args) {
  Lamport<Target, W> lamport(target, ws);
  const auto [chunks, length] = cut(packets_of<Target>(args.bytes), W * args.slot_packets);
  const uint32_t slice = (length + W - 1) / W;
  LAMPORT_ROLLED
  for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
    if (chunk > 0) lamport.next_chunk();
    if (!two_shot_chunk<Target, T, W>(target, lamport, args, chunk, slice)) break;
  }
  lamport.leave(chunks, lamport.rank() * args.slot_packets * Target::kPacketWords);
}

}  // namespace lamport
