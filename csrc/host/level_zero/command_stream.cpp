#include "csrc/host/level_zero/command_stream.hpp"

#include <string>
#include <utility>

#include "csrc/host/level_zero/loader.hpp"

namespace lamport::ze {

CommandStream::CommandStream(ContextHandle context, DeviceHandle device, std::chrono::milliseconds deadline)
    : deadline_ns_(std::chrono::nanoseconds(deadline).count()) {
  CommandQueueDesc queue;  // ordinal 0 is the group that computes and copies
  queue.mode = kQueueModeAsynchronous;
  check(api().CommandListCreateImmediate(context, device, &queue, &list_), "zeCommandListCreateImmediate");
}

void CommandStream::destroy() {
  if (CommandListHandle list = std::exchange(list_, nullptr)) api().CommandListDestroy(list);
}

void CommandStream::abandon() {
  list_ = nullptr;
  (void)staging_.release();
}

void CommandStream::wait(const char* operation) {
  const Result result = api().CommandListHostSynchronize(list_, deadline_ns_);
  if (result == kNotReady) {
    throw Error(ErrorKind::kTimeout,
                std::string(operation) + " did not finish on the GPU within " +
                    std::to_string(deadline_ns_ / 1000000) +
                    " ms. The device is hung or busy with another program's long kernel.");
  }
  check(result, "zeCommandListHostSynchronize");
}

void CommandStream::copy(void* to, const void* from, size_t bytes) {
  check(api().CommandListAppendMemoryCopy(list_, to, from, bytes, nullptr, 0, nullptr),
        "zeCommandListAppendMemoryCopy");
  wait("a copy");
}

void CommandStream::write(uintptr_t to, uint32_t value) {
  *staging_ = value;
  copy(reinterpret_cast<void*>(to), staging_.get(), sizeof value);
}

uint32_t CommandStream::read(uintptr_t from) {
  copy(staging_.get(), reinterpret_cast<const void*>(from), sizeof(uint32_t));
  return *staging_;
}

void CommandStream::fill(uintptr_t to, uint32_t word, size_t bytes) {
  check(api().CommandListAppendMemoryFill(list_, reinterpret_cast<void*>(to), &word, sizeof word, bytes,
                                          nullptr, 0, nullptr),
        "zeCommandListAppendMemoryFill");
  wait("a fill");
}

}  // namespace lamport::ze
