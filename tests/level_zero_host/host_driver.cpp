/// A Level Zero driver on host memory, for tests: it stands where the loader stands and exports the entry
/// points that csrc/host/level_zero calls. Device memory is a memfd; an IPC handle holds its real descriptor,
/// in either layout that real drivers use; opening one maps the same pages at another address. So everything
/// between processes is real (descriptors, sockets, permissions, mappings) and only the GPU is missing.
///
/// Environment:
///   LAMPORT_TEST_ZE_DEVICES   number of devices (default 2)
///   LAMPORT_TEST_ZE_LAYOUT    fd: the descriptor alone (default); pid: also the exporter's pid, and the
///   driver
///                             fetches the descriptor itself with pidfd_getfd; none: no descriptor at all
///   LAMPORT_TEST_ZE_FAULT     comma-separated, see faults below
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "csrc/host/level_zero/ze_abi.hpp"

namespace lamport::ze {
struct OpaqueDriver {};
struct OpaqueDevice {
  uint32_t index;
};
struct OpaqueContext {};
struct OpaqueCommandList {};
}  // namespace lamport::ze

using namespace lamport::ze;

namespace {

std::string setting(const char* name, const char* fallback) {
  const char* value = std::getenv(name);
  return value == nullptr ? fallback : value;
}

/// no_device, old_driver, p2p_refused, out_of_memory, same_device, mixed_devices, hidden_peers, open_fails,
/// open_null, wrong_memory (opens, but maps other pages), cookie_lost (reads arrive, writes do not),
/// open_hangs, close_hangs, copy_hangs, keeps_fd (leaves the descriptor open on close).
bool fault(const char* name) {
  const std::string all = "," + setting("LAMPORT_TEST_ZE_FAULT", "") + ",";
  return all.find("," + std::string(name) + ",") != std::string::npos;
}

[[noreturn]] void hang() {
  for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
}

struct Allocation {
  int fd;
  size_t size;
};
struct Opened {
  size_t size;
  int fd;
};

/// Layout of the bytes in an IPC handle. The pid layout has what newer Intel drivers have at these places.
#pragma pack(push, 1)
struct HandleData {
  int32_t fd;
  int32_t zero;
  uint64_t pool_offset;
  int32_t pid;
  uint8_t type;
  uint64_t exporter_address;
  char path[32];  // layout none: where to open it
};
#pragma pack(pop)
static_assert(sizeof(HandleData) <= kIpcHandleBytes);

std::mutex mutex;
std::map<const void*, Allocation> allocations;
std::map<const void*, Opened> opened;
std::atomic<int> contexts{0};
std::atomic<int> lists{0};
std::atomic<int> handles{0};

OpaqueDriver driver;

std::vector<OpaqueDevice>& devices() {
  static std::vector<OpaqueDevice> all = [] {
    std::vector<OpaqueDevice> made;
    const int count = std::atoi(setting("LAMPORT_TEST_ZE_DEVICES", "2").c_str());
    for (int i = 0; i < count; ++i) made.push_back({static_cast<uint32_t>(i)});
    return made;
  }();
  return all;
}

template <typename T>
T* map_pages(int fd, size_t size, int flags, const void* other_than) {
  void* first = mmap(nullptr, size, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (first != other_than || first == MAP_FAILED) return static_cast<T*>(first);
  void* second = mmap(nullptr, size, PROT_READ | PROT_WRITE, flags, fd, 0);
  munmap(first, size);
  return static_cast<T*>(second);
}

}  // namespace

extern "C" {

Result zeInit(uint32_t) { return fault("no_device") ? kErrorUninitialized : kSuccess; }

Result zeDriverGet(uint32_t* count, DriverHandle* out) {
  *count = 1;
  if (out != nullptr) out[0] = &driver;
  return kSuccess;
}

Result zeDriverGetApiVersion(DriverHandle, uint32_t* version) {
  *version = fault("old_driver") ? (1u << 16) : (1u << 16 | 6u);
  return kSuccess;
}

Result zeDriverGetProperties(DriverHandle, DriverProperties* out) {
  out->driver_version = 0x01030000;
  return kSuccess;
}

Result zeDriverGetIpcProperties(DriverHandle, DriverIpcProperties* out) {
  out->flags = fault("old_driver") ? 0 : kIpcFlagMemory;
  return kSuccess;
}

Result zeDeviceGet(DriverHandle, uint32_t* count, DeviceHandle* out) {
  const uint32_t available = static_cast<uint32_t>(devices().size());
  if (out == nullptr || *count > available) *count = available;
  for (uint32_t i = 0; out != nullptr && i < *count; ++i) out[i] = &devices()[i];
  return kSuccess;
}

Result zeDeviceGetSubDevices(DeviceHandle, uint32_t* count, DeviceHandle*) {
  *count = 0;
  return kSuccess;
}

Result zeDeviceGetProperties(DeviceHandle device, DeviceProperties* out) {
  const uint32_t identity = fault("same_device") ? 0 : device->index;
  out->type = kDeviceTypeGpu;
  out->vendor_id = 0x8086;
  out->device_id = fault("mixed_devices") ? 0x56a0 + device->index : 0xe20b;
  std::memset(out->uuid, 0x5a, sizeof out->uuid);
  out->uuid[0] = static_cast<uint8_t>(identity);
  // Its own process sees a hidden device under no name: what ZE_AFFINITY_MASK does.
  if (fault("hidden_peers"))
    out->uuid[1] = static_cast<uint8_t>(getpid()), out->uuid[2] = static_cast<uint8_t>(getpid() >> 8);
  std::snprintf(out->name, sizeof out->name, "Host-memory test device");
  return kSuccess;
}

Result zeDeviceGetMemoryProperties(DeviceHandle, uint32_t* count, DeviceMemoryProperties* out) {
  *count = 1;
  if (out != nullptr) out->total_size = uint64_t{1} << 30;
  return kSuccess;
}

Result zeDeviceGetP2PProperties(DeviceHandle, DeviceHandle, DeviceP2PProperties* out) {
  out->flags = fault("p2p_refused") ? 0 : kP2PFlagAccess;  // and never atomics, as on PCIe
  return kSuccess;
}

Result zeDeviceCanAccessPeer(DeviceHandle, DeviceHandle, uint8_t* value) {
  *value = fault("p2p_refused") ? 0 : 1;
  return kSuccess;
}

Result zeDevicePciGetPropertiesExt(DeviceHandle device, PciExtProperties* out) {
  out->address = {0, 3 + (fault("same_device") ? 0 : device->index), 0, 0};
  return kSuccess;
}

Result zeContextCreate(DriverHandle, const ContextDesc*, ContextHandle* out) {
  *out = new OpaqueContext;
  ++contexts;
  return kSuccess;
}

Result zeContextDestroy(ContextHandle context) {
  delete context;
  --contexts;
  return kSuccess;
}

Result zeMemAllocDevice(ContextHandle, const DeviceMemAllocDesc*, size_t size, size_t, DeviceHandle,
                        void** out) {
  if (fault("out_of_memory")) return kErrorOutOfDeviceMemory;
  const int fd = static_cast<int>(syscall(SYS_memfd_create, "lamport-test-device", 1u /* MFD_CLOEXEC */));
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(size)) != 0) return kErrorOutOfHostMemory;
  *out = map_pages<void>(fd, size, MAP_SHARED, nullptr);
  const std::lock_guard<std::mutex> lock(mutex);
  allocations[*out] = {fd, size};
  return kSuccess;
}

