/// One-shot all-reduce: every rank pushes its whole tensor to every peer, and everyone adds up everything.
/// One trip over the link; for the sizes of decode nothing else matters.
#pragma once
#include "contribution.hpp"
#include "lamport.hpp"

namespace lamport {

template <class Target, class T, int W, class Args>
LAMPORT_FN bool one_shot_chunk(Target& target, Lamport<Target, W>& lamport, const Args& args, uint32_t chunk,
                               uint32_t length) {
  using Packet = typename Target::Packet;
  const uint64_t base = uint64_t{chunk} * length;
  const uint32_t first = target.first();
  // On a GPU mostly the only packet: under way before the epoch is needed, and then still at hand.
  using Fetched = decltype(fetch(target, args, base));
  Fetched first_packet{};
  if constexpr (Target::kKeepsFirst) first_packet = fetch(target, args, base + first);
  const auto load = [&](uint32_t p) {
    if constexpr (!Target::kKeepsFirst) return prepared(target, args, base + p);
    return contribution<Target, T>(p == first ? first_packet : fetch(target, args, base + p));
  };
  const uint32_t generation = lamport.generation(chunk);
  const uint32_t stride = args.slot_packets * Target::kPacketWords;
  const uint32_t mine = generation + lamport.rank() * stride;
  if constexpr (kAdds<Args> && !Target::kKeepsFirst) {
    for (uint32_t p = first; p < length; p += target.step()) {
      if (p < Target::kPreparesAhead) lamport.will_publish(mine + p * Target::kPacketWords);
      prepare<T>(target, args, base + p);
    }
  }
  LAMPORT_ROLLED
  for (uint32_t p = first; p < length; p += target.step()) {
    lamport.publish(mine + p * Target::kPacketWords, load(p));
  }
  if (chunk == 0) lamport.sign();
  lamport.watch(generation, stride, length - 1);
  LAMPORT_ROLLED
  for (uint32_t p = first; p < length; p += target.step()) {
    Packet all[W];
    if (!lamport.collect(generation + p * Target::kPacketWords, stride, load(p), all)) return false;
    target.store_tensor(args.out, base + p, args.bytes, sum_in_rank_order<Target, T, W>(all));
  }
  return true;
}

/// `Args`: AllReduceArgs, or AddAllReduceArgs, which a world of one takes too.
template <class Target, class T, int W, class Args>
LAMPORT_FN void all_reduce_one_shot(Target& target, const WorkspaceView& ws, const Args& args) {
  if constexpr (W == 1) {
    add_alone<T>(target, args);
  } else {
    Lamport<Target, W> lamport(target, ws);
    const auto [chunks, length] = cut(packets_of<Target>(args.bytes), args.slot_packets);
    LAMPORT_ROLLED
    for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
      if (chunk > 0) lamport.next_chunk();
      if (!one_shot_chunk<Target, T, W>(target, lamport, args, chunk, length)) break;
    }
    lamport.leave(chunks, lamport.rank() * args.slot_packets * Target::kPacketWords);
  }
}

}  // namespace lamport
