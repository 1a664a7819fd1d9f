// aie::mmul for the host: 8x8x8 bf16 products accumulated in FP32 through block floating point.
//
// The matrix unit of AIE2P rounds both operands so that eight values along K share one exponent
// (v64bfp16ebs8): e = floor(log2(max|x|)), step = 2^(e-6), q = clamp(round_half_even(x/step), -128,
// 127) * step. Every q is representable in bf16, so a rounded operand is stored as bf16 and the
// products are exact in FP32.
//
// With TILEGATE_OPERANDS_IN_BLOCK_FLOAT the operands have been rounded when their L1 buffer was
// loaded (plan.Buffer.matrix), which gives the same bits as rounding them at every multiply.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__AVX512BF16__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#include <immintrin.h>
#define TILEGATE_MMUL_AVX512 1
#endif

namespace aie {
namespace block_float {

inline float widen(std::uint16_t bits) {
  const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

// Rounds `count` groups of eight bf16 values in place. Group g starts at `data + g * group` and its
// values lie `stride` apart.
inline void round_groups(std::uint16_t *data, int count, std::ptrdiff_t group,
                         std::ptrdiff_t stride) {
  for (int g = 0; g < count; ++g) {
    std::uint16_t *x = data + g * group;
    std::uint32_t largest = 0;
    for (int i = 0; i < 8; ++i) {
      const std::uint32_t magnitude = x[i * stride] & 0x7fffu;
      largest = magnitude > largest ? magnitude : largest;
    }
    const std::uint32_t exponent = largest >> 7;
    if (exponent < 8 || exponent == 255) {  // zeros, FP32-subnormal steps, Inf and NaN stay as is
      continue;
    }
    // Adding 1.5 * 2^23 steps makes the FP32 adder round half-to-even at the step.
    const std::uint32_t magic_bits = ((exponent - 6 + 23) << 23) | 0x400000u;
    const std::uint32_t top_bits = (exponent << 23) | 0x7e0000u;  // 127 steps
    float magic, top;
    std::memcpy(&magic, &magic_bits, sizeof magic);
    std::memcpy(&top, &top_bits, sizeof top);
    for (int i = 0; i < 8; ++i) {
      float q = (widen(x[i * stride]) + magic) - magic;
      q = q > top ? top : q;
      std::uint32_t bits;
      std::memcpy(&bits, &q, sizeof bits);
      x[i * stride] = static_cast<std::uint16_t>(bits >> 16);
    }
  }
}

// A tile of the left operand (8 rows along M, K contiguous) or of the right one (8 rows along K).
inline void round_left(std::uint16_t *tile) { round_groups(tile, 8, 8, 1); }
inline void round_right(std::uint16_t *tile) { round_groups(tile, 8, 1, 8); }

#ifdef TILEGATE_MMUL_AVX512
// The same for one or more 8x8 tiles at once: each 512-bit register holds 32 values.
__attribute__((always_inline)) inline __m512i round_step(__m512i x, __m512i largest) {
  // largest: per 16-bit lane the largest magnitude of its group.
  const __m512i exponent = _mm512_srli_epi16(largest, 7);
  const __mmask32 keep =
      _mm512_cmplt_epu16_mask(exponent, _mm512_set1_epi16(8)) |
      _mm512_cmpeq_epi16_mask(exponent, _mm512_set1_epi16(255));
  const __m512i zero = _mm512_setzero_si512();
  // unpack places a 16-bit value in the upper half of a 32-bit lane: exactly bf16 -> FP32.
  const __m512 lo = _mm512_castsi512_ps(_mm512_unpacklo_epi16(zero, x));
  const __m512 hi = _mm512_castsi512_ps(_mm512_unpackhi_epi16(zero, x));
  const __m512i e_lo = _mm512_slli_epi32(_mm512_unpacklo_epi16(exponent, zero), 23);
  const __m512i e_hi = _mm512_slli_epi32(_mm512_unpackhi_epi16(exponent, zero), 23);
  const __m512i shift = _mm512_set1_epi32((17 << 23) | 0x400000);
  const __m512i top = _mm512_set1_epi32(0x7e0000);
  const __m512 m_lo = _mm512_castsi512_ps(_mm512_add_epi32(e_lo, shift));
  const __m512 m_hi = _mm512_castsi512_ps(_mm512_add_epi32(e_hi, shift));
  const __m512 t_lo = _mm512_castsi512_ps(_mm512_or_epi32(e_lo, top));
  const __m512 t_hi = _mm512_castsi512_ps(_mm512_or_epi32(e_hi, top));
  const __m512 q_lo = _mm512_min_ps(_mm512_sub_ps(_mm512_add_ps(lo, m_lo), m_lo), t_lo);
  const __m512 q_hi = _mm512_min_ps(_mm512_sub_ps(_mm512_add_ps(hi, m_hi), m_hi), t_hi);
  const __m512i packed = _mm512_packus_epi32(_mm512_srli_epi32(_mm512_castps_si512(q_lo), 16),
                                             _mm512_srli_epi32(_mm512_castps_si512(q_hi), 16));
  return _mm512_mask_mov_epi16(packed, keep, x);
}

__attribute__((always_inline)) inline __m512i round_left(__m512i x) {
  __m512i m = _mm512_and_si512(x, _mm512_set1_epi16(0x7fff));
  m = _mm512_max_epu16(m, _mm512_shuffle_epi32(m, _MM_PERM_BADC));
  m = _mm512_max_epu16(m, _mm512_shuffle_epi32(m, _MM_PERM_CDAB));
  m = _mm512_max_epu16(m, _mm512_rol_epi32(m, 16));
  return round_step(x, m);
}

__attribute__((always_inline)) inline void round_right(__m512i &x0, __m512i &x1) {
  const __m512i abs = _mm512_set1_epi16(0x7fff);
  __m512i m = _mm512_max_epu16(_mm512_and_si512(x0, abs), _mm512_and_si512(x1, abs));
  m = _mm512_max_epu16(m, _mm512_shuffle_i64x2(m, m, 0x4e));
  m = _mm512_max_epu16(m, _mm512_shuffle_i64x2(m, m, 0xb1));
  x0 = round_step(x0, m);
  x1 = round_step(x1, m);
}
#endif

// Rounds `count` consecutive 8x8 tiles; `left` says which operand they are.
inline void round_tiles(std::uint16_t *tiles, std::size_t count, bool left) {
  for (std::size_t t = 0; t < count; ++t) {
    std::uint16_t *tile = tiles + t * 64;
#ifdef TILEGATE_MMUL_AVX512
    __m512i x0 = _mm512_loadu_si512(tile);
    __m512i x1 = _mm512_loadu_si512(tile + 32);
    if (left) {
      x0 = round_left(x0);
      x1 = round_left(x1);
    } else {
      round_right(x0, x1);
    }
    _mm512_storeu_si512(tile, x0);
    _mm512_storeu_si512(tile + 32, x1);
#else
    left ? round_left(tile) : round_right(tile);
#endif
  }
}

}  // namespace block_float

template <unsigned M, unsigned K, unsigned N, class A, class B, class Acc = accauto>
class mmul;  // only the shapes of the hardware exist; any other fails to compile

template <class Acc>
class mmul<8, 8, 8, bfloat16, bfloat16, Acc> {
 public:
  static constexpr unsigned size_A = 64, size_B = 64, size_C = 64;

