#pragma once
#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "csrc/host/layout.hpp"

namespace lamport {

/// Exchange memory of one rank on a GPU, and its peers', mapped by CUDA IPC. comm/workspace.py drives it
/// through bring-up (P8) and teardown (P9).
class CudaWorkspace {
 public:
  CudaWorkspace(int device, uint32_t rank, Layout layout, double timeout_seconds);
  CudaWorkspace(const CudaWorkspace&) = delete;
  CudaWorkspace& operator=(const CudaWorkspace&) = delete;
  ~CudaWorkspace();

  /// Allocates and arms this rank's memory; returns the handle that peers open.
  std::string allocate();
  void open_peer(uint32_t rank, const std::string& handle);
  /// Writes `value` into the cookie line kept for this rank in `peer`'s memory.
  void write_cookie(uint32_t peer, uint32_t value);
  uint32_t read_cookie(uint32_t source) const;
  /// Waits for the GPU first. The view must not be used any more after either.
  void close_peers();
  void free();

  bool ready() const;  ///< allocated, and every peer open
  int device() const { return device_; }
  uint32_t rank() const { return rank_; }
  const Layout& layout() const { return layout_; }
  /// How many ranks, this one included, have their memory on this rank's GPU.
  uint32_t ranks_on_this_gpu() const { return ranks_here_; }
  WorkspaceView view() const;
  /// The status word as the host reads it.
  const volatile Status* status() const { return status_; }

 private:
  char* cookie(uint32_t owner, uint32_t source) const;

  int device_;
  uint32_t rank_;
  Layout layout_;
  uint64_t patience_ns_;
  uint32_t ranks_here_ = 1;
  std::vector<char*> memory_;        // by rank; ours among them
  std::array<char, 16> gpu_{};       // this rank's, by UUID
  Status* status_ = nullptr;         // in page-locked host memory
  Status* device_status_ = nullptr;  // the same, as the GPU addresses it
};

}  // namespace lamport
