#include "csrc/host/sycl/sycl_collectives.hpp"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <limits>
#include <thread>

#include "csrc/sycl/kernel_args.hpp"

namespace syclex = sycl::ext::oneapi::experimental;

namespace lamport {
namespace {

constexpr uint32_t kPacketBytes = 16;
/// Small groups spread a decode-sized tensor over more of the GPU: 64 is four hardware threads of 16 lanes.
constexpr uint32_t kGpuLocalSize = 64;
/// The CPU device runs one work-group per worker, one after the other: one sub-group in one group is the
/// whole rank.
constexpr uint32_t kCpuLocalSize = 16;
/// Where a group has a row: enough there for sums over several sub-groups.
constexpr uint32_t kCpuRowLocalSize = 64;
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

uint64_t divide_rounding_up(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

}  // namespace

SyclCollectives::SyclCollectives(const sycl::queue& queue, const ExchangeMemory& memory,
                                 const Thresholds (&thresholds)[3], double timeout_seconds,
                                 std::optional<bool> yielding, std::function<sycl::queue&()> current_queue)
    : queue_(queue),
      context_(queue.get_context()),
      current_queue_(std::move(current_queue)),
      layout_(memory.layout),
      on_cpu_(queue.get_device().is_cpu()),
      yielding_(yielding.value_or(on_cpu_)),
      world_(memory.layout.world),
      capacity_packets_{memory.layout.slot_bytes / kPacketBytes, memory.layout.slice_bytes / kPacketBytes},
      kernels_{} {
  std::copy(std::begin(thresholds), std::end(thresholds), thresholds_);
  if (yielding_ && !on_cpu_)
    throw Error("WorkspaceError", "kernels that yield exist for the CPU device only");
  if (memory.bases.size() != world_)
    throw Error("WorkspaceError", "the workspace is not open to all peers yet");
  view_ = view_of(memory);
  view_.patience = static_cast<uint64_t>(timeout_seconds / (yielding_ ? 1e-9 : kFastestPollSeconds));
  build_needed();
}

void SyclCollectives::build_needed() {
  std::vector<KernelKey> keys;
  for (int which = 0; which < kSyclKernels; ++which) {
    for (int format = 0; format < 3; ++format) {
      const auto id = static_cast<SyclKernel>(which);
      if (needed(id, thresholds_[format]))
        keys.push_back({id, static_cast<Format>(format), world_, yielding_});
    }
  }
  // A compiler runs on one core, and a rank may use its share of the machine's.
  const size_t threads = std::max<size_t>(1, std::thread::hardware_concurrency() / world_);
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < keys.size(); i = next++) kernel_for(context_, keys[i]);
  };
  std::vector<std::future<void>> others;
  for (size_t i = 1; i < std::min(threads, keys.size()); ++i)
    others.push_back(std::async(std::launch::async, work));
  work();
  for (auto& other : others) other.get();
  for (const KernelKey& key : keys) kernel(key.kernel, key.format);
}

bool SyclCollectives::needed(SyclKernel which, const Thresholds& limit) const {
  if (world_ == 1) return serves_world_of_one(which) && !on_cpu_;
  if (on_cpu_ && which > SyclKernel::all_reduce_two_shot) return false;
  const bool two_shot =
      which == SyclKernel::all_reduce_two_shot || which == SyclKernel::add_all_reduce_two_shot;
  return !two_shot || limit.two_shot_max > limit.one_shot_max;
}

SyclCollectives::Kernel& SyclCollectives::kernel(SyclKernel which, Format format) {
  Kernel& kernel = kernels_[static_cast<int>(which)][static_cast<int>(format)];
  if (kernel.function != nullptr) return kernel;
  kernel.function = &kernel_for(context_, {which, format, world_, yielding_});
  using Query = sycl::info::kernel_device_specific::work_group_size;
  const size_t items = kernel.function->get_info<Query>(queue_.get_device());
  kernel.max_local = static_cast<uint32_t>(std::min<size_t>(items, kMaxLocal) / kLanes * kLanes);
  return kernel;
}

