// oneCCL's own C++ API on host buffers, as the benchmark's peer `oneccl`. Module lamport_xpu._oneccl.
//
// One AllReduce object per buffer holds everything that does not change between calls (pointer, count, type,
// attributes), so a timed call is oneCCL's allreduce() and the wait on its event, both native, and nothing
// else.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <oneapi/ccl.hpp>
#include <stdexcept>
#include <string>

namespace nb = nanobind;

namespace {

ccl::datatype datatype(const std::string& name) {
  if (name == "fp32") return ccl::datatype::float32;
  if (name == "fp16") return ccl::datatype::float16;
  if (name == "bf16") return ccl::datatype::bfloat16;
  throw std::invalid_argument("dtype " + name + ": expected fp32, fp16 or bf16");
}

// The address is what rank 0 hands to the others, by whatever channel they already have.
class Kvs {
 public:
  Kvs() : kvs_(ccl::create_main_kvs()) {}
  explicit Kvs(const nb::bytes& address) : kvs_(ccl::create_kvs(unpack(address))) {}

  nb::bytes address() const {
    const auto packed = kvs_->get_address();
    return nb::bytes(packed.data(), packed.size());
  }
  const std::shared_ptr<ccl::kvs>& get() const { return kvs_; }

 private:
  static ccl::kvs::address_type unpack(const nb::bytes& address) {
    ccl::kvs::address_type packed{};
    if (address.size() != packed.size()) throw std::invalid_argument("kvs address has the wrong length");
    std::copy_n(address.c_str(), packed.size(), packed.begin());
    return packed;
  }

  std::shared_ptr<ccl::kvs> kvs_;
};

class Communicator {
 public:
  Communicator(int size, int rank, const Kvs& kvs)
      : kvs_(kvs.get()), comm_(ccl::create_communicator(size, rank, kvs_)) {}

  const ccl::communicator& get() const { return comm_; }

 private:
  std::shared_ptr<ccl::kvs> kvs_;  // must outlive the communicator
  ccl::communicator comm_;
};

// Sum in place over `count` elements at `address`. A non-empty match_id caches the operation under that name
// (to_cache), which oneCCL requires to be the same on all ranks and different for different operations.
class AllReduce {
 public:
  AllReduce(const Communicator& comm, std::uintptr_t address, std::size_t count, const std::string& dtype,
            const std::string& match_id)
      : comm_(comm),
        buffer_(reinterpret_cast<void*>(address)),
        count_(count),
        dtype_(datatype(dtype)),
        attr_(ccl::create_operation_attr<ccl::allreduce_attr>()) {
    if (match_id.empty()) return;
    attr_.set<ccl::operation_attr_id::to_cache>(true);
    attr_.set<ccl::operation_attr_id::match_id>(ccl::string_class(match_id.c_str()));
  }

  void operator()() const {
    ccl::allreduce(buffer_, buffer_, count_, dtype_, ccl::reduction::sum, comm_.get(), attr_).wait();
  }

 private:
  const Communicator& comm_;
  void* buffer_;
  std::size_t count_;
  ccl::datatype dtype_;
  ccl::allreduce_attr attr_;
};

std::string version() {
  const auto v = ccl::get_library_version();
  return std::to_string(v.major) + "." + std::to_string(v.minor) + "." + std::to_string(v.update);
}

}  // namespace

NB_MODULE(_oneccl, m) {
  m.doc() = "oneCCL's C++ API on host buffers, for the benchmark.";
  // Whatever may wait for other ranks lets go of the interpreter, so that a watchdog thread can report a
  // hang.
  using Waits = nb::call_guard<nb::gil_scoped_release>;
  m.def(
      "init", [] { ccl::init(); }, Waits(),
      "Initialise oneCCL; reads the CCL_* environment. Once a process.");
  m.def("version", &version);
  nb::class_<Kvs>(m, "Kvs")
      .def(nb::init<>())
      .def(nb::init<const nb::bytes&>(), nb::arg("address"))
      .def_prop_ro("address", &Kvs::address);
  nb::class_<Communicator>(m, "Communicator")
      .def(nb::init<int, int, const Kvs&>(), nb::arg("size"), nb::arg("rank"), nb::arg("kvs"), Waits());
  nb::class_<AllReduce>(m, "AllReduce")
      .def(nb::init<const Communicator&, std::uintptr_t, std::size_t, const std::string&,
                    const std::string&>(),
           nb::arg("comm"), nb::arg("address"), nb::arg("count"), nb::arg("dtype"), nb::arg("match_id") = "",
           nb::keep_alive<1, 2>())
      .def("__call__", &AllReduce::operator(), Waits());
}
