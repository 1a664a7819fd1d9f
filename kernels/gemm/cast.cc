// The second launch of a fused-cast GEMM: FP32 to bf16 in the core's default rounding (floor).
#include <aie_api/aie.hpp>

extern "C" void gemm_cast(const float *__restrict in, bfloat16 *__restrict out) {
  aie::set_rounding(aie::rounding_mode::floor);
  for (unsigned i = 0; i < TILE; i += 16) {
    aie::store_v(out + i, aie::accum<accfloat, 16>(aie::load_v<16>(in + i)).to_vector<bfloat16>());
  }
}
