#include "csrc/host/level_zero/workspace.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "csrc/device/packet.hpp"
#include "csrc/host/bounded_call.hpp"
#include "csrc/host/level_zero/loader.hpp"
#include "csrc/host/level_zero/peer_checks.hpp"

namespace lamport::ze {
namespace {

/// IPC exports whole pages of device memory, and drivers carve small allocations out of a shared pool whose
/// other tenants would be exported with them: allocations of at least this size get their own memory.
constexpr size_t kGranularity = size_t{2} << 20;

uint32_t random_cookie() {
  const FdToken noise = random_token();
  uint32_t cookie;
  std::memcpy(&cookie, noise.data(), sizeof cookie);
  return cookie | 1;  // never 0, so that cleared memory cannot look like a cookie
}

}  // namespace

Workspace::Workspace(const WorkspaceOptions& options) : options_(options), own_cookie_(random_cookie()) {
  const Layout& layout = options_.layout;
  if (layout.world < 1 || layout.world > kMaxWorld || !is_rank(options_.rank)) {
    throw Error(ErrorKind::kInvalidUse, "world size must be 1 to " + std::to_string(kMaxWorld) +
                                            ", got rank " + std::to_string(options_.rank) + " of " +
                                            std::to_string(layout.world));
  }
  if (layout.slot_bytes == 0 || layout.slot_bytes % 64 != 0 || layout.slice_bytes == 0 ||
      layout.slice_bytes % 64 != 0 || layout.generation_bytes() > (uint64_t{1} << 31)) {
    throw Error(ErrorKind::kInvalidUse, "slot and slice sizes must be positive multiples of 64 bytes");
  }
  if ((options_.placement.context == nullptr) != (options_.placement.device == nullptr)) {
    throw Error(ErrorKind::kInvalidUse, "pass both the context and the device of the queue, or neither");
  }
  mappings_.resize(layout.world);
  links_.resize(layout.world);
}

Workspace::~Workspace() {
  close_peers();
  free();
}

const Offer& Workspace::allocate() {
  if (context_ != nullptr) throw Error(ErrorKind::kInvalidUse, "the workspace is allocated already");
  create_context();
  try {
    const DeviceMemAllocDesc description;
    const size_t rounded = (options_.layout.total_bytes() + kGranularity - 1) / kGranularity * kGranularity;
    check(api().MemAllocDevice(context_, &description, rounded, kGranularity, device_.handle, &memory_),
          "zeMemAllocDevice");
    const HostMemAllocDesc host_description;
    check(api().MemAllocHost(context_, &host_description, sizeof(Status), alignof(Status), &status_),
          "zeMemAllocHost");
    std::memset(status_, 0, sizeof(Status));
    stream_ = std::make_unique<CommandStream>(context_, device_.handle, options_.deadline);
    transfer([this] { arm(); });
    offer_ = make_offer();
  } catch (const Error&) {
    free();
    throw;
  }
  links_[static_cast<size_t>(options_.rank)] = {own_address(), "own", ""};
  return *offer_;
}

void Workspace::create_context() {
  const Placement& placement = options_.placement;
  device_ = placement.device != nullptr ? describe(driver_of(placement.device), placement.device)
                                        : device_at(placement.device_index);
  require_ipc(device_.driver);
  context_ = placement.context;
  owns_context_ = context_ == nullptr;
  const ContextDesc description;
  if (owns_context_) check(api().ContextCreate(device_.driver, &description, &context_), "zeContextCreate");
}

/// The state every collective starts from, and the cookie by which peers recognise this memory.
void Workspace::arm() {
  stream_->fill(own_address(), 0, Layout::kHeaderBytes);
  stream_->fill(own_address() + Layout::kHeaderBytes, kEmpty, 2 * options_.layout.generation_bytes());
  stream_->write(cookie_line(own_address(), options_.rank), own_cookie_);
}

Offer Workspace::make_offer() {
  Offer made;
  check(api().MemGetIpcHandle(context_, memory_, &made.handle), "zeMemGetIpcHandle",
        ErrorKind::kHandleExchange);
  made.rank = options_.rank;
  made.world_size = static_cast<int32_t>(options_.layout.world);
  made.bytes = options_.layout.total_bytes();
  made.cookie = own_cookie_;
  describe_process(&made);
  made.fd = descriptor_in(made.handle).value_or(-1);
  made.handle_has_pid = names_process(made.handle, made.pid) ? 1 : 0;
  made.vendor_id = device_.vendor_id;
  made.device_id = device_.device_id;
  made.uuid = device_.uuid;
  made.subdevice_id = device_.subdevice_id;
  made.is_subdevice = device_.is_subdevice ? 1 : 0;
  made.has_pci = device_.pci ? 1 : 0;
  made.pci = device_.pci.value_or(PciAddress{});
  device_.name.copy(made.device_name, sizeof made.device_name - 1);
  if (made.fd < 0) return made;
  try {
    server_ = std::make_unique<FdServer>(made.fd);
    server_->address().copy(made.socket_address, sizeof made.socket_address - 1);
    made.socket_token = server_->token();
  } catch (const FdExchangeError& error) {
    // Other modes may still work; importers report this text when they want the socket.
    std::string(error.what()).copy(made.socket_error, sizeof made.socket_error - 1);
  }
  return made;
}

void Workspace::open(int peer, const Offer& offer, bool verify) {
  require_allocated();
  check_offer(options_.rank, options_.layout, peer, offer);
  Link& link = links_[static_cast<size_t>(peer)];
  if (link.address != 0) throw Error(ErrorKind::kInvalidUse, peer_text(offer) + " is open already");
  check_topology(options_.rank, device_, offer);
  const std::string remark = check_access(options_.rank, device_, offer);

  const std::optional<IpcMode> forced = forced_mode();
  const std::vector<IpcMode> modes = forced ? std::vector<IpcMode>{*forced} : candidate_modes(offer);
  std::string failures;
  std::string remedy;
  ErrorKind worst = ErrorKind::kHandleExchange;
  for (IpcMode mode : modes) {
    try {
      link = open_in_mode(mode, offer, verify);
      link.reason = forced             ? "forced by LAMPORT_IPC"
                    : failures.empty() ? "first choice"
                                       : "after " + failures;
      link.reason += verify ? "; cookie read back" : "; not verified";
      if (!remark.empty()) link.reason += "; " + remark;
      return;
    } catch (const Error& error) {
      if (driver_stuck_) throw;  // no second try, and no further call
      failures +=
          (failures.empty() ? "mode " : ", mode ") + std::string(mode_name(mode)) + ": " + error.cause();
      // Report how far the best mode got: a handle that opened onto wrong memory outranks one that did not
      // open.
      if (remedy.empty() || error.kind > worst) remedy = error.remedy();
      worst = std::max(worst, error.kind);
    }
  }
  throw Error(worst, "cannot open the memory of " + peer_text(offer) + " from rank " +
                         std::to_string(options_.rank) + " (" + failures + "). " + remedy);
}

Link Workspace::open_in_mode(IpcMode mode, const Offer& offer, bool verify) {
  Mapping mapping = map(mode, offer);
  try {
    if (verify) verify_mapping(mapping, offer);
  } catch (const Error&) {
    unmap(std::move(mapping), offer.rank);
    throw;
  }
  Link link;
  link.address = reinterpret_cast<uintptr_t>(mapping.pointer);
  link.mode = mode_name(mode);
  mappings_[static_cast<size_t>(offer.rank)] = std::move(mapping);
  return link;
}

Workspace::Mapping Workspace::map(IpcMode mode, const Offer& offer) {
  struct Opened {
    Result result = kErrorUnknown;
    void* pointer = nullptr;
  };
  ImportedHandle imported = import_handle(mode, offer);
  const auto opened = std::make_shared<Opened>();
  const auto call = [opened, handle = imported.handle, context = context_, device = device_.handle] {
    opened->result = api().MemOpenIpcHandle(context, device, handle, 0, &opened->pointer);
  };
  if (!run_bounded(options_.deadline, call)) {
    (void)imported.fd.release();  // the driver may still be using it
    give_up_on_driver("zeMemOpenIpcHandle");
    throw Error(ErrorKind::kTimeout,
                "zeMemOpenIpcHandle for " + peer_text(offer) + " did not return within " +
                    std::to_string(options_.deadline.count()) + " ms. The GPU driver is stuck; see `dmesg`.");
  }
  if (opened->result == kSuccess && opened->pointer != nullptr)
    return {opened->pointer, std::move(imported.fd)};
  throw Error(ErrorKind::kHandleOpen,
              "zeMemOpenIpcHandle returned " + result_name(opened->result) +
                  (opened->result == kSuccess ? " and a null address" : "") +
                  ". Update the GPU driver and kernel; cards behind different PCIe root ports may need P2P "
                  "enabled in the firmware.");
}

void Workspace::verify_mapping(const Mapping& mapping, const Offer& offer) {
  uint32_t found = 0;
  const uintptr_t line = cookie_line(reinterpret_cast<uintptr_t>(mapping.pointer), offer.rank);
  transfer([&] { found = stream_->read(line); });
  if (found == offer.cookie) return;
  throw Error(ErrorKind::kCookie,
              "opened, but the cookie of " + peer_text(offer) +
                  " does not read back through it. The driver's IPC or PCIe peer-to-peer path "
                  "is broken on this machine: update kernel and driver.");
}

void Workspace::write_cookie(int peer, uint32_t value) {
  require_allocated();
  if (!is_rank(peer) || peer == options_.rank || links_[static_cast<size_t>(peer)].address == 0) {
    throw Error(ErrorKind::kInvalidUse, "rank " + std::to_string(peer) + " is not open");
  }
  transfer(
      [&] { stream_->write(cookie_line(links_[static_cast<size_t>(peer)].address, options_.rank), value); });
}

uint32_t Workspace::read_cookie(int source) {
  require_allocated();
  if (!is_rank(source)) throw Error(ErrorKind::kInvalidUse, "there is no rank " + std::to_string(source));
  uint32_t value = 0;
  transfer([&] { value = stream_->read(cookie_line(own_address(), source)); });
  return value;
}

uintptr_t Workspace::cookie_line(uintptr_t base, int source) {
  return base + Layout::kCookieOffset + sizeof(Line) * static_cast<size_t>(source);
}

void Workspace::require_allocated() const {
  if (driver_stuck_) throw Error(ErrorKind::kInvalidUse, "the GPU driver stopped answering earlier");
  if (memory_ == nullptr) throw Error(ErrorKind::kInvalidUse, "the workspace is not allocated, or closed");
}

/// Runs a copy or fill; one that did not finish marks the driver as stuck.
template <typename Call>
void Workspace::transfer(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    if (error.kind == ErrorKind::kTimeout) give_up_on_driver("a copy on the GPU");
    throw;
  }
}

