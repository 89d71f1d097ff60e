// HostCollectives' fused members: pick the kernel, run it on the calling thread. And what checks their arguments,
// here because this file is compiled for speed.
#include <algorithm>

#include "csrc/host/checked_engine.hpp"
#include "csrc/host/shm/fused_kernels.hpp"
#include "csrc/host/shm/host_collectives.hpp"

namespace lamport {

void HostCollectives::throw_if_late() const {
  const uint32_t waited_for = __atomic_load_n(&view_.status->waited_for, __ATOMIC_RELAXED);
  if (waited_for != 0) throw Timeout{waited_for - 1, view_.status->epoch};
}

bool HostCollectives::add_all_reduce(AddAllReduceArgs args, Format format, Library library) {
  if (args.bytes == 0) return true;
  const int f = static_cast<int>(format);
  const Thresholds& limit = thresholds_[f];
  if (library == Library::large_sizes && world_ > 1 &&
      args.bytes > std::max(limit.one_shot_max, limit.two_shot_max)) {
    return false;
  }
  const int algorithm = args.bytes <= limit.one_shot_max || world_ == 1 ? 0 : 1;
  args.slot_packets = capacity_packets_[algorithm];
  best_fused_kernels().add_all_reduce[algorithm][f][world_](wait, view_, args);
  throw_if_late();
  return true;
}

void HostCollectives::qk_rms_norm(const QkNormArgs& args, Format format) {
  if (args.tokens == 0) return;
  best_fused_kernels().qk_rms_norm[static_cast<int>(format)][world_](wait, view_, args);
  throw_if_late();
}

void HostCollectives::add_all_reduce_rms_norm(const AddNormArgs& args, Format format) {
  if (args.tokens == 0) return;
  best_fused_kernels().add_all_reduce_rms_norm[static_cast<int>(format)][world_](wait, view_, args);
  throw_if_late();
}

void HostCollectives::rs_sconv_ag_norm(const SconvArgs& args, Format format) {
  if (args.tokens == 0) return;
  best_fused_kernels().rs_sconv_ag_norm[static_cast<int>(format)][world_](wait, view_, args);
  throw_if_late();
}

template class CheckedEngine<HostCollectives>;

}  // namespace lamport
