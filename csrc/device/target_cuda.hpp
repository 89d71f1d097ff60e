/// CUDA as a target: a packet is one 16-byte access of a thread, the fabric is NVLink, PCIe or one GPU's L2.
///
/// Exchanged packets are loaded and stored .relaxed.sys: such an access goes to the L2 that is home to the
/// memory and is never served by an L1, and being volatile it stays in its loop. Tensors take the ordinary,
/// cached way.
///
/// Polls are bounded in real time. A kernel that follows one that gave up, on a stream or in a graph, sees
/// the status word and leaves within microseconds, so that a lost peer costs one time-out however many calls
/// are queued.
#pragma once
#define LAMPORT_FN __device__ __forceinline__
#define LAMPORT_COLD __device__ __noinline__
#include <type_traits>

#include "cuda_groups.hpp"
#include "lamport.hpp"

namespace lamport {

struct CudaHalf {
  LAMPORT_FN static float to_float(uint16_t half) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
    return value;
  }
  static constexpr bool kInPairs = true;
  template <class T>
  LAMPORT_FN static uint32_t word(float low, float high) {
    uint32_t pair;
    if constexpr (T::kFormat == Format::bf16) {
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    } else {
      asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    }
    return pair;
  }
  /// A NaN wins every maximum.
  template <class T>
  LAMPORT_FN static bool any_nan(const Packet<4>& packet) {
    const uint32_t most =
        greater<T>(greater<T>(packet.w[0], packet.w[1]), greater<T>(packet.w[2], packet.w[3]));
    return (most & 0x7fffu) > T::kInfinity || (most >> 16 & 0x7fffu) > T::kInfinity;
  }

 private:
  template <class T>
  LAMPORT_FN static uint32_t greater(uint32_t a, uint32_t b) {
    uint32_t word;
    if constexpr (T::kFormat == Format::bf16) {
      asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(word) : "r"(a), "r"(b));
    } else {
      asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(word) : "r"(a), "r"(b));
    }
    return word;
  }
};

/// `kWhole`: every tensor of the call is aligned and made of whole packets, as almost all are. `Group`: CudaBlock or
/// CudaCluster. Both are known when a kernel is compiled because code costs time even where it is not run: it lies between
/// what is, and instructions that have to be fetched are what short kernels wait for.
template <bool kWhole, class Group>
class CudaTarget {
 public:
  using Packet = lamport::Packet<4>;
  using Half = CudaHalf;
  static constexpr uint32_t kPacketWords = 4;
  static constexpr uint64_t kPacketBytes = 16;
  static constexpr bool kKeepsFirst = true;

  /// `collective`, `bytes` of its tensor, and `control`: for the report of a time-out.
  LAMPORT_FN CudaTarget(uint32_t collective, uint64_t bytes, Control* control)
      : collective_(collective), bytes_(bytes), control_(control) {}

  LAMPORT_FN uint32_t first() const { return blockIdx.x * blockDim.x + threadIdx.x; }
  LAMPORT_FN uint32_t step() const { return gridDim.x * blockDim.x; }

  // A work-group that has a row is a cluster of blocks: more multiprocessors than one to send from and to poll on.
  LAMPORT_FN uint32_t group() const { return group_.group(); }
  LAMPORT_FN uint32_t groups() const { return group_.groups(); }
  LAMPORT_FN uint32_t item() const { return group_.item(); }
  LAMPORT_FN uint32_t items() const { return group_.items(); }

  /// Each value summed over the threads of the group, in a fixed order; all threads get the sums. A butterfly gives
  /// every lane the same bits, as a + b is b + a.
  template <class Real, int N>
  LAMPORT_FN void group_sum(Real (&values)[N]) {
    butterfly(values);
    const uint32_t warps = items() / 32, lane = threadIdx.x % 32;
    __shared__ Real partial[2][kMaxGroup / 32][N];
    Real(*sums)[N] = partial[next_half()];
    group_.exchange(sums[item() / 32], values, half_);
    LAMPORT_UNROLL
    for (int i = 0; i < N; ++i) values[i] = lane < warps ? sums[lane][i] : Real{0};
    butterfly(values);
  }

