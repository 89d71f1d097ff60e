/// The single questions of fused_checks.hpp. Each throws Error where the answer is no.
#pragma once
#include <cmath>
#include <initializer_list>
#include <string>

#include "csrc/host/errors.hpp"
#include "csrc/host/fused_checks.hpp"

namespace lamport::checks {

/// A tensor and what its argument is called.
struct Named {
  const StridedView& view;
  const char* name;
};

inline std::string shape(const StridedView& view) {
  std::string text = "[";
  for (int i = 0; i < view.ndim; ++i) text += (i > 0 ? ", " : "") + std::to_string(view.sizes[i]);
  return text + "]";
}

[[noreturn]] inline void refuse(const std::string& message) { throw Error("TensorError", message); }

inline void check_device(const Limits& limits, std::initializer_list<Named> tensors) {
  for (const Named& t : tensors) {
    const bool right_one = limits.device_id == Limits::kAnyId || t.view.device_id == limits.device_id;
    if (t.view.device_type != limits.device_type || !right_one) {
      throw Error("WrongDeviceError",
                  std::string(t.name) +
                      " is on another device than the communicator; move it there, or create "
                      "the communicator for its device");
    }
  }
}

inline void check_type(const Named& first, std::initializer_list<Named> tensors) {
  if (!first.view.floating()) {
    throw Error("UnsupportedDtypeError", std::string(first.name) + " must be float32, float16 or bfloat16");
  }
  for (const Named& t : tensors) {
    if (t.view.type != first.view.type)
      refuse(std::string(t.name) + " must have the dtype of " + first.name + "; convert it");
  }
}

inline void check_contiguous(std::initializer_list<Named> tensors) {
  for (const Named& t : tensors) {
    int64_t expected = 1;
    for (int i = t.view.ndim - 1; i >= 0; --i) {
      if (t.view.sizes[i] > 1 && t.view.strides[i] != expected) {
        throw Error("NonContiguousError",
                    std::string(t.name) + " is not contiguous; pass " + t.name + ".contiguous()");
      }
      expected *= t.view.sizes[i];
    }
  }
}

inline void check_same_shape(const Named& first, std::initializer_list<Named> tensors) {
  for (const Named& t : tensors) {
    bool same = t.view.ndim == first.view.ndim;
    for (int i = 0; same && i < first.view.ndim; ++i) same = t.view.sizes[i] == first.view.sizes[i];
    if (!same) {
      refuse(std::string(t.name) + " has shape " + shape(t.view) + " and " + first.name + " has " +
             shape(first.view) + "; they must be the same");
    }
  }
}

inline void check_vector(const Named& t, int64_t length) {
  if (t.view.ndim != 1 || t.view.sizes[0] != length) {
    refuse(std::string(t.name) + " has shape " + shape(t.view) + " and must have [" + std::to_string(length) +
           "]");
  }
}

inline float check_eps(double eps) {
  if (!(eps > 0) || !std::isfinite(eps))
    refuse("eps must be positive and finite, got " + std::to_string(eps));
  return static_cast<float>(eps);
}

inline void check_bytes(const Limits& limits, const Named& t) {
  const uint64_t bytes = static_cast<uint64_t>(t.view.count()) * t.view.item_bytes();
  if (bytes > limits.max_bytes) {
    throw Error("TooLargeError", std::string(t.name) + " has " + std::to_string(bytes) +
                                     " bytes and max_bytes is " + std::to_string(limits.max_bytes) +
                                     "; raise max_bytes when creating the communicator");
  }
}

/// From the first byte to past the last.
struct Extent {
  const char* begin;
  const char* end;
};

inline Extent extent(const StridedView& view) {
  int64_t last = 0;
  for (int i = 0; i < view.ndim; ++i) {
    if (view.sizes[i] == 0) return {view.data, view.data};
    last += (view.sizes[i] - 1) * view.strides[i];
  }
  return {view.data, view.data + (last + 1) * static_cast<int64_t>(view.item_bytes())};
}

inline bool same_memory(const StridedView& a, const StridedView& b) {
  if (a.data != b.data || a.ndim != b.ndim) return false;
  for (int i = 0; i < a.ndim; ++i) {
    if (a.sizes[i] != b.sizes[i] || (a.sizes[i] > 1 && a.strides[i] != b.strides[i])) return false;
  }
  return true;
}

/// `out` may be exactly one of `may_be`, and must not touch anything else.
inline void check_alias(const Named& out, std::initializer_list<Named> may_be,
                        std::initializer_list<Named> others) {
  const Extent mine = extent(out.view);
  const auto apart = [&](const Named& other) {
    const Extent theirs = extent(other.view);
    return mine.begin == mine.end || mine.end <= theirs.begin || theirs.end <= mine.begin;
  };
  for (const Named& other : may_be) {
    if (!apart(other) && !same_memory(out.view, other.view))
      refuse(std::string(out.name) + " and " + other.name +
             " overlap in part; pass the same memory or separate");
  }
  for (const Named& other : others) {
    if (!apart(other)) refuse(std::string(out.name) + " overlaps " + other.name + "; pass separate memory");
  }
}

/// Two-dimensional with contiguous rows that do not overlap.
inline void check_rows(const Named& t) {
  if (t.view.ndim != 2) refuse(std::string(t.name) + " has shape " + shape(t.view) + " and must be 2-D");
  const bool packed = t.view.sizes[1] <= 1 || t.view.strides[1] == 1;
  const bool apart = t.view.sizes[0] <= 1 || t.view.strides[0] >= t.view.sizes[1];
  if (!packed || !apart) {
    throw Error("NonContiguousError", std::string(t.name) + " must have contiguous, separate rows; pass " +
                                          t.name + ".contiguous()");
  }
}

}  // namespace lamport::checks
