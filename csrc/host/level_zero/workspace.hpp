/// One rank's device memory, shared with its peers through Level Zero IPC.
///
/// This class does the steps; their order across ranks (and the barriers between them) is the caller's, see
/// comm/workspace.py. A mapping counts only after the peer's cookie has been read through it: drivers have
/// been seen to open a handle without mapping anything useful.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "csrc/host/layout.hpp"
#include "csrc/host/level_zero/command_stream.hpp"
#include "csrc/host/level_zero/device.hpp"
#include "csrc/host/level_zero/ipc_offer.hpp"

namespace lamport::ze {

/// Where a workspace allocates: a device of its own choice, or the handles of the caller's queue, which must
/// outlive the workspace.
struct Placement {
  size_t device_index = 0;  // into list_devices(); used when the handles are null
  ContextHandle context = nullptr;
  DeviceHandle device = nullptr;
};

struct WorkspaceOptions {
  int rank = 0;
  Layout layout{};
  Placement placement{};
  /// Longest wait for one driver call or copy before giving up.
  std::chrono::milliseconds deadline{2500};
  std::chrono::milliseconds close_deadline{5000};
};

/// How a peer's memory got here, for the log and the doctor.
struct Link {
  uintptr_t address = 0;
  std::string mode = "none";  // "own" for this rank's slot
  std::string reason;
};

class Workspace {
 public:
  explicit Workspace(const WorkspaceOptions& options);
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  int rank() const { return options_.rank; }
  const Layout& layout() const { return options_.layout; }
  const Device& device() const { return device_; }
  const std::vector<Link>& links() const { return links_; }

  /// Host-visible memory for the kernels' time-out report (Status), reachable from the device; 0 once freed.
  uintptr_t status_address() const { return reinterpret_cast<uintptr_t>(status_); }

  /// Allocates and arms own memory. Returns what peers need to open it.
  const Offer& allocate();

  /// Opens the memory of rank `peer`, which made `offer`, in the mode LAMPORT_IPC forces or else in the first
  /// mode that passes the self-test: the exporter's cookie must be readable through the mapping. `verify` =
  /// false skips that test, for drivers that execute nothing.
  void open(int peer, const Offer& offer, bool verify = true);

  /// Writes `value` into the cookie line kept for this rank in the memory of `peer`.
  void write_cookie(int peer, uint32_t value);
  /// Reads the line kept for `source` in own memory, from the device.
  uint32_t read_cookie(int source);

  /// Stops handing out the descriptor, once all peers have opened.
  void withdraw() noexcept;
  /// Unmaps all peers. Neither hangs nor throws: a driver call that does not return within close_deadline is
  /// left behind on its thread, the memory is leaked, and a warning says so.
  void close_peers() noexcept;
  /// Frees own memory, likewise. Only when no peer maps it any more.
  void free() noexcept;

  /// What had to be left behind, in words; empty when nothing.
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  struct Mapping {
    void* pointer = nullptr;
    UniqueFd fd;
  };

  void create_context();
  void arm();
  Offer make_offer();
  Link open_in_mode(IpcMode mode, const Offer& offer, bool verify);
  Mapping map(IpcMode mode, const Offer& offer);
  void unmap(Mapping mapping, int peer) noexcept;
  void verify_mapping(const Mapping& mapping, const Offer& offer);

  template <typename Call>
  void transfer(const Call& call);
  template <typename Call>
  bool teardown_step(const std::string& name, Call call) noexcept;
  void give_up_on_driver(const std::string& call);
  void require_allocated() const;

  static uintptr_t cookie_line(uintptr_t base, int source);
  uintptr_t own_address() const { return reinterpret_cast<uintptr_t>(memory_); }
  bool is_rank(int rank) const { return rank >= 0 && rank < static_cast<int>(options_.layout.world); }

  WorkspaceOptions options_;
  Device device_;
  ContextHandle context_ = nullptr;
  bool owns_context_ = false;
  void* memory_ = nullptr;
  void* status_ = nullptr;
  std::unique_ptr<CommandStream> stream_;
  uint32_t own_cookie_ = 0;
  std::optional<Offer> offer_;
  std::unique_ptr<FdServer> server_;
  std::vector<Mapping> mappings_;  // by rank, as links_
  std::vector<Link> links_;
  std::vector<std::string> warnings_;
  /// Set when a driver call did not return: it may hold locks, so no further call is made.
  bool driver_stuck_ = false;
};

}  // namespace lamport::ze