Result zeMemAllocHost(ContextHandle, const HostMemAllocDesc*, size_t size, size_t, void** out) {
  const int fd = static_cast<int>(syscall(SYS_memfd_create, "lamport-test-host", 1u /* MFD_CLOEXEC */));
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(size)) != 0) return kErrorOutOfHostMemory;
  *out = map_pages<void>(fd, size, MAP_SHARED, nullptr);
  const std::lock_guard<std::mutex> lock(mutex);
  allocations[*out] = {fd, size};
  return kSuccess;
}

Result zeMemFree(ContextHandle, void* pointer) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = allocations.find(pointer);
  if (found == allocations.end()) return kErrorInvalidArgument;
  munmap(pointer, found->second.size);
  close(found->second.fd);
  allocations.erase(found);
  return kSuccess;
}

Result zeMemGetIpcHandle(ContextHandle, const void* pointer, IpcHandle* out) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = allocations.find(pointer);
  if (found == allocations.end()) return kErrorInvalidArgument;
  const std::string layout = setting("LAMPORT_TEST_ZE_LAYOUT", "fd");
  HandleData data{};
  data.exporter_address = reinterpret_cast<uint64_t>(pointer);
  data.fd = found->second.fd;
  if (layout == "pid") data.pid = getpid();
  if (layout == "none") {
    data.fd = -1;
    std::snprintf(data.path, sizeof data.path, "/proc/%d/fd/%d", static_cast<int>(getpid()),
                  found->second.fd);
  }
  std::memcpy(out->data, &data, sizeof data);
  ++handles;
  return kSuccess;
}

