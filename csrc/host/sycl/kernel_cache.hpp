/// Kernels from the SPIR-V files of the package, built once per context.
#pragma once
#include <cstdint>
#include <string>
#include <sycl/sycl.hpp>

#include "csrc/device/packet.hpp"

namespace lamport {

enum class SyclKernel : uint32_t {
  all_reduce_one_shot = 0,
  all_reduce_two_shot,
  add_all_reduce_one_shot,
  add_all_reduce_two_shot,
  qk_rms_norm,
  add_all_reduce_rms_norm,
  rs_sconv_ag_norm
};
inline constexpr int kSyclKernels = 7;

const char* name_of(SyclKernel kernel);
/// Which method of Communicator that is.
const char* method_of(SyclKernel kernel);

/// An all-reduce alone is then a copy, and nothing needs two shots.
constexpr bool serves_world_of_one(SyclKernel kernel) {
  return kernel == SyclKernel::add_all_reduce_one_shot || kernel >= SyclKernel::qk_rms_norm;
}

/// What the device's compiler is told for a kernel on a GPU. The gate in tests/isa compiles with the same
/// options.
std::string gpu_build_options(SyclKernel kernel, uint32_t world);

/// `yielding` kernels call back into the host while they wait: for the CPU device only, where ranks may share cores.
/// The others are those that GPUs run.
struct KernelKey {
  SyclKernel kernel;
  Format format;
  uint32_t world;
  bool yielding;
};

/// Builds on first use (tens to hundreds of ms). The kernel is valid until the process ends. Throws
/// Error("WorkspaceError") if the package has no such kernel or the device's compiler refuses it.
const sycl::kernel& kernel_for(const sycl::context& context, const KernelKey& key);

/// The kernel that does nothing. Not cached: it serves measurements.
sycl::kernel empty_kernel(const sycl::context& context);

}  // namespace lamport
