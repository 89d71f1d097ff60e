// The product's kernels with threads as ranks and work-items: mixed sizes, grids and algorithms, a distinct
// payload every call. `protocol_stress MUTANT SEED` exits 0 if every sum was right, 1 if one was wrong or a
// wait ran out. Built with the plain packet path, whose shared accesses are atomic, so that ThreadSanitizer
// can judge it.
#include "csrc/device/target_host.hpp"
// target_host.hpp first: it sets how functions are declared.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "csrc/device/all_reduce_one_shot.hpp"
#include "csrc/device/all_reduce_two_shot.hpp"

namespace {

using namespace lamport;

std::string mutant;

/// A rank as several work-items (threads), like a GPU grid of one-item groups; items start and stop at random
/// times.
class GridTarget : public HostTarget<0> {
 public:
  GridTarget(const HostWait& wait, uint32_t item, uint32_t items, unsigned seed)
      : HostTarget<0>(wait), item_(item), items_(items), random_(seed) {}

  uint32_t first() const { return item_; }
  uint32_t step() const { return items_; }
  uint32_t load_epoch(const Control* control) const {
    dawdle();
    return __atomic_load_n(&control->epoch.value, __ATOMIC_RELAXED);
  }
  void watch(const uint32_t*) const { dawdle(); }
  void restore_own(uint32_t* p) const {
    if (mutant != "no-restore") HostTarget<0>::restore_own(p);
  }
  uint32_t draw_ticket(uint32_t* ticket) const { return __atomic_fetch_add(ticket, 1, __ATOMIC_ACQ_REL); }
  bool signed_last(uint32_t ticket) const {
    return ticket == (mutant == "first-out-advances" ? 0 : items_ - 1);
  }

 private:
  /// Where a schedule matters: between enter and publish, and between publish and poll.
  void dawdle() const {
    const unsigned chance = random_() % 8;
    if (chance == 0) std::this_thread::sleep_for(std::chrono::microseconds(20));
    if (chance == 1) std::this_thread::yield();
  }
  uint32_t item_, items_;
  mutable std::minstd_rand random_;
};

constexpr int kWorld = 3;
constexpr uint32_t kSlotPackets = 2;
constexpr uint32_t kGenerationWords = 2 * kWorld * kSlotPackets * 16;
constexpr int kCalls = 300;

struct alignas(64) Rank {
  Control control{};
  Status status{};
  uint32_t memory[2 * kGenerationWords];
};
Rank ranks[kWorld];

struct Call {
  uint64_t bytes;
  uint32_t items;
  bool two_shot;
};

float element(int rank, int call, uint64_t i) { return float(rank * 1000 + call * 7 + int(i % 61)); }

bool run_rank(int rank, const std::vector<Call>& calls, unsigned seed) {
  WorkspaceView ws{};
  ws.own = ranks[rank].memory;
  for (int i = 0; i < kWorld - 1; ++i) ws.peer[i] = ranks[(rank + 1 + i) % kWorld].memory;
  ws.control = &ranks[rank].control;
  ws.status = &ranks[rank].status;
  ws.rank = rank;
  ws.generation_words = mutant == "one-generation" ? 0 : kGenerationWords;
  ws.patience = 2'000'000'000;
  const HostWait wait{4, nullptr, nullptr};
  for (int c = 0; c < kCalls; ++c) {
    const uint64_t count = calls[c].bytes / 4;
    std::vector<float> data(count);
    for (uint64_t i = 0; i < count; ++i) data[i] = element(rank, c, i);
    const AllReduceArgs args{data.data(), data.data(), calls[c].bytes, kSlotPackets};
    const uint32_t items = calls[c].items + uint32_t(rank == 1);  // grids may differ between ranks
    std::vector<std::thread> grid;
    for (uint32_t item = 0; item < items; ++item) {
      grid.emplace_back([&, item] {
        GridTarget target(wait, item, items, seed + 97 * c + 13 * item + rank);
        if (calls[c].two_shot) {
          all_reduce_two_shot<GridTarget, F32, kWorld>(target, ws, args);
        } else {
          all_reduce_one_shot<GridTarget, F32, kWorld>(target, ws, args);
        }
      });
    }
    for (std::thread& thread : grid) thread.join();
    if (__atomic_load_n(&ranks[rank].status.waited_for, __ATOMIC_ACQUIRE) != 0) return false;
    for (uint64_t i = 0; i < count; ++i) {
      float expected = 0;
      for (int r = 0; r < kWorld; ++r) expected += element(r, c, i);
      if (data[i] != expected) return false;
    }
  }
  return true;
}

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
    // 1 to 40 packets and a ragged end: from a lone packet to several chunks.
    calls.push_back(
        {4 * (1 + random() % (random() % 2 ? 640 : 40)), uint32_t(1 + random() % 3), random() % 2 == 0});
  }
  std::atomic<bool> right{true};
  std::vector<std::thread> threads;
  for (int r = 0; r < kWorld; ++r) {
    threads.emplace_back([&, r] {
      if (!run_rank(r, calls, seed)) right = false;
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::printf("%s: %s\n", mutant.c_str(), right ? "every sum right" : "WRONG");
  return right ? 0 : 1;
}
