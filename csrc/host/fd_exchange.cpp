#include "csrc/host/fd_exchange.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

// Both system calls are older than some of the C libraries we build against; the numbers are the same on
// every architecture.
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

namespace lamport {
namespace {

[[noreturn]] void fail(const char* step) { throw FdExchangeError(step, errno); }

/// How long the server lets one silent client keep the others waiting.
constexpr std::chrono::milliseconds kServerPatience{1000};

void set_timeouts(int socket, std::chrono::milliseconds timeout) {
  const timeval limit{timeout.count() / 1000, static_cast<suseconds_t>(timeout.count() % 1000 * 1000)};
  if (setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) != 0 ||
      setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) != 0) {
    fail("setsockopt(SO_RCVTIMEO)");
  }
}

/// An abstract address (sun_path starts with NUL): no file to clean up after a crash.
socklen_t make_address(const std::string& name, sockaddr_un* out) {
  *out = {};
  out->sun_family = AF_UNIX;
  const size_t length = std::min(name.size(), sizeof out->sun_path - 1);
  std::memcpy(out->sun_path + 1, name.data(), length);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

bool peer_is_same_user(int connection) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

bool equal_in_constant_time(const FdToken& a, const FdToken& b) {
  uint8_t difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<uint8_t>(a[i] ^ b[i]);
  return difference == 0;
}

/// One byte of data is required to carry the control message.
void send_fd(int connection, int fd) {
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  // A client that went away meanwhile is its own problem: nothing to report, nothing to undo.
  (void)!sendmsg(connection, &message, MSG_NOSIGNAL);
}

UniqueFd receive_fd(int connection) {
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t received = recvmsg(connection, &message, MSG_CMSG_CLOEXEC);
  if (received < 0) fail("recvmsg(SCM_RIGHTS)");
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (received == 0 || header == nullptr || header->cmsg_type != SCM_RIGHTS) {
    // The server hangs up on a wrong token or another user.
    throw FdExchangeError("exporter hung up without sending a descriptor", EACCES);
  }
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
  return UniqueFd(fd);
}

std::string random_address() {
  const FdToken noise = random_token();
  char name[FdServer::kMaxAddress + 1];
  std::snprintf(name, sizeof name, "lamport-xpu.%d.%02x%02x%02x%02x%02x%02x", static_cast<int>(getpid()),
                noise[0], noise[1], noise[2], noise[3], noise[4], noise[5]);
  return name;
}

}  // namespace

UniqueFd::~UniqueFd() {
  if (fd_ >= 0) ::close(fd_);
}

FdExchangeError::FdExchangeError(const std::string& step, int error_number)
    : std::runtime_error(step + ": " + std::strerror(error_number)), error(error_number) {}

FdToken random_token() {
  FdToken token;
  if (getrandom(token.data(), token.size(), 0) != static_cast<ssize_t>(token.size())) fail("getrandom");
  return token;
}

FdServer::FdServer(int fd) : address_(random_address()), token_(random_token()) {
  fd_ = UniqueFd(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!fd_) fail("fcntl(F_DUPFD_CLOEXEC)");
  stop_ = UniqueFd(eventfd(0, EFD_CLOEXEC));
  if (!stop_) fail("eventfd");
  listener_ = UniqueFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener_) fail("socket(AF_UNIX)");
  sockaddr_un address;
  const socklen_t length = make_address(address_, &address);
  if (bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) fail("bind");
  if (listen(listener_.get(), 64) != 0) fail("listen");
  thread_ = std::thread(&FdServer::serve, this);
}

FdServer::~FdServer() {
  const uint64_t one = 1;
  (void)!write(stop_.get(), &one, sizeof one);  // cannot fail: the counter is at 0
  thread_.join();
}

void FdServer::serve() {
  pollfd events[2] = {{listener_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
  for (;;) {
    if (poll(events, 2, -1) < 0 && errno != EINTR) return;
    if (events[1].revents != 0) return;
    UniqueFd connection(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (connection) answer(connection.get());
  }
}

void FdServer::answer(int connection) const try {
  set_timeouts(connection, kServerPatience);
  FdToken offered{};
  if (recv(connection, offered.data(), offered.size(), MSG_WAITALL) != static_cast<ssize_t>(offered.size())) {
    return;
  }
  if (peer_is_same_user(connection) && equal_in_constant_time(offered, token_)) {
    send_fd(connection, fd_.get());
  }
} catch (const FdExchangeError&) {
  // Only set_timeouts() throws. The client sees the connection close and reports it with its own context.
}

UniqueFd fetch_fd_over_socket(const std::string& name, const FdToken& token,
                              std::chrono::milliseconds timeout) {
  UniqueFd connection(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!connection) fail("socket(AF_UNIX)");
  set_timeouts(connection.get(), timeout);
  sockaddr_un address;
  const socklen_t length = make_address(name, &address);
  if (connect(connection.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) fail("connect");
  if (!peer_is_same_user(connection.get())) {
    throw FdExchangeError("the exporter's socket belongs to another user", EACCES);
  }
  if (send(connection.get(), token.data(), token.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(token.size())) {
    fail("send(token)");
  }
  return receive_fd(connection.get());
}

UniqueFd fetch_fd_from_process(pid_t pid, int fd) {
  UniqueFd process(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!process) fail("pidfd_open");
  UniqueFd copy(static_cast<int>(syscall(SYS_pidfd_getfd, process.get(), fd, 0)));
  if (!copy) fail("pidfd_getfd");
  return copy;
}

bool same_file(int a, int b) {
  struct stat first;
  struct stat second;
  return fstat(a, &first) == 0 && fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

}  // namespace lamport
