/// Build-time tool: SYCL device source to SPIR-V, one file per kernel, by the compiler inside the SYCL
/// runtime.
///
///   compile_spirv SOURCE OUTPUT_DIR SUFFIX [compiler options]
///
/// writes OUTPUT_DIR/<kernel><SUFFIX>.spv. A file per kernel, because a process pays the device's compiler
/// for every kernel of a module it loads, used or not.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <sycl/sycl.hpp>
#include <vector>

namespace syclex = sycl::ext::oneapi::experimental;

namespace {

constexpr uint32_t kSpirvMagic = 0x07230203;
constexpr size_t kSpirvHeaderWords = 5;
constexpr uint32_t kOpEntryPoint = 15;
constexpr char kRawPrefix[] =
    "__sycl_kernel_";  // what the compiler puts before the name of an extern "C" kernel

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The entry points of a module, by the names the source gives them.
std::vector<std::string> kernels_of(const std::vector<std::byte>& image) {
  std::vector<uint32_t> words(image.size() / sizeof(uint32_t));
  std::memcpy(words.data(), image.data(), words.size() * sizeof(uint32_t));
  if (words.size() < kSpirvHeaderWords || words[0] != kSpirvMagic)
    throw std::runtime_error("not a SPIR-V module");
  std::vector<std::string> names;
  for (size_t at = kSpirvHeaderWords; at < words.size();) {
    const uint32_t count = words[at] >> 16;
    if (count == 0 || at + count > words.size()) throw std::runtime_error("malformed SPIR-V module");
    if ((words[at] & 0xffff) == kOpEntryPoint) {  // execution model, id, name, interface
      std::string name(reinterpret_cast<const char*>(&words[at + 3]));
      if (name.rfind(kRawPrefix, 0) == 0) name.erase(0, sizeof kRawPrefix - 1);
      names.push_back(name);
    }
    at += count;
  }
  return names;
}

/// Any device will do: the SPIR-V is the same. The CPU is preferred because a build machine always has one.
sycl::context any_context() {
  auto devices = sycl::device::get_devices();
  if (devices.empty()) {
    throw std::runtime_error(
        "the SYCL runtime sees no device to compile with; install intel-opencl-rt "
        "(and point OCL_ICD_FILENAMES at its libintelocl.so)");
  }
  auto cpu = std::find_if(devices.begin(), devices.end(), [](const auto& d) { return d.is_cpu(); });
  return sycl::context(cpu != devices.end() ? *cpu : devices.front());
}

void compile(const std::string& source, const std::filesystem::path& directory, const std::string& suffix,
             std::vector<std::string> options) {
  // The bundle is finalised for the context's device as well, which nobody needs: without optimisation it is
  // quick.
  for (const char* option : {"-fsycl-device-code-split=per_kernel", "-Xs", "-cl-opt-disable"}) {
    options.emplace_back(option);
  }
  auto bundle = syclex::create_kernel_bundle_from_source(any_context(), syclex::source_language::sycl,
                                                         read_file(source));
  auto built = syclex::build(bundle, syclex::properties{syclex::build_options{options}});
  for (const auto& image : built) {
    const auto content = image.ext_oneapi_get_backend_content();
    const auto names = kernels_of(content);
    if (names.size() != 1) throw std::runtime_error("expected one kernel in a module");
    const auto path = directory / (names.front() + suffix + ".spv");
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(content.data()), static_cast<std::streamsize>(content.size()));
    if (!file.flush()) throw std::runtime_error("cannot write " + path.string());
  }
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 4) throw std::runtime_error("usage: compile_spirv SOURCE OUTPUT_DIR SUFFIX [compiler options]");
  std::filesystem::create_directories(argv[2]);
  compile(argv[1], argv[2], argv[3], {argv + 4, argv + argc});
  return 0;
} catch (const std::exception& error) {
  std::cerr << "compile_spirv: " << error.what() << '\n';
  return 1;
}
