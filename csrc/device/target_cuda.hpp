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

  /// `bytes` of this call's tensor and `control`: for the report of a time-out.
  LAMPORT_FN CudaTarget(uint64_t bytes, const Control* control) : bytes_(bytes), control_(control) {}

  LAMPORT_FN uint32_t first() const { return blockIdx.x * blockDim.x + threadIdx.x; }
  LAMPORT_FN uint32_t step() const { return gridDim.x * blockDim.x; }

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
    Packet packet{};
    LAMPORT_UNROLL
    for (uint32_t i = 0; i < 8; ++i) {
      if (offset + 2 * i < bytes) {
        const uint32_t half = reinterpret_cast<const uint16_t*>(from)[i];
        packet.w[i / 2] |= half << 16 * (i % 2);
      }
    }
    return packet;
  }
  LAMPORT_FN void store_tensor(void* base, uint64_t index, uint64_t bytes, const Packet& packet) const {
    const uint64_t offset = index * kPacketBytes;
    char* to = static_cast<char*>(base) + offset;
    if (whole(base, offset, bytes)) {
      *reinterpret_cast<uint4*>(to) = make_uint4(packet.w[0], packet.w[1], packet.w[2], packet.w[3]);
      return;
    }
    LAMPORT_UNROLL
    for (uint32_t i = 0; i < 8; ++i) {
      if (offset + 2 * i < bytes) {
        reinterpret_cast<uint16_t*>(to)[i] = static_cast<uint16_t>(packet.w[i / 2] >> 16 * (i % 2));
      }
    }
  }

  class Patience {
   public:
    LAMPORT_FN Patience(const CudaTarget&, const WorkspaceView& ws)
        : status_(ws.status), limit_(ws.patience) {}
    /// False once `patience` nanoseconds have passed, or once an earlier call was given up.
    LAMPORT_FN bool wait() {
      if (++polls_ % kPollsPerLook != 0) return true;
      const uint64_t now = nanoseconds();
      if (start_ == 0) start_ = now;
      const auto waited =
          static_cast<int64_t>(now - start_);  // the two halves of the clock are read one by one
      return waited < static_cast<int64_t>(limit_) && static_cast<volatile Status*>(status_)->waited_for == 0;
    }

   private:
    static constexpr uint32_t kPollsPerLook = 64;  // some 50 us: the status word is a trip over PCIe away
    LAMPORT_FN static uint64_t nanoseconds() {
      uint64_t now;
      asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
      return now;
    }
    Status* status_;
    uint64_t limit_;
    uint64_t start_ = 0;
    uint32_t polls_ = 0;
  };

  /// The first report stands. No atomics, which the host's memory may lack; threads that race here report one
  /// call.
  LAMPORT_FN void give_up(Status* status, uint32_t waited_for, uint32_t epoch) const {
    volatile Status* s = status;
    if (s->waited_for != 0) return;
    s->epoch = epoch;
    s->bytes = bytes_;
    const uint32_t drawn = load_word(&control_->ticket.value);  // wraps to 0 with the last
    s->signatures = signatures();
    s->signed_off = drawn == 0 ? signatures() : drawn;
    __threadfence_system();
    s->waited_for = waited_for;
  }

 private:
  LAMPORT_FN static uint32_t load_word(const uint32_t* p) {
    uint32_t word;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];"
                 : "=r"(word)
                 : "l"(__cvta_generic_to_global(p))
                 : "memory");
    return word;
  }

  LAMPORT_FN static uint32_t signatures() { return gridDim.x * (blockDim.x / 32); }

  /// Whether a packet can be moved by one access: it lies within the tensor, and the tensor is aligned.
  LAMPORT_FN static bool whole(const void* base, uint64_t offset, uint64_t bytes) {
    return (reinterpret_cast<uintptr_t>(base) & (kPacketBytes - 1)) == 0 && offset + kPacketBytes <= bytes;
  }

  uint64_t bytes_;
  const Control* control_;
};

}  // namespace lamport
