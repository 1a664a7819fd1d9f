// Rows of a matrix-vector product: y[i] = sum over k of W[i,k] x[k], for M_INPUT rows of length DIM_K.
//
// Products of bf16 are exact in the FP32 accumulator; each sum is cast once, to nearest even. Four
// rows run side by side where there are as many: x is loaded once for all of them, and the
// accumulations of a row, each of which waits for the one before, leave room for the other rows'.
#include <aie_api/aie.hpp>

static constexpr unsigned kLanes = 64;
static_assert(DIM_K % kLanes == 0, "K is a multiple of 64");

// L1 of the host is a cache: ask for the rows that come next. On the device a DMA has brought them.
static inline void ahead(const bfloat16 *next) {
#if defined(__x86_64__) || defined(__aarch64__)
  for (unsigned line = 0; line < kLanes; line += 32) {
    __builtin_prefetch(next + line);
  }
#else
  (void)next;
#endif
}

using Sum = aie::accum<accfloat, kLanes>;

static inline bfloat16 total(const Sum &sum) {
  return static_cast<bfloat16>(aie::reduce_add(sum.to_vector<float>()));
}

static inline void one_row(const bfloat16 *__restrict w, const bfloat16 *__restrict x,
                           bfloat16 *__restrict y) {
  Sum sum = aie::zeros<accfloat, kLanes>();
  for (unsigned k = 0; k < DIM_K; k += kLanes) {
    sum = aie::mac(sum, aie::load_v<kLanes>(w + k), aie::load_v<kLanes>(x + k));
  }
  y[0] = total(sum);
}

static inline void four_rows(const bfloat16 *__restrict w, const bfloat16 *__restrict x,
                             bfloat16 *__restrict y) {
  Sum s0 = aie::zeros<accfloat, kLanes>(), s1 = s0, s2 = s0, s3 = s0;
  for (unsigned k = 0; k < DIM_K; k += kLanes) {
    const auto v = aie::load_v<kLanes>(x + k);
    for (unsigned row = 4; row < 8; ++row) {
      ahead(w + row * DIM_K + k);
    }
    s0 = aie::mac(s0, aie::load_v<kLanes>(w + k), v);
    s1 = aie::mac(s1, aie::load_v<kLanes>(w + DIM_K + k), v);
    s2 = aie::mac(s2, aie::load_v<kLanes>(w + 2 * DIM_K + k), v);
    s3 = aie::mac(s3, aie::load_v<kLanes>(w + 3 * DIM_K + k), v);
  }
  y[0] = total(s0);
  y[1] = total(s1);
  y[2] = total(s2);
  y[3] = total(s3);
}

extern "C" void gemv_rows(const bfloat16 *__restrict w, const bfloat16 *__restrict x,
                          bfloat16 *__restrict y) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  unsigned i = 0;
  for (; i + 4 <= M_INPUT; i += 4) {
    four_rows(w + i * DIM_K, x, y + i);
  }
  for (; i < M_INPUT; ++i) {
    one_row(w + i * DIM_K, x, y + i);
  }
}
