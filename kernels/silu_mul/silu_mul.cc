// SiLU-and-multiply on TILE values: g * (tanh(g / 2) + 1) / 2 * u with the hardware tanh, every step
// rounded to bf16 by the core's default (floor).
#include <aie_api/aie.hpp>

static constexpr unsigned kLanes = 16;  // of one hardware tanh
static_assert(TILE % kLanes == 0, "whole vectors");

using Values = aie::vector<bfloat16, kLanes>;

extern "C" void silu_mul_tile(const bfloat16 *__restrict gate, const bfloat16 *__restrict up,
                              bfloat16 *__restrict y) {
  aie::set_rounding(aie::rounding_mode::floor);
  const Values half = aie::broadcast<bfloat16, kLanes>(0.5f);
  const Values one = aie::broadcast<bfloat16, kLanes>(1.0f);
  for (unsigned i = 0; i < TILE; i += kLanes) {
    const Values g = aie::load_v<kLanes>(gate + i);
    const Values halved = aie::mul(g, half);
    const aie::accum<accfloat, kLanes> wide(halved);
    const Values t = aie::tanh<bfloat16>(wide.to_vector<float>());
    const Values sigmoid = aie::mul(aie::add(t, one), half);
    const Values silu = aie::mul(g, sigmoid);
    const Values out = aie::mul(silu, aie::load_v<kLanes>(up + i));
    aie::store_v(y + i, out);
  }
}
