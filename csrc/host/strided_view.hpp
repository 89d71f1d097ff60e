#pragma once
#include <cstdint>

#include "csrc/device/packet.hpp"

namespace lamport {

/// What a fused collective needs to know of a tensor, whatever library it comes from. Borrowed.
struct StridedView {
  static constexpr int kMaxDims = 4;
  enum class Type : uint32_t { fp32 = 0, fp16 = 1, bf16 = 2, int32 = 3, int64 = 4 };

  char* data;
  Type type;
  int32_t device_type;  ///< DLPack's: 1 CPU, 2 CUDA, 14 oneAPI
  int32_t device_id;
  int32_t ndim;
  int64_t sizes[kMaxDims];
  int64_t strides[kMaxDims];  ///< in elements

  uint64_t item_bytes() const {
    return type == Type::int64 ? 8 : type == Type::fp16 || type == Type::bf16 ? 2 : 4;
  }
  bool floating() const { return type <= Type::bf16; }
  Format format() const { return static_cast<Format>(type); }  ///< of a floating type
  int64_t count() const {
    int64_t n = 1;
    for (int i = 0; i < ndim; ++i) n *= sizes[i];
    return n;
  }
};

}  // namespace lamport
