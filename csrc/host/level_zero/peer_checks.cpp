#include "csrc/host/level_zero/peer_checks.hpp"

#include <cstring>

#include "csrc/host/level_zero/ze_error.hpp"

namespace lamport::ze {

std::string peer_text(const Offer& offer) { return "rank " + std::to_string(offer.rank); }

void check_offer(int rank, const Layout& layout, int peer, const Offer& offer) {
  const int world_size = static_cast<int>(layout.world);
  if (offer.magic != Offer::kMagic || offer.size != sizeof(Offer)) {
    throw Error(ErrorKind::kMismatch, "the handle of rank " + std::to_string(peer) +
                                          " was made by another version of lamport-xpu. Install the same "
                                          "version for all ranks.");
  }
  if (peer < 0 || peer >= world_size || peer == rank || offer.rank != peer) {
    throw Error(ErrorKind::kInvalidUse, "a handle of " + peer_text(offer) + " was passed as that of rank " +
                                            std::to_string(peer) + ".");
  }
  if (offer.world_size != world_size || offer.bytes != layout.total_bytes()) {
    throw Error(ErrorKind::kMismatch,
                peer_text(offer) + " of " + std::to_string(offer.world_size) + " offers " +
                    std::to_string(offer.bytes) + " bytes; rank " + std::to_string(rank) + " of " +
                    std::to_string(world_size) + " expects " + std::to_string(layout.total_bytes()) +
                    ". All ranks must create the communicator with the same arguments.");
  }
}

void check_topology(int rank, const Device& device, const Offer& offer) {
  const bool same_uuid = offer.uuid == device.uuid;
  const bool same_tile =
      (offer.is_subdevice != 0) == device.is_subdevice && offer.subdevice_id == device.subdevice_id;
  // Drivers have shipped with one UUID for all cards of a model; the PCI address settles it.
  const bool same_pci =
      offer.has_pci == 0 || !device.pci || std::memcmp(&offer.pci, &*device.pci, sizeof offer.pci) == 0;
  if (same_uuid && same_tile && same_pci) {
    throw Error(ErrorKind::kTopology,
                peer_text(offer) + " and rank " + std::to_string(rank) + " both use " + device.name + " at " +
                    pci_text(device.pci) +
                    ". Each rank needs a GPU or tile of its own: choose the device by " +
                    "local rank, or start fewer ranks.");
  }
  if (offer.vendor_id != device.vendor_id || offer.device_id != device.device_id) {
    throw Error(ErrorKind::kTopology,
                peer_text(offer) + " uses " + offer.device_name + ", rank " + std::to_string(rank) + " " +
                    device.name +
                    ", two different models. Results are bit-identical on one model only: choose " +
                    "equal devices with ZE_AFFINITY_MASK.");
  }
}

std::string check_access(int rank, const Device& device, const Offer& offer) {
  const std::optional<DeviceHandle> peer =
      find_device(offer.uuid, offer.subdevice_id, offer.is_subdevice != 0);
  if (!peer) return "peer's device hidden from this process (ZE_AFFINITY_MASK), P2P property not asked";
  if (can_access_peer(device.handle, *peer)) return "";
  throw Error(
      ErrorKind::kPeerAccess,
      "the driver refuses access from " + device.name + " at " + pci_text(device.pci) + " (rank " +
          std::to_string(rank) + ") to " + offer.device_name + " of " + peer_text(offer) +
          ". Both cards need Resizable BAR (firmware set-up) and a kernel with PCIe peer-to-peer; IOMMU "
          "or ACS isolation between their slots must not redirect it.");
}

}  // namespace lamport::ze
