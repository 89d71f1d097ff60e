#pragma once
#include <cstdint>
#include <string>

namespace lamport {

enum class Algorithm : uint32_t { one_shot = 0, two_shot = 1 };

/// Up to which size, in bytes, an algorithm is used; above two_shot_max the caller's library takes over.
struct Thresholds {
  uint64_t one_shot_max;
  uint64_t two_shot_max;
};

/// A wait that ran out: who did not come. Where it is learned after the call, also which call it was.
struct Timeout {
  uint32_t peer;
  uint32_t epoch;
  const char* op = nullptr;
  uint64_t bytes = 0;
  std::string detail = {};
};

}  // namespace lamport
