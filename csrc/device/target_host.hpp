/// The host as a target: a process is one work-item, a packet is a cache line, the fabric is cache coherence.
///
/// Compiled once per instruction set (see csrc/host/shm/kernels.inl); nothing here may be called out of line,
/// or the linker would be free to hand one instruction set's copy to another, hence always_inline.
#pragma once
#define LAMPORT_FN inline __attribute__((always_inline))
#include <sched.h>
#include <string.h>
#include <time.h>

#include "host_wait.hpp"
#include "lamport.hpp"
#if defined(__AVX2__)
#include "packet_x86.hpp"
#endif

namespace lamport {

template <int Isa>  // a type, and so a set of symbols, per instruction set
class HostTarget {
 public:
#if defined(__AVX2__)
  using Packet = LinePacket;
#else
  using Packet = lamport::Packet<16>;
#endif
  using Half = SoftHalf;
  static constexpr uint32_t kPacketWords = 16;
  static constexpr uint64_t kPacketBytes = 64;
  static constexpr bool kKeepsFirst = false;  // a reload from L1 is cheaper than telling which packet it is
  static constexpr uint64_t kLateNs = 1000000;

  /// Lines to own before they are written: the peer restored them, so each is in the other core's cache. The
  /// same for lines about to be read, since they will be restored. Measured at 6 KB: 2.5 us without, 1.85
  /// with both.
  static constexpr uint32_t kPublishAhead = 24;
  static constexpr uint32_t kCollectAhead = 16;
  /// The same while contributions are added up, for as many packets as leave room in L1.
  static constexpr uint32_t kPreparesAhead = 128;

  explicit HostTarget(const HostWait& wait) : wait_(wait) {}

  LAMPORT_FN uint32_t first() const { return 0; }
  LAMPORT_FN uint32_t step() const { return 1; }

  // Work-groups share a row of a normalisation; here one item is all there is.
  LAMPORT_FN uint32_t group() const { return 0; }
  LAMPORT_FN uint32_t groups() const { return 1; }
  LAMPORT_FN uint32_t item() const { return 0; }
  LAMPORT_FN uint32_t items() const { return 1; }
  /// Each value summed over the items of the group, in a fixed order; all items get the sums.
  template <class Real, int N>
  LAMPORT_FN void group_sum(Real (&)[N]) const {}
  /// Item 0's values, to all items.
  template <class Real, int N>
  LAMPORT_FN void group_share(Real (&)[N]) const {}
  using Wide = double;  // see row_math.hpp
  LAMPORT_FN float divide(float a, float b) const { return a / b; }
  LAMPORT_FN double divide(double a, double b) const { return a / b; }
  LAMPORT_FN float square_root(float x) const { return __builtin_sqrtf(x); }
  LAMPORT_FN double square_root(double x) const { return __builtin_sqrt(x); }

  LAMPORT_FN uint32_t load_epoch(const Control* control) const { return control->epoch.value; }
  LAMPORT_FN uint32_t draw_ticket(uint32_t*) const { return 0; }
  LAMPORT_FN bool signed_last(uint32_t) const { return true; }
  LAMPORT_FN void finish() const { fence(); }  // no kernel ends here that would perform the restores

  /// Own the line by the time it is written, instead of waiting for it then.
  LAMPORT_FN void will_publish(const uint32_t* packet) const { __builtin_prefetch(packet, 1); }

  /// Reading a line that a peer is about to write takes it away from the peer, and out-of-order loads run far
  /// ahead of the poll. So first watch the last packet only; x86 makes stores visible in order. Just a hint.
  LAMPORT_FN void watch(const uint32_t* last_packet) const {
    for (int i = 0; i < static_cast<int>(wait_.spins_before_yield) &&
                    __atomic_load_n(last_packet, __ATOMIC_RELAXED) == kEmpty;
         ++i)
      pause();
#if defined(__x86_64__)
    __builtin_ia32_lfence();
#endif
  }

#if defined(__AVX2__)
  // Words of a vector access are single-copy atomic on x86; volatile keeps the access, and its place in the
  // loop.
  LAMPORT_FN Packet load_own(const uint32_t* p) const {
    __builtin_prefetch(p + kCollectAhead * kPacketWords, 1);
    Packet v;
    for (int i = 0; i < kRegs; ++i) v.r[i] = reinterpret_cast<const volatile WordReg*>(p)[i];
    return v;
  }
  LAMPORT_FN void store_peer(uint32_t* p, const Packet& v) const {
    __builtin_prefetch(p + kPublishAhead * kPacketWords, 1);
    for (int i = 0; i < kRegs; ++i) reinterpret_cast<volatile WordReg*>(p)[i] = v.r[i];
  }
  LAMPORT_FN void restore_own(uint32_t* p) const {
    for (int i = 0; i < kRegs; ++i) reinterpret_cast<volatile WordReg*>(p)[i] = all_words(kEmpty);
  }
  LAMPORT_FN void fence() const { __atomic_signal_fence(__ATOMIC_SEQ_CST); }  // x86 keeps stores in order
#else
  LAMPORT_FN Packet load_own(const uint32_t* p) const {
    Packet v;
    for (int i = 0; i < 16; ++i) v.w[i] = __atomic_load_n(p + i, __ATOMIC_RELAXED);
    return v;
  }
  LAMPORT_FN void store_peer(uint32_t* p, const Packet& v) const {
    for (int i = 0; i < 16; ++i) __atomic_store_n(p + i, v.w[i], __ATOMIC_RELAXED);
  }
  LAMPORT_FN void restore_own(uint32_t* p) const {
    for (int i = 0; i < 16; ++i) __atomic_store_n(p + i, kEmpty, __ATOMIC_RELAXED);
  }
  LAMPORT_FN void fence() const { __atomic_thread_fence(__ATOMIC_ACQ_REL); }
#endif

