/// One-shot all-reduce: every rank pushes its whole tensor to every peer, and everyone adds up everything.
/// One trip over the link; for the sizes of decode nothing else matters.
#pragma once
#include "lamport.hpp"

namespace lamport {

/// Packets [base, base + length) of the tensor, through the slots of `generation`.
template <class Target, class T, int W>
LAMPORT_FN bool one_shot_chunk(Target& target, Lamport<Target, W>& lamport, const AllReduceArgs& args,
                               uint32_t generation, uint64_t base, uint32_t length) {
  using Packet = typename Target::Packet;
  const uint32_t stride = args.slot_packets * Target::kPacketWords;
  for (uint32_t p = target.first(); p < length; p += target.step()) {
    const Packet mine = without_empty(target.load_tensor(args.in, base + p, args.bytes));
    lamport.publish(generation + lamport.rank() * stride + p * Target::kPacketWords, mine);
  }
  lamport.watch(generation, stride, length - 1);
  for (uint32_t p = target.first(); p < length; p += target.step()) {
    const Packet mine = without_empty(target.load_tensor(args.in, base + p, args.bytes));
    Packet all[W];
    if (!lamport.collect(generation + p * Target::kPacketWords, stride, mine, all)) return false;
    target.store_tensor(args.out, base + p, args.bytes, sum_in_rank_order<Target, T, W>(all));
  }
  return true;
}

template <class Target, class T, int W>
LAMPORT_FN void all_reduce_one_shot(Target& target, const WorkspaceView& ws, const AllReduceArgs& args) {
  Lamport<Target, W> lamport(target, ws);
  const auto [chunks, length] = cut(packets_of<Target>(args.bytes), args.slot_packets);
  LAMPORT_ROLLED
  for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
    if (chunk > 0) lamport.next_chunk();
    const uint64_t base = uint64_t{chunk} * length;
    if (!one_shot_chunk<Target, T, W>(target, lamport, args, lamport.generation(chunk), base, length)) break;
  }
  lamport.leave(chunks, lamport.rank() * args.slot_packets * Target::kPacketWords);
}

}  // namespace lamport
