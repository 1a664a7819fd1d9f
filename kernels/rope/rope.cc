// Half-split rotary embedding of one row: lut holds HEAD_DIM/2 cosines, then HEAD_DIM/2 sines.
//
// Products of bf16 are exact in FP32; each result is one FP32 sum rounded once (floor).
#include <aie_api/aie.hpp>

static constexpr unsigned kLanes = 32;
static constexpr unsigned kHalf = HEAD_DIM / 2;
static_assert(kHalf % kLanes == 0, "whole vectors in both halves");

extern "C" void rope_row(const bfloat16 *__restrict x, const bfloat16 *__restrict lut,
                         bfloat16 *__restrict y) {
  aie::set_rounding(aie::rounding_mode::floor);
  for (unsigned i = 0; i < kHalf; i += kLanes) {
    const auto low = aie::load_v<kLanes>(x + i);
    const auto high = aie::load_v<kLanes>(x + kHalf + i);
    const auto cosine = aie::load_v<kLanes>(lut + i);
    const auto sine = aie::load_v<kLanes>(lut + kHalf + i);
    const aie::vector<bfloat16, kLanes> out_low =
        aie::sub(aie::mul(low, cosine), aie::mul(high, sine));
    const aie::vector<bfloat16, kLanes> out_high =
        aie::add(aie::mul(low, sine), aie::mul(high, cosine));
    aie::store_v(y + i, out_low);
    aie::store_v(y + kHalf + i, out_high);
  }
}
