/// The subset of the Level Zero public ABI that we call, declared here so that building needs no Level Zero
/// headers. Names, values and layouts follow the published specification; every function exists since version
/// 1.6 or earlier. tests/level_zero_host/ compares this file with the official header where that is
/// installed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lamport::ze {

// Handles are opaque pointers; a distinct type each, so that the compiler tells them apart.
using DriverHandle = struct OpaqueDriver*;
using DeviceHandle = struct OpaqueDevice*;
using ContextHandle = struct OpaqueContext*;
using CommandListHandle = struct OpaqueCommandList*;
using EventHandle = struct OpaqueEvent*;

enum Result : uint32_t {
  kSuccess = 0,
  kNotReady = 1,
  kErrorDeviceLost = 0x70000001,
  kErrorOutOfHostMemory = 0x70000002,
  kErrorOutOfDeviceMemory = 0x70000003,
  kErrorInsufficientPermissions = 0x70010000,
  kErrorNotAvailable = 0x70010001,
  kErrorDependencyUnavailable = 0x70020000,
  kErrorUninitialized = 0x78000001,
  kErrorUnsupportedVersion = 0x78000002,
  kErrorUnsupportedFeature = 0x78000003,
  kErrorInvalidArgument = 0x78000004,
  kErrorUnsupportedSize = 0x78000009,
  kErrorUnknown = 0x7ffffffe,
};

enum StructureType : uint32_t {
  kDriverPropertiesType = 0x1,
  kDriverIpcPropertiesType = 0x2,
  kDevicePropertiesType = 0x3,
  kDeviceMemoryPropertiesType = 0x7,
  kDeviceP2PPropertiesType = 0xb,
  kContextDescType = 0xd,
  kCommandQueueDescType = 0xe,
  kDeviceMemAllocDescType = 0x15,
  kHostMemAllocDescType = 0x16,
  kPciExtPropertiesType = 0x10008,
};

inline constexpr uint32_t kInitGpuOnly = 1u << 0;
inline constexpr uint32_t kDeviceTypeGpu = 1;
inline constexpr uint32_t kDeviceFlagIntegrated = 1u << 0;
inline constexpr uint32_t kDeviceFlagSubdevice = 1u << 1;
inline constexpr uint32_t kIpcFlagMemory = 1u << 0;
inline constexpr uint32_t kP2PFlagAccess = 1u << 0;
inline constexpr uint32_t kQueueModeAsynchronous = 2;
inline constexpr size_t kIpcHandleBytes = 64;

struct DriverProperties {
  StructureType stype = kDriverPropertiesType;
  void* next = nullptr;
  uint8_t uuid[16] = {};
  uint32_t driver_version = 0;
};

struct DriverIpcProperties {
  StructureType stype = kDriverIpcPropertiesType;
  void* next = nullptr;
  uint32_t flags = 0;
};

struct DeviceProperties {
  StructureType stype = kDevicePropertiesType;
  void* next = nullptr;
  uint32_t type = 0;
  uint32_t vendor_id = 0;
  uint32_t device_id = 0;
  uint32_t flags = 0;
  uint32_t subdevice_id = 0;
  uint32_t core_clock_rate = 0;
  uint64_t max_mem_alloc_size = 0;
  uint32_t max_hardware_contexts = 0;
  uint32_t max_command_queue_priority = 0;
  uint32_t num_threads_per_eu = 0;
  uint32_t physical_eu_simd_width = 0;
  uint32_t num_eus_per_subslice = 0;
  uint32_t num_subslices_per_slice = 0;
  uint32_t num_slices = 0;
  uint64_t timer_resolution = 0;
  uint32_t timestamp_valid_bits = 0;
  uint32_t kernel_timestamp_valid_bits = 0;
  uint8_t uuid[16] = {};
  char name[256] = {};
};

struct DeviceMemoryProperties {
  StructureType stype = kDeviceMemoryPropertiesType;
  void* next = nullptr;
  uint32_t flags = 0;
  uint32_t max_clock_rate = 0;
  uint32_t max_bus_width = 0;
  uint64_t total_size = 0;
  char name[256] = {};
};

struct DeviceP2PProperties {
  StructureType stype = kDeviceP2PPropertiesType;
  void* next = nullptr;
  uint32_t flags = 0;
};

struct PciAddress {
  uint32_t domain = 0;
  uint32_t bus = 0;
  uint32_t device = 0;
  uint32_t function = 0;
};

