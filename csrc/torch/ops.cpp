/// torch.ops.lamport_xpu: the collectives as torch operators, on torch's stable ABI: one build serves every
/// torch from 2.10 on, and no Python runs between the dispatcher and the kernel.
///
/// An operator cannot take a Python object, so a communicator is passed as an integer: its index in the
/// registry below (comm/torch_ops.py fills it). Errors reach Python as RuntimeError, the only class the
/// dispatcher knows; the text begins with the name of the class of comm/errors.py.
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "csrc/host/engine.hpp"

namespace lamport {
namespace {

using torch::stable::Tensor;

/// One thread uses a communicator, and Python's lock serialises registration.
std::vector<Engine*>& registry() {
  static std::vector<Engine*> engines;
  return engines;
}

Engine& engine(int64_t handle) {
  const std::vector<Engine*>& engines = registry();
  if (handle < 0 || handle >= static_cast<int64_t>(engines.size()) || engines[handle] == nullptr) {
    throw Error("ClosedError", "no communicator has the handle " + std::to_string(handle) +
                                   "; take Communicator.torch_handle of an open one");
  }
  return *engines[handle];
}

void check(AOTITorchError error) {
  if (error != AOTI_TORCH_SUCCESS) throw std::runtime_error("torch could not answer for a tensor");
}

[[noreturn]] void throw_dims() {
  throw Error("TensorError",
              "tensors may have up to " + std::to_string(StridedView::kMaxDims) + " dimensions");
}

StridedView view(AtenTensorHandle handle) {
  static const int32_t types[] = {aoti_torch_dtype_float32(), aoti_torch_dtype_float16(),
                                  aoti_torch_dtype_bfloat16(), aoti_torch_dtype_int32(),
                                  aoti_torch_dtype_int64()};
  // DLPack's numbers for the devices; torch keeps its own stable since they are stored in checkpoints.
  static const int32_t cpu = aoti_torch_device_type_cpu(), cuda = aoti_torch_device_type_cuda(),
                       xpu = aoti_torch_device_type_xpu();
  StridedView out{};
  int32_t type, device;
  int64_t ndim, *sizes, *strides;
  void* data;
  check(aoti_torch_get_dtype(handle, &type));
  check(aoti_torch_get_device_type(handle, &device));
  check(aoti_torch_get_device_index(handle, &out.device_id));
  check(aoti_torch_get_dim(handle, &ndim));
  check(aoti_torch_get_sizes(handle, &sizes));
  check(aoti_torch_get_strides(handle, &strides));
  check(aoti_torch_get_data_ptr(handle, &data));
  int index = 0;
  while (index < 5 && types[index] != type) ++index;
  if (index == 5) {
    throw Error("UnsupportedDtypeError", "tensors must be float32, float16 or bfloat16; convert them");
  }
  if (ndim > StridedView::kMaxDims) throw_dims();
  out.data = static_cast<char*>(data);
  out.type = static_cast<StridedView::Type>(index);
  out.device_type = device == cpu ? 1 : device == cuda ? 2 : device == xpu ? 14 : -1;
  out.ndim = static_cast<int32_t>(ndim);
  for (int64_t i = 0; i < ndim; ++i) {
    out.sizes[i] = sizes[i];
    out.strides[i] = strides[i];
  }
  return out;
}

StridedView view(const Tensor& tensor) { return view(tensor.get()); }

/// An uninitialised, contiguous tensor of `like`'s dtype and device.
AtenTensorHandle empty(AtenTensorHandle like, const int64_t* sizes, int64_t ndim) {
  int32_t type, device, index;
  check(aoti_torch_get_dtype(like, &type));
  check(aoti_torch_get_device_type(like, &device));
  check(aoti_torch_get_device_index(like, &index));
  if (ndim > StridedView::kMaxDims) throw_dims();
  int64_t strides[StridedView::kMaxDims], count = 1;
  for (int64_t i = ndim - 1; i >= 0; --i) {
    strides[i] = count;
    count *= sizes[i];
  }
  AtenTensorHandle handle;
  check(aoti_torch_empty_strided(ndim, sizes, strides, type, device, index, &handle));
  return handle;
}

AtenTensorHandle empty_like(AtenTensorHandle like) {
  int64_t ndim, *sizes;
  check(aoti_torch_get_dim(like, &ndim));
  check(aoti_torch_get_sizes(like, &sizes));
  return empty(like, sizes, ndim);
}

/// A tensor of the dispatcher's stack, ours to free: torch's wrapper allocates memory for each.
class Held {
 public:
  explicit Held(AtenTensorHandle handle) : handle_(handle) {}
  explicit Held(StableIValue value) : Held(torch::stable::detail::to<AtenTensorHandle>(value)) {}
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() {
    if (handle_ != nullptr) aoti_torch_delete_tensor_object(handle_);
  }
  AtenTensorHandle get() const { return handle_; }
  StableIValue release() { return torch::stable::detail::from(std::exchange(handle_, nullptr)); }

