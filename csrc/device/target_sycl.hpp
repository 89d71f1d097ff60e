/// The SYCL target: an Intel GPU, or the SYCL CPU device that stands in for one in tests.
///
/// Packets cross the link, so no cache may hold a stale one. Which idiom yields an uncached access, and
/// yields it inside the spin loop, is a property of the compiler, not of the language: an atomic load becomes
/// a read-modify-write, a plain volatile load may hit L1 for ever, an annotated_ptr store reads back the
/// peer's memory. The two annotations below are those that survive; tests/isa reads the machine code of every
/// shipped kernel and fails when a compiler changes its mind.
#pragma once
#define LAMPORT_FN inline __attribute__((always_inline))
#include <sycl/atomic_fence.hpp>
#include <sycl/atomic_ref.hpp>
#include <sycl/ext/oneapi/free_function_queries.hpp>
#include <sycl/ext/oneapi/work_group_static.hpp>
#include <sycl/group_algorithm.hpp>
#include <sycl/group_barrier.hpp>

#include "csrc/device/double_float.hpp"
#include "csrc/device/lamport.hpp"

namespace lamport {

/// Whether the L3 may keep exchanged packets. PCIe writes by a peer are expected to be coherent with this
/// GPU's L3, and oneCCL polls L3-cached on Battlemage; but nobody could show it here, so the safe choice is
/// the default.
enum class L3 { uncached, cached };
#ifdef LAMPORT_L3_CACHED
inline constexpr L3 kExchangeL3 = L3::cached;
#else
inline constexpr L3 kExchangeL3 = L3::uncached;
#endif

/// The compiler's encoding of a cache hint: a nibble per mode, in it a bit per level (L1 = 1, L3 = 4).
/// Mode uncached is nibble 0, cached (loads) nibble 1, write-back (stores) nibble 6.
inline constexpr int kLoadHint = 0x1 | (kExchangeL3 == L3::uncached ? 0x4 : 0x4 << 4);
inline constexpr int kStoreHint = 0x1 | (kExchangeL3 == L3::uncached ? 0x4 : 0x4 << 24);

using Words4 = uint32_t __attribute__((ext_vector_type(4)));

/// The annotations exist in device code only; a host compiler that sees this header gets plain volatile
/// accesses.
#ifdef __SYCL_DEVICE_ONLY__
#define LAMPORT_HINTED(pointer, name, hint) __builtin_intel_sycl_ptr_annotation(pointer, name, hint)
#else
#define LAMPORT_HINTED(pointer, name, hint) (pointer)
#endif

struct SyclHalf {
  static constexpr bool kInPairs = false;
  static float to_float(uint16_t bits) { return static_cast<float>(__builtin_bit_cast(_Float16, bits)); }
  static uint16_t from_float(float value) {
    return __builtin_bit_cast(uint16_t, static_cast<_Float16>(value));
  }
};

inline constexpr uint32_t kMaxSubGroups = 64;

/// A work-group's memory for sums, two halves of up to 5 for each sub-group.
struct LocalMemory {
  DoubleFloat half[2][5 * kMaxSubGroups];
};
/// Outside of every template, in which the compiler does not take the variable for a work-group's.
LAMPORT_FN LocalMemory& local_memory() {
  static sycl::ext::oneapi::experimental::work_group_static<LocalMemory> memory;
  return *&memory;
}

/// What the report of a time-out tells of the call.
struct SyclCall {
  uint32_t collective;
  uint64_t bytes;
};

/// `Pause` is what a work-item does between two polls; see below.
template <class Pause>
class SyclTarget {
 public:
  static constexpr int kPacketWords = 4;
  using Packet = lamport::Packet<kPacketWords>;
  using Half = SyclHalf;
  static constexpr bool kKeepsFirst = true;  // mostly a work-item's only packet, and memory is far

  SyclTarget(Pause pause, const SyclCall& call)
      : pause_(pause), call_(call), item_(sycl::ext::oneapi::this_work_item::get_nd_item<1>()) {}

  // Work-items.
  uint32_t first() const { return static_cast<uint32_t>(item_.get_global_linear_id()); }
  uint32_t step() const { return static_cast<uint32_t>(item_.get_global_range(0)); }
  uint32_t group() const { return static_cast<uint32_t>(item_.get_group_linear_id()); }
  uint32_t groups() const { return static_cast<uint32_t>(item_.get_group_range(0)); }
  uint32_t item() const { return static_cast<uint32_t>(item_.get_local_linear_id()); }
  uint32_t items() const { return static_cast<uint32_t>(item_.get_local_range(0)); }
  void group_barrier() { sycl::group_barrier(item_.get_group()); }

