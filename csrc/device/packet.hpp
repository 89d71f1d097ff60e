/// Packet, element types and the sentinel: what travels, and how numbers get in and out of it.
///
/// A packet is the unit a work-item moves: 16 bytes on GPUs, a cache line on the host. It is made of 32-bit
/// words because a word is the unit of arrival (invariant P2): no fabric tears an aligned 4-byte store, so a
/// word is either still kEmpty or complete, whatever happens to the wider store that carried it.
#pragma once
#include <stdint.h>

// A target that needs more (CUDA: __device__) defines LAMPORT_FN before including this.
#ifndef LAMPORT_FN
#define LAMPORT_FN inline
#endif
// What is rarely run, where code that is not run costs time too.
#ifndef LAMPORT_COLD
#define LAMPORT_COLD LAMPORT_FN
#endif

// LAMPORT_ROLLED keeps a loop as it is: code that runs once a call costs its fetching, and a GPU's item mostly has one
// packet. (Peeling off the first of the chunks, which has no fence, doubled a kernel; four packets a round did so again.)
#if defined(__clang__) || defined(__CUDACC__)
#define LAMPORT_ROLLED _Pragma("unroll 1")
#else
#define LAMPORT_ROLLED _Pragma("GCC unroll 1")
#endif
#if defined(LAMPORT_PLAIN_LOOPS)  // where compile time counts more than speed
#define LAMPORT_UNROLL
#elif defined(__clang__) || defined(__CUDACC__)
#define LAMPORT_UNROLL _Pragma("unroll")
#else
#define LAMPORT_UNROLL _Pragma("GCC unroll 64")
#endif

