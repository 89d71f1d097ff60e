/// What can go wrong on the Level Zero path, by cause. Each kind has its class in comm/errors.py; the text
/// always names the cause and the remedy.
#pragma once

#include <string>

#include "csrc/host/errors.hpp"
#include "csrc/host/level_zero/ze_abi.hpp"

namespace lamport::ze {

enum class ErrorKind {
  kNoLoader,
  kNoDevice,
  kDriverTooOld,
  kTopology,    // ranks on different hosts, on one device, or on different GPU models
  kPeerAccess,  // the driver says these two devices cannot reach each other
  kOutOfMemory,
  kHandleExchange,  // no way to get the descriptor across
  kHandleOpen,      // got it across, the driver would not open it
  kCookie,          // opened, but it is not the peer's memory that is mapped
  kTimeout,         // a driver call did not come back
  kMismatch,        // the peer runs another version of this library, or has other arguments
  kInvalidUse,      // calls in the wrong order, or with arguments that make no sense
  kDriver,          // anything else that the driver returned
};

class Error : public lamport::Error {
 public:
  Error(ErrorKind error_kind, const std::string& text);
  /// The two parts of the text, which reads "cause. Remedy."; the cause holds no full stop followed by a
  /// space.
  std::string cause() const;
  std::string remedy() const;
  const ErrorKind kind;

 private:
  size_t cause_length() const;
};

/// "ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY (0x70000003)".
std::string result_name(Result result);

/// Throws for anything but kSuccess. Out-of-memory results become kOutOfMemory, the rest takes `kind`.
void check(Result result, const char* call, ErrorKind kind = ErrorKind::kDriver);

}  // namespace lamport::ze