  /// Each value summed over the items of the group, in a fixed order; all items get the sums. A butterfly gives every
  /// lane the same bits, as a + b is b + a.
  template <class Real, int N>
  void group_sum(Real (&values)[N]) {
    butterfly(values);
    if (items() <= kLanes) return;
    Real* partial = half_of_local<Real, N * kMaxSubGroups>();
    const uint32_t lane = item() % kLanes, sub_groups = items() / kLanes;
    if (lane == 0) {
      LAMPORT_UNROLL
      for (int i = 0; i < N; ++i) partial[item() / kLanes * N + i] = values[i];
    }
    group_barrier();
    LAMPORT_UNROLL
    for (int i = 0; i < N; ++i) values[i] = 0;
    LAMPORT_ROLLED
    for (uint32_t s = lane; s < sub_groups; s += kLanes) {
      LAMPORT_UNROLL
      for (int i = 0; i < N; ++i) values[i] += partial[s * N + i];
    }
    butterfly(values);
  }

  /// Item 0's values, to all items of the group.
  template <class Real, int N>
  void group_share(Real (&values)[N]) {
    Real* shared = half_of_local<Real, N>();
    if (item() == 0) {
      LAMPORT_UNROLL
      for (int i = 0; i < N; ++i) shared[i] = values[i];
    }
    group_barrier();
    LAMPORT_UNROLL
    for (int i = 0; i < N; ++i) values[i] = shared[i];
  }

  // fp32 division and root are correctly rounded because the build asks for it: gpu_build_options().
  using Wide = DoubleFloat;  // DG2 has no fp64
  float divide(float a, float b) const { return a / b; }
  DoubleFloat divide(const DoubleFloat& a, const DoubleFloat& b) const { return a / b; }
  float square_root(float x) const { return __builtin_sqrtf(x); }
  DoubleFloat square_root(const DoubleFloat& x) const { return lamport::square_root(x); }

  // The exchange memory: see the head of the file.
  Packet load_own(const uint32_t* at) const {
    const auto* p = reinterpret_cast<const volatile Words4*>(at);
    return packet(*LAMPORT_HINTED(p, "sycl-cache-read-hint", kLoadHint));
  }
  void store_peer(uint32_t* at, const Packet& value) const {
    auto* p = reinterpret_cast<volatile Words4*>(at);
    *LAMPORT_HINTED(p, "sycl-cache-write-hint", kStoreHint) = words(value);
  }
  void restore_own(uint32_t* at) const { store_peer(at, Packet{{kEmpty, kEmpty, kEmpty, kEmpty}}); }

  void will_publish(const uint32_t*) const {}  // hints for a host's caches
  void watch(const uint32_t*) const {}

  // Control words.
  uint32_t load_epoch(const Control* control) const { return control->epoch.value; }
  void fence() const { sycl::atomic_fence(sycl::memory_order::acq_rel, sycl::memory_scope::system); }

  /// One signature a work-group; the barrier makes sure that all its work-items have read the epoch.
  uint32_t draw_ticket(uint32_t* ticket) {
    group_barrier();
    if (item_.get_local_linear_id() != 0) return ~0u;
    sycl::atomic_ref<uint32_t, sycl::memory_order::relaxed, sycl::memory_scope::device,
                     sycl::access::address_space::global_space>
        drawn(*ticket);
    return drawn.fetch_add(1);
  }
  bool signed_last(uint32_t ticket) const { return ticket + 1 == item_.get_group_range(0); }
  void finish() const {}  // the end of the kernel performs the restores

  /// No atomics: over PCIe the host's memory has none. Work-items that race here report the same call.
  void give_up(Status* status, uint32_t waited_for, uint32_t epoch) const {
    volatile Status* s = status;
    if (s->waited_for != 0) return;
    s->epoch = epoch;
    s->bytes = call_.bytes;
    s->collective = call_.collective;
    s->waited_for = waited_for;
  }

