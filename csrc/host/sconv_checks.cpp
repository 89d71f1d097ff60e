#include <algorithm>
#include <limits>
#include <type_traits>
#include <vector>

#include "csrc/host/check_helpers.hpp"

namespace lamport {
namespace {

using namespace checks;

constexpr int64_t kSconvTaps = 4;

void check_index(const Named& t, StridedView::Type type, int64_t length) {
  if (t.view.type != type || t.view.ndim != 1 || t.view.sizes[0] != length) {
    refuse(std::string(t.name) + " must be " + (type == StridedView::Type::int64 ? "int64" : "int32") + " [" +
           std::to_string(length) + "], one for each token");
  }
}

template <class Byte>
Byte* below(Byte* base, uint64_t bytes) {  // null stays null
  using Char = std::conditional_t<std::is_const_v<Byte>, const char, char>;
  return base == nullptr ? nullptr : reinterpret_cast<Char*>(base) + bytes;
}

}  // namespace

SconvArgs check_rs_sconv_ag_norm(const Limits& limits, const SconvTensors& t, int64_t channel_offset,
                                 double eps) {
  const Named r{t.routed, "routed"}, x{t.residual, "residual"}, o{t.new_residual, "new_residual"};
  const Named cw{t.conv_weight, "conv_weight"}, cache{t.cache, "cache"}, p{t.positions, "positions"};
  const Named slots{t.slots, "slot_mapping"}, table{t.block_table, "block_table"},
      seq{t.sequences, "seq_idx"};
  const Named s{t.shared != nullptr ? *t.shared : t.routed, t.shared != nullptr ? "shared" : "routed"};
  const Named nw{t.norm_weight != nullptr ? *t.norm_weight : t.conv_weight,
                 t.norm_weight != nullptr ? "norm_weight" : "conv_weight"};
  const Named n{t.norm_weight != nullptr ? *t.normed : t.new_residual,
                t.norm_weight != nullptr ? "normed" : "new_residual"};
  check_device(limits, {r, s, x, cw, nw, cache, p, slots, table, seq, n, o});
  check_type(r, {s, x, cw, nw, cache, n, o});
  if (t.routed.ndim != 2) refuse("routed has shape " + shape(t.routed) + " and must be [tokens, hidden]");
  check_same_shape(r, {s, x, n, o});
  check_contiguous({r, s, x, cw, nw, p, slots, table, seq, n, o});
  check_bytes(limits, r);
  const int64_t tokens = t.routed.sizes[0], hidden = t.routed.sizes[1], world = limits.world;
  const int64_t shard = hidden / world;
  if (hidden == 0 || hidden % world != 0) {
    refuse("the hidden size, " + std::to_string(hidden) + ", must be a multiple of the world size, " +
           std::to_string(world));
  }
  if (t.conv_weight.ndim != 2 || t.conv_weight.sizes[0] != shard || t.conv_weight.sizes[1] != kSconvTaps) {
    refuse("conv_weight has shape " + shape(t.conv_weight) + " and must have [" + std::to_string(shard) +
           ", " + std::to_string(kSconvTaps) + "], a window of " + std::to_string(kSconvTaps) +
           " for each channel of this rank");
  }
  if (t.norm_weight != nullptr) check_vector(nw, hidden);
  check_index(p, StridedView::Type::int64, tokens);
  check_index(slots, StridedView::Type::int64, tokens);
  check_index(seq, StridedView::Type::int32, tokens);
  if (t.block_table.type != StridedView::Type::int32 || t.block_table.ndim != 2 ||
      (tokens > 0 && t.block_table.count() == 0)) {
    refuse("block_table must be int32 [sequences, blocks]");
  }
  const StridedView& c = t.cache;
  if (c.ndim != 4 || c.sizes[1] < 1 || c.sizes[2] < 1 || shard % c.sizes[1] != 0) {
    refuse("cache has shape " + shape(c) +
           " and must have [blocks, heads, block_size, width] with heads that divide " +
           std::to_string(shard));
  }
  const int64_t head = shard / c.sizes[1];
  if (channel_offset < 0 || channel_offset + head > c.sizes[3]) {
    refuse("channels " + std::to_string(channel_offset) + " to " + std::to_string(channel_offset + head) +
           " do not lie in the cache's width of " + std::to_string(c.sizes[3]));
  }
  if ((c.sizes[3] > 1 && c.strides[3] != 1) || c.strides[0] < 0 || c.strides[1] < 0 || c.strides[2] < 0) {
    throw Error("NonContiguousError", "cache must have its last dimension contiguous");
  }
  check_alias(o, {x}, {r, cw, cache, p, slots, table, seq});
  if (t.norm_weight != nullptr) {
    check_alias(n, {r}, {x, cw, cache, p, slots, table, seq, nw, o});
    check_alias(o, {}, {nw});
  }
  if (t.shared != nullptr) {
    if (t.norm_weight != nullptr) check_alias(n, {}, {s});
    check_alias(o, {}, {s});
  }
  check_alias(cache, {}, {r, s, x, cw, p, slots, table, seq});
  if (t.cache.sizes[0] * t.cache.sizes[2] > std::numeric_limits<int32_t>::max()) {
    refuse("cache has more than 2^31 slots; kernels number them in 32 bits");
  }
  const uint64_t item = t.routed.item_bytes();
  const uint64_t shard_packets = (shard * item + limits.packet_bytes - 1) / limits.packet_bytes;
  SconvArgs args{};
  args.slot_packets = static_cast<uint32_t>(limits.slice_bytes / limits.packet_bytes);
  if (shard_packets > args.slot_packets) {
    throw Error("TooLargeError", "a rank's part of a row has " + std::to_string(shard * item) +
                                     " bytes and a slice " + std::to_string(limits.slice_bytes));
  }
  args.in = t.routed.data;
  args.shared = t.shared != nullptr ? t.shared->data : nullptr;
  args.residual = t.residual.data;
  args.conv_weight = t.conv_weight.data;
  args.norm_weight = t.norm_weight != nullptr ? t.norm_weight->data : nullptr;
  args.normed = t.norm_weight != nullptr ? t.normed->data : nullptr;
  args.new_residual = t.new_residual.data;
  args.cache = c.data;
  args.block_stride = static_cast<uint64_t>(c.strides[0]) * item;
  args.head_stride = static_cast<uint64_t>(c.strides[1]) * item;
  args.token_stride = static_cast<uint64_t>(c.strides[2]) * item;
  args.block_size = static_cast<uint32_t>(c.sizes[2]);
  args.head_bytes = static_cast<uint32_t>(head * static_cast<int64_t>(item));
  args.cache_offset = static_cast<uint32_t>(channel_offset * static_cast<int64_t>(item));
  args.positions = reinterpret_cast<const int64_t*>(t.positions.data);
  args.slots = reinterpret_cast<const int64_t*>(t.slots.data);
  args.sequences = reinterpret_cast<const int32_t*>(t.sequences.data);
  args.block_table = reinterpret_cast<const int32_t*>(t.block_table.data);
  args.table_stride = args.max_blocks = static_cast<uint32_t>(t.block_table.sizes[1]);
  args.row_bytes = static_cast<uint32_t>(hidden * static_cast<int64_t>(item));
  args.shard_bytes = static_cast<uint32_t>(shard * static_cast<int64_t>(item));
  args.tokens = static_cast<uint32_t>(tokens);
  args.full = static_cast<float>(hidden);
  args.eps = check_eps(eps);
  return args;
}

SconvArgs sconv_part(const SconvArgs& all, uint32_t first, uint32_t packet_bytes) {
  SconvArgs part = all;
  const uint64_t offset = uint64_t{first} * all.row_bytes;
  part.in = below(all.in, offset);
  part.shared = below(all.shared, offset);
  part.residual = below(all.residual, offset);
  part.normed = below(all.normed, offset);
  part.new_residual = below(all.new_residual, offset);
  part.positions = all.positions + first;
  part.slots = all.slots + first;
  part.sequences = all.sequences + first;
  const uint32_t packets_a_row = (all.shard_bytes + packet_bytes - 1) / packet_bytes;
  part.tokens = std::min(all.slot_packets / packets_a_row, all.tokens - first);
  return part;
}

void check_sconv_indices(const SconvTensors& t) {
  const auto* positions = reinterpret_cast<const int64_t*>(t.positions.data);
  const auto* slots = reinterpret_cast<const int64_t*>(t.slots.data);
  const auto* sequences = reinterpret_cast<const int32_t*>(t.sequences.data);
  const auto* table = reinterpret_cast<const int32_t*>(t.block_table.data);
  const int64_t tokens = t.positions.sizes[0], rows = t.block_table.sizes[0],
                columns = t.block_table.sizes[1];
  const int64_t blocks = t.cache.sizes[0], block_size = t.cache.sizes[2];
  std::vector<int64_t> latest(static_cast<size_t>(rows), -1);
  for (int64_t i = 0; i < tokens; ++i) {
    if (slots[i] < 0) continue;  // padding: nothing else of it is looked at
    const std::string which = " of token " + std::to_string(i);
    if (slots[i] >= blocks * block_size) refuse("the slot" + which + " lies outside the cache");
    if (sequences[i] < 0 || sequences[i] >= rows) refuse("seq_idx" + which + " has no row in block_table");
    if (positions[i] > std::numeric_limits<int32_t>::max()) refuse("the position" + which + " is above 2^31");
    int64_t& last = latest[static_cast<size_t>(sequences[i])];
    if (positions[i] <= last) refuse("positions of a sequence must ascend, and that" + which + " does not");
    last = positions[i];
    for (int64_t source = std::max<int64_t>(0, positions[i] - kSconvTaps + 1); source < positions[i];
         ++source) {
      const int32_t block = table[sequences[i] * columns + std::min(source / block_size, columns - 1)];
      if (block < 0 || block >= blocks) refuse("block_table" + which + " names a block outside the cache");
    }
  }
}

}  // namespace lamport
