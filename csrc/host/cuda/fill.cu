#include "csrc/host/cuda/kernels.hpp"

namespace lamport {
namespace {

__global__ void fill(uint32_t* words, uint64_t count, uint32_t value) {
  for (uint64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    words[i] = value;
}

}  // namespace

cudaError_t fill_words(void* words, uint64_t count, uint32_t value) {
  fill<<<64, 256>>>(static_cast<uint32_t*>(words), count, value);
  return cudaGetLastError();
}

}  // namespace lamport