  // Tensors: ordinary cached accesses. Past the end a tensor reads as zero and is not written.
  Packet load_tensor(const void* in, uint64_t index, uint64_t bytes) const {
    const uint64_t at = index * sizeof(Packet);
    const char* p = static_cast<const char*>(in) + at;
    if (whole(p, at, bytes)) return packet(*reinterpret_cast<const TensorWords*>(p));
    if (at >= bytes) return Packet{};
    // Straight-line code for a partial packet, or one that begins in the middle of a word: a branch a word would triple
    // the kernel. Past the end the last word is read again; of a half-filled word all four bytes are read, which lie in
    // one aligned word.
    const uint32_t begin = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(p)) & 3u;
    const auto* word = reinterpret_cast<const uint32_t*>(p - begin);
    const uint64_t rest = bytes - at;
    const uint32_t left = rest < sizeof(Packet) ? static_cast<uint32_t>(rest) : sizeof(Packet);
    const uint32_t last = (begin + left - 1) / 4;
    Packet out;
    uint32_t low = word[0];
    LAMPORT_UNROLL
    for (uint32_t i = 0; i < kPacketWords; ++i) {
      const uint32_t high = word[i < last ? i + 1 : last];
      const uint32_t w = begin == 0 ? low : low >> 16 | high << 16;
      out.w[i] = 4 * i + 4 <= left ? w : 4 * i + 2 == left ? w & 0xffffu : 0;
      low = high;
    }
    return out;
  }
  void store_tensor(void* out, uint64_t index, uint64_t bytes, const Packet& value) const {
    const uint64_t at = index * sizeof(Packet);
    char* p = static_cast<char*>(out) + at;
    if (whole(p, at, bytes)) {
      *reinterpret_cast<TensorWords*>(p) = words(value);
      return;
    }
    LAMPORT_UNROLL
    for (uint32_t i = 0; i < 2 * kPacketWords; ++i) {
      if (at + 2 * i < bytes) {
        reinterpret_cast<uint16_t*>(p)[i] = static_cast<uint16_t>(value.w[i / 2] >> 16 * (i % 2));
      }
    }
  }

  /// Bounds one wait (P6).
  class Patience {
   public:
    Patience(SyclTarget& target, const WorkspaceView& ws) : pause_(target.pause_), limit_(ws.patience) {}
    bool wait() { return pause_.within(limit_); }

   private:
    Pause pause_;
    uint64_t limit_;
  };

 private:
  /// Intel's vector loads ask for the alignment of their words only. (One alias with both attributes keeps 16 bytes.)
  using TensorWords __attribute__((aligned(4))) = Words4;

  /// Whether a packet can be moved by one access: it lies within the tensor, and begins with a word.
  static bool whole(const char* p, uint64_t at, uint64_t bytes) {
    return at + sizeof(Packet) <= bytes && (reinterpret_cast<uintptr_t>(p) & 3u) == 0;
  }

  static constexpr uint32_t kLanes = Pause::kLanes;

  template <class Real, int N>
  void butterfly(Real (&values)[N]) const {
    LAMPORT_UNROLL
    for (uint32_t distance = kLanes / 2; distance > 0; distance /= 2) {
      LAMPORT_UNROLL
      for (int i = 0; i < N; ++i) values[i] += from_lane(values[i], distance);
    }
  }
  /// The value of the lane whose number differs in the bit `distance`.
  float from_lane(float value, uint32_t distance) const {
    return sycl::permute_group_by_xor(item_.get_sub_group(), value, distance);
  }
  DoubleFloat from_lane(const DoubleFloat& value, uint32_t distance) const {
    DoubleFloat other;
    other.hi = from_lane(value.hi, distance);
    other.lo = from_lane(value.lo, distance);
    return other;
  }

  /// Local memory for N values. Two halves in turn: one is written again only after another barrier, which nobody
  /// reaches before having read it.
  template <class Real, int N>
  Real* half_of_local() {
    static_assert(N * sizeof(Real) <= sizeof(LocalMemory::half[0]));
    half_ ^= 1u;
    return reinterpret_cast<Real*>(local_memory().half[half_]);
  }
  static Packet packet(Words4 v) { return {{v.x, v.y, v.z, v.w}}; }
  static Words4 words(const Packet& p) { return {p.w[0], p.w[1], p.w[2], p.w[3]}; }

  Pause pause_;
  SyclCall call_;
  sycl::nd_item<1> item_;
  uint32_t half_ = 0;
};

/// On a GPU a poll is its own pause: it takes a trip to memory. The unit of patience is one poll.
class GpuPause {
 public:
  static constexpr uint32_t kLanes = 16;  // of a sub-group
  bool within(uint64_t limit) { return polls_++ < limit; }

 private:
  uint64_t polls_ = 0;
};

/// On the CPU device ranks may outnumber cores, so a waiting rank must let the others run. Device code has no
/// way to say that: it calls a host function that yields and returns the time. The unit of patience is a
/// nanosecond.
///
/// These kernels are built without optimisation, which would take seconds for each, and then sub-groups of the CPU device
/// have one item, whatever a kernel asks for.
class CpuPause {
 public:
  static constexpr uint32_t kLanes = 1;
  explicit CpuPause(uint64_t (*yield)()) : yield_(yield) {}
  bool within(uint64_t limit) {
    if (++polls_ % kPollsPerYield != 0) return true;
    const uint64_t now = yield_();
    if (start_ == 0) start_ = now;
    return now - start_ < limit;
  }

 private:
  static constexpr uint32_t kPollsPerYield = 64;
  uint64_t (*yield_)();
  uint32_t polls_ = 0;
  uint64_t start_ = 0;
};

}  // namespace lamport
