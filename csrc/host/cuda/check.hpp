#pragma once
#include <cuda_runtime_api.h>

#include <string>

#include "csrc/host/errors.hpp"

namespace lamport {

/// Turns a CUDA error into a WorkspaceError: `what` failed, and why.
inline void cuda_check(cudaError_t error, const std::string& what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // do not leave it for somebody else's check to find
  throw Error("WorkspaceError", "cannot " + what + ": " + cudaGetErrorString(error));
}

/// Makes a device current for a scope: the caller's choice is the caller's.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    cuda_check(cudaGetDevice(&before_), "ask for the current CUDA device");
    if (device != before_) cuda_check(cudaSetDevice(device), "use CUDA device " + std::to_string(device));
    changed_ = device != before_;
  }
  ~DeviceGuard() {
    if (changed_) cudaSetDevice(before_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

}  // namespace lamport