void Workspace::give_up_on_driver(const std::string& call) {
  driver_stuck_ = true;
  if (stream_) stream_->abandon();
  warnings_.push_back(call +
                      " did not return in time; the memory involved is leaked until this process ends");
}

/// Runs a driver call of the teardown. After the first that hung, no further one is made.
template <typename Call>
bool Workspace::teardown_step(const std::string& name, Call call) noexcept {
  if (driver_stuck_) return false;
  try {
    if (run_bounded(options_.close_deadline, std::move(call))) return true;
    give_up_on_driver(name);
  } catch (const std::exception& error) {
    warnings_.push_back(name + ": " + error.what());
  }
  return false;
}

void Workspace::unmap(Mapping mapping, int peer) noexcept {
  struct stat before{};
  const int fd = mapping.fd.release();
  const bool had_fd = fd >= 0 && fstat(fd, &before) == 0;
  const bool closed = teardown_step("zeMemCloseIpcHandle for rank " + std::to_string(peer),
                                    [context = context_, pointer = mapping.pointer] {
                                      check(api().MemCloseIpcHandle(context, pointer), "zeMemCloseIpcHandle");
                                    });
  // Some drivers close the descriptor with the mapping, some leave it: close it only if it is still that
  // file.
  struct stat after{};
  const bool still_ours = closed && had_fd && fstat(fd, &after) == 0 && after.st_dev == before.st_dev &&
                          after.st_ino == before.st_ino;
  if (still_ours) ::close(fd);
}