 private:
  AtenTensorHandle handle_;
};

int64_t integer(StableIValue value) { return torch::stable::detail::to<int64_t>(value); }

/// The dispatcher shows only what(): the class goes in front of it.
template <class Call>
auto reporting(Call call) {
  try {
    return call();
  } catch (const Error& error) {
    throw std::runtime_error(std::string(error.python_class) + ": " + error.what());
  }
}

// Boxed by hand, since they cost no more than their arguments.

void all_reduce_(StableIValue* stack, uint64_t, uint64_t) {
  const Held x(stack[0]);
  reporting([&] {
    const StridedView v = view(x.get());
    engine(integer(stack[1])).all_reduce(v, v, Library::never);
  });
}

void all_reduce(StableIValue* stack, uint64_t, uint64_t) {
  const Held x(stack[0]);
  stack[0] = reporting([&] {
    Held out(empty_like(x.get()));
    engine(integer(stack[1])).all_reduce(view(x.get()), view(out.get()), Library::never);
    return out.release();
  });
}

void add_all_reduce_(StableIValue* stack, uint64_t, uint64_t) {
  const Held routed(stack[0]), shared(stack[1]);
  reporting([&] {
    const StridedView v = view(routed.get());
    engine(integer(stack[2])).add_all_reduce(v, view(shared.get()), v, Library::never);
  });
}

void add_all_reduce(StableIValue* stack, uint64_t, uint64_t) {
  const Held routed(stack[0]), shared(stack[1]);
  stack[0] = reporting([&] {
    Held out(empty_like(routed.get()));
    engine(integer(stack[2]))
        .add_all_reduce(view(routed.get()), view(shared.get()), view(out.get()), Library::never);
    return out.release();
  });
}

/// Columns [first, first + count) of a matrix; what does not fit is left for the checks to refuse.
StridedView columns(StridedView matrix, int64_t first, int64_t count) {
  if (matrix.ndim == 2) {
    matrix.data += first * matrix.strides[1] * static_cast<int64_t>(matrix.item_bytes());
    matrix.sizes[1] = count;
  }
  return matrix;
}

void qk_rms_norm_(Tensor qkv, Tensor q_weight, Tensor k_weight, int64_t q_size, int64_t kv_size, double eps,
                  int64_t comm) {
  reporting([&] {
    const StridedView x = view(qkv);
    engine(comm).qk_rms_norm(x, view(q_weight), view(k_weight), q_size, kv_size, eps, columns(x, 0, q_size),
                             columns(x, q_size, kv_size));
  });
}

std::tuple<Tensor, Tensor> qk_rms_norm(Tensor qkv, Tensor q_weight, Tensor k_weight, int64_t q_size,
                                       int64_t kv_size, double eps, int64_t comm) {
  return reporting([&] {
    const StridedView x = view(qkv);
    if (x.ndim != 2 || q_size < 1 || kv_size < 1) {
      throw Error("TensorError", "qkv must be 2-D, and q_size and kv_size positive");
    }
    const int64_t q_shape[] = {x.sizes[0], q_size}, k_shape[] = {x.sizes[0], kv_size};
    const Tensor q(empty(qkv.get(), q_shape, 2)), k(empty(qkv.get(), k_shape, 2));
    engine(comm).qk_rms_norm(x, view(q_weight), view(k_weight), q_size, kv_size, eps, view(q), view(k));
    return std::make_tuple(q, k);
  });
}

void add_norm(const Tensor& routed, const std::optional<Tensor>& shared, const Tensor& residual,
              const Tensor& weight, double eps, bool gemma, int64_t comm, const Tensor& normed,
              const Tensor& new_residual) {
  StridedView second;
  if (shared.has_value()) second = view(*shared);
  engine(comm).add_all_reduce_rms_norm(view(routed), shared.has_value() ? &second : nullptr, view(residual),
                                       view(weight), eps, gemma, view(normed), view(new_residual));
}

void add_all_reduce_rms_norm_(Tensor routed, std::optional<Tensor> shared, Tensor residual, Tensor weight,
                              double eps, bool gemma, int64_t comm) {
  reporting([&] { add_norm(routed, shared, residual, weight, eps, gemma, comm, routed, residual); });
}

std::tuple<Tensor, Tensor> add_all_reduce_rms_norm(Tensor routed, std::optional<Tensor> shared,
                                                   Tensor residual, Tensor weight, double eps, bool gemma,
                                                   int64_t comm) {
  return reporting([&] {
    const Tensor normed(empty_like(routed.get())), new_residual(empty_like(routed.get()));
    add_norm(routed, shared, residual, weight, eps, gemma, comm, normed, new_residual);
    return std::make_tuple(normed, new_residual);
  });
}

void sconv_norm(const Tensor& routed, const std::optional<Tensor>& shared, const Tensor& residual,
                const Tensor& conv_weight, const std::optional<Tensor>& norm_weight, double eps,
                const Tensor& cache, const Tensor& positions, const Tensor& slot_mapping,
                const Tensor& block_table, const Tensor& seq_idx, int64_t channel_offset, int64_t comm,
                const Tensor& normed, const Tensor& new_residual) {
  StridedView second, weight, result;
  SconvTensors t{};
  t.routed = view(routed);
  if (shared.has_value()) {
    second = view(*shared);
    t.shared = &second;
  }
  t.residual = view(residual);
  t.conv_weight = view(conv_weight);
  if (norm_weight.has_value()) {
    weight = view(*norm_weight);
    result = view(normed);
    t.norm_weight = &weight;
    t.normed = &result;
  }
  t.cache = view(cache);
  t.positions = view(positions);
  t.slots = view(slot_mapping);
  t.block_table = view(block_table);
  t.sequences = view(seq_idx);
  t.new_residual = view(new_residual);
  engine(comm).rs_sconv_ag_norm(t, channel_offset, eps);
}

/// Without norm_weight, `normed` is empty.
std::tuple<Tensor, Tensor> rs_sconv_ag_norm(Tensor routed, std::optional<Tensor> shared, Tensor residual,
                                            Tensor conv_weight, std::optional<Tensor> norm_weight, double eps,
                                            Tensor cache, Tensor positions, Tensor slot_mapping,
                                            Tensor block_table, Tensor seq_idx, int64_t channel_offset,
                                            int64_t comm) {
  return reporting([&] {
    const int64_t none[] = {0};
    const Tensor normed(norm_weight.has_value() ? empty_like(routed.get()) : empty(routed.get(), none, 1));
    const Tensor new_residual(empty_like(routed.get()));
    sconv_norm(routed, shared, residual, conv_weight, norm_weight, eps, cache, positions, slot_mapping,
               block_table, seq_idx, channel_offset, comm, normed, new_residual);
    return std::make_tuple(normed, new_residual);
  });
}

void rs_sconv_ag_norm_(Tensor routed, std::optional<Tensor> shared, Tensor residual, Tensor conv_weight,
                       std::optional<Tensor> norm_weight, double eps, Tensor cache, Tensor positions,
                       Tensor slot_mapping, Tensor block_table, Tensor seq_idx, int64_t channel_offset,
                       int64_t comm) {
  reporting([&] {
    sconv_norm(routed, shared, residual, conv_weight, norm_weight, eps, cache, positions, slot_mapping,
               block_table, seq_idx, channel_offset, comm, routed, residual);
  });
}

}  // namespace
}  // namespace lamport

