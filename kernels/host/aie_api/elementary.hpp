// Elementary functions of the vector unit: reciprocals as the published sequences of bf16 steps,
// exp2 and tanh as the coarse piecewise-linear units that the hardware has.
#pragma once

#include <cmath>

#include "ops.hpp"

namespace aie {

// Scalar estimates of the core; their tables are not published, so these are exact.
AIE_INLINE float inv(float x) { return 1.0f / x; }
AIE_INLINE float sqrt(float x) { return std::sqrt(x); }
AIE_INLINE float invsqrt(float x) { return 1.0f / std::sqrt(x); }

// Bit-trick seed, one tuned step, one Newton step; every step rounds to bf16 by the register.
template <unsigned N> AIE_INLINE vector<bfloat16, N> inv(const vector<bfloat16, N> &x) {
    const detail::rounding round = detail::crRnd.round;
    const float k1 = detail::nearest_bf16(1.9395974f), k2 = 1.436142f;
    return detail::build<vector<bfloat16, N>>([&](unsigned i) {
        const auto cut = [&](float v) { return detail::widen(detail::narrow(v, round)); };
        const float v = detail::widen(x.lanes[i].bits);
        const auto seed = static_cast<std::uint16_t>(0x7eb5 - x.lanes[i].bits);
        const float y0 = detail::widen(seed);
        const float y1 = cut(cut(k1 * y0) * cut(k2 - v * y0));
        return bfloat16::from_bits(detail::narrow(y1 * cut(2.0f - v * y1), round));
    });
}
template <unsigned N> AIE_INLINE vector<bfloat16, N> invsqrt(const vector<bfloat16, N> &x) {
    const detail::rounding round = detail::crRnd.round;
    constexpr float c2 = 0.703952253f, c3 = 2.38924456f;
    return detail::build<vector<bfloat16, N>>([&](unsigned i) {
        const auto cut = [&](float v) { return detail::widen(detail::narrow(v, round)); };
        const float v = detail::widen(x.lanes[i].bits);
        const std::uint32_t half = (static_cast<std::uint32_t>(x.lanes[i].bits) << 16) >> 1;
        const float y = cut(__builtin_bit_cast(float, 0x5f1ffff9u - half));
        const float square = cut(cut(v * y) * y);
        return bfloat16::from_bits(detail::narrow(y * cut(c2 * c3 - cut(c2 * square)), round));
    });
}
template <unsigned N> AIE_INLINE vector<bfloat16, N> sqrt(const vector<bfloat16, N> &x) {
    return mul(x, invsqrt(x)).template to_vector<bfloat16>();
}
template <unsigned N> AIE_INLINE vector<float, N> inv(const vector<float, N> &x) {
    return detail::build<vector<float, N>>([&](unsigned i) { return 1.0f / x.lanes[i]; });
}
template <unsigned N> AIE_INLINE vector<float, N> invsqrt(const vector<float, N> &x) {
    return detail::build<vector<float, N>>([&](unsigned i) { return invsqrt(x.lanes[i]); });
}
template <class T, unsigned N, class B> AIE_INLINE auto div(const vector<T, N> &a, const B &b) {
    if constexpr (detail::shape_of<B>::lanes == 0)
        return mul(a, inv(broadcast<T, N>(T(b))));
    else
        return mul(a, inv(b));
}

// One straight line per octave: exp2(x) = 2^floor(x) * (1 + x - floor(x)). That line is exactly what
// reading x * 2^23 + 127 * 2^23 as the bits of a float gives.
template <class T, unsigned N> AIE_INLINE vector<T, N> exp2(const vector<float, N> &x) {
    static_assert(std::is_same_v<T, bfloat16>, "the exp2 unit gives bf16");
    const detail::rounding round = detail::crRnd.round;
    return detail::build<vector<T, N>>([&](unsigned i) {
        const float v = x.lanes[i];
        const float inside = v >= -126.0f ? (v < 128.0f ? v : 0.0f) : 0.0f;
        const auto bits = static_cast<std::int32_t>(inside * 8388608.0f) + (127 << 23);
        const float line = __builtin_bit_cast(float, bits);
        const float tail = v < -126.0f ? 0.0f : v + std::numeric_limits<float>::infinity();
        return detail::from_lane<T>(v >= -126.0f && v < 128.0f ? line : tail, round);
    });
}

namespace detail {

// The tanh unit joins points of the curve, TANH_STEP apart, by straight lines. The step is fitted to
// the published errors of SiLU-and-mul (1.02e-2) and GELU (8.4e-3).
constexpr float TANH_STEP = 0.35f;
constexpr int TANH_SEGMENTS = 16;
struct tanh_table {
    float base[TANH_SEGMENTS], slope[TANH_SEGMENTS];
    tanh_table() {
        for (int i = 0; i < TANH_SEGMENTS; ++i) {
            const double left = std::tanh(static_cast<double>(TANH_STEP) * i);
            const double right = std::tanh(static_cast<double>(TANH_STEP) * (i + 1));
            const bool last = i + 1 == TANH_SEGMENTS;
            slope[i] = last ? 0.0f : static_cast<float>((right - left) / TANH_STEP);
            base[i] = last ? 1.0f : static_cast<float>(left - i * (right - left));
        }
    }
};
inline const tanh_table tanh_unit __attribute__((visibility("hidden")));

} // namespace detail

template <class T, unsigned N> AIE_INLINE vector<T, N> tanh(const vector<float, N> &x) {
    static_assert(std::is_same_v<T, bfloat16>, "the tanh unit gives bf16");
    const detail::rounding round = detail::crRnd.round;
    return detail::build<vector<T, N>>([&](unsigned i) {
        const float v = x.lanes[i];
        const float size = __builtin_fabsf(v);
        constexpr float end = detail::TANH_STEP * (detail::TANH_SEGMENTS - 1);
        const float bounded = size < end ? size : end;
        const auto segment = static_cast<std::int32_t>(bounded * (1.0f / detail::TANH_STEP));
        const float line =
            detail::tanh_unit.base[segment] + detail::tanh_unit.slope[segment] * size;
        return detail::from_lane<T>(__builtin_copysignf(line, v), round);
    });
}

template <class T, class S, unsigned N>
AIE_INLINE vector<T, N> to_float(const vector<S, N> &v, int shift = 0) {
    const detail::rounding round = detail::crRnd.round;
    return detail::build<vector<T, N>>([&](unsigned i) {
        return detail::from_lane<T>(std::ldexp(static_cast<float>(v.lanes[i]), -shift), round);
    });
}
// To the nearest integer, ties to even, clamped to the type's range.
template <class T, class S, unsigned N>
AIE_INLINE vector<T, N> to_fixed(const vector<S, N> &v, int shift = 0) {
    constexpr double low = std::numeric_limits<T>::min(), high = std::numeric_limits<T>::max();
    return detail::build<vector<T, N>>([&](unsigned i) {
        const double x = std::nearbyint(std::ldexp(static_cast<float>(v.lanes[i]), shift));
        return static_cast<T>(x < low ? low : x > high ? high : x);
    });
}

} // namespace aie
