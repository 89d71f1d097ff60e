#include "csrc/host/cuda/cuda_workspace.hpp"

#include <algorithm>
#include <cstring>

#include "csrc/host/cuda/check.hpp"
#include "csrc/host/cuda/kernels.hpp"

namespace lamport {
namespace {

/// What travels to peers.
struct Handle {
  cudaIpcMemHandle_t memory;
  std::array<char, 16> gpu;
};

/// Small allocations share a block of this size, and an IPC handle exposes a block as a whole: take blocks of
/// our own.
constexpr uint64_t kBlock = uint64_t{2} << 20;

}  // namespace

CudaWorkspace::CudaWorkspace(int device, uint32_t rank, Layout layout, double timeout_seconds)
    : device_(device),
      rank_(rank),
      layout_(layout),
      patience_ns_(static_cast<uint64_t>(timeout_seconds * 1e9)),
      memory_(layout.world) {
  if (layout.world < 1 || layout.world > kMaxWorld || rank >= layout.world) {
    throw Error("WorkspaceError", "world size must be 1 to " + std::to_string(kMaxWorld) + ", got rank " +
                                      std::to_string(rank) + " of " + std::to_string(layout.world));
  }
  if (layout.slot_bytes % 16 != 0 || layout.slice_bytes % 16 != 0 || layout.slot_bytes == 0 ||
      layout.slice_bytes == 0 || layout.generation_bytes() > (uint64_t{1} << 31)) {
    throw Error("WorkspaceError", "slot and slice sizes must be positive multiples of 16 bytes");
  }
}

CudaWorkspace::~CudaWorkspace() {
  try {
    close_peers();
    free();
  } catch (const Error&) {  // the GPU is lost, and with it what there is to free
  }
}

std::string CudaWorkspace::allocate() {
  const DeviceGuard guard(device_);
  cudaDeviceProp properties;
  cuda_check(cudaGetDeviceProperties(&properties, device_), "read the properties of the GPU");
  std::memcpy(gpu_.data(), properties.uuid.bytes, gpu_.size());

  const uint64_t bytes = (layout_.total_bytes() + kBlock - 1) / kBlock * kBlock;
  void* memory = nullptr;
  cuda_check(cudaMalloc(&memory, bytes), "allocate " + std::to_string(bytes >> 10) + " KiB on the GPU");
  memory_[rank_] = static_cast<char*>(memory);
  void* status = nullptr;
  cuda_check(cudaHostAlloc(&status, sizeof(Status), cudaHostAllocMapped), "allocate page-locked memory");
  status_ = static_cast<Status*>(status);
  std::memset(status, 0, sizeof(Status));
  void* device_status = nullptr;
  cuda_check(cudaHostGetDevicePointer(&device_status, status, 0), "map page-locked memory on the GPU");
  device_status_ = static_cast<Status*>(device_status);

  cuda_check(cudaMemset(memory, 0, Layout::kHeaderBytes), "clear the workspace");
  cuda_check(fill_words(memory_[rank_] + Layout::kHeaderBytes, 2 * layout_.generation_bytes() / 4, kEmpty),
             "arm the workspace");
  cuda_check(cudaDeviceSynchronize(), "arm the workspace");

  Handle handle{};
  cuda_check(cudaIpcGetMemHandle(&handle.memory, memory),
             "get an IPC handle; this needs Linux and one process a rank");
  handle.gpu = gpu_;
  return std::string(reinterpret_cast<const char*>(&handle), sizeof handle);
}

void CudaWorkspace::open_peer(uint32_t rank, const std::string& bytes) {
  Handle handle;
  if (bytes.size() != sizeof handle) throw Error("WorkspaceError", "the handle of a peer has the wrong size");
  std::memcpy(&handle, bytes.data(), sizeof handle);
  const DeviceGuard guard(device_);
  void* memory = nullptr;
  cuda_check(
      cudaIpcOpenMemHandle(&memory, handle.memory, cudaIpcMemLazyEnablePeerAccess),
      "open the memory of rank " + std::to_string(rank) +
          "; its GPU must be reachable from this one (nvidia-smi topo -p2p r), and containers need a common "
          "IPC and PID namespace");
  memory_.at(rank) = static_cast<char*>(memory);
  ranks_here_ += handle.gpu == gpu_;
}

char* CudaWorkspace::cookie(uint32_t owner, uint32_t source) const {
  return memory_.at(owner) + Layout::kCookieOffset + source * sizeof(Line);
}

void CudaWorkspace::write_cookie(uint32_t peer, uint32_t value) {
  const DeviceGuard guard(device_);
  cuda_check(cudaMemcpy(cookie(peer, rank_), &value, sizeof value, cudaMemcpyHostToDevice),
             "write to the memory of rank " + std::to_string(peer));
  // A small copy from pageable memory returns before it has arrived.
  cuda_check(cudaDeviceSynchronize(), "write to the memory of rank " + std::to_string(peer));
}

uint32_t CudaWorkspace::read_cookie(uint32_t source) const {
  const DeviceGuard guard(device_);
  uint32_t value = 0;
  cuda_check(cudaMemcpy(&value, cookie(rank_, source), sizeof value, cudaMemcpyDeviceToHost),
             "read own memory");
  return value;
}

void CudaWorkspace::close_peers() {
  if (memory_[rank_] == nullptr) return;
  const DeviceGuard guard(device_);
  cudaDeviceSynchronize();  // no kernel may be using what is unmapped; an error of one is not ours to report
  for (uint32_t r = 0; r < layout_.world; ++r) {
    if (r != rank_ && memory_[r] != nullptr) cudaIpcCloseMemHandle(memory_[r]);
    if (r != rank_) memory_[r] = nullptr;
  }
}

void CudaWorkspace::free() {
  if (memory_[rank_] == nullptr) return;
  const DeviceGuard guard(device_);
  cudaFree(memory_[rank_]);
  cudaFreeHost(status_);
  memory_[rank_] = nullptr;
  status_ = device_status_ = nullptr;
}

bool CudaWorkspace::ready() const {
  return std::all_of(memory_.begin(), memory_.end(), [](const char* m) { return m != nullptr; });
}

WorkspaceView CudaWorkspace::view() const {
  WorkspaceView view{};
  view.own = reinterpret_cast<uint32_t*>(memory_[rank_] + Layout::kHeaderBytes);
  view.control = reinterpret_cast<Control*>(memory_[rank_]);
  view.status = device_status_;
  view.rank = rank_;
  view.generation_words = static_cast<uint32_t>(layout_.generation_bytes() / 4);
  view.patience = patience_ns_;
  for (uint32_t i = 0; i + 1 < layout_.world; ++i) {
    view.peer[i] =
        reinterpret_cast<uint32_t*>(memory_[(rank_ + 1 + i) % layout_.world] + Layout::kHeaderBytes);
  }
  return view;
}

}  // namespace lamport
