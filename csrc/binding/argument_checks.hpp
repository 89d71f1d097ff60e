#pragma once
#include <cstdint>
#include <string>

#include "csrc/binding/tensor.hpp"
#include "csrc/host/errors.hpp"

namespace lamport {

/// What every device asks of an input and its result, where they live aside. Throws TensorError or a subclass.
inline void check_pair(const TensorView& in, const TensorView& out, uint64_t max_bytes) {
  if (in.format != out.format || in.bytes != out.bytes) {
    throw Error("TensorError", "x and out must have the same dtype and number of elements");
  }
  if (in.bytes > max_bytes) {
    throw Error("TooLargeError", "the tensor has " + std::to_string(in.bytes) + " bytes and max_bytes is " +
                                     std::to_string(max_bytes) +
                                     "; raise max_bytes when creating the communicator");
  }
  const char* a = static_cast<const char*>(in.data);
  const char* b = static_cast<const char*>(out.data);
  if (a != b && a < b + in.bytes && b < a + in.bytes) {
    throw Error("TensorError", "x and out overlap in part; pass out=x to work in place, or separate memory");
  }
}

}  // namespace lamport
