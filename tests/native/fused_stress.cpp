// The group kernels with threads as work-items, several to a work-group and several groups to a rank, as on a GPU:
// what a host target with one work-item never does. Mixed calls on grids that differ between ranks and from call to
// call, a distinct payload every call. `fused_stress MUTANT SEED` exits 0 if every result was right on every rank, 1 if
// one was wrong or a wait ran out.
#include "csrc/device/target_host.hpp"
// target_host.hpp first: it sets how functions are declared.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "csrc/device/add_all_reduce_rms_norm.hpp"
#include "csrc/device/all_reduce_one_shot.hpp"
#include "csrc/device/all_reduce_two_shot.hpp"
#include "csrc/device/qk_rms_norm.hpp"
#include "csrc/device/rs_sconv_ag_norm.hpp"

namespace {

using namespace lamport;

std::string mutant;

/// A work-group's barrier, and memory for its sums.
struct Group {
  explicit Group(uint32_t items) : items(items), shared(items * 32) {}
  void wait() {
    std::unique_lock<std::mutex> lock(mutex);
    const uint32_t mine = round;
    if (++arrived == items) {
      arrived = 0;
      ++round;
      all_here.notify_all();
    } else {
      all_here.wait(lock, [&] { return round != mine; });
    }
  }
  const uint32_t items;
  std::vector<double> shared;
  std::mutex mutex;
  std::condition_variable all_here;
  uint32_t arrived = 0, round = 0;
};

/// Item `item` of group `group` of a grid.
class GridTarget : public HostTarget<0> {
 public:
  GridTarget(const HostWait& wait, Group& members, uint32_t item, uint32_t group, uint32_t groups,
             unsigned seed)
      : HostTarget<0>(wait), members_(members), item_(item), group_(group), groups_(groups), random_(seed) {}

  uint32_t first() const { return group_ * members_.items + item_; }
  uint32_t step() const { return groups_ * members_.items; }
  uint32_t group() const { return group_; }
  uint32_t groups() const { return groups_; }
  uint32_t item() const { return item_; }
  uint32_t items() const { return members_.items; }

  template <class Real, int N>
  void group_sum(Real (&values)[N]) const {
    static_assert(N <= 32, "a group's memory holds that many");
    dawdle();
    for (int i = 0; i < N; ++i) members_.shared[item_ * 32 + i] = values[i];
    members_.wait();
    for (int i = 0; i < N; ++i) {
      values[i] = 0;
      for (uint32_t m = 0; m < members_.items; ++m)
        values[i] += static_cast<Real>(members_.shared[m * 32 + i]);
    }
    members_.wait();  // before the memory is used again
  }

  template <class Real, int N>
  void group_share(Real (&values)[N]) const {
    static_assert(N <= 32, "a group's memory holds that many");
    dawdle();
    if (item_ == 0) {
      for (int i = 0; i < N; ++i) members_.shared[i] = values[i];
    }
    members_.wait();
    for (int i = 0; i < N; ++i) values[i] = static_cast<Real>(members_.shared[i]);
    members_.wait();
  }

  // A GPU's packets of 16 bytes.
  using Packet = lamport::Packet<4>;
  static constexpr uint32_t kPacketWords = 4;
  static constexpr bool kKeepsFirst = true;
  using Wide = float;
  Packet load_own(const uint32_t* p) const {
    Packet v;
    for (int i = 0; i < 4; ++i) v.w[i] = __atomic_load_n(p + i, __ATOMIC_RELAXED);
    return v;
  }
  void store_peer(uint32_t* p, const Packet& v) const {
    for (int i = 0; i < 4; ++i) __atomic_store_n(p + i, v.w[i], __ATOMIC_RELAXED);
  }
  void restore_own(uint32_t* p) const {
    if (mutant != "no-restore") store_peer(p, {{kEmpty, kEmpty, kEmpty, kEmpty}});
  }
  Packet load_tensor(const void* base, uint64_t index, uint64_t bytes) const {
    Packet v{};
    const uint64_t at = index * 16;
    if (at < bytes) memcpy(&v, static_cast<const char*>(base) + at, std::min<uint64_t>(16, bytes - at));
    return v;
  }
  void store_tensor(void* base, uint64_t index, uint64_t bytes, const Packet& v) const {
    const uint64_t at = index * 16;
    if (at < bytes) memcpy(static_cast<char*>(base) + at, &v, std::min<uint64_t>(16, bytes - at));
  }

