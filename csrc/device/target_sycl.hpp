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
#include <sycl/group_algorithm.hpp>
#include <sycl/group_barrier.hpp>

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
  static float to_float(uint16_t bits) { return static_cast<float>(__builtin_bit_cast(_Float16, bits)); }
  static uint16_t from_float(float value) {
    return __builtin_bit_cast(uint16_t, static_cast<_Float16>(value));
  }
};

/// `Pause` is what a work-item does between two polls; see below.
template <class Pause>
class SyclTarget {
 public:
  static constexpr int kPacketWords = 4;
  using Packet = lamport::Packet<kPacketWords>;
  using Half = SyclHalf;
  static constexpr bool kKeepsFirst = true;  // mostly a work-item's only packet, and memory is far

  explicit SyclTarget(Pause pause)
      : pause_(pause), item_(sycl::ext::oneapi::this_work_item::get_nd_item<1>()) {}

  // Work-items.
  uint32_t first() const { return static_cast<uint32_t>(item_.get_global_linear_id()); }
  uint32_t step() const { return static_cast<uint32_t>(item_.get_global_range(0)); }
  void group_barrier() { sycl::group_barrier(item_.get_group()); }
  float sub_group_sum(float value) {
    return sycl::reduce_over_group(item_.get_sub_group(), value, sycl::plus<float>());
  }

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
    s->waited_for = waited_for;
  }

  // Tensors: ordinary cached accesses. Past the end a tensor reads as zero and is not written.
  Packet load_tensor(const void* in, uint64_t index, uint64_t bytes) const {
    const uint64_t at = index * sizeof(Packet);
    const char* p = static_cast<const char*>(in) + at;
    if (at + sizeof(Packet) <= bytes) return packet(*reinterpret_cast<const TensorWords*>(p));
    if (at >= bytes) return Packet{};
    // Straight-line code for a partial packet: a branch a word would triple the kernel. Past the end the last
    // word is read again; of a half-filled last word all four bytes are read, which lie in one aligned word.
    const uint32_t left = static_cast<uint32_t>(bytes - at);
    const uint32_t last = (left - 1) / 4;
    const uint32_t mask = left % 4 == 0 ? 0xffffffffu : 0xffffu;
    const auto* word = reinterpret_cast<const uint32_t*>(p);
    Packet out;
    LAMPORT_UNROLL
    for (uint32_t i = 0; i < kPacketWords; ++i) {
      const uint32_t w = word[i < last ? i : last];
      out.w[i] = i < last ? w : i == last ? w & mask : 0;
    }
    return out;
  }
  void store_tensor(void* out, uint64_t index, uint64_t bytes, const Packet& value) const {
    const uint64_t at = index * sizeof(Packet);
    char* p = static_cast<char*>(out) + at;
    if (at + sizeof(Packet) <= bytes) {
      *reinterpret_cast<TensorWords*>(p) = words(value);
      return;
    }
    const uint32_t left = at < bytes ? static_cast<uint32_t>(bytes - at) : 0;
    LAMPORT_UNROLL
    for (uint32_t i = 0; i < kPacketWords; ++i) {
      if (4 * i + 4 <= left) reinterpret_cast<uint32_t*>(p)[i] = value.w[i];
      if (4 * i + 2 == left) reinterpret_cast<uint16_t*>(p)[2 * i] = static_cast<uint16_t>(value.w[i]);
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
  /// Intel's vector loads ask for the alignment of their words only.
  using TensorWords = uint32_t __attribute__((ext_vector_type(4), aligned(4)));

  static Packet packet(Words4 v) { return {{v.x, v.y, v.z, v.w}}; }
  static Words4 words(const Packet& p) { return {p.w[0], p.w[1], p.w[2], p.w[3]}; }

  Pause pause_;
  sycl::nd_item<1> item_;
};

/// On a GPU a poll is its own pause: it takes a trip to memory. The unit of patience is one poll.
class GpuPause {
 public:
  bool within(uint64_t limit) { return polls_++ < limit; }

 private:
  uint64_t polls_ = 0;
};

/// On the CPU device ranks may outnumber cores, so a waiting rank must let the others run. Device code has no
/// way to say that: it calls a host function that yields and returns the time. The unit of patience is a
/// nanosecond.
class CpuPause {
 public:
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
