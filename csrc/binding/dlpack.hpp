/// The part of DLPack's C ABI (version 1) that reads a tensor, declared anew: the fields are fixed by the
/// specification, and producers hand out pointers to exactly these structures.
#pragma once
#include <cstdint>

namespace lamport::dlpack {

struct Device {
  int32_t type;
  int32_t id;
};
struct DataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};
struct Tensor {
  void* data;
  Device device;
  int32_t ndim;
  DataType dtype;
  int64_t* shape;
  int64_t* strides;  ///< in elements; null means row-major
  uint64_t byte_offset;
};
/// Legacy capsule "dltensor": the tensor is the first field.
struct ManagedTensor {
  Tensor tensor;
};

inline constexpr int32_t kCpu = 1;
inline constexpr uint8_t kInt = 0;
inline constexpr uint8_t kFloat = 2;
inline constexpr uint8_t kBfloat = 4;

/// The table behind type.__dlpack_c_exchange_api__ (capsule "dlpack_exchange_api").
struct ExchangeApi {
  struct {
    uint32_t major;
    uint32_t minor;
  } version;
  ExchangeApi* previous;
  void* managed_tensor_allocator;
  void* managed_tensor_from_py_object;
  void* managed_tensor_to_py_object;
  int (*tensor_from_py_object)(void* object,
                               Tensor* out);  ///< borrowed view, no synchronisation; may be null
  void* current_work_stream;
};

}  // namespace lamport::dlpack
