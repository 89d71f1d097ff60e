/// What a work-group is on CUDA, a block or a cluster of blocks: who is who in it, and how its warps exchange values.
#pragma once
#include "packet.hpp"

namespace lamport {

class CudaBlock {
 public:
  LAMPORT_FN uint32_t group() const { return blockIdx.x; }
  LAMPORT_FN uint32_t groups() const { return gridDim.x; }
  LAMPORT_FN uint32_t item() const { return threadIdx.x; }
  LAMPORT_FN uint32_t items() const { return blockDim.x; }

  /// A warp's `values`, the same in all its lanes, to `place`. Returns when those of all warps are there.
  template <class Real, int N>
  LAMPORT_FN void exchange(Real (&place)[N], const Real (&values)[N], uint32_t) const {
    if (threadIdx.x % 32 == 0) {
      LAMPORT_UNROLL
      for (int i = 0; i < N; ++i) place[i] = values[i];
    }
    __syncthreads();
  }
};

/// Values travel by st.async, which writes to a block's shared memory and counts the bytes at a barrier there: one trip,
/// and nothing that a thread did before is waited for. (A barrier of the cluster with release and acquire waits for every
/// store a thread has under way, the packets to its peers among them.)
class CudaCluster {
 public:
  LAMPORT_FN CudaCluster() {
    if (threadIdx.x == 0) {
      for (uint32_t half = 0; half < 2; ++half) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier(half)) : "memory");
      }
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
  }

  LAMPORT_FN uint32_t group() const {
    uint32_t id;
    asm("mov.u32 %0, %%clusterid.x;" : "=r"(id));
    return id;
  }
  LAMPORT_FN uint32_t groups() const {
    uint32_t count;
    asm("mov.u32 %0, %%nclusterid.x;" : "=r"(count));
    return count;
  }
  LAMPORT_FN uint32_t item() const {
    uint32_t block;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(block));
    return block * blockDim.x + threadIdx.x;
  }
  LAMPORT_FN uint32_t items() const { return blocks() * blockDim.x; }

  /// A warp's `values`, the same in all its lanes, to `place` in the shared memory of every block. Returns when those of
  /// all warps are in this block's. `half` is 0 and 1 in turn.
  template <class Real, int N>
  LAMPORT_FN void exchange(Real (&place)[N], const Real (&values)[N], uint32_t half) {
    if (!started_) asm volatile("barrier.cluster.wait;" ::: "memory");  // whoever is written to has begun
    started_ = true;
    if (threadIdx.x == 0) {
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier(half)),
                   "r"(items() / 32 * static_cast<uint32_t>(sizeof values))
                   : "memory");
    }
    const uint32_t to = threadIdx.x % 32;  // a lane a block
    if (to < blocks()) {
      const uint32_t there = in_block(to, &place), counter = in_block(to, barrier(half));
      LAMPORT_UNROLL
      for (uint32_t i = 0; i < N; ++i) {
        send(there + i * static_cast<uint32_t>(sizeof(Real)), values[i], counter);
      }
    }
    const uint32_t parity = phases_ >> half & 1u;
    while (!passed(barrier(half), parity)) {
    }
    phases_ ^= 1u << half;
  }

 private:
  LAMPORT_FN static uint32_t blocks() {
    uint32_t count;
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(count));
    return count;
  }
  /// Counts the bytes that a half still lacks.
  LAMPORT_FN static uint32_t barrier(uint32_t half) {
    __shared__ uint64_t barriers[2];
    return static_cast<uint32_t>(__cvta_generic_to_shared(&barriers[half]));
  }
  LAMPORT_FN static uint32_t in_block(uint32_t block, const void* place) {
    return in_block(block, static_cast<uint32_t>(__cvta_generic_to_shared(place)));
  }
  LAMPORT_FN static uint32_t in_block(uint32_t block, uint32_t place) {
    uint32_t there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(place), "r"(block));
    return there;
  }
  LAMPORT_FN static void send(uint32_t to, float value, uint32_t counter) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(to),
                 "f"(value), "r"(counter)
                 : "memory");
  }
  LAMPORT_FN static void send(uint32_t to, double value, uint32_t counter) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f64 [%0], %1, [%2];" ::"r"(to),
                 "d"(value), "r"(counter)
                 : "memory");
  }
  LAMPORT_FN static bool passed(uint32_t barrier, uint32_t parity) {
    uint32_t done;
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
    return done != 0;
  }

  uint32_t phases_ = 0;  // parity of each half's next use
  bool started_ = false;
};

}  // namespace lamport
