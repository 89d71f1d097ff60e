/// lamport_xpu._sycl: collectives on SYCL queues.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <chrono>
#include <string>

#include "csrc/binding/all_reduce_callable.hpp"
#include "csrc/binding/argument_checks.hpp"
#include "csrc/binding/errors.hpp"
#include "csrc/binding/fused.hpp"
#include "csrc/binding/tensor.hpp"
#include "csrc/host/checked_engine.hpp"
#include "csrc/host/sycl/graph.hpp"
#include "csrc/host/sycl/queues.hpp"
#include "csrc/host/sycl/sycl_collectives.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace lamport {
namespace {

/// An in-order queue of our own, or a reference to somebody else's.
class PyQueue {
 public:
  explicit PyQueue(sycl::queue queue) : own_(std::move(queue)), queue_(&*own_) {}
  explicit PyQueue(uintptr_t address) : queue_(&queue_at(address)) {}
  PyQueue(const PyQueue&) = delete;
  PyQueue& operator=(const PyQueue&) = delete;

  sycl::queue& get() const { return *queue_; }

 private:
  std::optional<sycl::queue> own_;
  sycl::queue* queue_;
};

/// SyclCollectives for Python: checks arguments, translates errors, refuses calls once broken or closed.
class PySyclCollectives {
 public:
  PySyclCollectives(PyQueue& queue, const std::vector<uintptr_t>& bases, uintptr_t status, uint32_t rank,
                    uint32_t slot_bytes, uint32_t slice_bytes,
                    const std::array<std::pair<uint64_t, uint64_t>, 3>& thresholds, uint64_t max_bytes,
                    double timeout, std::optional<bool> yielding, int32_t device_id)
      : queue_(queue.get()),
        collectives_(
            queue_,
            {bases, status, rank, Layout{static_cast<uint32_t>(bases.size()), slot_bytes, slice_bytes}},
            {{thresholds[0].first, thresholds[0].second},
             {thresholds[1].first, thresholds[1].second},
             {thresholds[2].first, thresholds[2].second}},
            timeout, yielding, [this]() -> sycl::queue& { return current_queue(); }),
        limits_(limits(collectives_, max_bytes, device_id)),
        engine_(collectives_, limits_) {}

  bool all_reduce(nb::handle x, nb::handle out) {
    engine_.check_usable();
    const TensorView in = tensor_view(x, "x");
    const TensorView result = out.is(x) ? in : tensor_view(out, "out");
    check(in, result);
    return engine_.run("all_reduce", in.bytes, [&] {
      return collectives_.all_reduce({in.data, result.data, in.bytes, 0}, in.format, Library::large_sizes);
    });
  }

  /// From now on a call asks `current_queue()` for the address of the queue to use.
  void follow(nb::callable current_queue) { current_queue_ = std::move(current_queue); }

  /// On memory by address, for callers that have no tensor object.
  bool all_reduce_raw(uintptr_t in, uintptr_t out, uint64_t bytes, uint32_t format) {
    engine_.check_usable();
    if (format > 2)
      throw Error("UnsupportedDtypeError", "format must be 0 (float32), 1 (float16) or 2 (bfloat16)");
    return engine_.run("all_reduce", bytes, [&] {
      return collectives_.all_reduce(
          {reinterpret_cast<const void*>(in), reinterpret_cast<void*>(out), bytes, 0},
          static_cast<Format>(format), Library::large_sizes);
    });
  }

  void wait() {
    sycl::queue& waited = current_queue();
    {
      nb::gil_scoped_release release;
      waited.wait_and_throw();
    }
    check();
  }

  void check() {
    engine_.check_usable();
    engine_.run("all_reduce", 0, [&] { collectives_.check(); });
  }

