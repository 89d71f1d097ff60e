#include "csrc/host/level_zero/ze_error.hpp"

#include <algorithm>
#include <cstdio>

namespace lamport::ze {
namespace {

struct ResultName {
  Result result;
  const char* name;
};
constexpr ResultName kResultNames[] = {
    {kSuccess, "ZE_RESULT_SUCCESS"},
    {kNotReady, "ZE_RESULT_NOT_READY"},
    {kErrorDeviceLost, "ZE_RESULT_ERROR_DEVICE_LOST"},
    {kErrorOutOfHostMemory, "ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY"},
    {kErrorOutOfDeviceMemory, "ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY"},
    {kErrorInsufficientPermissions, "ZE_RESULT_ERROR_INSUFFICIENT_PERMISSIONS"},
    {kErrorNotAvailable, "ZE_RESULT_ERROR_NOT_AVAILABLE"},
    {kErrorDependencyUnavailable, "ZE_RESULT_ERROR_DEPENDENCY_UNAVAILABLE"},
    {kErrorUninitialized, "ZE_RESULT_ERROR_UNINITIALIZED"},
    {kErrorUnsupportedVersion, "ZE_RESULT_ERROR_UNSUPPORTED_VERSION"},
    {kErrorUnsupportedFeature, "ZE_RESULT_ERROR_UNSUPPORTED_FEATURE"},
    {kErrorInvalidArgument, "ZE_RESULT_ERROR_INVALID_ARGUMENT"},
    {kErrorUnsupportedSize, "ZE_RESULT_ERROR_UNSUPPORTED_SIZE"},
    {kErrorUnknown, "ZE_RESULT_ERROR_UNKNOWN"},
};

const char* class_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kNoLoader:
      return "LoaderNotFoundError";
    case ErrorKind::kNoDevice:
      return "NoDeviceError";
    case ErrorKind::kDriverTooOld:
      return "DriverTooOldError";
    case ErrorKind::kTopology:
      return "TopologyError";
    case ErrorKind::kPeerAccess:
      return "PeerAccessError";
    case ErrorKind::kOutOfMemory:
      return "OutOfDeviceMemoryError";
    case ErrorKind::kHandleExchange:
      return "HandleExchangeError";
    case ErrorKind::kHandleOpen:
      return "HandleOpenError";
    case ErrorKind::kCookie:
      return "CookieError";
    case ErrorKind::kTimeout:
      return "DriverTimeout";
    case ErrorKind::kMismatch:
    case ErrorKind::kInvalidUse:
    case ErrorKind::kDriver:
      return "WorkspaceError";
  }
  return "WorkspaceError";
}

}  // namespace

Error::Error(ErrorKind error_kind, const std::string& text)
    : lamport::Error(class_of(error_kind), text), kind(error_kind) {}

std::string Error::cause() const { return std::string(what(), cause_length()); }

std::string Error::remedy() const {
  const std::string text = what();
  const size_t end = cause_length();
  return end + 2 < text.size() ? text.substr(end + 2) : "";
}

size_t Error::cause_length() const {
  const std::string text = what();
  return std::min(text.find(". "), text.size());
}

std::string result_name(Result result) {
  const char* name = "ZE_RESULT";
  for (const ResultName& known : kResultNames) {
    if (known.result == result) name = known.name;
  }
  char code[16];
  std::snprintf(code, sizeof code, " (0x%08x)", static_cast<unsigned>(result));
  return name + std::string(code);
}

void check(Result result, const char* call, ErrorKind kind) {
  if (result == kSuccess) return;
  const std::string what = std::string(call) + " returned " + result_name(result);
  if (result == kErrorOutOfDeviceMemory || result == kErrorOutOfHostMemory) {
    throw Error(ErrorKind::kOutOfMemory,
                what +
                    ": not enough free memory on the GPU. Lower max_bytes of the communicator, or start it "
                    "before the model fills the device.");
  }
  if (result == kErrorDeviceLost) {
    throw Error(kind, what +
                          ": the GPU hung, was reset or removed. See `dmesg` for i915 or xe messages; the "
                          "process has to be restarted.");
  }
  throw Error(kind, what + ".");
}

}  // namespace lamport::ze
