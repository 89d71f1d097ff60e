/// Copies and fills during bring-up. Kernels never come through here: they run on the caller's queue.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "csrc/host/level_zero/ze_abi.hpp"

namespace lamport::ze {

/// An immediate command list whose every operation is waited for, but never longer than the deadline
/// (kTimeout).
class CommandStream {
 public:
  CommandStream(ContextHandle context, DeviceHandle device, std::chrono::milliseconds deadline);
  ~CommandStream() { destroy(); }
  CommandStream(const CommandStream&) = delete;
  CommandStream& operator=(const CommandStream&) = delete;

  void write(uintptr_t to, uint32_t value);
  uint32_t read(uintptr_t from);
  /// Repeats `word` over `bytes` (a multiple of 4).
  void fill(uintptr_t to, uint32_t word, size_t bytes);

  void destroy();
  /// Forgets the list without a driver call, for a driver that has stopped answering.
  void abandon();

 private:
  void copy(void* to, const void* from, size_t bytes);
  void wait(const char* operation);

  CommandListHandle list_ = nullptr;
  uint64_t deadline_ns_;
  /// Host end of the copies. On the heap because the device may still reach it after a timeout, when it
  /// leaks.
  std::unique_ptr<uint32_t> staging_ = std::make_unique<uint32_t>(0);
};

}  // namespace lamport::ze
