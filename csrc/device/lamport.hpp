/// The Lamport protocol, and only it: publish, collect, epoch.
///
/// Every rank owns an exchange memory of two generations; a generation has a slot per source rank, a slot is an
/// array of packets, and a word equal to kEmpty has not arrived. A call runs these steps on every rank:
///
///   enter    every work-group reads its own epoch e; chunk c of the call uses generation (e + c) mod 2
///   publish  store the packet into every peer's slot for this rank; all of a chunk before the chunk's first poll
///   sign     once a call, after the first publishes: draw a ticket, which says "I have read the epoch"
///   poll     read own memory until no word is kEmpty (never a peer's memory: P1)
///   restore  write kEmpty over what was read
///   fence    before the next chunk's publish: restores are performed before later publishes can be seen
///   advance  as it leaves, the work-group that signed last: ticket = 0, epoch = e + number of chunks
///
/// Signing early takes the ticket's round trip off the end of the call, and no work-group waits at a barrier or for
/// its own stores: the end of the kernel performs them, and only then does the next call read the epoch.
///
/// LIVENESS. A poll waits only for a publish of the same call, and a work-group publishes a chunk before it polls
/// it. With all work-groups resident (P5) every publish happens, in chunk order, without waiting for anything but
/// polls of earlier chunks; so by induction over chunks every poll ends. A two-shot chunk adds one link: the
/// gather publish of an owner waits for the scatter publishes of the chunk, which wait for nothing new.
///
/// REUSE. A peer may write word X of generation g for chunk n + 2 only after this rank restored X in chunk n
/// (chunks counted over all calls, which is what the epoch counts). All chunks of a call have the same length,
/// padded with zero packets at the tensor's end, and the grid is constant within a call, so a packet index has one
/// owning work-item throughout the call on each rank.
///  - n and n + 1 in the same call. The peer has collected X's index of chunk n + 1, in its own call or, if the call
///    ended with chunk n + 1, in a kernel that has ended. This rank's owner of the index published that after
///    restoring X and after its fence. (Were the last chunk shorter, nothing would tell that X is restored.)
///  - n + 1 begins a call. The peer has collected a packet of it, in its own work-item or in a kernel that has ended,
///    which depends on a publish of every rank: directly in a one-shot, through the slice owner in a two-shot, where
///    a result exists only once all ranks have scattered. This rank publishes it in a kernel that starts after the
///    kernel of chunk n has ended, restores included.
/// Two generations therefore suffice for any mixture of sizes, algorithms and grids, and no word is ever written
/// twice without a restore between. One epoch per workspace, not per work-group, is what makes "chunk n" mean the
/// same on every rank when grids differ.
///
/// tests/model holds the same steps as a model that is checked exhaustively, with mutants that must fail.
#pragma once
#include "packet.hpp"
#include "workspace_view.hpp"

namespace lamport {

template <class Target, int W>
class Lamport {
 public:
  using Packet = typename Target::Packet;
  static constexpr uint32_t kWords = Target::kPacketWords;
  static_assert(W >= 2 && W <= kMaxWorld, "a world of one needs no protocol");

  LAMPORT_FN Lamport(Target& target, const WorkspaceView& ws)
      : target_(target), ws_(ws), epoch_(target.load_epoch(ws.control)) {}  // step: enter

  /// Word offset of `chunk`'s generation, the same in every rank's exchange memory.
  LAMPORT_FN uint32_t generation(uint32_t chunk) const {
    return ((epoch_ + chunk) & 1u) * ws_.generation_words;
  }

  LAMPORT_FN uint32_t rank() const { return ws_.rank; }

  /// step: publish
  LAMPORT_FN void publish(uint32_t offset, const Packet& packet) {
    LAMPORT_UNROLL
    for (int i = 0; i < W - 1; ++i) publish_to(i, offset, packet);
  }

  /// To one peer: `i` counts from the next rank upwards.
  LAMPORT_FN void publish_to(int i, uint32_t offset, const Packet& packet) {
    target_.store_peer(ws_.peer[i] + offset, packet);
  }

  /// To every rank, this one included: for who collects it without asking whose it is.
  LAMPORT_FN void publish_to_all(uint32_t offset, const Packet& packet) {
    publish(offset, packet);
    target_.store_peer(ws_.own + offset, packet);
  }

