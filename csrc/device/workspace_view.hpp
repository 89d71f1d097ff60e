/// What the host prepares and a kernel is passed by value.
#pragma once
#include <stdint.h>

namespace lamport {

inline constexpr int kMaxWorld = 8;

/// Own memory only; each value on its own line so that no peer's write can disturb it.
struct alignas(64) Line {
  uint32_t value;
};
struct Control {
  Line epoch;
  Line ticket;
  Line
      gave_up;  ///< not 0 once a call was given up, where work-items look for that more often than Status allows
};

/// Host-visible: filled by the first work-item whose patience ran out.
struct alignas(64) Status {
  uint32_t waited_for;  ///< 1 + rank that did not arrive; 0 while all is well
  uint32_t epoch;       ///< of the call that waited
  uint64_t bytes;       ///< of its tensor, where the target tells
  uint32_t signatures;  ///< that the call waited for on this rank, where the target tells,
  uint32_t signed_off;  ///< and those it had: fewer if parts of the grid had found no room
  uint32_t collective;  ///< which call that was, in the target's numbering
};

/// A kernel's view of the workspace, passed by value. `own` has its own field, and peers come in the order
/// rank + 1, rank + 2, ... (mod world): both so that no array is indexed by a run-time rank, which would cost
/// private memory, and so that ranks do not all write to rank 0 first.
struct WorkspaceView {
  uint32_t* own;
  uint32_t* peer[kMaxWorld - 1];
  Control* control;
  Status* status;
  uint32_t rank;
  uint32_t generation_words;
  uint64_t patience;  ///< how long a poll may last, in the target's unit
};

/// `bytes` of a tensor from `in` to `out`: the same memory, or disjoint.
struct AllReduceArgs {
  const void* in;
  void* out;
  uint64_t bytes;
  uint32_t slot_packets;  ///< capacity of a slot (one-shot) or slice (two-shot); the same on all ranks
};

}  // namespace lamport