/// The registry, for comm/torch_ops.py (ctypes). Handles are not reused: a stale one finds nothing.
extern "C" __attribute__((visibility("default"))) int64_t lamport_register_engine(void* engine) {
  lamport::registry().push_back(static_cast<lamport::Engine*>(engine));
  return static_cast<int64_t>(lamport::registry().size()) - 1;
}
extern "C" __attribute__((visibility("default"))) void lamport_forget_engine(int64_t handle) {
  lamport::registry().at(static_cast<size_t>(handle)) = nullptr;
}

STABLE_TORCH_LIBRARY(lamport_xpu, m) {
  m.def("all_reduce(Tensor x, int comm) -> Tensor");
  m.def("all_reduce_(Tensor(a!) x, int comm) -> ()");
  m.def("add_all_reduce(Tensor routed, Tensor shared, int comm) -> Tensor");
  m.def("add_all_reduce_(Tensor(a!) routed, Tensor shared, int comm) -> ()");
  m.def(
      "qk_rms_norm(Tensor qkv, Tensor q_weight, Tensor k_weight, int q_size, int kv_size, float eps, int "
      "comm) "
      "-> (Tensor, Tensor)");
  m.def(
      "qk_rms_norm_(Tensor(a!) qkv, Tensor q_weight, Tensor k_weight, int q_size, int kv_size, float eps, "
      "int comm) -> ()");
  m.def(
      "add_all_reduce_rms_norm(Tensor routed, Tensor? shared, Tensor residual, Tensor weight, float eps, "
      "bool gemma, int comm) -> (Tensor, Tensor)");
  m.def(
      "add_all_reduce_rms_norm_(Tensor(a!) routed, Tensor? shared, Tensor(b!) residual, Tensor weight, float "
      "eps, "
      "bool gemma, int comm) -> ()");
  m.def(
      "rs_sconv_ag_norm(Tensor routed, Tensor? shared, Tensor residual, Tensor conv_weight, Tensor? "
      "norm_weight, "
      "float eps, Tensor(a!) cache, Tensor positions, Tensor slot_mapping, Tensor block_table, Tensor "
      "seq_idx, "
      "int channel_offset, int comm) -> (Tensor, Tensor)");
  m.def(
      "rs_sconv_ag_norm_(Tensor(a!) routed, Tensor? shared, Tensor(b!) residual, Tensor conv_weight, "
      "Tensor? norm_weight, float eps, Tensor(c!) cache, Tensor positions, Tensor slot_mapping, "
      "Tensor block_table, Tensor seq_idx, int channel_offset, int comm) -> ()");
}

// Whatever the device: the engine behind the handle knows its own and refuses others.
STABLE_TORCH_LIBRARY_IMPL(lamport_xpu, CompositeExplicitAutograd, m) {
  m.impl("all_reduce", lamport::all_reduce);
  m.impl("all_reduce_", lamport::all_reduce_);
  m.impl("add_all_reduce", lamport::add_all_reduce);
  m.impl("add_all_reduce_", lamport::add_all_reduce_);
  m.impl("qk_rms_norm", TORCH_BOX(&lamport::qk_rms_norm));
  m.impl("qk_rms_norm_", TORCH_BOX(&lamport::qk_rms_norm_));
  m.impl("add_all_reduce_rms_norm", TORCH_BOX(&lamport::add_all_reduce_rms_norm));
  m.impl("add_all_reduce_rms_norm_", TORCH_BOX(&lamport::add_all_reduce_rms_norm_));
  m.impl("rs_sconv_ag_norm", TORCH_BOX(&lamport::rs_sconv_ag_norm));
  m.impl("rs_sconv_ag_norm_", TORCH_BOX(&lamport::rs_sconv_ag_norm_));
}
