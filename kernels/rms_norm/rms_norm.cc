// RMSNorm of one row of WIDTH values: y = x * rsqrt(mean(x^2) + EPS) * weight.
//
// Squares are exact and summed in FP32; the reciprocal root is an FP32 scalar, rounded to bf16; both
// products are rounded to bf16. All by the core's default (floor). (Squares rounded to bf16 would
// give smaller errors than the published ones: the loss of both floors partly cancels.)
#include <aie_api/aie.hpp>

static constexpr unsigned kLanes = 16;
static_assert(WIDTH % kLanes == 0, "whole vectors");

using Values = aie::vector<bfloat16, kLanes>;

static inline bfloat16 reciprocal_root(const bfloat16 *__restrict x) {
  auto sum = aie::zeros<accfloat, kLanes>();
  for (unsigned i = 0; i < WIDTH; i += kLanes) {
    sum = aie::mac_square(sum, aie::load_v<kLanes>(x + i));
  }
  const float mean = aie::reduce_add(sum.to_vector<float>()) * (1.0f / WIDTH);
  return static_cast<bfloat16>(aie::invsqrt(mean + EPS));
}

extern "C" void rms_norm_row(const bfloat16 *__restrict x, const bfloat16 *__restrict weight,
                             bfloat16 *__restrict y) {
  aie::set_rounding(aie::rounding_mode::floor);
  const Values scale = aie::broadcast<bfloat16, kLanes>(reciprocal_root(x));
  for (unsigned i = 0; i < WIDTH; i += kLanes) {
    const Values normed = aie::mul(aie::load_v<kLanes>(x + i), scale);
    const Values out = aie::mul(normed, aie::load_v<kLanes>(weight + i));
    aie::store_v(y + i, out);
  }
}
