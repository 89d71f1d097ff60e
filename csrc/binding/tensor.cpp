#include "csrc/binding/tensor.hpp"

#include <string>
#include <unordered_map>

#include "csrc/binding/dlpack.hpp"
#include "csrc/host/errors.hpp"

namespace nb = nanobind;

namespace lamport {
namespace {

/// The fast way, where a type offers it (torch does): a C call, no Python objects. Looked up once per type;
/// the map holds a reference to the type, so an address is never reused.
const dlpack::ExchangeApi* exchange_api(PyTypeObject* type) {
  static PyTypeObject* latest = nullptr;  // a program passes one tensor type: no hashing for it
  static const dlpack::ExchangeApi* latest_api = nullptr;
  if (type == latest) return latest_api;
  static auto* cache = new std::unordered_map<PyTypeObject*, const dlpack::ExchangeApi*>();
  const auto found = cache->find(type);
  if (found != cache->end()) {
    latest = type;
    return latest_api = found->second;
  }
  const dlpack::ExchangeApi* api = nullptr;
  nb::object capsule =
      nb::getattr(nb::handle(reinterpret_cast<PyObject*>(type)), "__dlpack_c_exchange_api__", nb::none());
  if (PyCapsule_CheckExact(capsule.ptr())) {
    api = static_cast<const dlpack::ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
    if (api == nullptr) throw nb::python_error();
    while (api != nullptr && api->version.major != 1) api = api->previous;
    if (api != nullptr && api->tensor_from_py_object == nullptr) api = nullptr;
  }
  Py_INCREF(type);
  return cache->emplace(type, api).first->second;
}

TensorView view_of(const dlpack::Tensor& tensor, const char* what) {
  TensorView view{};
  const dlpack::DataType type = tensor.dtype;
  if (type.code == dlpack::kFloat && type.bits == 32 && type.lanes == 1) {
    view.format = Format::fp32;
  } else if (type.code == dlpack::kFloat && type.bits == 16 && type.lanes == 1) {
    view.format = Format::fp16;
  } else if (type.code == dlpack::kBfloat && type.bits == 16 && type.lanes == 1) {
    view.format = Format::bf16;
  } else {
    throw Error("UnsupportedDtypeError",
                std::string(what) +
                    " must be float32, float16 or bfloat16; convert it, e.g. with .to(torch.float32)");
  }
  int64_t count = 1;
  for (int i = tensor.ndim - 1; i >= 0; --i) {
    if (tensor.strides != nullptr && tensor.shape[i] > 1 && tensor.strides[i] != count) {
      throw Error("NonContiguousError",
                  std::string(what) + " is not contiguous; pass " + what + ".contiguous()");
    }
    count *= tensor.shape[i];
  }
  view.data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  view.bytes = static_cast<uint64_t>(count) * (type.bits / 8);
  view.device_type = tensor.device.type;
  view.device_id = tensor.device.id;
  return view;
}

bool is(const dlpack::DataType& type, uint8_t code, uint8_t bits) {
  return type.code == code && type.bits == bits && type.lanes == 1;
}

StridedView strided_view_of(const dlpack::Tensor& tensor, const char* what) {
  StridedView view{};
  if (is(tensor.dtype, dlpack::kFloat, 32)) {
    view.type = StridedView::Type::fp32;
  } else if (is(tensor.dtype, dlpack::kFloat, 16)) {
    view.type = StridedView::Type::fp16;
  } else if (is(tensor.dtype, dlpack::kBfloat, 16)) {
    view.type = StridedView::Type::bf16;
  } else if (is(tensor.dtype, dlpack::kInt, 32)) {
    view.type = StridedView::Type::int32;
  } else if (is(tensor.dtype, dlpack::kInt, 64)) {
    view.type = StridedView::Type::int64;
  } else {
    throw Error(
        "UnsupportedDtypeError",
        std::string(what) + " must be float32, float16 or bfloat16 (an index: int32 or int64); convert it");
  }
  if (tensor.ndim > StridedView::kMaxDims) {
    throw Error("TensorError", std::string(what) + " has more than " + std::to_string(StridedView::kMaxDims) +
                                   " dimensions; pass a view with fewer");
  }
  view.ndim = tensor.ndim;
  int64_t count = 1;
  for (int i = tensor.ndim - 1; i >= 0; --i) {
    view.sizes[i] = tensor.shape[i];
    view.strides[i] = tensor.strides != nullptr ? tensor.strides[i] : count;
    count *= tensor.shape[i];
  }
  view.data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  view.device_type = tensor.device.type;
  view.device_id = tensor.device.id;
  return view;
}

/// NumPy's way: the buffer protocol (its DLPack export builds Python objects). bfloat16 has no buffer format.
template <class View>
bool view_of_buffer(nb::handle object, const char* what, View (*read)(const dlpack::Tensor&, const char*),
                    View& view) {
  Py_buffer buffer;
  if (PyObject_GetBuffer(object.ptr(), &buffer, PyBUF_STRIDES | PyBUF_FORMAT) != 0) {
    PyErr_Clear();  // no buffer, or a dtype without a format: DLPack may still know it
    return false;
  }
  const std::string format = buffer.format == nullptr ? "B" : buffer.format;
  dlpack::Tensor tensor{};
  int64_t strides[PyBUF_MAX_NDIM];
  tensor.data = buffer.buf;
  tensor.device = {dlpack::kCpu, 0};
  tensor.ndim = buffer.ndim;
  tensor.shape = buffer.shape;
  for (int i = 0; i < buffer.ndim; ++i) strides[i] = buffer.strides[i] / buffer.itemsize;
  tensor.strides = strides;
  if (format == "f" || format == "e") {
    tensor.dtype = {dlpack::kFloat, static_cast<uint8_t>(8 * buffer.itemsize), 1};
  } else if (format == "i" || format == "l" || format == "q") {
    tensor.dtype = {dlpack::kInt, static_cast<uint8_t>(8 * buffer.itemsize), 1};
  }
  try {
    view = read(tensor, what);
  } catch (...) {
    PyBuffer_Release(&buffer);
    throw;
  }
  PyBuffer_Release(&buffer);
  return true;
}

/// The producer's own refusal (torch: "Cannot pack tensors on meta"), without the stack trace torch appends.
Error unreadable(const char* what) {
  const nb::python_error cause;
  const std::string text = nb::str(cause.value()).c_str();
  return Error("TensorError",
               std::string(what) + " cannot be read through DLPack: " + text.substr(0, text.find('\n')));
}

template <class View>
View view_any(nb::handle object, const char* what, View (*read)(const dlpack::Tensor&, const char*)) {
  if (const dlpack::ExchangeApi* api = exchange_api(Py_TYPE(object.ptr()))) {
    dlpack::Tensor tensor;
    if (api->tensor_from_py_object(object.ptr(), &tensor) != 0) throw unreadable(what);
    return read(tensor, what);
  }
  View view;
  if (PyObject_CheckBuffer(object.ptr()) && view_of_buffer(object, what, read, view)) return view;
  if (!nb::hasattr(object, "__dlpack__")) {
    throw Error("TensorError", std::string(what) +
                                   " must be a tensor: a torch tensor, NumPy array, dpctl USM array or "
                                   "another object with __dlpack__");
  }
  const nb::object capsule = object.attr("__dlpack__")();
  auto* managed = static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
  if (managed == nullptr) throw nb::python_error();
  return read(managed->tensor, what);  // the memory is the object's; the capsule only described it
}

}  // namespace

TensorView tensor_view(nb::handle object, const char* what) { return view_any(object, what, view_of); }

StridedView strided_view(nb::handle object, const char* what) {
  return view_any(object, what, strided_view_of);
}

}  // namespace lamport
