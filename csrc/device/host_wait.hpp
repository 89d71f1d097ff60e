#pragma once
#include <stdint.h>

namespace lamport {

/// What a late peer makes us do, beyond spinning.
struct HostWait {
  uint32_t spins_before_yield;  ///< pauses before the first sched_yield; few when ranks share cores
  bool (*late)(void*);  ///< called again and again once a peer is late by kLateNs; false abandons the wait
  void* context;
};

}  // namespace lamport
