#include "csrc/host/level_zero/loader.hpp"

#include <dlfcn.h>

#include <cstdlib>

namespace lamport::ze {
namespace {

struct Loaded {
  Api api;
  std::string path;
};

constexpr const char* kDefaultName = "libze_loader.so.1";

Loaded load() {
  const char* chosen = std::getenv("LAMPORT_ZE_LOADER");
  const std::string name = chosen != nullptr && *chosen != '\0' ? chosen : kDefaultName;
  // Never closed: the driver behind it starts threads and registers exit handlers.
  void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    throw Error(ErrorKind::kNoLoader,
                "cannot open the Level Zero loader '" + name + "' (" + (reason ? reason : "unknown reason") +
                    "). Install Intel's GPU runtime: the packages libze1 and libze-intel-gpu1 "
                    "(intel-level-zero-gpu on older releases).");
  }
  Loaded loaded;
  loaded.path = name;
  const auto resolve = [&](const char* symbol) {
    void* address = dlsym(library, symbol);
    if (address == nullptr) {
      throw Error(ErrorKind::kDriverTooOld, "the Level Zero loader '" + name + "' lacks " + symbol +
                                                ". Update the package libze1 (level-zero) to 1.10 or newer.");
    }
    return address;
  };
#define LAMPORT_ZE_RESOLVE(function, signature) \
  loaded.api.function = reinterpret_cast<Api::function##Function*>(resolve("ze" #function));
  LAMPORT_ZE_FUNCTIONS(LAMPORT_ZE_RESOLVE)
#undef LAMPORT_ZE_RESOLVE

  const Result result = loaded.api.Init(kInitGpuOnly);
  // The loader answers "uninitialized" when it found no driver library, a driver when it found no device.
  if (result != kSuccess) {
    throw Error(
        ErrorKind::kNoDevice,
        "zeInit returned " + result_name(result) +
            ": no Intel GPU driver with a usable device. Check that /dev/dri/renderD* exists and that "
            "this user may open it (group render; in a container: --device /dev/dri), and that the "
            "package libze-intel-gpu1 is installed.");
  }
  return loaded;
}

// A function-local static is initialised once and again on the next call when its initialiser throws.
const Loaded& loaded() {
  static const Loaded instance = load();
  return instance;
}

}  // namespace

const Api& api() { return loaded().api; }

const std::string& loader_path() { return loaded().path; }

}  // namespace lamport::ze
