/// Compiled against the official header: every value, size, offset and signature that ze_abi.hpp declares.
#include <level_zero/ze_api.h>

#include <cstddef>
#include <type_traits>

#include "csrc/host/level_zero/ze_abi.hpp"

namespace ours = lamport::ze;

#define SAME_VALUE(mine, official) \
  static_assert(static_cast<long long>(ours::mine) == static_cast<long long>(official), #official)
#define SAME_SIZE(mine, official) static_assert(sizeof(ours::mine) == sizeof(official), #official)
#define SAME_FIELD(mine, my_field, official, field)                            \
  static_assert(offsetof(ours::mine, my_field) == offsetof(official, field) && \
                    sizeof(ours::mine::my_field) == sizeof(official::field),   \
                #official "." #field)

SAME_VALUE(kSuccess, ZE_RESULT_SUCCESS);
SAME_VALUE(kNotReady, ZE_RESULT_NOT_READY);
SAME_VALUE(kErrorDeviceLost, ZE_RESULT_ERROR_DEVICE_LOST);
SAME_VALUE(kErrorOutOfHostMemory, ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY);
SAME_VALUE(kErrorOutOfDeviceMemory, ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY);
SAME_VALUE(kErrorInsufficientPermissions, ZE_RESULT_ERROR_INSUFFICIENT_PERMISSIONS);
SAME_VALUE(kErrorNotAvailable, ZE_RESULT_ERROR_NOT_AVAILABLE);
SAME_VALUE(kErrorDependencyUnavailable, ZE_RESULT_ERROR_DEPENDENCY_UNAVAILABLE);
SAME_VALUE(kErrorUninitialized, ZE_RESULT_ERROR_UNINITIALIZED);
SAME_VALUE(kErrorUnsupportedVersion, ZE_RESULT_ERROR_UNSUPPORTED_VERSION);
SAME_VALUE(kErrorUnsupportedFeature, ZE_RESULT_ERROR_UNSUPPORTED_FEATURE);
SAME_VALUE(kErrorInvalidArgument, ZE_RESULT_ERROR_INVALID_ARGUMENT);
SAME_VALUE(kErrorUnsupportedSize, ZE_RESULT_ERROR_UNSUPPORTED_SIZE);
SAME_VALUE(kErrorUnknown, ZE_RESULT_ERROR_UNKNOWN);

SAME_VALUE(kDriverPropertiesType, ZE_STRUCTURE_TYPE_DRIVER_PROPERTIES);
SAME_VALUE(kDriverIpcPropertiesType, ZE_STRUCTURE_TYPE_DRIVER_IPC_PROPERTIES);
SAME_VALUE(kDevicePropertiesType, ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES);
SAME_VALUE(kDeviceMemoryPropertiesType, ZE_STRUCTURE_TYPE_DEVICE_MEMORY_PROPERTIES);
SAME_VALUE(kDeviceP2PPropertiesType, ZE_STRUCTURE_TYPE_DEVICE_P2P_PROPERTIES);
SAME_VALUE(kContextDescType, ZE_STRUCTURE_TYPE_CONTEXT_DESC);
SAME_VALUE(kCommandQueueDescType, ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC);
SAME_VALUE(kDeviceMemAllocDescType, ZE_STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC);
SAME_VALUE(kHostMemAllocDescType, ZE_STRUCTURE_TYPE_HOST_MEM_ALLOC_DESC);
SAME_VALUE(kPciExtPropertiesType, ZE_STRUCTURE_TYPE_PCI_EXT_PROPERTIES);

SAME_VALUE(kInitGpuOnly, ZE_INIT_FLAG_GPU_ONLY);
SAME_VALUE(kDeviceTypeGpu, ZE_DEVICE_TYPE_GPU);
SAME_VALUE(kDeviceFlagIntegrated, ZE_DEVICE_PROPERTY_FLAG_INTEGRATED);
SAME_VALUE(kDeviceFlagSubdevice, ZE_DEVICE_PROPERTY_FLAG_SUBDEVICE);
SAME_VALUE(kIpcFlagMemory, ZE_IPC_PROPERTY_FLAG_MEMORY);
SAME_VALUE(kP2PFlagAccess, ZE_DEVICE_P2P_PROPERTY_FLAG_ACCESS);
SAME_VALUE(kQueueModeAsynchronous, ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS);
SAME_VALUE(kIpcHandleBytes, ZE_MAX_IPC_HANDLE_SIZE);

SAME_SIZE(DriverProperties, ze_driver_properties_t);
SAME_FIELD(DriverProperties, driver_version, ze_driver_properties_t, driverVersion);
SAME_SIZE(DriverIpcProperties, ze_driver_ipc_properties_t);
SAME_FIELD(DriverIpcProperties, flags, ze_driver_ipc_properties_t, flags);
SAME_SIZE(DeviceProperties, ze_device_properties_t);
SAME_FIELD(DeviceProperties, type, ze_device_properties_t, type);
SAME_FIELD(DeviceProperties, vendor_id, ze_device_properties_t, vendorId);
SAME_FIELD(DeviceProperties, device_id, ze_device_properties_t, deviceId);
SAME_FIELD(DeviceProperties, flags, ze_device_properties_t, flags);
SAME_FIELD(DeviceProperties, subdevice_id, ze_device_properties_t, subdeviceId);
SAME_FIELD(DeviceProperties, max_mem_alloc_size, ze_device_properties_t, maxMemAllocSize);
SAME_FIELD(DeviceProperties, timer_resolution, ze_device_properties_t, timerResolution);
SAME_FIELD(DeviceProperties, uuid, ze_device_properties_t, uuid);
SAME_FIELD(DeviceProperties, name, ze_device_properties_t, name);
SAME_SIZE(DeviceMemoryProperties, ze_device_memory_properties_t);
SAME_FIELD(DeviceMemoryProperties, total_size, ze_device_memory_properties_t, totalSize);
SAME_SIZE(DeviceP2PProperties, ze_device_p2p_properties_t);
SAME_FIELD(DeviceP2PProperties, flags, ze_device_p2p_properties_t, flags);
SAME_SIZE(PciAddress, ze_pci_address_ext_t);
SAME_FIELD(PciAddress, function, ze_pci_address_ext_t, function);
SAME_SIZE(PciExtProperties, ze_pci_ext_properties_t);
SAME_FIELD(PciExtProperties, address, ze_pci_ext_properties_t, address);
SAME_SIZE(ContextDesc, ze_context_desc_t);
SAME_SIZE(CommandQueueDesc, ze_command_queue_desc_t);
SAME_FIELD(CommandQueueDesc, ordinal, ze_command_queue_desc_t, ordinal);
SAME_FIELD(CommandQueueDesc, mode, ze_command_queue_desc_t, mode);
SAME_FIELD(CommandQueueDesc, priority, ze_command_queue_desc_t, priority);
SAME_SIZE(DeviceMemAllocDesc, ze_device_mem_alloc_desc_t);
SAME_FIELD(DeviceMemAllocDesc, flags, ze_device_mem_alloc_desc_t, flags);
SAME_SIZE(HostMemAllocDesc, ze_host_mem_alloc_desc_t);
SAME_FIELD(HostMemAllocDesc, flags, ze_host_mem_alloc_desc_t, flags);
SAME_SIZE(IpcHandle, ze_ipc_mem_handle_t);

// Parameter by parameter: as many, and each of the same size and kind (pointer or not). Exact types differ by
// name.
template <typename Mine, typename Official>
struct SameCall : std::false_type {};
template <typename A, typename B>
constexpr bool kAlike = sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B>;
template <typename R, typename... Mine, typename S, typename... Official>
struct SameCall<R(Mine...), S(Official...)> {
  template <bool Equal, typename = void>
  struct Compare : std::false_type {};
  template <typename V>
  struct Compare<true, V> : std::bool_constant<(kAlike<Mine, Official> && ...)> {};
  static constexpr bool value =
      sizeof(R) == sizeof(S) && Compare<sizeof...(Mine) == sizeof...(Official)>::value;
};
#define SAME_CALL(name, signature) \
  static_assert(::SameCall<signature, decltype(::ze##name)>::value, "ze" #name);
namespace lamport::ze {  // the signatures are written in these names
LAMPORT_ZE_FUNCTIONS(SAME_CALL)
}  // namespace lamport::ze
