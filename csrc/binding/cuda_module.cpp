/// lamport_xpu._cuda: workspace and collectives on CUDA GPUs.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <array>
#include <string>

#include "csrc/binding/all_reduce_callable.hpp"
#include "csrc/binding/argument_checks.hpp"
#include "csrc/binding/errors.hpp"
#include "csrc/binding/fused.hpp"
#include "csrc/binding/tensor.hpp"
#include "csrc/host/checked_engine.hpp"
#include "csrc/host/cuda/cuda_collectives.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace lamport {
namespace {

/// Peers must have closed memory before it is freed.
const bool kCloseIsCollective = true;

/// CudaCollectives for Python: checks arguments, translates errors, refuses calls once broken or closed.
class PyCudaCollectives {
 public:
  PyCudaCollectives(std::shared_ptr<CudaWorkspace> workspace,
                    const std::array<std::pair<uint64_t, uint64_t>, 3>& thresholds, uint64_t max_bytes,
                    nb::callable current_stream)
      : collectives_(std::move(workspace),
                     {{thresholds[0].first, thresholds[0].second},
                      {thresholds[1].first, thresholds[1].second},
                      {thresholds[2].first, thresholds[2].second}},
                     [asked = std::move(current_stream)] { return stream_of(asked); }),
        engine_(collectives_, limits(collectives_, max_bytes)),
        max_bytes_(max_bytes) {}

  bool all_reduce(nb::handle x, nb::handle out) {
    const TensorView in = tensor_view(x, "x");
    const TensorView result = out.is(x) ? in : tensor_view(out, "out");
    check(in, result);
    return engine_.run("all_reduce", in.bytes, [&] {
      return collectives_.all_reduce({in.data, result.data, in.bytes, 0}, in.format, Library::large_sizes);
    });
  }

  void check() {
    engine_.check_usable();
    engine_.run("all_reduce", 0, [&] { collectives_.check(); });
  }

  void set_launch(uint32_t threads, uint32_t overlap) {
    if ((threads != 0 && threads != 64 && threads != 128 && threads != 256) || overlap > 2) {
      throw nb::value_error("threads must be 0, 64, 128 or 256, overlap 0, 1 or 2");
    }
    collectives_.set_launch({threads, static_cast<Overlap>(overlap)});
  }

  void close() { engine_.unusable = "the communicator is closed"; }

  Engine& engine() { return engine_; }

 private:
  /// Torch's operators call without the interpreter's lock.
  static cudaStream_t stream_of(const nb::callable& current_stream) {
    const nb::gil_scoped_acquire lock;
    const nb::object address = current_stream();
    const auto value = PyLong_AsUnsignedLongLong(address.ptr());
    if (PyErr_Occurred()) throw nb::python_error();
    return reinterpret_cast<cudaStream_t>(value);
  }

  static Limits limits(const CudaCollectives& collectives, uint64_t max_bytes) {
    const Layout& layout = collectives.layout();
    return {Limits::kCuda,
            collectives.device(),
            layout.world,
            max_bytes,
            layout.slot_bytes,
            layout.slice_bytes,
            16};
  }

  void check(const TensorView& in, const TensorView& out) const {
    engine_.check_usable();
    check_place(in, "x");
    check_place(out, "out");
    check_pair(in, out, max_bytes_);
  }

  void check_place(const TensorView& tensor, const char* what) const {
    if (tensor.device_type != Limits::kCuda || tensor.device_id != collectives_.device()) {
      throw Error("WrongDeviceError", std::string(what) +
                                          " is not on cuda:" + std::to_string(collectives_.device()) +
                                          ", the GPU this communicator was made for; move it there");
    }
    if (reinterpret_cast<uintptr_t>(tensor.data) % 2 != 0) {
      throw Error("TensorError", std::string(what) + " starts at an odd address; pass " + what + ".clone()");
    }
  }

  CudaCollectives collectives_;
  CheckedEngine<CudaCollectives> engine_;
  uint64_t max_bytes_;
};

}  // namespace

NB_MODULE(_cuda, m) {
  register_errors();
  nb::class_<CudaWorkspace>(m, "CudaWorkspace")
      .def(
          "__init__",
          [](CudaWorkspace* self, int device, uint32_t rank, uint32_t world_size, uint32_t slot_bytes,
             uint32_t slice_bytes, double timeout) {
            new (self) CudaWorkspace(device, rank, Layout{world_size, slot_bytes, slice_bytes}, timeout);
          },
          "device"_a, "rank"_a, "world_size"_a, "slot_bytes"_a, "slice_bytes"_a, "timeout"_a)
      .def(
          "allocate",
          [](CudaWorkspace& self, const std::string&) {
            const std::string handle = self.allocate();
            return nb::bytes(handle.data(), handle.size());
          },
          "token"_a)
      .def(
          "open_peer",
          [](CudaWorkspace& self, uint32_t rank, nb::bytes handle) {
            self.open_peer(rank, std::string(handle.c_str(), handle.size()));
          },
          "rank"_a, "handle"_a)
      .def("write_cookie", &CudaWorkspace::write_cookie, "peer"_a, "value"_a)
      .def("read_cookie", &CudaWorkspace::read_cookie, "source"_a)
      .def(
          "withdraw", [](CudaWorkspace&, const std::string&) {}, "token"_a)  // handles are no names
      .def("close_peers", &CudaWorkspace::close_peers)
      .def("free", &CudaWorkspace::free)
      .def_ro_static("close_is_collective", &kCloseIsCollective)
      .def_prop_ro("ranks_on_this_gpu", &CudaWorkspace::ranks_on_this_gpu)
      .def_prop_ro("total_bytes", [](const CudaWorkspace& self) { return self.layout().total_bytes(); });
  nb::class_<PyCudaCollectives> collectives(m, "CudaCollectives");
  collectives
      .def(nb::init<std::shared_ptr<CudaWorkspace>, const std::array<std::pair<uint64_t, uint64_t>, 3>&,
                    uint64_t, nb::callable>(),
           "workspace"_a, "thresholds"_a, "max_bytes"_a, "current_stream"_a)
      .def("all_reduce", &PyCudaCollectives::all_reduce, "x"_a, "out"_a)
      .def(
          "all_reduce_callable",
          [](nb::handle_t<PyCudaCollectives> self, nb::object empty_like, nb::object library) {
            return make_all_reduce(
                nb::borrow(self),
                [](void* engine, nb::handle x, nb::handle out) {
                  return static_cast<PyCudaCollectives*>(engine)->all_reduce(x, out);
                },
                std::move(empty_like), std::move(library));
          },
          "empty_like"_a, "library"_a)
      .def("check", nb::overload_cast<>(&PyCudaCollectives::check))
      .def("set_launch", &PyCudaCollectives::set_launch, "threads"_a, "overlap"_a)
      .def("close", &PyCudaCollectives::close);
  bind_fused(collectives);
}

}  // namespace lamport