  mmul() { clear(); }

  explicit mmul(const accum<accfloat, 64> &initial) { set(reinterpret_cast<const float *>(&initial)); }
  explicit mmul(const vector<bfloat16, 64> &initial) : mmul(accum<accfloat, 64>(initial)) {}
  explicit mmul(const vector<float, 64> &initial) { set(reinterpret_cast<const float *>(&initial)); }

  void mul(const vector<bfloat16, 64> &a, const vector<bfloat16, 64> &b) {
    clear();
    mac(a, b);
  }

#ifdef TILEGATE_MMUL_AVX512
  __attribute__((always_inline)) void mac(const vector<bfloat16, 64> &a,
                                          const vector<bfloat16, 64> &b) {
    __m512i a0 = _mm512_load_si512(reinterpret_cast<const char *>(&a));
    __m512i a1 = _mm512_load_si512(reinterpret_cast<const char *>(&a) + 64);
    __m512i b0 = _mm512_load_si512(reinterpret_cast<const char *>(&b));
    __m512i b1 = _mm512_load_si512(reinterpret_cast<const char *>(&b) + 64);
#ifndef TILEGATE_OPERANDS_IN_BLOCK_FLOAT
    a0 = block_float::round_left(a0);
    a1 = block_float::round_left(a1);
    block_float::round_right(b0, b1);
#endif
    // Rows 2p and 2p+1 of B interleaved, the pair repeated in both halves of a register.
    const __m512i k0 = interleave(b0, 0), k1 = interleave(b0, 16);
    const __m512i k2 = interleave(b1, 0), k3 = interleave(b1, 16);
    row_pair<0>(c0, a0, k0, k1, k2, k3);
    row_pair<8>(c1, a0, k0, k1, k2, k3);
    row_pair<0>(c2, a1, k0, k1, k2, k3);
    row_pair<8>(c3, a1, k0, k1, k2, k3);
  }

