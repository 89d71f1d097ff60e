/// lamport_xpu._host: workspace and collectives over POSIX shared memory.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <array>
#include <string>

#include "csrc/binding/all_reduce_callable.hpp"
#include "csrc/binding/argument_checks.hpp"
#include "csrc/binding/errors.hpp"
#include "csrc/binding/fused.hpp"
#include "csrc/binding/tensor.hpp"
#include "csrc/host/checked_engine.hpp"
#include "csrc/host/shm/host_collectives.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace lamport {

extern template class CheckedEngine<HostCollectives>;

namespace {

/// Unmapping shared memory here leaves it intact for peers.
const bool kCloseIsCollective = false;

nb::bytes to_bytes(const std::string& s) { return nb::bytes(s.data(), s.size()); }
std::string to_string(const nb::bytes& b) { return std::string(b.c_str(), b.size()); }

/// Called while a peer is late by more than a millisecond: let other Python threads run, and let Ctrl-C
/// through.
bool sleep_without_gil(void*) {
  if (PyGILState_Check() == 0) {
    usleep(50);
    return true;
  }
  Py_BEGIN_ALLOW_THREADS usleep(50);
  Py_END_ALLOW_THREADS return PyErr_CheckSignals() == 0;
}

/// HostCollectives for Python: checks arguments, translates errors, refuses calls once broken or closed.
class PyHostCollectives {
 public:
  PyHostCollectives(std::shared_ptr<ShmWorkspace> workspace,
                    const std::array<std::pair<uint64_t, uint64_t>, 3>& thresholds,
                    uint32_t spins_before_yield, uint64_t max_bytes)
      : collectives_(std::move(workspace),
                     {{thresholds[0].first, thresholds[0].second},
                      {thresholds[1].first, thresholds[1].second},
                      {thresholds[2].first, thresholds[2].second}},
                     spins_before_yield),
        engine_(collectives_, limits(collectives_.layout(), max_bytes)),
        max_bytes_(max_bytes) {
    collectives_.wait.late = sleep_without_gil;
  }

  bool all_reduce(nb::handle x, nb::handle out) {
    const TensorView in = tensor_view(x, "x");
    const TensorView result = out.is(x) ? in : tensor_view(out, "out");
    check(in, result);
    return engine_.run("all_reduce", in.bytes, [&] {
      return collectives_.all_reduce({in.data, result.data, in.bytes, 0}, in.format, Library::large_sizes);
    });
  }

  /// Time-outs have been raised by the calls themselves.
  void check() const { engine_.check_usable(); }

  void close() { engine_.unusable = "the communicator is closed"; }

  Engine& engine() { return engine_; }

 private:
  static Limits limits(const Layout& layout, uint64_t max_bytes) {
    return {Limits::kCpu, Limits::kAnyId, layout.world, max_bytes, layout.slot_bytes, layout.slice_bytes, 64};
  }

  void check(const TensorView& in, const TensorView& out) const {
    check();
    if (in.device_type != Limits::kCpu || out.device_type != Limits::kCpu) {
      throw Error("WrongDeviceError",
                  "this communicator was made with device=\"cpu\" and the tensor is on another "
                  "device; move it, or create the communicator for its device");
    }
    check_pair(in, out, max_bytes_);
  }

  HostCollectives collectives_;
  CheckedEngine<HostCollectives> engine_;
  uint64_t max_bytes_;
};

}  // namespace

NB_MODULE(_host, m) {
  register_errors();
  nb::class_<ShmWorkspace>(m, "ShmWorkspace")
      .def(
          "__init__",
          [](ShmWorkspace* self, uint32_t rank, uint32_t world_size, uint32_t slot_bytes,
             uint32_t slice_bytes, double timeout) {
            new (self) ShmWorkspace(rank, Layout{world_size, slot_bytes, slice_bytes}, timeout);
          },
          "rank"_a, "world_size"_a, "slot_bytes"_a, "slice_bytes"_a, "timeout"_a)
      .def(
          "allocate",
          [](ShmWorkspace& self, const std::string& token) { return to_bytes(self.allocate(token)); },
          "token"_a)
      .def(
          "open_peer",
          [](ShmWorkspace& self, uint32_t rank, nb::bytes handle) {
            self.open_peer(rank, to_string(handle));
          },
          "rank"_a, "handle"_a)
      .def("write_cookie", &ShmWorkspace::write_cookie, "peer"_a, "value"_a)
      .def("read_cookie", &ShmWorkspace::read_cookie, "source"_a)
      .def("withdraw", &ShmWorkspace::withdraw, "token"_a)
      .def("close_peers", &ShmWorkspace::close_peers)
      .def("free", &ShmWorkspace::free)
      .def_prop_ro("addresses", &ShmWorkspace::addresses)
      .def_prop_ro("status_address",
                   [](const ShmWorkspace& self) { return reinterpret_cast<uintptr_t>(self.view().status); })
      .def_ro_static("close_is_collective", &kCloseIsCollective)
      .def_prop_ro("total_bytes", [](const ShmWorkspace& self) { return self.layout().total_bytes(); });
  m.def(
      "describe",
      [](nb::handle x) {
        static const char* names[] = {"float32", "float16", "bfloat16"};
        const TensorView view = tensor_view(x, "x");
        return std::pair<const char*, uint64_t>(names[static_cast<int>(view.format)], view.bytes);
      },
      "x"_a);
  m.def("isa", [] { return best_kernels().isa; });
  nb::class_<PyHostCollectives> collectives(m, "HostCollectives");
  collectives
      .def(nb::init<std::shared_ptr<ShmWorkspace>, const std::array<std::pair<uint64_t, uint64_t>, 3>&,
                    uint32_t, uint64_t>(),
           "workspace"_a, "thresholds"_a, "spins_before_yield"_a, "max_bytes"_a)
      .def("all_reduce", &PyHostCollectives::all_reduce, "x"_a, "out"_a)
      .def(
          "all_reduce_callable",
          [](nb::handle_t<PyHostCollectives> self, nb::object empty_like, nb::object library) {
            return make_all_reduce(
                nb::borrow(self),
                [](void* engine, nb::handle x, nb::handle out) {
                  return static_cast<PyHostCollectives*>(engine)->all_reduce(x, out);
                },
                std::move(empty_like), std::move(library));
          },
          "empty_like"_a, "library"_a)
      .def("check", nb::overload_cast<>(&PyHostCollectives::check, nb::const_))
      .def("close", &PyHostCollectives::close);
  bind_fused(collectives);
}

}  // namespace lamport
