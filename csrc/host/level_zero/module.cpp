/// Python module lamport_xpu._level_zero: devices, peer access, and one rank's workspace.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <cstring>

#include "csrc/binding/errors.hpp"
#include "csrc/host/level_zero/device.hpp"
#include "csrc/host/level_zero/loader.hpp"
#include "csrc/host/level_zero/workspace.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace lamport::ze {
namespace {

nb::dict to_dict(const Device& device) {
  nb::dict out;
  out["name"] = device.name;
  out["uuid"] = nb::bytes(device.uuid.data(), device.uuid.size()).attr("hex")();
  out["pci"] = pci_text(device.pci);
  out["vendor_id"] = device.vendor_id;
  out["device_id"] = device.device_id;
  out["subdevice_id"] = device.is_subdevice ? nb::cast(device.subdevice_id) : nb::none();
  out["integrated"] = device.is_integrated;
  out["memory_bytes"] = device.memory_bytes;
  return out;
}

nb::list drivers() {
  nb::list out;
  for (const Driver& driver : list_drivers()) {
    nb::dict entry;
    entry["version"] = driver.version;
    entry["api_version"] =
        std::to_string(driver.api_version >> 16) + "." + std::to_string(driver.api_version & 0xffff);
    entry["ipc_memory"] = driver.ipc_memory;
    out.append(entry);
  }
  return out;
}

nb::list devices() {
  nb::list out;
  for (const Device& device : list_devices()) out.append(to_dict(device));
  return out;
}

std::vector<std::vector<bool>> peer_access() {
  const std::vector<Device> all = list_devices();
  std::vector<std::vector<bool>> matrix;
  for (const Device& from : all) {
    std::vector<bool> row;
    for (const Device& to : all)
      row.push_back(from.handle == to.handle || can_access_peer(from.handle, to.handle));
    matrix.push_back(row);
  }
  return matrix;
}

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(std::llround(seconds * 1000));
}

nb::bytes to_bytes(const Offer& offer) { return nb::bytes(&offer, sizeof offer); }

Offer to_offer(const nb::bytes& bytes) {
  Offer offer;
  if (bytes.size() == sizeof offer) {
    std::memcpy(static_cast<void*>(&offer), bytes.data(), sizeof offer);
  } else {
    offer.magic = 0;  // reported by check_offer() with the other signs of another version
  }
  return offer;
}

template <typename Call>
decltype(auto) without_gil(const Call& call) {
  const nb::gil_scoped_release release;
  return call();
}

}  // namespace

NB_MODULE(_level_zero, m) {
  m.doc() = "Level Zero: devices, and device memory shared between ranks.";
  register_errors();

  m.def(
      "loader_path", [] { return std::string(loader_path()); },
      "Library that serves as the Level Zero loader.");
  m.def("drivers", &drivers, "GPU drivers: version, api_version, ipc_memory.");
  m.def("devices", &devices, "GPUs in the driver's order; an index into this list is a device index.");
  m.def("peer_access", &peer_access, "Matrix [from][to]: may a device access another one's memory?");

  using Release = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<Workspace>(m, "ZeWorkspace", "One rank's device memory and its view of the peers'.")
      .def(
          "__init__",
          [](Workspace* self, int rank, uint32_t world_size, uint32_t slot_bytes, uint32_t slice_bytes,
             size_t device, uintptr_t context_handle, uintptr_t device_handle, double timeout,
             double close_timeout) {
            const Placement placement{device, reinterpret_cast<ContextHandle>(context_handle),
                                      reinterpret_cast<DeviceHandle>(device_handle)};
            new (self) Workspace({rank, Layout{world_size, slot_bytes, slice_bytes}, placement,
                                  milliseconds(timeout), milliseconds(close_timeout)});
          },
          "rank"_a, "world_size"_a, "slot_bytes"_a, "slice_bytes"_a, nb::kw_only(), "device"_a = 0,
          "context_handle"_a = 0, "device_handle"_a = 0, "timeout"_a = 2.5, "close_timeout"_a = 5.0,
          "On the GPU of index `device`, or on the native ze_context_handle_t and ze_device_handle_t of the "
          "caller's "
          "queue. The timeouts bound one driver call.")
      .def(
          "allocate",
          [](Workspace& self, const std::string&) {
            return to_bytes(without_gil([&]() -> const Offer& { return self.allocate(); }));
          },
          "token"_a, "Allocate and arm own memory; returns the handle that peers open.")
      .def(
          "open_peer",
          [](Workspace& self, int rank, const nb::bytes& handle, bool verify) {
            const Offer offer = to_offer(handle);
            without_gil([&] { self.open(rank, offer, verify); });
          },
          "rank"_a, "handle"_a, "verify"_a = true, "Map the memory of `rank`, which made `handle`.")
      .def("write_cookie", &Workspace::write_cookie, "peer"_a, "value"_a, Release())
      .def("read_cookie", &Workspace::read_cookie, "source"_a, Release())
      .def(
          "withdraw", [](Workspace& self, const std::string&) { without_gil([&] { self.withdraw(); }); },
          "token"_a, "Stop handing out own memory. Peers' offers need nothing: they end with their process.")
      .def("close_peers", &Workspace::close_peers, Release(), "Unmap the peers; bounded, never raises.")
      .def("free", &Workspace::free, Release(), "Free own memory; bounded, never raises.")
      .def_prop_ro(
          "addresses",
          [](const Workspace& self) {
            std::vector<uintptr_t> out;
            for (const Link& link : self.links()) out.push_back(link.address);
            return out;
          },
          "Base of each rank's memory in this process; 0 where not open.")
      .def_prop_ro("status_address", &Workspace::status_address, "Host-visible Status for the kernels.")
      .def_prop_ro(
          "links",
          [](const Workspace& self) {
            nb::list out;
            for (const Link& link : self.links()) out.append(nb::make_tuple(link.mode, link.reason));
            return out;
          },
          "(mode, reason) by rank; mode is 'own' for this rank and 'none' where not open.")
      .def_prop_ro("device", [](const Workspace& self) { return to_dict(self.device()); })
      .def_prop_ro("total_bytes", [](const Workspace& self) { return self.layout().total_bytes(); })
      .def_prop_ro("warnings", &Workspace::warnings, "What had to be left behind in the driver.");
}

}  // namespace lamport::ze
