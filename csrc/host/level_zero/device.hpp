/// The GPUs this process can see, and whether two of them reach each other's memory.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "csrc/host/level_zero/ze_abi.hpp"

namespace lamport::ze {

using Uuid = std::array<uint8_t, 16>;

/// One device as the driver lists it: a card, or with ZE_FLAT_DEVICE_HIERARCHY=FLAT a tile of one.
struct Device {
  DriverHandle driver = nullptr;
  DeviceHandle handle = nullptr;
  std::string name;
  Uuid uuid = {};
  uint32_t vendor_id = 0;
  uint32_t device_id = 0;
  uint32_t subdevice_id = 0;
  bool is_subdevice = false;
  bool is_integrated = false;
  uint64_t memory_bytes = 0;
  std::optional<PciAddress> pci;  // empty where the driver lacks the PCI properties extension
};

struct Driver {
  DriverHandle handle = nullptr;
  uint32_t version = 0;
  uint32_t api_version = 0;
  bool ipc_memory = false;
};

std::vector<Driver> list_drivers();

/// GPUs of all drivers in the driver's order; the index into this list is the "device index" of the Python
/// API.
std::vector<Device> list_devices();

/// The GPU of this index; throws kNoDevice saying what is there instead.
Device device_at(size_t index);

/// The driver that a handle of the caller belongs to.
DriverHandle driver_of(DeviceHandle handle);

/// Properties of a handle that came from elsewhere (a SYCL queue).
Device describe(DriverHandle driver, DeviceHandle handle);

/// Throws kDriverTooOld unless the driver shares memory between processes.
void require_ipc(DriverHandle driver);

/// The device with this identity, among devices and their tiles; empty where ZE_AFFINITY_MASK hides it.
std::optional<DeviceHandle> find_device(const Uuid& uuid, uint32_t subdevice_id, bool is_subdevice);

/// Whether `from` may access memory of `to`. Atomics are deliberately not asked for: cards on PCIe offer
/// access without atomics, and the protocol needs none.
bool can_access_peer(DeviceHandle from, DeviceHandle to);

/// "0000:03:00.0", or "unknown".
std::string pci_text(const std::optional<PciAddress>& pci);

}  // namespace lamport::ze
