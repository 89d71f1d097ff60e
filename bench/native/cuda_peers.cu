// Other people's all-reduce kernels behind a C interface, to be timed against ours: FlashInfer's one-shot
// Lamport and vLLM's custom all-reduce, both from the headers in the flashinfer-python wheel. And the floor:
// an empty kernel, and one store-to-load trip between two processes. bench/native/build_cuda_peers.sh
// compiles it; bench/peers/ cuda_library.py loads it. Every function returns null, or what went wrong.
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

#ifdef WITH_FLASHINFER
#include "flashinfer/comm/trtllm_allreduce_fusion.cuh"
#include "flashinfer/comm/vllm_custom_all_reduce.cuh"
#endif

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

std::string last_error;

template <class Action>
const char* guarded(Action action) {
  try {
    action();
    return nullptr;
  } catch (const std::exception& error) {
    last_error = error.what();
    return last_error.c_str();
  }
}

void require(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

__global__ void fill(uint32_t* words, uint64_t count, uint32_t value) {
  for (uint64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    words[i] = value;
}

__global__ void empty() {}

/// `first` stores to the peer and waits for the answer; the other answers. So many round trips.
__global__ void ping_pong(uint32_t* own, uint32_t* peer, bool first, uint32_t rounds) {
  for (uint32_t i = 1; i <= rounds; ++i) {
    if (first) asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(peer), "r"(i) : "memory");
    uint32_t found;
    do {
      asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(found) : "l"(own) : "memory");
    } while (found != i);
    if (!first) asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(peer), "r"(i) : "memory");
  }
}

}  // namespace

// Memory that several processes share.

EXPORT const char* peers_allocate(uint64_t bytes, uint32_t value, void** memory, char* handle) {
  return guarded([&] {
    require(cudaMalloc(memory, bytes));
    fill<<<64, 256>>>(static_cast<uint32_t*>(*memory), bytes / 4, value);
    require(cudaDeviceSynchronize());
    require(cudaIpcGetMemHandle(reinterpret_cast<cudaIpcMemHandle_t*>(handle), *memory));
  });
}

/// The handle of the allocation that `memory` is part of, and where in it.
EXPORT const char* peers_share(void* memory, char* handle, uint64_t* offset) {
  return guarded([&] {
    using Range = int (*)(unsigned long long* base, size_t* size, unsigned long long pointer);
    void* range = nullptr;
    cudaDriverEntryPointQueryResult found;
    require(
        cudaGetDriverEntryPointByVersion("cuMemGetAddressRange", &range, 12000, cudaEnableDefault, &found));
    unsigned long long base = 0;
    size_t size = 0;
    const auto pointer = reinterpret_cast<unsigned long long>(memory);
    if (range == nullptr || reinterpret_cast<Range>(range)(&base, &size, pointer) != 0) {
      throw std::runtime_error("cuMemGetAddressRange failed");
    }
    *offset = pointer - base;
    require(
        cudaIpcGetMemHandle(reinterpret_cast<cudaIpcMemHandle_t*>(handle), reinterpret_cast<void*>(base)));
  });
}

EXPORT const char* peers_open(const char* handle, void** memory) {
  return guarded([&] {
    cudaIpcMemHandle_t h;
    std::memcpy(&h, handle, sizeof h);
    require(cudaIpcOpenMemHandle(memory, h, cudaIpcMemLazyEnablePeerAccess));
  });
}

// The floor.

EXPORT const char* floor_empty(uint32_t blocks, uint32_t threads, cudaStream_t stream) {
  return guarded([&] {
    empty<<<blocks, threads, 0, stream>>>();
    require(cudaGetLastError());
  });
}

EXPORT const char* floor_ping_pong(void* own, void* peer, int first, uint32_t rounds, cudaStream_t stream) {
  return guarded([&] {
    ping_pong<<<1, 1, 0, stream>>>(static_cast<uint32_t*>(own), static_cast<uint32_t*>(peer), first != 0,
                                   rounds);
    require(cudaGetLastError());
  });
}

EXPORT int peers_have_flashinfer() {
#ifdef WITH_FLASHINFER
  return 1;
#else
  return 0;
#endif
}

