#include "csrc/host/sycl/kernel_cache.hpp"

#include <dlfcn.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "csrc/host/errors.hpp"

namespace syclex = sycl::ext::oneapi::experimental;

namespace lamport {
namespace {

constexpr const char* kName[kSyclKernels] = {
    "all_reduce_one_shot", "all_reduce_two_shot",     "add_all_reduce_one_shot", "add_all_reduce_two_shot",
    "qk_rms_norm",         "add_all_reduce_rms_norm", "rs_sconv_ag_norm"};
constexpr const char* kMethod[kSyclKernels] = {"all_reduce",      "all_reduce",  "add_all_reduce",
                                               "add_all_reduce",  "qk_rms_norm", "add_all_reduce_rms_norm",
                                               "rs_sconv_ag_norm"};
constexpr const char* kFormatName[] = {"f32", "f16", "bf16"};

/// Folder `spirv` beside this shared object, where the package installs it.
std::string spirv_folder() {
  Dl_info info;
  static const char anchor = 0;
  if (dladdr(&anchor, &info) == 0 || info.dli_fname == nullptr) return "spirv";
  const std::string path = info.dli_fname;
  return path.substr(0, path.find_last_of('/') + 1) + "spirv";
}

std::vector<std::byte> read_spirv(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file)
    throw Error("WorkspaceError", "the package lacks " + path + "; build it with the SYCL toolchain present");
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::byte> out(bytes.size());
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

bool on_cpu(const sycl::context& context) { return context.get_devices().front().is_cpu(); }

sycl::kernel build(const sycl::context& context, const std::string& file, const std::string& name,
                   const std::string& options) {
  const std::string path = spirv_folder() + "/" + file + ".spv";
  try {
    auto source =
        syclex::create_kernel_bundle_from_source(context, syclex::source_language::spirv, read_spirv(path));
    auto bundle = options.empty() ? syclex::build(source)
                                  : syclex::build(source, syclex::properties{syclex::build_options{options}});
    return bundle.ext_oneapi_get_kernel("__sycl_kernel_" + name);
  } catch (const sycl::exception& error) {
    throw Error("WorkspaceError", "the device's compiler refused " + path + ": " + error.what());
  }
}

sycl::kernel build(const sycl::context& context, const KernelKey& key) {
  const std::string name =
      std::string("lamport_") + name_of(key.kernel) + "_" + kFormatName[static_cast<int>(key.format)];
  const std::string file = name + "_w" + std::to_string(key.world) + (key.yielding ? "_cpu" : "");
  if (!on_cpu(context)) return build(context, file, name, gpu_build_options(key.kernel, key.world));
  // On the CPU device the optimiser's vectoriser takes seconds per kernel. It is what makes sub-groups, though.
  const bool sub_groups = !key.yielding && key.kernel >= SyclKernel::qk_rms_norm;
  return build(context, file, name, sub_groups ? "" : "-cl-opt-disable");
}

using Order = std::tuple<uint32_t, uint32_t, uint32_t, bool>;

}  // namespace

const char* name_of(SyclKernel kernel) { return kName[static_cast<int>(kernel)]; }
const char* method_of(SyclKernel kernel) { return kMethod[static_cast<int>(kernel)]; }

std::string gpu_build_options(SyclKernel kernel, uint32_t world) {
  // From these worlds on a kernel's packets no longer fit PVC's 128 registers: polls would wait for each other, or
  // spill, which costs more than the threads that a doubled register file takes away.
  constexpr uint32_t kCrowded[kSyclKernels] = {8, 6, 8, 6, 8, 6, 6};
  std::string options;
  // Scales are the same on every target where division and root are rounded correctly; a GPU's own are not.
  if (kernel >= SyclKernel::qk_rms_norm) options = "-ze-fp32-correctly-rounded-divide-sqrt";
  if (world >= kCrowded[static_cast<int>(kernel)])
    options += (options.empty() ? "" : " ") + std::string("-ze-opt-large-register-file");
  return options;
}

sycl::kernel empty_kernel(const sycl::context& context) {
  return build(context, "lamport_empty", "lamport_empty", "");
}

const sycl::kernel& kernel_for(const sycl::context& context, const KernelKey& key) {
  // Never destroyed: the SYCL runtime may be gone by the time static objects are.
  static auto* mutex = new std::mutex();
  static auto* cache = new std::unordered_map<sycl::context, std::map<Order, sycl::kernel>>();
  const Order order{static_cast<uint32_t>(key.kernel), static_cast<uint32_t>(key.format), key.world,
                    key.yielding};
  {
    const std::lock_guard lock(*mutex);
    const auto& kernels = (*cache)[context];
    const auto found = kernels.find(order);
    if (found != kernels.end()) return found->second;
  }
  sycl::kernel built = build(context, key);  // without the lock: several are built side by side
  const std::lock_guard lock(*mutex);
  return (*cache)[context].emplace(order, std::move(built)).first->second;
}

}  // namespace lamport
