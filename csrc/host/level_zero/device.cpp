#include "csrc/host/level_zero/device.hpp"

#include <algorithm>
#include <cstdio>

#include "csrc/host/level_zero/loader.hpp"

namespace lamport::ze {
namespace {

/// The ABI's two-call idiom: ask for the count, then for that many.
template <typename T, typename Call>
std::vector<T> list(const Call& call, const char* name) {
  uint32_t count = 0;
  check(call(&count, nullptr), name);
  std::vector<T> items(count);
  if (count != 0) check(call(&count, items.data()), name);
  items.resize(count);
  return items;
}

std::vector<DriverHandle> driver_handles() { return list<DriverHandle>(api().DriverGet, "zeDriverGet"); }

std::vector<DeviceHandle> device_handles(DriverHandle driver) {
  return list<DeviceHandle>(
      [driver](uint32_t* count, DeviceHandle* devices) { return api().DeviceGet(driver, count, devices); },
      "zeDeviceGet");
}

std::vector<DeviceHandle> subdevice_handles(DeviceHandle device) {
  return list<DeviceHandle>(
      [device](uint32_t* count, DeviceHandle* tiles) {
        return api().DeviceGetSubDevices(device, count, tiles);
      },
      "zeDeviceGetSubDevices");
}

uint64_t memory_bytes(DeviceHandle device) {
  uint32_t count = 0;
  check(api().DeviceGetMemoryProperties(device, &count, nullptr), "zeDeviceGetMemoryProperties");
  std::vector<DeviceMemoryProperties> memories(count);
  if (count != 0) {
    check(api().DeviceGetMemoryProperties(device, &count, memories.data()), "zeDeviceGetMemoryProperties");
  }
  uint64_t total = 0;
  for (const DeviceMemoryProperties& memory : memories) total += memory.total_size;
  return total;
}

}  // namespace

std::vector<Driver> list_drivers() {
  std::vector<Driver> drivers;
  for (DriverHandle handle : driver_handles()) {
    Driver driver;
    driver.handle = handle;
    DriverProperties properties;
    check(api().DriverGetProperties(handle, &properties), "zeDriverGetProperties");
    driver.version = properties.driver_version;
    check(api().DriverGetApiVersion(handle, &driver.api_version), "zeDriverGetApiVersion");
    DriverIpcProperties ipc;
    check(api().DriverGetIpcProperties(handle, &ipc), "zeDriverGetIpcProperties");
    driver.ipc_memory = (ipc.flags & kIpcFlagMemory) != 0;
    drivers.push_back(driver);
  }
  return drivers;
}

Device describe(DriverHandle driver, DeviceHandle handle) {
  Device device;
  device.driver = driver;
  device.handle = handle;
  DeviceProperties properties;
  check(api().DeviceGetProperties(handle, &properties), "zeDeviceGetProperties");
  properties.name[sizeof properties.name - 1] = '\0';
  device.name = properties.name;
  std::copy(std::begin(properties.uuid), std::end(properties.uuid), device.uuid.begin());
  device.vendor_id = properties.vendor_id;
  device.device_id = properties.device_id;
  device.is_subdevice = (properties.flags & kDeviceFlagSubdevice) != 0;
  device.is_integrated = (properties.flags & kDeviceFlagIntegrated) != 0;
  device.subdevice_id = device.is_subdevice ? properties.subdevice_id : 0;
  device.memory_bytes = memory_bytes(handle);
  PciExtProperties pci;
  if (api().DevicePciGetPropertiesExt(handle, &pci) == kSuccess) device.pci = pci.address;
  return device;
}

std::vector<Device> list_devices() {
  std::vector<Device> devices;
  for (DriverHandle driver : driver_handles()) {
    for (DeviceHandle handle : device_handles(driver)) {
      DeviceProperties properties;
      check(api().DeviceGetProperties(handle, &properties), "zeDeviceGetProperties");
      if (properties.type == kDeviceTypeGpu) devices.push_back(describe(driver, handle));
    }
  }
  return devices;
}

Device device_at(size_t index) {
  const std::vector<Device> devices = list_devices();
  if (devices.empty()) {
    throw Error(
        ErrorKind::kNoDevice,
        "the Level Zero driver lists no GPU. Check that /dev/dri/renderD* exists and that this user may "
        "open it (group render; in a container: --device /dev/dri), and ZE_AFFINITY_MASK.");
  }
  if (index < devices.size()) return devices[index];
  throw Error(ErrorKind::kNoDevice,
              "GPU " + std::to_string(index) + " was asked for, but only " + std::to_string(devices.size()) +
                  " are visible. One GPU a rank is needed: start fewer ranks, or check ZE_AFFINITY_MASK and "
                  "--device /dev/dri.");
}

DriverHandle driver_of(DeviceHandle handle) {
  for (DriverHandle driver : driver_handles()) {
    for (DeviceHandle device : device_handles(driver)) {
      const std::vector<DeviceHandle> tiles = subdevice_handles(device);
      if (device == handle || std::find(tiles.begin(), tiles.end(), handle) != tiles.end()) return driver;
    }
  }
  throw Error(
      ErrorKind::kInvalidUse,
      "the device handle given is none that the Level Zero loader lists. Pass the native handle of a Level "
      "Zero queue (ONEAPI_DEVICE_SELECTOR=level_zero:gpu).");
}

void require_ipc(DriverHandle driver) {
  DriverIpcProperties ipc;
  check(api().DriverGetIpcProperties(driver, &ipc), "zeDriverGetIpcProperties");
  if ((ipc.flags & kIpcFlagMemory) == 0) {
    throw Error(ErrorKind::kDriverTooOld,
                "this GPU driver does not share memory between processes (ZE_IPC_PROPERTY_FLAG_MEMORY is not "
                "set). Update the package libze-intel-gpu1.");
  }
}

std::optional<DeviceHandle> find_device(const Uuid& uuid, uint32_t subdevice_id, bool is_subdevice) {
  const auto matches = [&](DeviceHandle handle) {
    DeviceProperties properties;
    check(api().DeviceGetProperties(handle, &properties), "zeDeviceGetProperties");
    const bool tile = (properties.flags & kDeviceFlagSubdevice) != 0;
    return std::equal(uuid.begin(), uuid.end(), std::begin(properties.uuid)) && tile == is_subdevice &&
           (!tile || properties.subdevice_id == subdevice_id);
  };
  for (DriverHandle driver : driver_handles()) {
    for (DeviceHandle device : device_handles(driver)) {
      if (matches(device)) return device;
      for (DeviceHandle tile : subdevice_handles(device)) {
        if (matches(tile)) return tile;
      }
    }
  }
  return std::nullopt;
}

bool can_access_peer(DeviceHandle from, DeviceHandle to) {
  DeviceP2PProperties properties;
  check(api().DeviceGetP2PProperties(from, to, &properties), "zeDeviceGetP2PProperties");
  if ((properties.flags & kP2PFlagAccess) != 0) return true;
  // The properties are read off a table of products; this call probes, so it may know better.
  uint8_t can_access = 0;
  check(api().DeviceCanAccessPeer(from, to, &can_access), "zeDeviceCanAccessPeer");
  return can_access != 0;
}

std::string pci_text(const std::optional<PciAddress>& pci) {
  if (!pci) return "unknown";
  char text[32];
  std::snprintf(text, sizeof text, "%04x:%02x:%02x.%x", pci->domain, pci->bus, pci->device, pci->function);
  return text;
}

}  // namespace lamport::ze