  /// Seconds that `calls` launches took on this thread, C++ entry to return.
  double time_launches(uintptr_t in, uintptr_t out, uint64_t bytes, uint32_t calls) {
    const auto begin = std::chrono::steady_clock::now();
    for (uint32_t i = 0; i < calls; ++i) {
      collectives_.all_reduce({reinterpret_cast<const void*>(in), reinterpret_cast<void*>(out), bytes, 0},
                              Format::fp16, Library::large_sizes);
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  void close() { engine_.unusable = "the communicator is closed"; }

  Engine& engine() { return engine_; }

 private:
  sycl::queue& current_queue() {
    if (!current_queue_) return queue_;
    const nb::gil_scoped_acquire lock;  // torch's operators call without it
    const uintptr_t address = nb::cast<uintptr_t>((*current_queue_)());
    return address == 0 ? queue_ : queue_at(address);
  }

  static Limits limits(const SyclCollectives& collectives, uint64_t max_bytes, int32_t device_id) {
    const Layout& layout = collectives.layout();
    return {collectives.on_cpu() ? Limits::kCpu : Limits::kOneApi,
            collectives.on_cpu() ? Limits::kAnyId : device_id,
            layout.world,
            max_bytes,
            layout.slot_bytes,
            layout.slice_bytes,
            16};
  }

  void check(const TensorView& in, const TensorView& out) const {
    check_place(in, "x");
    check_place(out, "out");
    check_pair(in, out, limits_.max_bytes);
  }

  void check_place(const TensorView& tensor, const char* what) const {
    if (tensor.device_type != limits_.device_type) {
      throw Error("WrongDeviceError", std::string(what) +
                                          " is not on this communicator's SYCL device; move it there, or "
                                          "create the communicator for the tensor's device");
    }
  }

  sycl::queue queue_;
  std::optional<nb::callable> current_queue_;
  SyclCollectives collectives_;
  const Limits limits_;
  CheckedEngine<SyclCollectives> engine_;
};

/// The same for a bare submit of an empty kernel, on one work-group as a decode-sized collective's.
double time_empty_launches(PyQueue& queue, uint32_t calls) {
  sycl::queue& q = queue.get();
  const sycl::kernel kernel = empty_kernel(q.get_context());
  const auto begin = std::chrono::steady_clock::now();
  for (uint32_t i = 0; i < calls; ++i) {
    sycl::ext::oneapi::experimental::nd_launch(q, sycl::nd_range<1>(64, 64), kernel);
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

NB_MODULE(_sycl, m) {
  register_errors();
  m.doc() = "Collectives as kernels on SYCL queues.";
  nb::class_<PyQueue>(m, "Queue", "An in-order sycl::queue.")
      .def_static(
          "create",
          [](const std::string& kind, uint32_t index) {
            return new PyQueue(make_queue(kind.c_str(), index));
          },
          "kind"_a = "gpu", "index"_a = 0, nb::rv_policy::take_ownership,
          "Own queue on a \"gpu\" or the \"cpu\".")
      .def_static(
          "at", [](uintptr_t address) { return new PyQueue(address); }, "address"_a,
          nb::rv_policy::take_ownership,
          "The sycl::queue at this address, which must outlive the object: torch.xpu's Stream.sycl_queue, or "
          "dpctl's "
          "SyclQueue.addressof_ref().")
      .def_prop_ro("address", [](const PyQueue& q) { return reinterpret_cast<uintptr_t>(&q.get()); })
      .def_prop_ro(
          "level_zero_handles", [](const PyQueue& q) { return level_zero_handles(q.get()); },
          "Native context and device, zeros on the CPU.")
      .def_prop_ro("device_name",
                   [](const PyQueue& q) { return q.get().get_device().get_info<sycl::info::device::name>(); })
      .def_prop_ro(
          "can_record",
          [](const PyQueue& q) { return q.get().get_device().has(sycl::aspect::ext_oneapi_limited_graph); })
      .def(
          "wait", [](const PyQueue& q) { q.get().wait_and_throw(); },
          nb::call_guard<nb::gil_scoped_release>());
  nb::class_<Graph>(m, "Graph", "Launches on a queue, recorded once and replayed.")
      .def(
          "__init__", [](Graph* self, PyQueue& queue) { new (self) Graph(queue.get()); }, "queue"_a)
      .def("begin", &Graph::begin)
      .def("end", &Graph::end)
      .def("replay", &Graph::replay);
  nb::class_<PySyclCollectives> collectives(m, "SyclCollectives");
  collectives
      .def(nb::init<PyQueue&, const std::vector<uintptr_t>&, uintptr_t, uint32_t, uint32_t, uint32_t,
                    const std::array<std::pair<uint64_t, uint64_t>, 3>&, uint64_t, double,
                    std::optional<bool>, int32_t>(),
           "queue"_a, "addresses"_a, "status_address"_a, "rank"_a, "slot_bytes"_a, "slice_bytes"_a,
           "thresholds"_a, "max_bytes"_a, "timeout"_a, "yielding"_a = nb::none(),
           "device_id"_a = Limits::kAnyId, nb::call_guard<nb::gil_scoped_release>())
      .def("all_reduce", &PySyclCollectives::all_reduce, "x"_a, "out"_a,
           "Launches on the current queue; false if too large.")
      .def("all_reduce_raw", &PySyclCollectives::all_reduce_raw, "x"_a, "out"_a, "nbytes"_a, "format"_a)
      .def("follow", &PySyclCollectives::follow, "current_queue"_a)
      .def(
          "all_reduce_callable",
          [](nb::handle_t<PySyclCollectives> self, nb::object empty_like, nb::object library) {
            return make_all_reduce(
                nb::borrow(self),
                [](void* engine, nb::handle x, nb::handle out) {
                  return static_cast<PySyclCollectives*>(engine)->all_reduce(x, out);
                },
                std::move(empty_like), std::move(library));
          },
          "empty_like"_a, "library"_a)
      .def("wait", &PySyclCollectives::wait, "Waits for the current queue; raises CollectiveTimeout.")
      .def("check", nb::overload_cast<>(&PySyclCollectives::check),
           "Raises CollectiveTimeout if a launched collective gave up.")
      .def("time_launches", &PySyclCollectives::time_launches, "x"_a, "out"_a, "nbytes"_a, "calls"_a,
           "For bench/launch_cost.py: float16 at these addresses; seconds for all calls.")
      .def("close", &PySyclCollectives::close);
  bind_fused(collectives);
  m.def("time_empty_launches", &time_empty_launches, "queue"_a, "calls"_a, "For bench/launch_cost.py.");
  m.def(
      "gpu_build_options",
      [](const std::string& kernel, uint32_t world) {
        for (int which = 0; which < kSyclKernels; ++which) {
          if (kernel == name_of(static_cast<SyclKernel>(which)))
            return gpu_build_options(static_cast<SyclKernel>(which), world);
        }
        throw nb::key_error(kernel.c_str());
      },
      "kernel"_a, "world"_a, "What kernels are compiled with on a GPU, for tests/isa.");
}

}  // namespace lamport
