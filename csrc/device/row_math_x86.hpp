/// row_math.hpp's functions for a cache line in vector registers. fp32 takes the general way, in double.
#pragma once
#include "packet_x86.hpp"
#include "row_math.hpp"

namespace lamport {

template <class Real, class T>
struct SquaresOf<Real, LineFloats<T>> {
  using Type = LineFloats<T>;
};
template <class Real>
struct SquaresOf<Real, LineFloats<F32>> {
  using Type = Squares<Real, 16>;
};

template <class T>
struct Order<LineFloats<T>> {
  using Elements = Floats<T, 16>;
  static constexpr int kWords = kRegBytes / 4;

  /// Which element lane k of v[i][j] is.
  static constexpr int index(int i, int j, int k) {
    return T::kFormat == Format::bf16 ? 2 * (i * kWords + k) + j : (i * T::kPerWord + j) * kWords + k;
  }
  LAMPORT_FN static Elements elements(const LineFloats<T>& x) {
    Elements out;
    for (int i = 0; i < kRegs; ++i) {
      for (int j = 0; j < T::kPerWord; ++j) {
        for (int k = 0; k < kWords; ++k) out.v[index(i, j, k)] = x.v[i][j][k];
      }
    }
    return out;
  }
  LAMPORT_FN static LineFloats<T> packed(const Elements& x) {
    LineFloats<T> out;
    for (int i = 0; i < kRegs; ++i) {
      for (int j = 0; j < T::kPerWord; ++j) {
        for (int k = 0; k < kWords; ++k) out.v[i][j][k] = x.v[index(i, j, k)];
      }
    }
    return out;
  }
};

template <class Real>
LAMPORT_FN void add_squares(Squares<Real, 16>& sum, const LineFloats<F32>& x) {
  add_squares(sum, Order<LineFloats<F32>>::elements(x));
}

template <class T>
LAMPORT_FN void add_squares(LineFloats<T>& sum, const LineFloats<T>& x) {
  for (int i = 0; i < kRegs; ++i) {
    for (int j = 0; j < T::kPerWord; ++j) sum.v[i][j] += x.v[i][j] * x.v[i][j];
  }
}

template <class T>
LAMPORT_FN float total(const LineFloats<T>& sum) {
  const Floats<T, 16> elements = Order<LineFloats<T>>::elements(sum);
  Squares<float, 16 * T::kPerWord> in_order;
  __builtin_memcpy(&in_order, &elements, sizeof in_order);
  return total(in_order);
}

LAMPORT_FN LineFloats<F32> scaled(const LineFloats<F32>& x, double scale, const LineFloats<F32>& weight,
                                  bool gemma) {
  using InOrder = Order<LineFloats<F32>>;
  return InOrder::packed(scaled(InOrder::elements(x), scale, InOrder::elements(weight), gemma));
}

template <class T>
LAMPORT_FN LineFloats<T> scaled(LineFloats<T> x, float scale, const LineFloats<T>& weight, bool gemma) {
  for (int i = 0; i < kRegs; ++i) {
    for (int j = 0; j < T::kPerWord; ++j) {
      x.v[i][j] = x.v[i][j] * scale * (gemma ? weight.v[i][j] + 1.0f : weight.v[i][j]);
    }
  }
  return x;
}

}  // namespace lamport
