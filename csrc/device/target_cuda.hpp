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
#include "lamport.hpp"

namespace lamport {

struct CudaHalf {
  LAMPORT_FN static float to_float(uint16_t half) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
    return value;
  }
  LAMPORT_FN static uint32_t from_float(float value) {
    uint32_t pair;  // converting two goes through the fast pipe, converting one does not
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(0.0f), "f"(value));
    return pair;
  }
};

class CudaTarget {
 public:
  using Packet = lamport::Packet<4>;
  using Half = CudaHalf;
  static constexpr uint32_t kPacketWords = 4;
  static constexpr uint64_t kPacketBytes = 16;
  static constexpr bool kKeepsFirst = true;

  /// `collective`, `bytes` of its tensor, and `control`: for the report of a time-out.
  LAMPORT_FN CudaTarget(uint32_t collective, uint64_t bytes, Control* control)
      : collective_(collective), bytes_(bytes), control_(control) {
    asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(cluster_));
    // A block may write to another's shared memory once that has started.
    if (cluster_ > 1) asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
  }

  LAMPORT_FN uint32_t first() const { return blockIdx.x * blockDim.x + threadIdx.x; }
  LAMPORT_FN uint32_t step() const { return gridDim.x * blockDim.x; }

  // A work-group that has a row is a cluster of blocks: more multiprocessors than one to send from and to poll on.
  LAMPORT_FN uint32_t group() const { return blockIdx.x / cluster_; }
  LAMPORT_FN uint32_t groups() const { return gridDim.x / cluster_; }
  LAMPORT_FN uint32_t item() const { return blockIdx.x % cluster_ * blockDim.x + threadIdx.x; }
  LAMPORT_FN uint32_t items() const { return cluster_ * blockDim.x; }

  /// Each value summed over the threads of the group, in a fixed order; all threads get the sums. A butterfly gives
  /// every lane the same bits, as a + b is b + a.
  template <class Real, int N>
  LAMPORT_FN void group_sum(Real (&values)[N]) {
    butterfly(values);
    const uint32_t warps = items() / 32, lane = threadIdx.x % 32;
    if (warps == 1) return;
    await_start();
    __shared__ Real partial[2][kMaxGroup / 32][N];
    Real(*mine)[N] = partial[next_half()];
    send_to_blocks(mine[item() / 32], values);
    group_barrier();
    LAMPORT_UNROLL
    for (int i = 0; i < N; ++i) values[i] = lane < warps ? mine[lane][i] : Real{0};
    butterfly(values);
  }

  /// Item 0's values, to all threads of the group.
  template <class Real, int N>
  LAMPORT_FN void group_share(Real (&values)[N]) {
    await_start();
    __shared__ Real shared[2][N];
    Real(&mine)[N] = shared[next_half()];
    if (item() < 32) {
      LAMPORT_UNROLL
      for (int i = 0; i < N; ++i) values[i] = __shfl_sync(~0u, values[i], 0);
      send_to_blocks(mine, values);
    }
    group_barrier();
    LAMPORT_UNROLL
    for (int i = 0; i < N; ++i) values[i] = mine[i];
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
    const char* from = static_cast<const char*>(base) + offset;
    if (whole(base, offset, bytes)) {
      const uint4 v = *reinterpret_cast<const uint4*>(from);
      return {{v.x, v.y, v.z, v.w}};
    }
    return offset < bytes ? load_halves(from, bytes - offset) : Packet{};
  }
  LAMPORT_FN void store_tensor(void* base, uint64_t index, uint64_t bytes, const Packet& packet) const {
    const uint64_t offset = index * kPacketBytes;
    char* to = static_cast<char*>(base) + offset;
    if (whole(base, offset, bytes)) {
      *reinterpret_cast<uint4*>(to) = make_uint4(packet.w[0], packet.w[1], packet.w[2], packet.w[3]);
    } else if (offset < bytes) {
      store_halves(to, bytes - offset, packet);
    }
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
  /// Two halves in turn: one is written again only after another barrier, which nobody reaches before having read it.
  LAMPORT_FN uint32_t next_half() { return half_ ^= 1u; }

  /// A warp's values, the same in all its lanes, to the shared memory of every block of the group: a lane a block.
  template <class Real, int N>
  LAMPORT_FN void send_to_blocks(Real (&to)[N], const Real (&values)[N]) {
    const uint32_t block = threadIdx.x % 32;
    if (block >= cluster_) return;
    if (cluster_ == 1) {
      LAMPORT_UNROLL
      for (int i = 0; i < N; ++i) to[i] = values[i];
      return;
    }
    uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(&to));
    asm("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(address) : "r"(block));
    LAMPORT_UNROLL
    for (uint32_t i = 0; i < N; ++i) {
      const uint32_t at = address + i * static_cast<uint32_t>(sizeof(Real));
      if constexpr (sizeof(Real) == 4) {
        asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(at), "f"(values[i]) : "memory");
      } else {
        asm volatile("st.shared::cluster.f64 [%0], %1;" ::"r"(at), "d"(values[i]) : "memory");
      }
    }
  }
  LAMPORT_FN void await_start() {
    if (cluster_ > 1 && !started_) asm volatile("barrier.cluster.wait;" ::: "memory");
    started_ = true;
  }
  LAMPORT_FN void group_barrier() const {
    if (cluster_ == 1) return __syncthreads();
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
  }

  LAMPORT_FN static uint32_t signatures() { return gridDim.x * (blockDim.x / 32); }

  // A packet that is partial, or not aligned. Out of line: in line at every access it made kernels of 45 KB, which
  // mostly waited for their instructions.
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
    return (reinterpret_cast<uintptr_t>(base) & (kPacketBytes - 1)) == 0 && offset + kPacketBytes <= bytes;
  }

  uint32_t collective_;
  uint64_t bytes_;
  Control* control_;
  uint32_t half_ = 0;
  uint32_t cluster_;
  bool started_ = false;
};

}  // namespace lamport
