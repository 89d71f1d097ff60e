/// Arithmetic on the rows of a normalisation.
///
/// PRECISION. 16-bit types are summed and scaled in fp32, whose errors are far below their last place. fp32
/// itself is summed and scaled in Target::Wide: double, or float where a target has no fast fp64, and then
/// the result carries the roundings of an fp32 formula (some 3 units in the last place).
///
/// ORDER OF SUMMATION, fixed within a target: (1) element e of a packet is squared and added to accumulator e
/// of the work-item, over the item's packets in ascending order; (2) the accumulators of an item are halved
/// into each other, e with e + n/2, e with e + n/4, ...; (3) Target::group_sum adds the items of a
/// work-group; (4) partial sums of ranks are added in rank order 0..W-1. Ranks therefore agree on every bit:
/// up to (3) a sum belongs to one rank or is done alike on all, and (4) sees the same words everywhere. The
/// host's instruction sets agree as well (a packet is a cache line on each of them). Targets differ in the
/// size of a packet and of a group, and so in the order, and a GPU's compiler may fuse multiply and add. On
/// each the fp32 sum is within (n + 10) * 2^-24 of the exact one, relatively, n being the packets an item
/// adds up (96 for 3072 16-bit elements on the host): across targets scales differ by less than 2^-17 there,
/// a hundredth of the last place of a 16-bit type.
#pragma once
#include "packet.hpp"

namespace lamport {

/// What sums and scales of T are computed in.
template <class Target, class T>
struct RealOf {
  using Type = float;
};
template <class Target>
struct RealOf<Target, F32> {
  using Type = typename Target::Wide;
};
template <class Target, class T>
using Real = typename RealOf<Target, T>::Type;

/// Accumulators of squares, one for each element of a packet.
template <class Real, int N>
struct Squares {
  Real v[N];
};

/// Their type for the widened packet `Wide`.
template <class Real, class Wide>
struct SquaresOf;
template <class Real, class T, int Words>
struct SquaresOf<Real, Floats<T, Words>> {
  using Type = Squares<Real, Floats<T, Words>::kCount>;
};

template <class Real, int N, class T, int Words>
LAMPORT_FN void add_squares(Squares<Real, N>& sum, const Floats<T, Words>& x) {
  LAMPORT_UNROLL
  for (int i = 0; i < N; ++i) sum.v[i] += static_cast<Real>(x.v[i]) * static_cast<Real>(x.v[i]);
}

/// Step (2) of the order above.
template <class Real, int N>
LAMPORT_FN Real total(Squares<Real, N> sum) {
  LAMPORT_UNROLL
  for (int half = N / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) sum.v[i] += sum.v[i + half];
  }
  return sum.v[0];
}

/// x * scale * weight, multiplied from the left as the formula is written; `gemma`: 1 + weight.
template <class Real, class T, int Words>
LAMPORT_FN Floats<T, Words> scaled(Floats<T, Words> x, Real scale, const Floats<T, Words>& weight,
                                   bool gemma) {
  LAMPORT_UNROLL
  for (int i = 0; i < Floats<T, Words>::kCount; ++i) {
    const Real w = gemma ? 1 + static_cast<Real>(weight.v[i]) : static_cast<Real>(weight.v[i]);
    x.v[i] = static_cast<float>(static_cast<Real>(x.v[i]) * scale * w);
  }
  return x;
}

/// Scale of a row whose squares sum up to `sum` over `full` elements: 1 / sqrt(sum / full + eps), every
/// operation correctly rounded, so that equal sums give equal scales on every target.
template <class Target, class Real>
LAMPORT_FN Real rms_scale(const Target& target, Real sum, float full, float eps) {
  return target.divide(Real{1}, target.square_root(target.divide(sum, static_cast<Real>(full)) + eps));
}

/// Between a widened packet `Wide` and its elements in the order of memory.
template <class Wide>
struct Order;
template <class T, int Words>
struct Order<Floats<T, Words>> {
  using Elements = Floats<T, Words>;
  LAMPORT_FN static Elements elements(const Elements& x) { return x; }
  LAMPORT_FN static Elements packed(const Elements& x) { return x; }
};

template <class Target, class T>
using WideOf = decltype(widen<T, typename Target::Half>(typename Target::Packet{}));
template <class Target, class T>
using TargetSquares = typename SquaresOf<Real<Target, T>, WideOf<Target, T>>::Type;

}  // namespace lamport
