#include "csrc/host/cuda/cuda_collectives.hpp"

#include <algorithm>

#include "csrc/host/cuda/check.hpp"

namespace lamport {
namespace {

constexpr uint32_t kPacketBytes = 16;
constexpr int kCarveoutPercent = 50;  // room for the kilobyte that every block takes, and for others' kernels

uint64_t divide_rounding_up(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

const CudaKernels& kernels_of(CudaKernel kernel) {
  switch (kernel) {
    case CudaKernel::all_reduce_one_shot:
      return cuda_kernels<CudaKernel::all_reduce_one_shot>();
    case CudaKernel::all_reduce_two_shot:
      return cuda_kernels<CudaKernel::all_reduce_two_shot>();
    case CudaKernel::add_all_reduce_one_shot:
      return cuda_kernels<CudaKernel::add_all_reduce_one_shot>();
    case CudaKernel::add_all_reduce_two_shot:
      return cuda_kernels<CudaKernel::add_all_reduce_two_shot>();
    case CudaKernel::qk_rms_norm:
      return cuda_kernels<CudaKernel::qk_rms_norm>();
    case CudaKernel::add_all_reduce_rms_norm:
      return cuda_kernels<CudaKernel::add_all_reduce_rms_norm>();
    default:
      return cuda_kernels<CudaKernel::rs_sconv_ag_norm>();
  }
}

uint64_t bits(const void* address) { return reinterpret_cast<uintptr_t>(address); }
uint64_t bits(uint64_t bytes) { return bytes; }

template <class... AddressesOrBytes>
bool in_packets(AddressesOrBytes... values) {
  return (bits(values) | ...) % kPacketBytes == 0;
}

/// Whether every packet of the call is whole and aligned; see CudaTarget.
bool whole(const AllReduceArgs& a) { return in_packets(a.in, a.out, a.bytes); }
bool whole(const AddAllReduceArgs& a) { return in_packets(a.in, a.shared, a.out, a.bytes); }
bool whole(const QkNormArgs& a) {
  return in_packets(a.qkv, a.q_weight, a.k_weight, a.q, a.k, a.qkv_stride, a.q_stride, a.k_stride, a.q_bytes,
                    a.k_bytes);
}
bool whole(const AddNormArgs& a) {
  return in_packets(a.in, a.shared, a.residual, a.weight, a.normed, a.new_residual, a.row_bytes);
}
bool whole(const SconvArgs& a) {
  return in_packets(a.in, a.shared, a.residual, a.conv_weight, a.norm_weight, a.normed, a.new_residual,
                    a.cache, a.block_stride, a.head_stride, a.token_stride, a.head_bytes, a.cache_offset,
                    a.shard_bytes);
}

}  // namespace

/// What cudaLaunchKernelExC is told; points into itself.
struct CudaCollectives::Launch {
  Launch(const Grid& grid, Overlap overlap, cudaStream_t stream) {
    config.gridDim = dim3(grid.blocks);
    config.blockDim = dim3(grid.threads);
    config.stream = stream;
    config.attrs = attributes;
    if (overlap != Overlap::none) {
      cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
      attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
      attribute.val.programmaticStreamSerializationAllowed = 1;
    }
    if (grid.cluster > 0) {
      cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
      attribute.id = cudaLaunchAttributeClusterDimension;
      attribute.val.clusterDim.x = grid.cluster;
      attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    }
  }
  Launch(const Launch&) = delete;

  cudaLaunchConfig_t config{};
  cudaLaunchAttribute attributes[2]{};
};

CudaCollectives::CudaCollectives(std::shared_ptr<CudaWorkspace> workspace, const Thresholds (&thresholds)[3],
                                 std::function<cudaStream_t()> current_stream)
    : workspace_(std::move(workspace)), current_stream_(std::move(current_stream)), kernels_{} {
  if (!workspace_->ready()) throw Error("WorkspaceError", "the workspace is not open to all peers yet");
  view_ = workspace_->view();
  const Layout& layout = workspace_->layout();
  world_ = layout.world;
  capacity_packets_[0] = layout.slot_bytes / kPacketBytes;
  capacity_packets_[1] = layout.slice_bytes / kPacketBytes;
  std::copy(std::begin(thresholds), std::end(thresholds), thresholds_);

  const DeviceGuard guard(device());
  int processors = 0;
  cuda_check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device()),
             "ask for the GPU's size");
  // Where ranks share a GPU, half of it stays free: they need room for what they run before they call, and at exactly
  // what the occupancy calculator promises (8 x 99 blocks, 6 a multiprocessor) some blocks found none.
  const uint32_t ranks = workspace_->ranks_on_this_gpu();
  const uint32_t share = ranks == 1 ? 1 : 2 * ranks;
  processors_ = static_cast<uint32_t>(processors) / ranks;
  // All are loaded now: loading one while a stream is captured may fail.
  for (int k = 0; k < kCudaKernels; ++k) {
    const auto which = static_cast<CudaKernel>(k);
    for (int whole = 0; whole < 2; ++whole) {
      for (int format = 0; format < 3; ++format) {
        const void* function = kernels_of(which).function[whole][format][world_];
        if (function != nullptr)
          kernels_[k][whole][format] = load(function, which, static_cast<uint32_t>(processors), share);
      }
    }
  }
}