  uint32_t load_epoch(const Control* control) const {
    dawdle();
    return __atomic_load_n(&control->epoch.value, __ATOMIC_RELAXED);
  }
  void watch(const uint32_t*) const { dawdle(); }
  uint32_t draw_ticket(uint32_t* ticket) const { return __atomic_fetch_add(ticket, 1, __ATOMIC_ACQ_REL); }
  bool signed_last(uint32_t ticket) const { return ticket + 1 == step(); }

 private:
  /// Where a schedule matters: between enter and publish, between publish and poll, at a group's meetings.
  void dawdle() const {
    const unsigned chance = random_() % 16;
    if (chance == 0) std::this_thread::sleep_for(std::chrono::microseconds(20));
    if (chance == 1) std::this_thread::yield();
  }
  Group& members_;
  uint32_t item_, group_, groups_;
  mutable std::minstd_rand random_;
};

constexpr int kWorld = 3;
constexpr uint32_t kSlotPackets = 12;
constexpr uint32_t kGenerationWords = 2 * kWorld * kSlotPackets * 4;
constexpr int kCalls = 120;
constexpr uint32_t kHidden = 33;  // nine packets, the last of one element; three to a shard
constexpr uint32_t kShard = kHidden / kWorld;

struct alignas(64) Rank {
  Control control{};
  Status status{};
  uint32_t memory[2 * kGenerationWords];
};
Rank ranks[kWorld];

enum class Kind { all_reduce, qk, norm, sconv };
struct Call {
  Kind kind;
  uint32_t tokens, groups, items;
  bool two_shot;
};

using Rows = std::vector<float>;

float element(int rank, int call, uint32_t i) {
  return 0.25f + float((rank * 37 + call * 7 + int(i) * 11) % 61) / 64;
}

Rows rows_of(int rank, int call, uint32_t count) {
  Rows rows(count);
  for (uint32_t i = 0; i < count; ++i) rows[i] = element(rank, call, i);
  return rows;
}

bool close(const Rows& got, const Rows& wanted) {
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (!(std::fabs(got[i] - wanted[i]) <= 1e-4f * (1 + std::fabs(wanted[i])))) return false;
  }
  return true;
}