  /// Item 0's values, to all threads of the group, which is a block.
  template <class Real, int N>
  LAMPORT_FN void group_share(Real (&values)[N]) {
    static_assert(std::is_same_v<Group, CudaBlock>);
    __shared__ Real partial[2][N];
    Real(&shared)[N] = partial[next_half()];
    if (item() == 0) {
      LAMPORT_UNROLL
      for (int i = 0; i < N; ++i) shared[i] = values[i];
    }
    __syncthreads();
    LAMPORT_UNROLL
    for (int i = 0; i < N; ++i) values[i] = shared[i];
  }

  using Wide = double;  // see row_math.hpp
  LAMPORT_FN float divide(float a, float b) const { return __fdiv_rn(a, b); }
  LAMPORT_FN double divide(double a, double b) const { return __ddiv_rn(a, b); }
  LAMPORT_FN float square_root(float x) const { return __fsqrt_rn(x); }
  LAMPORT_FN double square_root(double x) const { return __dsqrt_rn(x); }

  /// Past the L1: a kernel that was set up early may sit on a multiprocessor that has read an older epoch.
  LAMPORT_FN uint32_t load_epoch(const Control* control) const { return load_word(&control->epoch.value); }

  /// A warp signs for itself: it read the epoch in one instruction, and waits for no other warp. The answer
  /// is not needed before the end, so it travels while the packets do.
  LAMPORT_FN uint32_t draw_ticket(uint32_t* ticket) const {
    __syncwarp();
    uint32_t drawn = ~0u;
    if (threadIdx.x % 32 == 0) {
      // Not atomicAdd, for which the compiler talks to the other lanes and waits for the answer at once.
      asm volatile("atom.relaxed.gpu.global.inc.u32 %0, [%1], %2;"
                   : "=r"(drawn)
                   : "l"(__cvta_generic_to_global(ticket)), "r"(signatures() - 1)
                   : "memory");
    }
    return drawn;
  }
  LAMPORT_FN bool signed_last(uint32_t ticket) const { return ticket == signatures() - 1; }

  LAMPORT_FN void finish() const {}  // the end of the kernel performs the restores
  LAMPORT_FN void fence() const { __threadfence_system(); }
  LAMPORT_FN void watch(const uint32_t*) const {}
  LAMPORT_FN void will_publish(const uint32_t*) const {}

