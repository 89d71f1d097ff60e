// HostCollectives' fused members: pick the kernel, run it on the calling thread.
#include <algorithm>
#include <type_traits>

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
  const int algorithm = args.bytes <= limit.one_shot_max ? 0 : 1;
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

void HostCollectives::rs_sconv_ag_norm(const SconvArgs& all, Format format) {
  const auto kernel = best_fused_kernels().rs_sconv_ag_norm[static_cast<int>(format)][world_];
  const auto below = [](auto* base, uint64_t bytes) {  // null stays null
    using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(base)>>, const char, char>;
    return base == nullptr ? nullptr : reinterpret_cast<Byte*>(base) + bytes;
  };
  const uint32_t rows = all.slot_packets / ((all.shard_bytes + 63) / 64);
  for (uint32_t first = 0; first < all.tokens; first += rows) {
    SconvArgs args = all;
    const uint64_t offset = uint64_t{first} * all.row_bytes;
    args.in = below(all.in, offset);
    args.shared = below(all.shared, offset);
    args.residual = below(all.residual, offset);
    args.normed = below(all.normed, offset);
    args.new_residual = below(all.new_residual, offset);
    args.positions = all.positions + first;
    args.slots = all.slots + first;
    args.sequences = all.sequences + first;
    args.tokens = std::min(rows, all.tokens - first);
    kernel(wait, view_, args);
    throw_if_late();
  }
}

}  // namespace lamport