CudaCollectives::Kernel CudaCollectives::load(const void* function, CudaKernel which, uint32_t processors,
                                              uint32_t share) const {
  const char* failed =
      "load a kernel; the module was built for other GPUs than this one (CMAKE_CUDA_ARCHITECTURES)";
  Kernel kernel{function, {}, {}};
  // The same split of L1 and shared memory for all. A multiprocessor changes its split only when it is idle: blocks that
  // wait on it could keep out those that another rank, with another split, needs to get here.
  cuda_check(cudaFuncSetAttribute(function, cudaFuncAttributePreferredSharedMemoryCarveout, kCarveoutPercent),
             "set up a kernel");
  for (uint32_t threads = kThreadStep; threads <= max_threads(which); threads += kThreadStep) {
    int blocks = 0;
    cuda_check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, static_cast<int>(threads), 0),
               failed);
    kernel.resident_blocks[threads / kThreadStep] = static_cast<uint32_t>(blocks) * processors / share;
  }
  if (!has_clusters(which)) return kernel;
  for (uint32_t cluster = kMinCluster; cluster <= kMaxCluster; ++cluster) {
    const Launch launch({cluster, kClusterThreads, cluster}, Overlap::none, nullptr);
    int clusters = 0;
    cuda_check(cudaOccupancyMaxActiveClusters(&clusters, function, &launch.config), failed);
    kernel.resident_clusters[cluster] = static_cast<uint32_t>(clusters) / share;
  }
  return kernel;
}

/// Small blocks while each gets a multiprocessor of this rank's share: a block's packets share a scheduler. Then larger
/// ones, as blocks take time to launch and more than one a multiprocessor was slower (64 KB, four ranks on one H200: 64
/// blocks of 64 threads a rank 9.9 us, 32 of 128 threads 4.9 us).
CudaCollectives::Grid CudaCollectives::grid_for_packets(const Kernel& kernel, uint64_t packets) const {
  uint32_t threads = choice_.threads;
  if (threads == 0) {
    threads = kThreadStep;
    while (threads < kMaxThreads && packets > uint64_t{processors_} * threads) threads *= 2;
  }
  const uint64_t blocks = divide_rounding_up(packets, threads);
  return {static_cast<uint32_t>(
              std::min<uint64_t>(blocks, at_once(kernel.resident_blocks[threads / kThreadStep]))),
          threads};
}

/// A block a token: one of its threads exchanges, all of them read and scale.
CudaCollectives::Grid CudaCollectives::grid_for_tokens(const Kernel& kernel, uint32_t tokens,
                                                       uint64_t packets) const {
  const auto threads = static_cast<uint32_t>(
      std::min<uint64_t>(divide_rounding_up(packets, kThreadStep) * kThreadStep, kMaxTokenThreads));
  return {std::min(tokens, at_once(kernel.resident_blocks[threads / kThreadStep])), threads};
}

/// A cluster a row, and a thread a packet as far as that goes: fewer threads where rows would wait for each other.
CudaCollectives::Grid CudaCollectives::grid_for_rows(const Kernel& kernel, uint32_t rows,
                                                     uint64_t packets) const {
  auto cluster = static_cast<uint32_t>(
      std::clamp<uint64_t>(divide_rounding_up(packets, kClusterThreads), kMinCluster, kMaxCluster));
  while (cluster > kMinCluster && at_once(kernel.resident_clusters[cluster]) < rows) --cluster;
  return {std::min(rows, at_once(kernel.resident_clusters[cluster])) * cluster, kClusterThreads, cluster};
}

