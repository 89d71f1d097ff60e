#include "csrc/host/level_zero/ipc_offer.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "csrc/host/level_zero/ze_error.hpp"

namespace lamport::ze {
namespace {

constexpr size_t kFdOffset = 0;
constexpr size_t kPidOffset = 16;  // behind the descriptor and the offset in its pool, 8 bytes each
constexpr const char* kNetworkNamespace = "/proc/self/ns/net";
constexpr const char* kPidNamespace = "/proc/self/ns/pid";
constexpr std::chrono::milliseconds kSocketTimeout{5000};

int32_t word_at(const IpcHandle& handle, size_t offset) {
  int32_t word;
  std::memcpy(&word, handle.data + offset, sizeof word);
  return word;
}

void set_word_at(IpcHandle* handle, size_t offset, int32_t word) {
  std::memcpy(handle->data + offset, &word, sizeof word);
}

uint64_t namespace_id(const char* path) {
  struct stat status;
  return stat(path, &status) == 0 ? static_cast<uint64_t>(status.st_ino) : 0;
}

/// The handle as a driver of either layout opens it in this process.
ImportedHandle adopt(const Offer& offer, UniqueFd fd) {
  // A driver that mirrors the descriptor elsewhere in the handle takes a changed number as the sign that it
  // is local already. The number may be the same by coincidence: duplicate to get another one.
  if (fd.get() == offer.fd) fd = UniqueFd(fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
  ImportedHandle imported{offer.handle, std::move(fd)};
  set_word_at(&imported.handle, kFdOffset, imported.fd.get());
  if (offer.handle_has_pid != 0) set_word_at(&imported.handle, kPidOffset, 0);
  return imported;
}

std::string refusal(const Offer& offer, IpcMode mode, const FdExchangeError& error) {
  std::string text = std::string(error.what()) + " (exporter: rank " + std::to_string(offer.rank) + ", pid " +
                     std::to_string(offer.pid) + ")";
  if (mode == IpcMode::kPidfd && (error.error == EPERM || error.error == EACCES)) {
    return text +
           ". The kernel refuses pidfd_getfd: Yama's ptrace_scope, or a container without the capability "
           "SYS_PTRACE. Use LAMPORT_IPC=socket, which needs neither.";
  }
  if (mode == IpcMode::kSocket) {
    return text +
           ". Ranks must share a network namespace and a user to reach each other's Unix socket; a "
           "seccomp profile must allow it.";
  }
  return text + ".";
}

/// A pid means another process, and a socket address nobody, in another namespace: say so instead of trying.
void require_shared_namespace(IpcMode mode, const Offer& offer) {
  const bool pidfd = mode == IpcMode::kPidfd;
  const uint64_t mine = namespace_id(pidfd ? kPidNamespace : kNetworkNamespace);
  if (mine == (pidfd ? offer.pid_namespace : offer.network_namespace)) return;
  const std::string kind = pidfd ? "pid" : "network";
  throw Error(ErrorKind::kHandleExchange,
              "rank " + std::to_string(offer.rank) + " runs in another " + kind +
                  " namespace (another container). Run all ranks in one container, "
                  "or start the containers with --" +
                  (pidfd ? "pid" : "network") + "=host.");
}

}  // namespace

const char* mode_name(IpcMode mode) {
  switch (mode) {
    case IpcMode::kSocket:
      return "socket";
    case IpcMode::kPidfd:
      return "pidfd";
    case IpcMode::kOpaque:
      return "opaque";
  }
  return "?";
}

std::optional<IpcMode> forced_mode() {
  const char* value = std::getenv("LAMPORT_IPC");
  const std::string text = value == nullptr ? "" : value;
  if (text.empty() || text == "auto") return std::nullopt;
  for (IpcMode mode : {IpcMode::kSocket, IpcMode::kPidfd, IpcMode::kOpaque}) {
    if (text == mode_name(mode)) return mode;
  }
  throw Error(ErrorKind::kInvalidUse,
              "LAMPORT_IPC=" + text + " is not a mode. Use socket, pidfd, opaque or auto.");
}

std::optional<int> descriptor_in(const IpcHandle& handle) {
  const int32_t fd = word_at(handle, kFdOffset);
  const bool fits = word_at(handle, kFdOffset + 4) == 0;  // the field has 8 bytes
  if (!fits || fd < 0 || fcntl(fd, F_GETFD) == -1) return std::nullopt;
  return fd;
}

bool names_process(const IpcHandle& handle, int pid) { return word_at(handle, kPidOffset) == pid; }

void describe_process(Offer* offer) {
  offer->pid = getpid();
  offer->network_namespace = namespace_id(kNetworkNamespace);
  offer->pid_namespace = namespace_id(kPidNamespace);
}

ImportedHandle import_handle(IpcMode mode, const Offer& offer) {
  if (mode == IpcMode::kOpaque) {
    if (offer.fd >= 0 && offer.handle_has_pid == 0) {
      // Opening it would make the driver adopt whatever this process has under that number.
      throw Error(ErrorKind::kHandleExchange,
                  "this driver's IPC handle holds a descriptor that is valid only in the exporting "
                  "process, so it cannot be passed as it is. Use LAMPORT_IPC=socket.");
    }
    return {offer.handle, UniqueFd()};
  }
  if (offer.fd < 0) {
    throw Error(ErrorKind::kHandleExchange,
                "this driver's IPC handle holds no file descriptor to carry across. Use LAMPORT_IPC=opaque.");
  }
  require_shared_namespace(mode, offer);
  try {
    if (mode == IpcMode::kPidfd) return adopt(offer, fetch_fd_from_process(offer.pid, offer.fd));
    if (offer.socket_address[0] == '\0') {
      throw Error(ErrorKind::kHandleExchange, "rank " + std::to_string(offer.rank) +
                                                  " could not open a Unix socket (" + offer.socket_error +
                                                  ").");
    }
    return adopt(offer, fetch_fd_over_socket(offer.socket_address, offer.socket_token, kSocketTimeout));
  } catch (const FdExchangeError& error) {
    throw Error(ErrorKind::kHandleExchange, refusal(offer, mode, error));
  }
}

std::vector<IpcMode> candidate_modes(const Offer& offer) {
  if (offer.fd < 0) return {IpcMode::kOpaque};
  std::vector<IpcMode> modes = {IpcMode::kSocket, IpcMode::kPidfd};
  if (offer.handle_has_pid != 0) modes.push_back(IpcMode::kOpaque);
  return modes;
}

}  // namespace lamport::ze
