/// Hands a file descriptor to another process of the same user on the same host, two ways:
///
///  - over a Unix socket (SCM_RIGHTS): needs no privilege, so it is the default. The exporter runs an
///  FdServer,
///    the importer calls fetch_fd_over_socket() with the address and token it was told out of band;
///  - pidfd_open() + pidfd_getfd(): needs ptrace permission over the exporter, which Yama's ptrace_scope and
///  a
///    container's seccomp profile commonly refuse.
///
/// Nothing in here knows what the descriptor is for.
#pragma once

#include <sys/types.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

namespace lamport {

/// Owns one file descriptor.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~UniqueFd();

  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// A step of the exchange failed; `error` is its errno (EPERM and EACCES mean that policy refused).
class FdExchangeError : public std::runtime_error {
 public:
  FdExchangeError(const std::string& step, int error);
  const int error;
};

/// The secret a client must present. The address can be guessed by any process in the network namespace, the
/// token cannot.
using FdToken = std::array<uint8_t, 16>;

/// 16 random bytes, for tokens and nonces.
FdToken random_token();

/// Gives one descriptor to every process of this user that presents the token, until it is destroyed.
class FdServer {
 public:
  /// Keeps a duplicate of `fd` and starts the serving thread.
  explicit FdServer(int fd);
  ~FdServer();
  FdServer(const FdServer&) = delete;
  FdServer& operator=(const FdServer&) = delete;

  /// Name in the abstract socket namespace, without the leading NUL; at most kMaxAddress characters.
  const std::string& address() const { return address_; }
  const FdToken& token() const { return token_; }

  static constexpr size_t kMaxAddress = 63;

 private:
  void serve();
  void answer(int connection) const;

  UniqueFd fd_;
  UniqueFd listener_;
  UniqueFd stop_;  // an eventfd: written once, by the destructor
  std::string address_;
  FdToken token_;
  std::thread thread_;
};

/// Asks the FdServer at `address` for its descriptor. Throws FdExchangeError; never waits longer than
/// `timeout` for any one step.
UniqueFd fetch_fd_over_socket(const std::string& address, const FdToken& token,
                              std::chrono::milliseconds timeout);

/// Duplicates descriptor `fd` of process `pid`. Throws FdExchangeError.
UniqueFd fetch_fd_from_process(pid_t pid, int fd);

/// Whether both descriptors refer to one file (same device and inode).
bool same_file(int a, int b);

}  // namespace lamport
