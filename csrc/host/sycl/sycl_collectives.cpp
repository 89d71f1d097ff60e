#include "csrc/host/sycl/sycl_collectives.hpp"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <limits>

#include "csrc/host/errors.hpp"

namespace syclex = sycl::ext::oneapi::experimental;

namespace lamport {
namespace {

constexpr uint32_t kPacketBytes = 16;
/// Small groups spread a decode-sized tensor over more of the GPU: 64 is four hardware threads of 16 lanes.
constexpr uint32_t kGpuLocalSize = 64;
/// The CPU device runs one work-group per worker, one after the other: one sub-group in one group is the
/// whole rank.
constexpr uint32_t kCpuLocalSize = 16;
/// A poll on a GPU is a trip to its memory, which no GPU makes faster than this. So a wait lasts at least as
/// long as was asked for; how much longer, only a real card can tell.
constexpr double kFastestPollSeconds = 200e-9;

/// What kernels call between polls on the CPU device; see CpuPause.
uint64_t yield_and_read_clock() {
  sched_yield();
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return uint64_t(t.tv_sec) * 1000000000u + uint64_t(t.tv_nsec);
}

WorkspaceView view_of(const ExchangeMemory& memory) {
  WorkspaceView view{};
  const uint32_t world = memory.layout.world;
  const uintptr_t own = memory.bases.at(memory.rank);
  view.own = reinterpret_cast<uint32_t*>(own + Layout::kHeaderBytes);
  for (uint32_t i = 0; i + 1 < world; ++i) {
    view.peer[i] =
        reinterpret_cast<uint32_t*>(memory.bases.at((memory.rank + 1 + i) % world) + Layout::kHeaderBytes);
  }
  view.control = reinterpret_cast<Control*>(own);
  view.status = reinterpret_cast<Status*>(memory.status);
  view.rank = memory.rank;
  view.generation_words = static_cast<uint32_t>(memory.layout.generation_bytes() / sizeof(uint32_t));
  return view;
}

}  // namespace

SyclCollectives::SyclCollectives(const sycl::queue& queue, const ExchangeMemory& memory,
                                 const SyclThresholds (&thresholds)[3], double timeout_seconds,
                                 std::optional<bool> yielding)
    : queue_(queue),
      context_(queue.get_context()),
      on_cpu_(queue.get_device().is_cpu()),
      yielding_(yielding.value_or(on_cpu_)),
      world_(memory.layout.world),
      local_size_(on_cpu_ ? kCpuLocalSize : kGpuLocalSize),
      slot_packets_{memory.layout.slot_bytes / kPacketBytes, memory.layout.slice_bytes / kPacketBytes},
      launches_{},
      args_{} {
  std::copy(std::begin(thresholds), std::end(thresholds), thresholds_);
  if (yielding_ && !on_cpu_)
    throw Error("WorkspaceError", "kernels that yield exist for the CPU device only");
  if (memory.bases.size() != world_)
    throw Error("WorkspaceError", "the workspace is not open to all peers yet");
  args_.workspace = view_of(memory);
  args_.workspace.patience =
      static_cast<uint64_t>(timeout_seconds / (yielding_ ? 1e-9 : kFastestPollSeconds));
  args_.yield = reinterpret_cast<uint64_t>(&yield_and_read_clock);
  if (world_ == 1) return;
  for (const Format format : {Format::fp32, Format::fp16, Format::bf16}) {
    const SyclThresholds& limit = thresholds_[static_cast<int>(format)];
    prepare(Collective::all_reduce_one_shot, format);
    if (limit.two_shot_max > limit.one_shot_max) prepare(Collective::all_reduce_two_shot, format);
  }
}

void SyclCollectives::prepare(Collective collective, Format format) {
  Launch& launch = launch_of(collective, format);
  launch.kernel = &kernel_for(context_, {collective, format, world_, yielding_});
  launch.capacity_packets = slot_packets_[static_cast<int>(collective)];
  launch.max_groups = 1;
  if (on_cpu_) return;
  using Query = syclex::info::kernel_queue_specific::max_num_work_groups;
  const size_t groups = launch.kernel->ext_oneapi_get_info<Query>(queue_, sycl::range<1>(local_size_), 0);
  launch.max_groups =
      static_cast<uint32_t>(std::clamp<size_t>(groups, 1, std::numeric_limits<uint32_t>::max()));
}

bool SyclCollectives::all_reduce(sycl::queue& queue, const void* in, void* out, uint64_t bytes,
                                 Format format) {
  if (bytes == 0) return true;
  if (world_ == 1) {
    if (out != in) queue.memcpy(out, in, bytes);
    return true;
  }
  const SyclThresholds& limit = thresholds_[static_cast<int>(format)];
  if (bytes > std::max(limit.one_shot_max, limit.two_shot_max)) return false;
  const bool one_shot = bytes <= limit.one_shot_max;
  const Launch& launch =
      launch_of(one_shot ? Collective::all_reduce_one_shot : Collective::all_reduce_two_shot, format);
  args_.all_reduce = {in, out, bytes, launch.capacity_packets};

  const uint64_t packets = (bytes + kPacketBytes - 1) / kPacketBytes;
  const uint64_t in_flight = std::min<uint64_t>(one_shot ? packets : (packets + world_ - 1) / world_,
                                                launch.capacity_packets);  // of a chunk, or of a slice
  const uint64_t groups = std::min<uint64_t>((in_flight + local_size_ - 1) / local_size_, launch.max_groups);
  syclex::nd_launch(queue, sycl::nd_range<1>(groups * local_size_, local_size_), *launch.kernel, args_);
  return true;
}

std::optional<SyclCollectives::Expired> SyclCollectives::expired() const {
  const volatile Status* status = args_.workspace.status;
  const uint32_t waited_for = status->waited_for;
  if (waited_for == 0) return std::nullopt;
  return Expired{waited_for - 1, status->epoch};
}

}  // namespace lamport
