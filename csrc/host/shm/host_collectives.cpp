#include "csrc/host/shm/host_collectives.hpp"

#include <algorithm>
#include <cstring>

#include "csrc/host/errors.hpp"

namespace lamport {

HostCollectives::HostCollectives(std::shared_ptr<ShmWorkspace> workspace, const Thresholds (&thresholds)[3],
                                 uint32_t spins_before_yield)
    : wait{spins_before_yield, nullptr, nullptr}, workspace_(std::move(workspace)) {
  if (!workspace_->ready()) throw Error("WorkspaceError", "the workspace is not open to all peers yet");
  view_ = workspace_->view();
  const Layout& layout = workspace_->layout();
  world_ = layout.world;
  capacity_packets_[0] = layout.slot_bytes / 64;
  capacity_packets_[1] = layout.slice_bytes / 64;
  std::copy(std::begin(thresholds), std::end(thresholds), thresholds_);
}

bool HostCollectives::all_reduce(AllReduceArgs args, Format format, Library library) {
  if (args.bytes == 0) return true;
  if (world_ == 1) {
    if (args.out != args.in) std::memcpy(args.out, args.in, args.bytes);
    return true;
  }
  const Thresholds& limit = thresholds_[static_cast<int>(format)];
  if (library == Library::large_sizes && args.bytes > std::max(limit.one_shot_max, limit.two_shot_max))
    return false;
  const int algorithm = args.bytes <= limit.one_shot_max ? 0 : 1;
  args.slot_packets = capacity_packets_[algorithm];
  best_kernels().all_reduce[algorithm][static_cast<int>(format)][world_](wait, view_, args);
  const uint32_t waited_for = __atomic_load_n(&view_.status->waited_for, __ATOMIC_RELAXED);
  if (waited_for != 0) throw Timeout{waited_for - 1, view_.status->epoch};
  return true;
}

}  // namespace lamport
