#pragma once
#include <nanobind/nanobind.h>

#include <cstdint>

#include "csrc/device/packet.hpp"
#include "csrc/host/strided_view.hpp"

namespace lamport {

/// What a collective needs to know of a torch tensor, NumPy array or other DLPack producer. Borrowed: valid
/// while the Python object lives.
struct TensorView {
  void* data;
  uint64_t bytes;
  Format format;
  int32_t device_type;  ///< DLPack's: 1 CPU, 2 CUDA, 14 oneAPI
  int32_t device_id;
};

/// Errors: TensorError for a dtype that is not fp32, fp16 or bf16, for a non-contiguous tensor, and for an
/// object that is no tensor at all. `what` names the argument in messages.
TensorView tensor_view(nanobind::handle object, const char* what);

/// The same with any strides, up to four dimensions, and also int32 and int64.
StridedView strided_view(nanobind::handle object, const char* what);

}  // namespace lamport
