// Element-wise sum of TILE bf16 values: added in FP32, rounded by the core's default (floor).
#include <aie_api/aie.hpp>

static constexpr unsigned kLanes = 32;
static_assert(TILE % kLanes == 0, "whole vectors");

extern "C" void add_tile(const bfloat16 *__restrict a, const bfloat16 *__restrict b,
                         bfloat16 *__restrict y) {
  aie::set_rounding(aie::rounding_mode::floor);
  for (unsigned i = 0; i < TILE; i += kLanes) {
    aie::store_v(y + i, aie::add(aie::load_v<kLanes>(a + i), aie::load_v<kLanes>(b + i)));
  }
}
