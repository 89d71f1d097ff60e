/// Where things are in a rank's exchange memory; the same on every rank and for every device.
#pragma once
#include <algorithm>
#include <cstdint>

#include "csrc/device/workspace_view.hpp"

namespace lamport {

/// Header page, then two generations. Slots are sized by the algorithms' chunk sizes, never by a tensor.
struct Layout {
  uint32_t world;
  uint32_t slot_bytes;   ///< one-shot: capacity of a source rank's slot
  uint32_t slice_bytes;  ///< two-shot: capacity of a rank's slice

  static constexpr uint64_t kHeaderBytes = 4096;
  static constexpr uint64_t kStatusOffset = sizeof(Control);
  static constexpr uint64_t kCookieOffset = kStatusOffset + sizeof(Status);

  uint64_t generation_bytes() const {
    return uint64_t{world} * std::max<uint64_t>(slot_bytes, uint64_t{2} * slice_bytes);
  }
  uint64_t total_bytes() const { return kHeaderBytes + 2 * generation_bytes(); }
};
static_assert(Layout::kCookieOffset + kMaxWorld * sizeof(Line) <= Layout::kHeaderBytes);
// A cookie line per source rank: each is written by that rank alone, through its own mapping, at bring-up.

}  // namespace lamport
