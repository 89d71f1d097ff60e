#include "csrc/host/cuda/cuda_collectives.hpp"

#include <algorithm>

#include "csrc/host/cuda/check.hpp"

namespace lamport {
namespace {

constexpr uint64_t kPacketBytes = 16;
constexpr int kCarveoutPercent = 50;  // room for the kilobyte that every block takes, and for others' kernels

uint64_t divide_rounding_up(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

}  // namespace

CudaCollectives::CudaCollectives(std::shared_ptr<CudaWorkspace> workspace, const Thresholds (&thresholds)[3])
    : workspace_(std::move(workspace)), kernels_{} {
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
  if (world_ == 1) return;
  // Asked for now, also because that loads the kernels: loading one while a stream is captured may fail.
  for (int algorithm = 0; algorithm < 2; ++algorithm) {
    for (int format = 0; format < 3; ++format) {
      Kernel& kernel = kernels_[algorithm][format];
      kernel.function = (algorithm == 0 ? kCudaOneShot : kCudaTwoShot)[format][world_];
      // The same split of L1 and shared memory for all. A multiprocessor changes its split only when it is idle:
      // blocks that wait on it could keep out those that another rank, with another split, needs to get here.
      cuda_check(cudaFuncSetAttribute(kernel.function, cudaFuncAttributePreferredSharedMemoryCarveout,
                                      kCarveoutPercent),
                 "set up a kernel");
      for (int i = 0; i < 3; ++i) {
        int blocks = 0;
        cuda_check(
            cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel.function, kThreads[i], 0),
            "load a kernel; the module was built for other GPUs than this one (CMAKE_CUDA_ARCHITECTURES)");
        kernel.resident_blocks[i] = static_cast<uint32_t>(blocks * processors) / share;
      }
    }
  }
}

/// Small blocks while each gets a multiprocessor of this rank's share: a block's packets share a scheduler. Then larger
/// ones, as blocks take time to launch and more than one a multiprocessor was slower (64 KB, four ranks on one H200: 64
/// blocks of 64 threads a rank 9.9 us, 32 of 128 threads 4.9 us).
uint32_t CudaCollectives::threads_for(uint64_t packets) const {
  if (choice_.threads != 0) return choice_.threads;
  for (const uint32_t threads : kThreads) {
    if (packets <= uint64_t{processors_} * threads) return threads;
  }
  return kMaxThreads;
}

/// P5: all work-groups of a call are resident together, on every rank that shares the GPU, and while each of
/// those calls has the next one waiting beside it.
uint32_t CudaCollectives::block_limit(const Kernel& kernel, uint32_t threads) const {
  const auto* found = std::find(std::begin(kThreads), std::end(kThreads), threads);
  const uint32_t blocks = kernel.resident_blocks[found - std::begin(kThreads)];
  return std::max(1u, choice_.overlap == Overlap::chain ? blocks / 2 : blocks);
}

bool CudaCollectives::all_reduce(const void* in, void* out, uint64_t bytes, Format format,
                                 cudaStream_t stream) {
  if (bytes == 0) return true;
  const DeviceGuard guard(device());
  if (world_ == 1) {
    if (out != in)
      cuda_check(cudaMemcpyAsync(out, in, bytes, cudaMemcpyDeviceToDevice, stream), "copy a tensor");
    return true;
  }
  const Thresholds& limit = thresholds_[static_cast<int>(format)];
  if (bytes > std::max(limit.one_shot_max, limit.two_shot_max)) return false;
  const int algorithm = bytes <= limit.one_shot_max ? 0 : 1;
  const Kernel& kernel = kernels_[algorithm][static_cast<int>(format)];
  AllReduceArgs args{in, out, bytes, capacity_packets_[algorithm]};

  const uint64_t packets = divide_rounding_up(bytes, kPacketBytes);
  const uint64_t in_flight =
      std::min<uint64_t>(algorithm == 0 ? packets : divide_rounding_up(packets, world_), args.slot_packets);
  const uint32_t threads = threads_for(in_flight);
  const uint64_t blocks =
      std::min<uint64_t>(divide_rounding_up(in_flight, threads), block_limit(kernel, threads));

  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<uint32_t>(blocks));
  config.blockDim = dim3(threads);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = choice_.overlap == Overlap::none ? 0 : 1;
  Overlap overlap = choice_.overlap;
  void* parameters[] = {&view_, &args, &overlap};
  cuda_check(cudaLaunchKernelExC(&config, kernel.function, parameters), "launch a kernel");
  return true;
}

std::string CudaCollectives::timed_out_detail() const {
  const volatile Status* status = workspace_->status();
  const uint32_t expected = status->signatures, found = status->signed_off;
  if (found >= expected) return "";
  return ", when " + std::to_string(found) + " of " + std::to_string(expected) +
         " warps of this rank's own kernel had found room on the GPU";
}

void CudaCollectives::check() const {
  const uint32_t waited_for = workspace_->status()->waited_for;
  if (waited_for != 0) throw Timeout{waited_for - 1, workspace_->status()->epoch};
}

}  // namespace lamport