#ifdef WITH_FLASHINFER
namespace fi = flashinfer::trtllm_allreduce_fusion;

namespace {

template <fi::AllReduceFusionPattern P>
void launch_flashinfer(const fi::AllReduceFusionParams<half>& params, bool overlap) {
  switch (params.nranks) {
    case 2:
      return require(fi::allreduce_fusion_kernel_launcher<P, half, 2, false>(params, overlap));
    case 4:
      return require(fi::allreduce_fusion_kernel_launcher<P, half, 4, false>(params, overlap));
    case 8:
      return require(fi::allreduce_fusion_kernel_launcher<P, half, 8, false>(params, overlap));
    default:
      throw std::runtime_error("FlashInfer has kernels for 2, 4 and 8 ranks");
  }
}

}  // namespace

/// One-shot, fp16. With `gamma`: residual add and RMSNorm follow, the sum plus residual goes to `out`.
/// `overlap`: programmatic dependent launch, with its early trigger.
EXPORT const char* flashinfer_all_reduce(int rank, int world, int count, int hidden, void** workspace,
                                         void* in, void* out, void* residual, void* norm_out, void* gamma,
                                         int overlap, cudaStream_t stream) {
  return guarded([&] {
    fi::AllReduceFusionParams<half> params{};
    params.nranks = world;
    params.rank = rank;
    params.size = count;
    params.hidden_dim = hidden;
    params.workspace = workspace;
    params.allreduce_in = in;
    params.use_oneshot = true;
    params.stream = stream;
    params.trigger_completion_at_end = overlap == 0;
    if (gamma == nullptr) {
      params.allreduce_out = out;
      params.pattern = fi::AllReduceFusionPattern::kAllReduce;
      launch_flashinfer<fi::AllReduceFusionPattern::kAllReduce>(params, overlap != 0);
    } else {
      params.residual_in = residual;
      params.residual_out = out;
      params.norm_out = norm_out;
      params.rms_gamma = gamma;
      params.rms_eps = 1e-6f;
      params.pattern = fi::AllReduceFusionPattern::kARResidualRMSNorm;
      launch_flashinfer<fi::AllReduceFusionPattern::kARResidualRMSNorm>(params, overlap != 0);
    }
  });
}

// vLLM. In a captured graph it takes the addresses of peers' buffers from a table that is filled after the
// capture, an entry a call. Here one buffer is in use at a time, so the whole table names it, and any entry
// will do.

namespace {
constexpr uint64_t kEntries = 1 << 16;
}

EXPORT uint64_t vllm_signal_bytes(uint64_t max_bytes) { return sizeof(vllm::Signal) + max_bytes; }
EXPORT uint64_t vllm_table_bytes() { return kEntries * sizeof(vllm::RankData); }

EXPORT const char* vllm_create(void** signals, void* table, int rank, int world, void** object) {
  return guarded([&] {
    *object = new vllm::CustomAllreduce(reinterpret_cast<vllm::Signal**>(signals), table, vllm_table_bytes(),
                                        rank, world);
  });
}

EXPORT const char* vllm_use_buffer(void* object, void** pointers) {
  return guarded([&] {
    auto* ar = static_cast<vllm::CustomAllreduce*>(object);
    vllm::RankData entry{};
    for (int r = 0; r < ar->world_size_; ++r) entry.ptrs[r] = pointers[r];
    const std::vector<vllm::RankData> table(kEntries, entry);
    require(cudaDeviceSynchronize());
    require(cudaMemcpy(ar->d_rank_data_base_, table.data(), vllm_table_bytes(), cudaMemcpyHostToDevice));
    ar->buffers_.clear();
    ar->buffers_[pointers[ar->rank_]] = ar->d_rank_data_base_;
  });
}

EXPORT const char* vllm_all_reduce(void* object, void* in, void* out, int count, cudaStream_t stream) {
  return guarded([&] {
    auto* ar = static_cast<vllm::CustomAllreduce*>(object);
    if (ar->graph_unreg_buffers_.size() >= kEntries) ar->graph_unreg_buffers_.clear();
    ar->allreduce<half>(stream, static_cast<half*>(in), static_cast<half*>(out), count, vllm::kMaxBlocks);
    require(cudaGetLastError());
  });
}
#endif