uint32_t SyclCollectives::resident_groups(Kernel& kernel, uint32_t local) const {
  if (on_cpu_) return 1;
  uint32_t& groups = kernel.resident_groups[local / kLanes];
  if (groups == 0) {
    using Query = syclex::info::kernel_queue_specific::max_num_work_groups;
    const size_t found = kernel.function->ext_oneapi_get_info<Query>(queue_, sycl::range<1>(local), 0);
    groups = static_cast<uint32_t>(std::clamp<size_t>(found, 1, std::numeric_limits<uint32_t>::max()));
  }
  return groups;
}

template <class Args>
void SyclCollectives::launch(SyclKernel which, Kernel& kernel, uint64_t groups, uint32_t local,
                             const Args& args) {
  const SyclKernelArgs<Args> all{view_, args, static_cast<uint32_t>(which),
                                 reinterpret_cast<uint64_t>(&yield_and_read_clock)};
  groups = std::min<uint64_t>(groups, resident_groups(kernel, local));
  syclex::nd_launch(current_queue_(), sycl::nd_range<1>(groups * local, local), *kernel.function, all);
}

template <class Args>
bool SyclCollectives::reduce(SyclKernel one_shot, Args& args, Format format, Library library) {
  if (args.bytes == 0) return true;
  const Thresholds& limit = thresholds_[static_cast<int>(format)];
  const bool small = world_ == 1 || args.bytes <= limit.one_shot_max;
  if (!small && args.bytes > limit.two_shot_max && library == Library::large_sizes) return false;
  const auto which = static_cast<SyclKernel>(static_cast<uint32_t>(one_shot) + (small ? 0 : 1));
  args.slot_packets = capacity_packets_[small ? 0 : 1];
  const uint64_t packets = divide_rounding_up(args.bytes, kPacketBytes);
  const uint64_t in_flight =  // of a chunk, or of a slice
      std::min<uint64_t>(small ? packets : divide_rounding_up(packets, world_), args.slot_packets);
  const uint32_t local = on_cpu_ ? kCpuLocalSize : kGpuLocalSize;
  launch(which, kernel(which, format), divide_rounding_up(in_flight, local), local, args);
  return true;
}

/// A work-group a row, and a work-item a packet as far as that goes.
template <class Args>
void SyclCollectives::launch_for_rows(SyclKernel which, const Args& args, Format format, uint64_t rows,
                                      uint64_t row_bytes) {
  if (rows == 0) return;
  Kernel& chosen = kernel(which, format);
  const uint32_t most = on_cpu_ ? std::min(kCpuRowLocalSize, chosen.max_local) : chosen.max_local;
  const uint64_t packets = divide_rounding_up(row_bytes, kPacketBytes);
  const uint64_t local = std::min<uint64_t>(divide_rounding_up(packets, kLanes) * kLanes, most);
  launch(which, chosen, rows, static_cast<uint32_t>(local), args);
}

bool SyclCollectives::all_reduce(AllReduceArgs args, Format format, Library library) {
  check();
  if (world_ > 1) return reduce(SyclKernel::all_reduce_one_shot, args, format, library);
  if (args.bytes != 0 && args.out != args.in) current_queue_().memcpy(args.out, args.in, args.bytes);
  return true;
}

bool SyclCollectives::add_all_reduce(AddAllReduceArgs args, Format format, Library library) {
  check();
  return reduce(SyclKernel::add_all_reduce_one_shot, args, format, library);
}

void SyclCollectives::qk_rms_norm(const QkNormArgs& args, Format format) {
  check();
  constexpr uint32_t kTokens = kPacketBytes / 8;  // that share a packet, and so a group
  launch_for_rows(SyclKernel::qk_rms_norm, args, format, divide_rounding_up(args.tokens, kTokens),
                  std::max(args.q_bytes, args.k_bytes));
}

void SyclCollectives::add_all_reduce_rms_norm(const AddNormArgs& args, Format format) {
  check();
  launch_for_rows(SyclKernel::add_all_reduce_rms_norm, args, format, args.tokens, args.row_bytes);
}

void SyclCollectives::rs_sconv_ag_norm(const SconvArgs& args, Format format) {
  check();
  launch_for_rows(SyclKernel::rs_sconv_ag_norm, args, format, args.tokens, args.row_bytes);
}

void SyclCollectives::check() const {
  const volatile Status* status = view_.status;
  const uint32_t waited_for = status->waited_for;
  if (waited_for == 0) return;
  throw Timeout{waited_for - 1, status->epoch, method_of(static_cast<SyclKernel>(status->collective)),
                status->bytes, ""};
}

}  // namespace lamport