namespace lamport {

/// The word that means "not yet". As fp32 it is -0.0; as two 16-bit elements, -0.0 above +0.0.
inline constexpr uint32_t kEmpty = 0x80000000u;

enum class Format : uint32_t { fp32 = 0, fp16 = 1, bf16 = 2 };

/// Element types. `kPerWord` elements share a 32-bit word, the lower-addressed one in the low half.
template <Format F>
struct Element {
  static constexpr Format kFormat = F;
  static constexpr int kPerWord = F == Format::fp32 ? 1 : 2;
  static constexpr int kBytes = 4 / kPerWord;
  static constexpr uint32_t kInfinity = F == Format::fp32   ? 0x7f800000u
                                        : F == Format::fp16 ? 0x7c00u
                                                            : 0x7f80u;
  /// The canonical quiet NaN.
  static constexpr uint32_t kNan = F == Format::fp32 ? 0x7fc00000u : F == Format::fp16 ? 0x7e00u : 0x7fc0u;
};
using F32 = Element<Format::fp32>;
using F16 = Element<Format::fp16>;
using BF16 = Element<Format::bf16>;

LAMPORT_FN float bits_to_float(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

LAMPORT_FN uint32_t float_to_bits(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits;
}

/// A payload word must not look like kEmpty; both zeros compare equal, so +0.0 stands in for -0.0.
LAMPORT_FN uint32_t without_empty(uint32_t word) { return word == kEmpty ? 0u : word; }

/// bfloat16, round to nearest even. NaN is excluded by the caller.
LAMPORT_FN uint32_t float_to_bf16(float value) {
  const uint32_t bits = float_to_bits(value);
  return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}

template <int Words>
struct alignas(4 * Words) Packet {
  static constexpr int kWords = Words;
  uint32_t w[Words];
};

/// The elements of one packet, widened to fp32.
template <class T, int Words>
struct Floats {
  static constexpr int kCount = Words * T::kPerWord;
  float v[kCount];
};

/// kEmpty is the least of all words as signed integers: one minimum a word, one comparison a packet.
template <int Words>
LAMPORT_FN bool has_empty(const Packet<Words>& packet) {
  int32_t least = static_cast<int32_t>(packet.w[0]);
  LAMPORT_UNROLL
  for (int i = 1; i < Words; ++i) {
    const int32_t word = static_cast<int32_t>(packet.w[i]);
    least = word < least ? word : least;
  }
  return static_cast<uint32_t>(least) == kEmpty;
}

template <int Words>
LAMPORT_FN Packet<Words> without_empty(Packet<Words> packet) {
  LAMPORT_UNROLL
  for (int i = 0; i < Words; ++i) packet.w[i] = without_empty(packet.w[i]);
  return packet;
}

/// One element to fp32 and back; `Half` supplies the target's fp16 conversions.
template <class T, class Half>
LAMPORT_FN float element_to_float(uint32_t bits) {
  if constexpr (T::kFormat == Format::fp32) {
    return bits_to_float(bits);
  } else if constexpr (T::kFormat == Format::bf16) {
    return bits_to_float(bits << 16);
  } else {
    return Half::to_float(static_cast<uint16_t>(bits));
  }
}

/// Any NaN becomes the type's canonical quiet NaN: hardware disagrees on which payload survives an addition,
/// and results must be the same bits on every rank and every target (P7).
template <class T, class Half>
LAMPORT_FN uint32_t element_from_float(float value) {
  const bool nan = value != value;
  if constexpr (T::kFormat == Format::fp32) {
    return nan ? T::kNan : float_to_bits(value);
  } else if constexpr (T::kFormat == Format::bf16) {
    return nan ? T::kNan : float_to_bf16(value);
  } else {
    return nan ? T::kNan : Half::from_float(value);
  }
}

template <class T, class Half, int Words>
LAMPORT_FN Floats<T, Words> widen(const Packet<Words>& packet) {
  Floats<T, Words> out;
  LAMPORT_UNROLL
  for (int i = 0; i < Words; ++i) {
    if constexpr (T::kPerWord == 1) {
      out.v[i] = element_to_float<T, Half>(packet.w[i]);
    } else {
      out.v[2 * i] = element_to_float<T, Half>(packet.w[i] & 0xffffu);
      out.v[2 * i + 1] = element_to_float<T, Half>(packet.w[i] >> 16);
    }
  }
  return out;
}

template <class T, class Half, int Words>
LAMPORT_FN Packet<Words> rounded(const Floats<T, Words>& in);

/// Rounds sums of a few elements of T, where it does not matter which NaN a NaN becomes: a value on its way.
template <class T, class Half, int Words>
LAMPORT_FN Packet<Words> rounded_any_nan(const Floats<T, Words>& in) {
  if constexpr (T::kPerWord == 2 && Half::kInPairs) {
    Packet<Words> out;
    LAMPORT_UNROLL
    for (int i = 0; i < Words; ++i) out.w[i] = Half::template word<T>(in.v[2 * i], in.v[2 * i + 1]);
    return out;
  } else {
    return rounded<T, Half>(in);
  }
}

/// A 16-bit packet in which every NaN is the type's canonical one.
template <class T, int Words>
LAMPORT_COLD Packet<Words> canonical_nans(Packet<Words> packet) {
  for (int i = 0; i < Words; ++i) {
    for (int shift = 0; shift < 32; shift += 16) {
      if ((packet.w[i] >> shift & 0x7fffu) > T::kInfinity) {
        packet.w[i] = (packet.w[i] & ~(0xffffu << shift)) | T::kNan << shift;
      }
    }
  }
  return packet;
}

/// Rounds once to T (nearest even).
template <class T, class Half, int Words>
LAMPORT_FN Packet<Words> rounded(const Floats<T, Words>& in) {
  Packet<Words> out;
  if constexpr (T::kPerWord == 2 && Half::kInPairs) {
    out = rounded_any_nan<T, Half>(in);
    if (Half::template any_nan<T>(out)) out = canonical_nans<T>(out);  // rare: one question a packet
  } else {
    LAMPORT_UNROLL
    for (int i = 0; i < Words; ++i) {
      if constexpr (T::kPerWord == 1) {
        out.w[i] = element_from_float<T, Half>(in.v[i]);
      } else {
        out.w[i] = element_from_float<T, Half>(in.v[2 * i]) | element_from_float<T, Half>(in.v[2 * i + 1])
                                                                  << 16;
      }
    }
  }
  return out;
}

/// Rounds once to T and makes the result publishable.
template <class T, class Half, int Words>
LAMPORT_FN Packet<Words> narrow(const Floats<T, Words>& in) {
  return without_empty(rounded<T, Half>(in));
}

/// fp16 in integer and fp32 arithmetic, for targets without a conversion instruction.
struct SoftHalf {
  static constexpr bool kInPairs = false;
  LAMPORT_FN static float to_float(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
    const uint32_t magnitude = static_cast<uint32_t>(half & 0x7fffu) << 13;
    if (magnitude >= 0x0f800000u) return bits_to_float(sign | magnitude | 0x7f800000u);  // infinity, NaN
    return bits_to_float(float_to_bits(bits_to_float(magnitude) * 0x1p112f) |
                         sign);  // re-biases, denormals too
  }
  /// Nearest even. NaN is excluded by the caller.
  LAMPORT_FN static uint32_t from_float(float value) {
    const uint32_t sign = (float_to_bits(value) >> 16) & 0x8000u;
    const uint32_t magnitude = float_to_bits(value) & 0x7fffffffu;
    if (magnitude >= 0x47800000u) return sign | 0x7c00u;
    if (magnitude < 0x38800000u) {  // denormal: adding 0.5 makes the FPU round at fp16's last place
      return sign | (float_to_bits(bits_to_float(magnitude) + 0.5f) - 0x3f000000u);
    }
    return sign | ((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13);
  }
};

template <class T, int Words>
LAMPORT_FN void add(Floats<T, Words>& sum, const Floats<T, Words>& term) {
  LAMPORT_UNROLL
  for (int i = 0; i < Floats<T, Words>::kCount; ++i) sum.v[i] += term.v[i];
}

/// How many packets hold `bytes`; the last may be partial.
template <class Target>
LAMPORT_FN uint32_t packets_of(uint64_t bytes) {
  return static_cast<uint32_t>((bytes + 4 * Target::kPacketWords - 1) / (4 * Target::kPacketWords));
}

/// A tensor cut into chunks of one length, none above `capacity` packets.
struct Chunking {
  uint32_t chunks;
  uint32_t length;
};

/// 32 bits (64 GiB in packets of 16 bytes): GPUs divide in software, and 64 bits take a hundred instructions
/// more.
LAMPORT_FN Chunking cut(uint32_t packets, uint32_t capacity) {
  if (packets <= capacity) return {1, packets};  // the usual case, without a division
  const uint32_t chunks = packets / capacity + (packets % capacity != 0);
  return {chunks, packets / chunks + (packets % chunks != 0)};
}

}  // namespace lamport
