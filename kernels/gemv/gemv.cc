// Rows of a matrix-vector product: y[i] = sum over k of W[i,k] x[k], for M_INPUT rows of length DIM_K.
//
// Products of bf16 are exact in the FP32 accumulator; each sum is cast once, to nearest even.
#include <aie_api/aie.hpp>

static constexpr unsigned kLanes = 64;
static_assert(DIM_K % kLanes == 0, "K is a multiple of 64");

static inline bfloat16 dot(const bfloat16 *__restrict row, const bfloat16 *__restrict x) {
  auto sum = aie::zeros<accfloat, kLanes>();
  for (unsigned k = 0; k < DIM_K; k += kLanes) {
    sum = aie::mac(sum, aie::load_v<kLanes>(row + k), aie::load_v<kLanes>(x + k));
  }
  return static_cast<bfloat16>(aie::reduce_add(sum.to_vector<float>()));
}

extern "C" void gemv_rows(const bfloat16 *__restrict w, const bfloat16 *__restrict x,
                          bfloat16 *__restrict y) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  for (unsigned i = 0; i < M_INPUT; ++i) {
    y[i] = dot(w + i * DIM_K, x);
  }
}
