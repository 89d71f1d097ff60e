/// A cache line as a packet, in one AVX-512 register or two AVX2 ones. Same functions as packet.hpp.
#pragma once
#include <immintrin.h>

#include "packet.hpp"

namespace lamport {

#if defined(__AVX512F__)
inline constexpr int kRegBytes = 64;
typedef __m256i HalfReg;
#else
inline constexpr int kRegBytes = 32;
typedef __m128i HalfReg;
#endif
inline constexpr int kRegs = 64 / kRegBytes;
typedef uint32_t WordReg __attribute__((vector_size(kRegBytes)));
typedef float FloatReg __attribute__((vector_size(kRegBytes)));
typedef uint32_t UnalignedWordReg __attribute__((vector_size(kRegBytes), aligned(1), may_alias));

struct LinePacket {
  WordReg r[kRegs];
};

/// One register of words becomes kPerWord registers of floats. bf16: the low halves, then the high halves;
/// fp16: the lower half of the register, then the upper. Only add and narrow ever see the order.
template <class T>
struct LineFloats {
  FloatReg v[kRegs][T::kPerWord];
};

LAMPORT_FN WordReg all_words(uint32_t value) { return WordReg{} + value; }

LAMPORT_FN bool has_empty(const LinePacket& packet) {
#if defined(__AVX512F__)
  return _mm512_cmpeq_epi32_mask((__m512i)packet.r[0], (__m512i)all_words(kEmpty)) != 0;
#else
  const WordReg equal =
      (WordReg)(packet.r[0] == all_words(kEmpty)) | (WordReg)(packet.r[1] == all_words(kEmpty));
  return !_mm256_testz_si256((__m256i)equal, (__m256i)equal);
#endif
}

#if defined(__AVX512F__)  // through mask registers: the general form costs a trip out of them and back
LAMPORT_FN WordReg without_empty(WordReg words) {
  const __mmask16 kept = _mm512_cmpneq_epi32_mask((__m512i)words, (__m512i)all_words(kEmpty));
  return (WordReg)_mm512_maskz_mov_epi32(kept, (__m512i)words);
}
LAMPORT_FN WordReg canonical_nan(FloatReg v) {
  const __mmask16 nan = _mm512_cmp_ps_mask((__m512)v, (__m512)v, _CMP_UNORD_Q);
  return (WordReg)_mm512_mask_mov_epi32((__m512i)v, nan, (__m512i)all_words(0x7fc00000u));
}
#else
LAMPORT_FN WordReg without_empty(WordReg words) { return words & ~(WordReg)(words == all_words(kEmpty)); }

LAMPORT_FN WordReg canonical_nan(FloatReg v) {
  const WordReg nan = (WordReg)(v != v);
  return ((WordReg)v & ~nan) | (all_words(0x7fc00000u) & nan);
}
#endif

LAMPORT_FN LinePacket without_empty(LinePacket packet) {
  for (int i = 0; i < kRegs; ++i) packet.r[i] = without_empty(packet.r[i]);
  return packet;
}

LAMPORT_FN FloatReg half_to_float(HalfReg half) {
#if defined(__AVX512F__)
  return (FloatReg)_mm512_cvtph_ps(half);
#else
  return (FloatReg)_mm256_cvtph_ps(half);
#endif
}

LAMPORT_FN HalfReg float_to_half(WordReg v) {
#if defined(__AVX512F__)
  return _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  return _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#endif
}

LAMPORT_FN HalfReg lower(WordReg v) {
#if defined(__AVX512F__)
  return _mm512_castsi512_si256((__m512i)v);
#else
  return _mm256_castsi256_si128((__m256i)v);
#endif
}

LAMPORT_FN HalfReg upper(WordReg v) {
#if defined(__AVX512F__)
  return _mm512_extracti64x4_epi64((__m512i)v, 1);
#else
  return _mm256_extracti128_si256((__m256i)v, 1);
#endif
}

LAMPORT_FN WordReg join(HalfReg low, HalfReg high) {
#if defined(__AVX512F__)
  return (WordReg)_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
#else
  return (WordReg)_mm256_set_m128i(high, low);
#endif
}

template <class T, class>
LAMPORT_FN LineFloats<T> widen(const LinePacket& packet) {
  LineFloats<T> out;
  for (int i = 0; i < kRegs; ++i) {
    const WordReg words = packet.r[i];
    if constexpr (T::kFormat == Format::fp32) {
      out.v[i][0] = (FloatReg)words;
    } else if constexpr (T::kFormat == Format::bf16) {
      out.v[i][0] = (FloatReg)(words << 16);
      out.v[i][1] = (FloatReg)(words & 0xffff0000u);
    } else {
      out.v[i][0] = half_to_float(lower(words));
      out.v[i][1] = half_to_float(upper(words));
    }
  }
  return out;
}

/// bfloat16 in the high half of each word, round to nearest even.
LAMPORT_FN WordReg rounded_to_bf16(WordReg bits) { return bits + 0x7fffu + ((bits >> 16) & 1u); }

template <class T>
LAMPORT_FN LinePacket rounded_words(const WordReg (&in)[kRegs][T::kPerWord]) {
  LinePacket out;
  for (int i = 0; i < kRegs; ++i) {
    if constexpr (T::kFormat == Format::fp32) {
      out.r[i] = in[i][0];
    } else if constexpr (T::kFormat == Format::bf16) {
      out.r[i] = (rounded_to_bf16(in[i][0]) >> 16) | (rounded_to_bf16(in[i][1]) & 0xffff0000u);
    } else {
      out.r[i] = join(float_to_half(in[i][0]), float_to_half(in[i][1]));
    }
  }
  return out;
}

template <class T, class>
LAMPORT_FN LinePacket rounded(const LineFloats<T>& in) {
  WordReg words[kRegs][T::kPerWord];
  for (int i = 0; i < kRegs; ++i) {
    for (int j = 0; j < T::kPerWord; ++j) words[i][j] = canonical_nan(in.v[i][j]);
  }
  return rounded_words<T>(words);
}

/// A NaN that comes from elements of T has no bits below T's: rounding keeps it one as it is.
template <class T, class>
LAMPORT_FN LinePacket rounded_any_nan(const LineFloats<T>& in) {
  WordReg words[kRegs][T::kPerWord];
  for (int i = 0; i < kRegs; ++i) {
    for (int j = 0; j < T::kPerWord; ++j) words[i][j] = (WordReg)in.v[i][j];
  }
  return rounded_words<T>(words);
}

template <class T, class Half>
LAMPORT_FN LinePacket narrow(const LineFloats<T>& in) {
  return without_empty(rounded<T, Half>(in));
}

template <class T>
LAMPORT_FN void add(LineFloats<T>& sum, const LineFloats<T>& term) {
  for (int i = 0; i < kRegs; ++i) {
    for (int j = 0; j < T::kPerWord; ++j) sum.v[i][j] += term.v[i][j];
  }
}

}  // namespace lamport
