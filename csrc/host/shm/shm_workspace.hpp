#pragma once
#include <string>
#include <vector>

#include "csrc/host/layout.hpp"
#include "csrc/host/shm/segment.hpp"

namespace lamport {

/// Exchange memory of one rank in POSIX shared memory, and the mappings of its peers'. comm/workspace.py
/// drives it through bring-up (P8) and teardown (P9).
class ShmWorkspace {
 public:
  ShmWorkspace(uint32_t rank, Layout layout, double timeout_seconds);
  ShmWorkspace(const ShmWorkspace&) = delete;
  ShmWorkspace& operator=(const ShmWorkspace&) = delete;

  /// Creates this rank's segment, armed; returns its name, which peers open.
  std::string allocate(const std::string& token);
  void open_peer(uint32_t rank, const std::string& name);
  /// Writes `value` into the cookie line kept for this rank in `peer`'s memory.
  void write_cookie(uint32_t peer, uint32_t value);
  uint32_t read_cookie(uint32_t source) const;
  /// Unlinks the segments of all ranks of the job; mappings stay.
  void withdraw(const std::string& token);
  /// The view must not be used any more after either.
  void close_peers();
  void free();

  bool ready() const;  ///< allocated, and every peer open
  const Layout& layout() const { return layout_; }
  uint32_t rank() const { return rank_; }
  WorkspaceView view() const;
  /// Base of every rank's memory in this process, for kernels that the SYCL runtime launches on it.
  std::vector<uintptr_t> addresses() const;

 private:
  Line* cookie(const Segment& segment, uint32_t source) const;

  uint32_t rank_;
  Layout layout_;
  uint64_t patience_ns_;
  std::vector<Segment> segments_;  // by rank; ours among them
};

}  // namespace lamport