struct PciSpeed {
  int32_t generation = 0;
  int32_t width = 0;
  int64_t max_bandwidth = 0;
};

struct PciExtProperties {
  StructureType stype = kPciExtPropertiesType;
  void* next = nullptr;
  PciAddress address;
  PciSpeed max_speed;
};

struct ContextDesc {
  StructureType stype = kContextDescType;
  const void* next = nullptr;
  uint32_t flags = 0;
};

struct CommandQueueDesc {
  StructureType stype = kCommandQueueDescType;
  const void* next = nullptr;
  uint32_t ordinal = 0;
  uint32_t index = 0;
  uint32_t flags = 0;
  uint32_t mode = 0;
  uint32_t priority = 0;
};

struct DeviceMemAllocDesc {
  StructureType stype = kDeviceMemAllocDescType;
  const void* next = nullptr;
  uint32_t flags = 0;
  uint32_t ordinal = 0;
};

struct HostMemAllocDesc {
  StructureType stype = kHostMemAllocDescType;
  const void* next = nullptr;
  uint32_t flags = 0;
};

struct IpcHandle {
  uint8_t data[kIpcHandleBytes] = {};
};

/// Every entry point: X(name without "ze", signature). The loader, the test driver and the comparison with
/// the official header all expand this one list.
#define LAMPORT_ZE_FUNCTIONS(X)                                                                              \
  X(Init, Result(uint32_t flags))                                                                            \
  X(DriverGet, Result(uint32_t* count, DriverHandle* drivers))                                               \
  X(DriverGetApiVersion, Result(DriverHandle, uint32_t* version))                                            \
  X(DriverGetProperties, Result(DriverHandle, DriverProperties*))                                            \
  X(DriverGetIpcProperties, Result(DriverHandle, DriverIpcProperties*))                                      \
  X(DeviceGet, Result(DriverHandle, uint32_t* count, DeviceHandle* devices))                                 \
  X(DeviceGetSubDevices, Result(DeviceHandle, uint32_t* count, DeviceHandle* devices))                       \
  X(DeviceGetProperties, Result(DeviceHandle, DeviceProperties*))                                            \
  X(DeviceGetMemoryProperties, Result(DeviceHandle, uint32_t* count, DeviceMemoryProperties*))               \
  X(DeviceGetP2PProperties, Result(DeviceHandle, DeviceHandle peer, DeviceP2PProperties*))                   \
  X(DeviceCanAccessPeer, Result(DeviceHandle, DeviceHandle peer, uint8_t* value))                            \
  X(DevicePciGetPropertiesExt, Result(DeviceHandle, PciExtProperties*))                                      \
  X(ContextCreate, Result(DriverHandle, const ContextDesc*, ContextHandle*))                                 \
  X(ContextDestroy, Result(ContextHandle))                                                                   \
  X(MemAllocDevice,                                                                                          \
    Result(ContextHandle, const DeviceMemAllocDesc*, size_t size, size_t alignment, DeviceHandle, void**))   \
  X(MemAllocHost, Result(ContextHandle, const HostMemAllocDesc*, size_t size, size_t alignment, void**))     \
  X(MemFree, Result(ContextHandle, void*))                                                                   \
  X(MemGetIpcHandle, Result(ContextHandle, const void*, IpcHandle*))                                         \
  X(MemPutIpcHandle, Result(ContextHandle, IpcHandle))                                                       \
  X(MemOpenIpcHandle, Result(ContextHandle, DeviceHandle, IpcHandle, uint32_t flags, void**))                \
  X(MemCloseIpcHandle, Result(ContextHandle, const void*))                                                   \
  X(CommandListCreateImmediate,                                                                              \
    Result(ContextHandle, DeviceHandle, const CommandQueueDesc*, CommandListHandle*))                        \
  X(CommandListDestroy, Result(CommandListHandle))                                                           \
  X(CommandListAppendMemoryCopy,                                                                             \
    Result(CommandListHandle, void* to, const void* from, size_t size, EventHandle, uint32_t, EventHandle*)) \
  X(CommandListAppendMemoryFill,                                                                             \
    Result(CommandListHandle, void* to, const void* pattern, size_t pattern_size, size_t size, EventHandle,  \
           uint32_t, EventHandle*))                                                                          \
  X(CommandListHostSynchronize, Result(CommandListHandle, uint64_t timeout_ns))

}  // namespace lamport::ze