  LAMPORT_FN Packet load_own(const uint32_t* p) const {
    Packet v;
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3])
                 : "l"(__cvta_generic_to_global(p))
                 : "memory");
    return v;
  }
  LAMPORT_FN void store_peer(uint32_t* p, const Packet& v) const {
    asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(p)),
                 "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2]), "r"(v.w[3])
                 : "memory");
  }
  LAMPORT_FN void restore_own(uint32_t* p) const { store_peer(p, {{kEmpty, kEmpty, kEmpty, kEmpty}}); }

  /// Packet `index` of a tensor of `bytes`; what lies past its end reads as zero and is not written.
  LAMPORT_FN Packet load_tensor(const void* base, uint64_t index, uint64_t bytes) const {
    const uint64_t offset = index * kPacketBytes;
    if (offset >= bytes) return Packet{};
    const char* from = static_cast<const char*>(base) + offset;
    if (!whole(base, offset, bytes)) return load_halves(from, bytes - offset);
    const uint4 v = *reinterpret_cast<const uint4*>(from);
    return {{v.x, v.y, v.z, v.w}};
  }
  LAMPORT_FN void store_tensor(void* base, uint64_t index, uint64_t bytes, const Packet& packet) const {
    const uint64_t offset = index * kPacketBytes;
    if (offset >= bytes) return;
    char* to = static_cast<char*>(base) + offset;
    if (!whole(base, offset, bytes)) return store_halves(to, bytes - offset, packet);
    *reinterpret_cast<uint4*>(to) = make_uint4(packet.w[0], packet.w[1], packet.w[2], packet.w[3]);
  }

  class Patience {
   public:
    LAMPORT_FN Patience(const CudaTarget&, const WorkspaceView& ws)
        : control_(ws.control), limit_(ws.patience) {}
    /// False once `patience` nanoseconds have passed, or once an earlier call was given up.
    LAMPORT_FN bool wait() {
      if (++polls_ % kPollsPerLook != 0) return true;
      const uint64_t now = nanoseconds();
      if (start_ == 0) start_ = now;
      const auto waited =
          static_cast<int64_t>(now - start_);  // the two halves of the clock are read one by one
      return waited < static_cast<int64_t>(limit_) && load_word(&control_->gave_up.value) == 0;
    }

   private:
    static constexpr uint32_t kPollsPerLook = 64;  // some 50 us
    LAMPORT_FN static uint64_t nanoseconds() {
      uint64_t now;
      asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
      return now;
    }
    const Control* control_;
    uint64_t limit_;
    uint64_t start_ = 0;
    uint32_t polls_ = 0;
  };

  /// The first report stands. No atomics, which the host's memory may lack; threads that race here report one
  /// call.
  LAMPORT_FN void give_up(Status* status, uint32_t waited_for, uint32_t epoch) const {
    if (load_word(&control_->gave_up.value) != 0) return;
    static_cast<volatile uint32_t&>(control_->gave_up.value) = 1;
    volatile Status* s = status;
    s->epoch = epoch;
    s->bytes = bytes_;
    s->collective = collective_;
    const uint32_t drawn = load_word(&control_->ticket.value);  // wraps to 0 with the last
    s->signatures = signatures();
    s->signed_off = drawn == 0 ? signatures() : drawn;
    __threadfence_system();
    s->waited_for = waited_for;
  }

  static constexpr uint32_t kMaxGroup = 512;  ///< threads that work on a row

 private:
  LAMPORT_FN static uint32_t load_word(const uint32_t* p) {
    uint32_t word;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];"
                 : "=r"(word)
                 : "l"(__cvta_generic_to_global(p))
                 : "memory");
    return word;
  }

  template <class Real, int N>
  LAMPORT_FN static void butterfly(Real (&values)[N]) {
    LAMPORT_UNROLL
    for (int distance = 16; distance > 0; distance /= 2) {
      LAMPORT_UNROLL
      for (int i = 0; i < N; ++i) values[i] += __shfl_xor_sync(~0u, values[i], distance);
    }
  }
  /// Two halves in turn: one is written again only after another exchange, which nobody leaves before all have sent, and
  /// nobody sends before having read.
  LAMPORT_FN uint32_t next_half() { return half_ ^= 1u; }

  LAMPORT_FN static uint32_t signatures() { return gridDim.x * (blockDim.x / 32); }

  // A packet that is partial, or not aligned.
  LAMPORT_COLD static Packet load_halves(const char* from, uint64_t left) {
    Packet packet{};
    LAMPORT_UNROLL
    for (uint32_t i = 0; i < 8; ++i) {
      if (2 * i < left) {
        const uint32_t half = reinterpret_cast<const uint16_t*>(from)[i];
        packet.w[i / 2] |= half << 16 * (i % 2);
      }
    }
    return packet;
  }
  LAMPORT_COLD static void store_halves(char* to, uint64_t left, Packet packet) {
    LAMPORT_UNROLL
    for (uint32_t i = 0; i < 8; ++i) {
      if (2 * i < left) {
        reinterpret_cast<uint16_t*>(to)[i] = static_cast<uint16_t>(packet.w[i / 2] >> 16 * (i % 2));
      }
    }
  }

  /// Whether a packet can be moved by one access: it lies within the tensor, and the tensor is aligned.
  LAMPORT_FN static bool whole(const void* base, uint64_t offset, uint64_t bytes) {
    return kWhole ||
           ((reinterpret_cast<uintptr_t>(base) & (kPacketBytes - 1)) == 0 && offset + kPacketBytes <= bytes);
  }

  uint32_t collective_;
  uint64_t bytes_;
  Control* control_;
  uint32_t half_ = 0;
  Group group_;
};

}  // namespace lamport