/// Runs `kernel(target)` on the call's grid.
template <class Kernel>
void launch(const Call& call, int rank, int number, unsigned seed, Kernel kernel) {
  const HostWait wait{4, nullptr, nullptr};
  const uint32_t groups = call.groups + uint32_t(rank == 1), items = call.items + uint32_t(rank == 2);
  std::vector<std::unique_ptr<Group>> members;
  std::vector<std::thread> threads;
  for (uint32_t g = 0; g < groups; ++g) members.push_back(std::make_unique<Group>(items));
  for (uint32_t g = 0; g < groups; ++g) {
    for (uint32_t i = 0; i < items; ++i) {
      threads.emplace_back([&, g, i] {
        GridTarget target(wait, *members[g], i, g, groups, seed + 97 * number + 13 * g + 5 * i + rank);
        kernel(target);
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
}

/// Normalises the rows of x, `width` wide and `stride` apart, over `mean` squares; by definition, in double.
Rows normalised(const Rows& x, const std::vector<double>& sums, uint32_t width, double full) {
  Rows out(x.size());
  for (size_t i = 0; i < x.size(); ++i) out[i] = float(x[i] / std::sqrt(sums[i / width] / full + 1e-6));
  return out;
}

/// One rank's part in all calls. The convolution's state is a line of positions of one sequence per group of rows.
class RankMain {
 public:
  RankMain(int rank, unsigned seed) : rank_(rank), seed_(seed) {
    ws_.own = ranks[rank].memory;
    for (int i = 0; i < kWorld - 1; ++i) ws_.peer[i] = ranks[(rank + 1 + i) % kWorld].memory;
    ws_.control = &ranks[rank].control;
    ws_.status = &ranks[rank].status;
    ws_.rank = rank;
    ws_.generation_words = mutant == "one-generation" ? 0 : kGenerationWords;
    ws_.patience = 4'000'000'000;
  }

  bool run(const Call& call, int number) {
    bool right = false;
    if (call.kind == Kind::all_reduce) right = all_reduce(call, number);
    if (call.kind == Kind::qk) right = qk(call, number);
    if (call.kind == Kind::norm) right = norm(call, number);
    if (call.kind == Kind::sconv) right = sconv(call, number);
    return right && __atomic_load_n(&ranks[rank_].status.waited_for, __ATOMIC_ACQUIRE) == 0;
  }

 private:
  bool all_reduce(const Call& call, int number) {
    const uint32_t count = call.tokens * 16 + 3;
    Rows x = rows_of(rank_, number, count);
    const AllReduceArgs args{x.data(), x.data(), count * 4, kSlotPackets};
    launch(call, rank_, number, seed_, [&](GridTarget& target) {
      if (call.two_shot) {
        all_reduce_two_shot<GridTarget, F32, kWorld>(target, ws_, args);
      } else {
        all_reduce_one_shot<GridTarget, F32, kWorld>(target, ws_, args);
      }
    });
    return close(x, total(number, count));
  }

  bool qk(const Call& call, int number) {
    constexpr uint32_t kQ = 40, kK = 7, kRow = kQ + 2 * kK;
    const uint32_t tokens = call.tokens * 5;  // more than one packet and one chunk
    const Rows x = rows_of(rank_, number, tokens * kRow);
    const Rows ones(kQ, 1.0f);
    Rows q(tokens * kQ), k(tokens * kK), q_in, k_in;
    std::vector<double> q_sums(tokens), k_sums(tokens);
    for (int r = 0; r < kWorld; ++r) {
      const Rows theirs = rows_of(r, number, tokens * kRow);
      for (uint32_t t = 0; t < tokens; ++t) {
        for (uint32_t i = 0; i < kQ + kK; ++i) {
          const float v = theirs[t * kRow + i];
          (i < kQ ? q_sums : k_sums)[t] += double(v) * v;
          if (r == rank_) (i < kQ ? q_in : k_in).push_back(v);
        }
      }
    }
    QkNormArgs args{};
    args.qkv = x.data();
    args.q_weight = args.k_weight = ones.data();
    args.q = q.data();
    args.k = k.data();
    args.qkv_stride = kRow * 4;
    args.q_stride = args.q_bytes = kQ * 4;
    args.k_stride = args.k_bytes = kK * 4;
    args.tokens = tokens;
    args.q_full = kQ * kWorld;
    args.k_full = kK * kWorld;
    args.eps = 1e-6f;
    args.slot_packets = kSlotPackets;
    launch(call, rank_, number, seed_,
           [&](GridTarget& target) { qk_rms_norm<GridTarget, F32, kWorld>(target, ws_, args); });
    return close(q, normalised(q_in, q_sums, kQ, kQ * kWorld)) &&
           close(k, normalised(k_in, k_sums, kK, kK * kWorld));
  }

  bool norm(const Call& call, int number) {
    const uint32_t count = call.tokens * kHidden;
    Rows x = rows_of(rank_, number, count);
    Rows residual = rows_of(50, number, count);
    const Rows ones(kHidden, 1.0f);
    Rows sum = total(number, count);
    for (uint32_t i = 0; i < count; ++i) sum[i] += residual[i];
    AddNormArgs args{};
    args.in = args.normed = x.data();
    args.residual = args.new_residual = residual.data();
    args.weight = ones.data();
    args.row_bytes = kHidden * 4;
    args.tokens = call.tokens;
    args.full = kHidden;
    args.eps = 1e-6f;
    args.slot_packets = kSlotPackets;
    launch(call, rank_, number, seed_,
           [&](GridTarget& target) { add_all_reduce_rms_norm<GridTarget, F32, kWorld>(target, ws_, args); });
    return close(residual, sum) && close(x, normalised(sum, squares(sum), kHidden, kHidden));
  }

  /// Sequence s gets token s, s + 3, ... of the call; a shard of 11 channels is three packets.
  bool sconv(const Call& call, int number) {
    const uint32_t tokens = std::min(call.tokens, kSlotPackets / 3), count = tokens * kHidden;
    Rows x = rows_of(rank_, number, count);
    Rows residual = rows_of(50, number, count);
    const Rows ones(kHidden, 1.0f);
    Rows weight(kShard * 4);
    for (uint32_t i = 0; i < weight.size(); ++i) weight[i] = float(i % 4 + 1) / 8;
    std::vector<int64_t> positions(tokens), slots(tokens);
    std::vector<int32_t> sequences(tokens);
    const Rows sum = total(number, count);
    Rows wanted = residual;
    for (uint32_t t = 0; t < tokens; ++t) {
      const int32_t s = sequences[t] = int32_t(t % kSequences);
      positions[t] = int64_t(history_[s].size() / kHidden);
      slots[t] = s * kPositions + positions[t];
      history_[s].insert(history_[s].end(), sum.begin() + t * kHidden, sum.begin() + (t + 1) * kHidden);
      for (uint32_t c = 0; c < kHidden; ++c) {
        wanted[t * kHidden + c] += sum[t * kHidden + c];
        for (int64_t k = 0; k < 4; ++k) {
          const int64_t source = positions[t] - 3 + k;
          if (source >= 0) wanted[t * kHidden + c] += history_[s][source * kHidden + c] * float(k + 1) / 8;
        }
      }
    }
    int32_t table[kSequences];
    for (int s = 0; s < kSequences; ++s) table[s] = s;
    SconvArgs args{};
    args.in = args.normed = x.data();
    args.residual = args.new_residual = residual.data();
    args.conv_weight = weight.data();
    args.norm_weight = ones.data();
    args.cache = cache_.data();
    args.token_stride = args.head_stride = kShard * 4;
    args.block_stride = uint64_t{kPositions} * kShard * 4;
    args.block_size = kPositions;
    args.head_bytes = kShard * 4;
    args.positions = positions.data();
    args.slots = slots.data();
    args.sequences = sequences.data();
    args.block_table = table;
    args.table_stride = args.max_blocks = 1;
    args.row_bytes = kHidden * 4;
    args.shard_bytes = kShard * 4;
    args.tokens = tokens;
    args.full = kHidden;
    args.eps = 1e-6f;
    args.slot_packets = kSlotPackets;
    launch(call, rank_, number, seed_,
           [&](GridTarget& target) { rs_sconv_ag_norm<GridTarget, F32, kWorld>(target, ws_, args); });
    return close(residual, wanted) && close(x, normalised(wanted, squares(wanted), kHidden, kHidden));
  }

  static Rows total(int number, uint32_t count) {
    Rows sum(count);
    for (int r = 0; r < kWorld; ++r) {
      for (uint32_t i = 0; i < count; ++i) sum[i] += element(r, number, i);
    }
    return sum;
  }
  static std::vector<double> squares(const Rows& rows) {
    std::vector<double> sums(rows.size() / kHidden);
    for (size_t i = 0; i < rows.size(); ++i) sums[i / kHidden] += double(rows[i]) * rows[i];
    return sums;
  }

  static constexpr int kSequences = 3;
  static constexpr uint32_t kPositions = 2 * kCalls;
  const int rank_;
  const unsigned seed_;
  WorkspaceView ws_{};
  Rows history_[kSequences];
  Rows cache_ = Rows(kSequences * kPositions * kShard);
};

}  // namespace

int main(int argc, char** argv) {
  mutant = argc > 1 ? argv[1] : "none";
  const unsigned seed = argc > 2 ? std::atoi(argv[2]) : 1;
  for (Rank& rank : ranks) {
    for (uint32_t& word : rank.memory) word = kEmpty;
  }
  std::mt19937 random(seed);
  std::vector<Call> calls;
  for (int c = 0; c < kCalls; ++c) {
    calls.push_back({static_cast<Kind>(random() % 4), uint32_t(1 + random() % 9), uint32_t(1 + random() % 2),
                     uint32_t(1 + random() % 3), random() % 2 == 0});
  }
  std::atomic<bool> right{true};
  std::vector<std::thread> threads;
  for (int r = 0; r < kWorld; ++r) {
    threads.emplace_back([&, r] {
      RankMain rank(r, seed);
      for (int c = 0; c < kCalls && right; ++c) {
        if (!rank.run(calls[c], c)) {
          std::printf("rank %d: call %d of kind %d is wrong\n", r, c, static_cast<int>(calls[c].kind));
          right = false;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::printf("%s: %s\n", mutant.c_str(), right ? "every result right" : "WRONG");
  return right ? 0 : 1;
}