 private:
  __m512 c0, c1, c2, c3;  // rows 0-1, 2-3, 4-5, 6-7

  void clear() { c0 = c1 = c2 = c3 = _mm512_setzero_ps(); }
  __attribute__((always_inline)) void set(const float *lanes) {
    c0 = _mm512_loadu_ps(lanes);
    c1 = _mm512_loadu_ps(lanes + 16);
    c2 = _mm512_loadu_ps(lanes + 32);
    c3 = _mm512_loadu_ps(lanes + 48);
  }
  __attribute__((always_inline)) void get(float *lanes) const {
    _mm512_storeu_ps(lanes, c0);
    _mm512_storeu_ps(lanes + 16, c1);
    _mm512_storeu_ps(lanes + 32, c2);
    _mm512_storeu_ps(lanes + 48, c3);
  }

  __attribute__((always_inline)) static __m512i interleave(__m512i b, int first) {
    const short f = static_cast<short>(first);
    const __m512i lanes = _mm512_add_epi16(
        _mm512_set_epi16(15, 7, 14, 6, 13, 5, 12, 4, 11, 3, 10, 2, 9, 1, 8, 0, 15, 7, 14, 6, 13, 5,
                         12, 4, 11, 3, 10, 2, 9, 1, 8, 0),
        _mm512_set1_epi16(f));
    return _mm512_permutexvar_epi16(lanes, b);
  }

  template <int First>
  __attribute__((always_inline)) static void row_pair(__m512 &c, __m512i a, __m512i k0, __m512i k1,
                                                      __m512i k2, __m512i k3) {
    c = step<First + 0>(c, a, k0);
    c = step<First + 1>(c, a, k1);
    c = step<First + 2>(c, a, k2);
    c = step<First + 3>(c, a, k3);
  }

  // Lane pair `Pair` of one row of A against lanes 0-7, of the next row against lanes 8-15.
  template <int Pair>
  __attribute__((always_inline)) static __m512 step(__m512 c, __m512i a, __m512i b) {
    constexpr int p = Pair, q = Pair + 4;
    const __m512i lanes = _mm512_set_epi32(q, q, q, q, q, q, q, q, p, p, p, p, p, p, p, p);
    return _mm512_dpbf16_ps(c, reinterpret_cast<__m512bh>(_mm512_permutexvar_epi32(lanes, a)),
                            reinterpret_cast<__m512bh>(b));
  }

#else
  void mac(const vector<bfloat16, 64> &a, const vector<bfloat16, 64> &b) {
    std::uint16_t left[64], right[64];
    std::memcpy(left, &a, sizeof left);
    std::memcpy(right, &b, sizeof right);
#ifndef TILEGATE_OPERANDS_IN_BLOCK_FLOAT
    block_float::round_left(left);
    block_float::round_right(right);
#endif
    float wide[64] __attribute__((aligned(64)));
    for (int i = 0; i < 64; ++i) {
      wide[i] = block_float::widen(right[i]);
    }
    for (int m = 0; m < 8; ++m) {
      for (int k = 0; k < 8; ++k) {
        const float x = block_float::widen(left[m * 8 + k]);
        for (int n = 0; n < 8; ++n) {
          c[m * 8 + n] += x * wide[k * 8 + n];
        }
      }
    }
  }

 private:
  float c[64] __attribute__((aligned(64)));

  void clear() { std::memset(c, 0, sizeof c); }
  void set(const float *lanes) { std::memcpy(c, lanes, sizeof c); }
  void get(float *lanes) const { std::memcpy(lanes, c, sizeof c); }
#endif

 public:
  template <class T>
  vector<T, 64> to_vector(int = 0) const {
    return to_accum().template to_vector<T>();
  }

  accum<accfloat, 64> to_accum() const {
    vector<float, 64> lanes;
    get(reinterpret_cast<float *>(&lanes));
    return accum<accfloat, 64>(lanes);
  }
};

}  // namespace aie
