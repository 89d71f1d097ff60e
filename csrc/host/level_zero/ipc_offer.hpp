/// What a rank publishes so that its peers can open its memory, and how a descriptor gets into the IPC
/// handle.
///
/// The 64 bytes of a Level Zero IPC handle are opaque by specification. In practice there are two layouts:
/// older drivers put a file descriptor into the first word, valid only in the exporting process; newer ones
/// add the exporter's pid behind it, and on opening duplicate the descriptor out of that process themselves,
/// which needs ptrace permission. Both open a handle whose first word is a descriptor of the *opening*
/// process and whose pid is zero, so that is what import_handle() makes of a descriptor that we carried
/// across.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "csrc/host/fd_exchange.hpp"
#include "csrc/host/level_zero/device.hpp"
#include "csrc/host/level_zero/ze_abi.hpp"

namespace lamport::ze {

enum class IpcMode {
  kSocket,  // SCM_RIGHTS over a Unix socket: no privilege
  kPidfd,   // pidfd_getfd: ptrace permission
  kOpaque,  // the 64 bytes as they are: the driver does what it does
};

const char* mode_name(IpcMode mode);

/// The mode LAMPORT_IPC forces; empty for unset or "auto". Throws kInvalidUse for anything else.
std::optional<IpcMode> forced_mode();

/// Plain bytes: both sides are the same build (checked by magic and size) on the same host.
struct Offer {
  static constexpr uint32_t kMagic = 0x315a4c58;  // "XLZ1"

  uint32_t magic = kMagic;
  uint32_t size = sizeof(Offer);
  int32_t rank = 0;
  int32_t world_size = 0;
  uint64_t bytes = 0;
  uint32_t cookie = 0;  // what the exporter wrote into its own cookie line
  int32_t pid = 0;
  int32_t fd = -1;  // the exporter's descriptor inside `handle`, or -1
  uint32_t handle_has_pid = 0;
  uint32_t subdevice_id = 0;
  uint32_t is_subdevice = 0;
  uint32_t vendor_id = 0;
  uint32_t device_id = 0;
  uint32_t has_pci = 0;
  PciAddress pci;
  Uuid uuid = {};
  uint64_t network_namespace = 0;  // an abstract socket address is valid inside one
  uint64_t pid_namespace = 0;      // and a pid inside one
  char device_name[64] = {};
  char socket_address[FdServer::kMaxAddress + 1] = {};  // empty where no socket could be made
  char socket_error[64] = {};
  FdToken socket_token = {};
  IpcHandle handle;
};
static_assert(std::is_trivially_copyable_v<Offer>);

/// The descriptor in the first word of a handle made by this process, if it is one.
std::optional<int> descriptor_in(const IpcHandle& handle);

/// Whether the handle names process `pid` as its exporter.
bool names_process(const IpcHandle& handle, int pid);

/// Fills the fields that identify this process.
void describe_process(Offer* offer);

/// A handle to pass to zeMemOpenIpcHandle here, and the descriptor it refers to (empty in opaque mode).
struct ImportedHandle {
  IpcHandle handle;
  UniqueFd fd;
};

/// Brings the handle across in one given mode. Throws kHandleExchange saying which policy refused.
ImportedHandle import_handle(IpcMode mode, const Offer& offer);

/// Modes worth trying for this offer, best first.
std::vector<IpcMode> candidate_modes(const Offer& offer);

}  // namespace lamport::ze