Result zeMemPutIpcHandle(ContextHandle, IpcHandle) {
  --handles;
  return kSuccess;
}

Result zeMemOpenIpcHandle(ContextHandle, DeviceHandle, IpcHandle handle, uint32_t, void** out) {
  if (fault("open_hangs")) hang();
  if (fault("open_fails")) return kErrorInvalidArgument;
  *out = nullptr;
  if (fault("open_null")) return kSuccess;
  HandleData data;
  std::memcpy(&data, handle.data, sizeof data);
  int fd = data.fd;
  if (data.path[0] != '\0') {
    fd = open(data.path, O_RDWR | O_CLOEXEC);
  } else if (data.pid != 0) {
    const int process = static_cast<int>(syscall(434 /* pidfd_open */, data.pid, 0));
    fd = static_cast<int>(syscall(438 /* pidfd_getfd */, process, data.fd, 0));
    close(process);
  }
  struct stat status{};
  if (fd < 0 || fstat(fd, &status) != 0 || status.st_size == 0) return kErrorInvalidArgument;
  const size_t size = static_cast<size_t>(status.st_size);
  const int flags = fault("cookie_lost")    ? MAP_PRIVATE
                    : fault("wrong_memory") ? MAP_SHARED | MAP_ANONYMOUS
                                            : MAP_SHARED;
  void* mapped = map_pages<void>(fault("wrong_memory") ? -1 : fd, size, flags,
                                 reinterpret_cast<const void*>(data.exporter_address));
  if (mapped == MAP_FAILED) return kErrorOutOfHostMemory;
  // A private mapping follows the file until its first write; touch every page so that it stands apart at
  // once.
  if (fault("cookie_lost")) {
    for (size_t at = 0; at < size; at += 4096)
      static_cast<volatile char*>(mapped)[at] = static_cast<char*>(mapped)[at];
  }
  *out = mapped;
  const std::lock_guard<std::mutex> lock(mutex);
  opened[mapped] = {size, fd};
  return kSuccess;
}

Result zeMemCloseIpcHandle(ContextHandle, const void* pointer) {
  if (fault("close_hangs")) hang();
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = opened.find(pointer);
  if (found == opened.end()) return kErrorInvalidArgument;
  munmap(const_cast<void*>(pointer), found->second.size);
  if (!fault("keeps_fd")) close(found->second.fd);
  opened.erase(found);
  return kSuccess;
}

Result zeCommandListCreateImmediate(ContextHandle, DeviceHandle, const CommandQueueDesc*,
                                    CommandListHandle* out) {
  *out = new OpaqueCommandList;
  ++lists;
  return kSuccess;
}

Result zeCommandListDestroy(CommandListHandle list) {
  delete list;
  --lists;
  return kSuccess;
}

Result zeCommandListAppendMemoryCopy(CommandListHandle, void* to, const void* from, size_t size, EventHandle,
                                     uint32_t, EventHandle*) {
  if (!fault("copy_hangs")) std::memcpy(to, from, size);
  return kSuccess;
}

Result zeCommandListAppendMemoryFill(CommandListHandle, void* to, const void* pattern, size_t pattern_size,
                                     size_t size, EventHandle, uint32_t, EventHandle*) {
  if (fault("copy_hangs")) return kSuccess;
  for (size_t at = 0; at < size; at += pattern_size)
    std::memcpy(static_cast<char*>(to) + at, pattern, pattern_size);
  return kSuccess;
}

#ifndef LAMPORT_TEST_OLD_LOADER  // a loader from before this entry point existed
Result zeCommandListHostSynchronize(CommandListHandle, uint64_t timeout_ns) {
  if (!fault("copy_hangs")) return kSuccess;
  std::this_thread::sleep_for(std::chrono::nanoseconds(timeout_ns));
  return kNotReady;
}
#endif

/// For tests: objects not yet given back (contexts, lists, handles, allocations, mappings).
int lamport_test_ze_live() {
  const std::lock_guard<std::mutex> lock(mutex);
  return contexts + lists + handles + static_cast<int>(allocations.size() + opened.size());
}

}  // extern "C"

#ifndef LAMPORT_TEST_OLD_LOADER
#define LAMPORT_TEST_SAME_SIGNATURE(name, signature) \
  static_assert(std::is_same_v<decltype(ze##name), signature>, "ze" #name);
LAMPORT_ZE_FUNCTIONS(LAMPORT_TEST_SAME_SIGNATURE)
#endif