  /// Packet `index` of a tensor of `bytes`; what lies past its end reads as zero and is not written.
  LAMPORT_FN Packet load_tensor(const void* base, uint64_t index, uint64_t bytes) const {
    const uint64_t offset = index * kPacketBytes;
    const char* from = static_cast<const char*>(base) + offset;
    if (__builtin_expect(offset + kPacketBytes <= bytes, 1)) return load_line(from);
    return offset < bytes ? load_tail(from, bytes - offset) : Packet{};
  }
  LAMPORT_FN void store_tensor(void* base, uint64_t index, uint64_t bytes, const Packet& packet) const {
    const uint64_t offset = index * kPacketBytes;
    char* to = static_cast<char*>(base) + offset;
    if (__builtin_expect(offset + kPacketBytes <= bytes, 1)) {
      store_line(to, packet);
    } else if (offset < bytes) {
      store_tail(to, packet, bytes - offset);
    }
  }

  /// Pause, then yield the core, then let the caller's hook in; false once `patience` nanoseconds have
  /// passed.
  class Patience {
   public:
    LAMPORT_FN Patience(const HostTarget& target, const WorkspaceView& ws)
        : wait_(target.wait_), limit_(ws.patience) {}
    LAMPORT_FN bool wait() {
      if (spins_ < wait_.spins_before_yield) {
        ++spins_;
        pause();
        return true;
      }
      return wait_long(wait_, limit_, start_);
    }

   private:
    const HostWait& wait_;
    uint64_t limit_;
    uint64_t start_ = 0;
    uint32_t spins_ = 0;
  };

  LAMPORT_FN static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }

  LAMPORT_FN void give_up(Status* status, uint32_t waited_for, uint32_t epoch) const {
    status->epoch = epoch;
    __atomic_store_n(&status->waited_for, waited_for, __ATOMIC_RELEASE);
  }

 private:
#if defined(__AVX2__)
  LAMPORT_FN static Packet load_line(const char* p) {
    Packet v;
    for (int i = 0; i < kRegs; ++i) v.r[i] = *reinterpret_cast<const UnalignedWordReg*>(p + i * kRegBytes);
    return v;
  }
  LAMPORT_FN static void store_line(char* p, const Packet& v) {
    for (int i = 0; i < kRegs; ++i) *reinterpret_cast<UnalignedWordReg*>(p + i * kRegBytes) = v.r[i];
  }
#else
  LAMPORT_FN static Packet load_line(const char* p) {
    Packet v;
    memcpy(&v, p, kPacketBytes);
    return v;
  }
  LAMPORT_FN static void store_line(char* p, const Packet& v) { memcpy(p, &v, kPacketBytes); }
#endif

  // Less than a packet. Through memory a tail costs a stalled store-to-load forward, some 20 ns of an 8-byte
  // call.
#if defined(__AVX512BW__)
  LAMPORT_FN static Packet load_tail(const char* p, uint32_t bytes) {
    return {(WordReg)_mm512_maskz_loadu_epi16((1u << bytes / 2) - 1, p)};
  }
  LAMPORT_FN static void store_tail(char* p, const Packet& v, uint32_t bytes) {
    _mm512_mask_storeu_epi16(p, (1u << bytes / 2) - 1, (__m512i)v.r[0]);
  }
#else
  LAMPORT_FN static Packet load_tail(const char* p, uint32_t bytes) {
    alignas(64) char tail[kPacketBytes] = {};
    memcpy(tail, p, bytes);
    return load_line(tail);
  }
  LAMPORT_FN static void store_tail(char* p, const Packet& v, uint32_t bytes) {
    alignas(64) char tail[kPacketBytes];
    store_line(tail, v);
    memcpy(p, tail, bytes);
  }
#endif

  __attribute__((noinline)) static bool wait_long(const HostWait& wait, uint64_t limit, uint64_t& start) {
    sched_yield();
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    const uint64_t now = uint64_t(t.tv_sec) * 1000000000u + uint64_t(t.tv_nsec);
    if (start == 0) start = now;
    if (now - start >= limit) return false;
    return now - start < kLateNs || wait.late == nullptr || wait.late(wait.context);
  }

  const HostWait& wait_;
};

}  // namespace lamport