/// P5: all work-groups of a call are resident together, on every rank that shares the GPU, and while each of
/// those calls has the next one waiting beside it.
uint32_t CudaCollectives::at_once(uint32_t resident) const {
  return std::max(1u, choice_.overlap == Overlap::chain ? resident / 2 : resident);
}

template <class Args>
const CudaCollectives::Kernel& CudaCollectives::kernel(CudaKernel which, Format format,
                                                       const Args& args) const {
  return kernels_[static_cast<int>(which)][whole(args)][static_cast<int>(format)];
}

template <class Args>
void CudaCollectives::launch(const Kernel& kernel, Grid grid, const Args& args) {
  const Launch launch(grid, choice_.overlap, current_stream_());
  void* parameters[] = {&view_, const_cast<Args*>(&args), &choice_.overlap};
  const DeviceGuard guard(device());
  cuda_check(cudaLaunchKernelExC(&launch.config, kernel.function, parameters), "launch a kernel");
}

int CudaCollectives::algorithm_for(uint64_t bytes, Format format, Library library) const {
  const Thresholds& limit = thresholds_[static_cast<int>(format)];
  if (world_ == 1 || bytes <= limit.one_shot_max) return 0;
  return bytes > limit.two_shot_max && library == Library::large_sizes ? -1 : 1;
}

template <class Args>
bool CudaCollectives::reduce(CudaKernel one_shot, Args& args, Format format, Library library) {
  check();
  if (args.bytes == 0) return true;
  const int algorithm = algorithm_for(args.bytes, format, library);
  if (algorithm < 0) return false;
  const Kernel& chosen =
      kernel(static_cast<CudaKernel>(static_cast<uint32_t>(one_shot) + static_cast<uint32_t>(algorithm)),
             format, args);
  args.slot_packets = capacity_packets_[algorithm];
  const uint64_t packets = divide_rounding_up(args.bytes, kPacketBytes);
  const uint64_t in_flight = algorithm == 0 ? packets : divide_rounding_up(packets, world_);
  launch(chosen, grid_for_packets(chosen, std::min<uint64_t>(in_flight, args.slot_packets)), args);
  return true;
}

bool CudaCollectives::all_reduce(AllReduceArgs args, Format format, Library library) {
  if (world_ > 1) return reduce(CudaKernel::all_reduce_one_shot, args, format, library);
  if (args.bytes != 0 && args.out != args.in) {
    const DeviceGuard guard(device());
    cuda_check(cudaMemcpyAsync(args.out, args.in, args.bytes, cudaMemcpyDeviceToDevice, current_stream_()),
               "copy a tensor");
  }
  return true;
}

bool CudaCollectives::add_all_reduce(AddAllReduceArgs args, Format format, Library library) {
  return reduce(CudaKernel::add_all_reduce_one_shot, args, format, library);
}

void CudaCollectives::qk_rms_norm(const QkNormArgs& args, Format format) {
  check();
  if (args.tokens == 0) return;
  const Kernel& chosen = kernel(CudaKernel::qk_rms_norm, format, args);
  launch(chosen, grid_for_tokens(chosen, args.tokens, divide_rounding_up(args.q_bytes, kPacketBytes)), args);
}

void CudaCollectives::add_all_reduce_rms_norm(const AddNormArgs& args, Format format) {
  check();
  if (args.tokens == 0) return;
  const Kernel& chosen = kernel(CudaKernel::add_all_reduce_rms_norm, format, args);
  launch(chosen, grid_for_rows(chosen, args.tokens, divide_rounding_up(args.row_bytes, kPacketBytes)), args);
}

void CudaCollectives::rs_sconv_ag_norm(const SconvArgs& args, Format format) {
  check();
  if (args.tokens == 0) return;
  const Kernel& chosen = kernel(CudaKernel::rs_sconv_ag_norm, format, args);
  launch(chosen, grid_for_rows(chosen, args.tokens, divide_rounding_up(args.row_bytes, kPacketBytes)), args);
}

void CudaCollectives::check() const {
  const volatile Status* status = workspace_->status();
  const uint32_t waited_for = status->waited_for;
  if (waited_for == 0) return;
  Timeout timeout{waited_for - 1, status->epoch, kCudaMethod[status->collective], status->bytes, ""};
  const uint32_t expected = status->signatures, found = status->signed_off;
  if (found < expected) {
    timeout.detail = ", when " + std::to_string(found) + " of " + std::to_string(expected) +
                     " warps of this rank's own kernel had found room on the GPU";
  }
  throw timeout;
}

}  // namespace lamport
