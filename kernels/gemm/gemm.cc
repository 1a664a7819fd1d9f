// One tile product of a GEMM on the matrix unit: C[TILE_M,TILE_N] += A[TILE_M,TILE_K] B[TILE_K,TILE_N].
//
// L1 holds 8x8 tiles, each row-major, in column-of-tiles order: A[k][m], B[n][k], C[n][m].
// ACCUMULATE_BF16 keeps C in bf16 between calls (method `direct`); otherwise it stays FP32.
#include <aie_api/aie.hpp>

#include <cstdint>

using Product = aie::mmul<8, 8, 8, bfloat16, bfloat16, accfloat>;

#if ACCUMULATE_BF16
using accumulator = bfloat16;
#else
using accumulator = float;
#endif

static constexpr unsigned kRows = TILE_M / 8;
static constexpr unsigned kDepth = TILE_K / 8;
static constexpr unsigned kColumns = TILE_N / 8;
static_assert(TILE_M % 16 == 0 && TILE_N % 16 == 0 && TILE_K % 8 == 0, "2x2 blocks of 8x8 tiles");

static inline Product load(const accumulator *c) {
  return Product(aie::accum<accfloat, 64>(aie::load_v<64>(c)));
}

static inline void store(accumulator *c, const Product &product) {
  aie::store_v(c, product.to_vector<accumulator>());
}

extern "C" void gemm_zero(accumulator *__restrict c) {
  const auto zero = aie::zeros<accumulator, 64>();
  for (unsigned i = 0; i < kRows * kColumns; ++i) {
    aie::store_v(c + i * 64, zero);
  }
}

extern "C" void gemm_matmul(const bfloat16 *__restrict a, const bfloat16 *__restrict b,
                            accumulator *__restrict c) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  for (unsigned n = 0; n < kColumns; n += 2) {
    for (unsigned m = 0; m < kRows; m += 2) {
      accumulator *__restrict left = c + (n * kRows + m) * 64;
      accumulator *__restrict right = left + kRows * 64;
      Product c00 = load(left), c10 = load(left + 64);
      Product c01 = load(right), c11 = load(right + 64);
      for (unsigned k = 0; k < kDepth; ++k) {
        const auto a0 = aie::load_v<64>(a + (k * kRows + m) * 64);
        const auto a1 = aie::load_v<64>(a + (k * kRows + m + 1) * 64);
        const auto b0 = aie::load_v<64>(b + (n * kDepth + k) * 64);
        const auto b1 = aie::load_v<64>(b + ((n + 1) * kDepth + k) * 64);
        c00.mac(a0, b0);
        c01.mac(a0, b1);
        c10.mac(a1, b0);
        c11.mac(a1, b1);
      }
      store(left, c00);
      store(left + 64, c10);
      store(right, c01);
      store(right + 64, c11);
    }
  }
}

#if DRAIN
extern "C" void gemm_drain(const float *__restrict c, bfloat16 *__restrict out) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  for (unsigned i = 0; i < TILE_M * TILE_N; i += 32) {
    aie::store_v(out + i, aie::accum<accfloat, 32>(aie::load_v<32>(c + i)).to_vector<bfloat16>());
  }
}
#endif
