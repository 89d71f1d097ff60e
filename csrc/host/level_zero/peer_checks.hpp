/// What must hold between two ranks before one opens the other's memory. All throw a ze::Error that names
/// both.
#pragma once

#include <string>

#include "csrc/host/layout.hpp"
#include "csrc/host/level_zero/device.hpp"
#include "csrc/host/level_zero/ipc_offer.hpp"

namespace lamport::ze {

/// "rank 3".
std::string peer_text(const Offer& offer);

/// The offer is rank `peer`'s, from the same build, for a workspace of the same shape.
void check_offer(int rank, const Layout& layout, int peer, const Offer& offer);

/// Distinct devices or tiles of one GPU model.
void check_topology(int rank, const Device& device, const Offer& offer);

/// The driver grants access to the peer's device. Returns a remark where it could not be asked, else "".
std::string check_access(int rank, const Device& device, const Offer& offer);

}  // namespace lamport::ze
