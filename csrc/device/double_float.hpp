/// A number as the sum of two floats, some 48 bits: what rows of fp32 are summed and scaled in on a device that has no
/// fp64, or a slow one. Range and special values are those of fp32; squares overflow from 1.8e19 on, as in any fp32
/// formula.
///
/// The sums of errors below (Dekker, Knuth) are exact as long as the compiler does not reassociate; it may fuse.
#pragma once
#include "packet.hpp"

namespace lamport {

struct DoubleFloat {
  float hi, lo;

  DoubleFloat() = default;
  LAMPORT_FN DoubleFloat(float value) : hi(value), lo(0) {}
  LAMPORT_FN explicit operator float() const {
    return hi;
  }  // |lo| is at most half a unit in the last place of hi

  /// a + b, where |a| >= |b|. Infinity and NaN have no error: theirs would turn infinity into NaN.
  LAMPORT_FN static DoubleFloat ordered(float a, float b) {
    const float sum = a + b;
    return with_error(sum, b - (sum - a));
  }
  LAMPORT_FN static DoubleFloat sum(float a, float b) {
    const float sum = a + b, second = sum - a;
    return with_error(sum, (a - (sum - second)) + (b - second));
  }
  LAMPORT_FN static DoubleFloat product(float a, float b) {
    const float product = a * b;
    return with_error(product, __builtin_fmaf(a, b, -product));
  }

 private:
  LAMPORT_FN static DoubleFloat with_error(float value, float error) {
    DoubleFloat result(value);
    result.lo = value - value == 0 ? error : 0;
    return result;
  }
};

LAMPORT_FN DoubleFloat operator+(const DoubleFloat& a, const DoubleFloat& b) {
  const DoubleFloat sum = DoubleFloat::sum(a.hi, b.hi);
  return DoubleFloat::ordered(sum.hi, sum.lo + (a.lo + b.lo));
}
LAMPORT_FN DoubleFloat operator*(const DoubleFloat& a, const DoubleFloat& b) {
  const DoubleFloat product = DoubleFloat::product(a.hi, b.hi);
  return DoubleFloat::ordered(product.hi, product.lo + (a.hi * b.lo + a.lo * b.hi));
}
LAMPORT_FN DoubleFloat& operator+=(DoubleFloat& a, const DoubleFloat& b) { return a = a + b; }
LAMPORT_FN bool operator!=(const DoubleFloat& a, const DoubleFloat& b) {
  return a.hi != b.hi || a.lo != b.lo;
}

/// Newton's step on what the hardware divides and takes roots to, however it rounds.
LAMPORT_FN DoubleFloat operator/(const DoubleFloat& a, const DoubleFloat& b) {
  const float quotient = a.hi / b.hi;
  const DoubleFloat product = b * DoubleFloat(quotient);
  return DoubleFloat::ordered(quotient, ((a.hi - product.hi) + (a.lo - product.lo)) / b.hi);
}
/// Of a positive number.
LAMPORT_FN DoubleFloat square_root(const DoubleFloat& a) {
  const float root = __builtin_sqrtf(a.hi);
  const DoubleFloat square = DoubleFloat::product(root, root);
  return DoubleFloat::ordered(root, ((a.hi - square.hi) + (a.lo - square.lo)) / (2 * root));
}

}  // namespace lamport