  /// A hint that this will be published soon; see Target::will_publish.
  LAMPORT_FN void will_publish(uint32_t offset) const {
    LAMPORT_UNROLL
    for (int i = 0; i < W - 1; ++i) target_.will_publish(ws_.peer[i] + offset);
  }

  /// Once a call, between the first publishes and the first poll.
  LAMPORT_FN void sign() { ticket_ = target_.draw_ticket(&ws_.control->ticket.value); }  // step: sign

  /// Before collecting packets up to `last` of each source; see Target::watch.
  LAMPORT_FN void watch(uint32_t offset, uint32_t stride, uint32_t last) const {
    LAMPORT_UNROLL
    for (uint32_t s = 0; s < W; ++s) {
      if (s != ws_.rank) target_.watch(ws_.own + offset + s * stride + last * kWords);
    }
  }

 private:
  /// Polls until got[i], the packet of rank source(i), is complete for all i, and re-arms them.
  template <int N, class Source>
  LAMPORT_FN bool take(uint32_t offset, uint32_t stride, Packet (&got)[N], const Source& source) {
    uint32_t* slot = ws_.own + offset;
    typename Target::Patience patience(target_, ws_);
    for (;;) {  // step: poll
      LAMPORT_UNROLL
      for (uint32_t i = 0; i < N; ++i) got[i] = target_.load_own(slot + source(i) * stride);
      bool missing = false;  // with no branch between the loads their latencies overlap
      LAMPORT_UNROLL
      for (uint32_t i = 0; i < N; ++i) missing |= has_empty(got[i]);
      if (!missing) break;
      if (!patience.wait()) {
        uint32_t late = 0;  // 1 + a rank whose packet is incomplete
        LAMPORT_UNROLL
        for (uint32_t i = 0; i < N; ++i) {
          if (has_empty(got[i])) late = source(i) + 1;
        }
        target_.give_up(ws_.status, late, epoch_);
        return false;
      }
    }
    LAMPORT_UNROLL
    for (uint32_t i = 0; i < N; ++i) target_.restore_own(slot + source(i) * stride);  // step: restore
    return true;
  }

 public:
  /// Waits for one packet of each source, `stride` words apart from `offset` on, this rank's own contribution
  /// being `mine`, and re-arms what it read. False if patience ran out: nothing in `all` counts.
  LAMPORT_FN bool collect(uint32_t offset, uint32_t stride, const Packet& mine, Packet (&all)[W]) {
    Packet got[W - 1];  // by ascending source
    if (!take(offset, stride, got, [&](uint32_t i) { return i + (i >= ws_.rank); })) return false;
    LAMPORT_UNROLL
    for (uint32_t s = 0; s < W; ++s) {
      all[s] = mine;
      if (s < W - 1 && s < ws_.rank) all[s] = got[s];
      if (s > 0 && s > ws_.rank) all[s] = got[s - 1];
    }
    return true;
  }

  /// The same for the packet of one `source` alone, which may be this rank (see publish_to_all).
  LAMPORT_FN bool collect_from(uint32_t source, uint32_t offset, uint32_t stride, Packet& packet) {
    Packet got[1];
    const bool came = take(offset, stride, got, [&](uint32_t) { return source; });
    packet = got[0];
    return came;
  }

  /// step: fence
  LAMPORT_FN void next_chunk() { target_.fence(); }

  /// `slot` is the word offset of this rank's slot in a generation: where the next call, if it is like this
  /// one, will publish first (a hint; see Target::will_publish).
  LAMPORT_FN void leave(uint32_t chunks, uint32_t slot) {
    will_publish(generation(chunks) + slot);
    target_.finish();
    if (target_.signed_last(ticket_)) {  // step: advance
      ws_.control->ticket.value = 0;
      ws_.control->epoch.value = epoch_ + chunks;
    }
  }

 private:
  Target& target_;
  const WorkspaceView ws_;  // a copy: the compiler need not fear that a packet store changes it
  uint32_t epoch_;
  uint32_t ticket_ = 0;
};

/// fp32 accumulation in rank order, one rounding at the end: the same bits on every rank (P7).
template <class Target, class T, int W>
LAMPORT_FN typename Target::Packet sum_in_rank_order(const typename Target::Packet (&all)[W]) {
  using Half = typename Target::Half;
  auto sum = widen<T, Half>(all[0]);
  LAMPORT_UNROLL
  for (int s = 1; s < W; ++s) add(sum, widen<T, Half>(all[s]));
  return narrow<T, Half>(sum);
}

}  // namespace lamport