void Workspace::withdraw() noexcept { server_.reset(); }

void Workspace::close_peers() noexcept {
  for (size_t peer = 0; peer < mappings_.size(); ++peer) {
    if (mappings_[peer].pointer == nullptr) continue;
    unmap(std::exchange(mappings_[peer], Mapping{}), static_cast<int>(peer));
    links_[peer] = Link{};
  }
}

void Workspace::free() noexcept {
  withdraw();
  if (stream_ != nullptr) {
    const std::shared_ptr<CommandStream> stream = std::move(stream_);
    teardown_step("zeCommandListDestroy", [stream] { stream->destroy(); });
  }
  if (offer_) {
    teardown_step("zeMemPutIpcHandle", [context = context_, handle = offer_->handle] {
      check(api().MemPutIpcHandle(context, handle), "zeMemPutIpcHandle");
    });
    offer_.reset();
  }
  for (void* memory : {std::exchange(memory_, nullptr), std::exchange(status_, nullptr)}) {
    if (memory == nullptr) continue;
    teardown_step("zeMemFree",
                  [context = context_, memory] { check(api().MemFree(context, memory), "zeMemFree"); });
  }
  ContextHandle context = std::exchange(context_, nullptr);
  if (context != nullptr && owns_context_) {
    teardown_step("zeContextDestroy",
                  [context] { check(api().ContextDestroy(context), "zeContextDestroy"); });
  }
  links_[static_cast<size_t>(options_.rank)] = Link{};
}

}  // namespace lamport::ze
