// Lane-wise arithmetic, comparisons, reductions and rearrangements of the host aie_api.
//
// bf16 x bf16 is exact in float and an accumulation rounds once per add. The vector unit has no
// float multiplier: float x float is nine products of bf16 limbs.
#pragma once

#include <utility>

#include "vector.hpp"

namespace aie {
namespace detail {

template <class X> struct shape_of {
    static constexpr unsigned lanes = 0; // a scalar fits any number of lanes
    using element = X;
};
template <class T, unsigned N> struct shape_of<vector<T, N>> {
    static constexpr unsigned lanes = N;
    using element = T;
};
template <class Tag, unsigned N> struct shape_of<accum<Tag, N>> {
    static constexpr unsigned lanes = N;
    using element = typename Tag::lane;
};
template <class X> using element_of = typename shape_of<X>::element;
template <class A, class B>
constexpr unsigned lanes_of =
    shape_of<A>::lanes > shape_of<B>::lanes ? shape_of<A>::lanes : shape_of<B>::lanes;
template <class A, class B>
constexpr bool match = lanes_of<A, B> > 0 &&
                       (shape_of<A>::lanes == 0 || shape_of<B>::lanes == 0 ||
                        shape_of<A>::lanes == shape_of<B>::lanes);

template <class X> struct is_accum : std::false_type {};
template <class Tag, unsigned N> struct is_accum<accum<Tag, N>> : std::true_type {};

template <class T>
constexpr bool is_float = std::is_same_v<T, bfloat16> || std::is_floating_point_v<T>;

// The type a lane is computed in.
template <class T> using work = std::conditional_t<is_float<T>, float, std::int32_t>;

template <class X> AIE_INLINE auto lane(const X &x, unsigned i) {
    if constexpr (shape_of<X>::lanes == 0)
        return x;
    else
        return x.lanes[i];
}

template <class R, class F> AIE_INLINE R build(F f) {
    constexpr unsigned lanes = R::size();
    R out(blank);
    AIE_LANES
    for (unsigned i = 0; i < lanes; ++i)
        out.lanes[i] = f(i);
    return out;
}

AIE_INLINE float nearest_bf16(float value) {
    return widen(narrow(value, rounding{0x7fff, 0x7fff, 1, 0}));
}

AIE_INLINE float limb_product(float a, float b) {
    const float a0 = nearest_bf16(a), a1 = nearest_bf16(a - a0), a2 = nearest_bf16(a - a0 - a1);
    const float b0 = nearest_bf16(b), b1 = nearest_bf16(b - b0), b2 = nearest_bf16(b - b0 - b1);
    return a0 * b0 + a0 * b1 + a1 * b0 + a0 * b2 + a1 * b1 + a2 * b0 + a1 * b2 + a2 * b1 + a2 * b2;
}

template <class A, class B> AIE_INLINE auto product(A a, B b) {
    if constexpr (std::is_same_v<A, bfloat16> && std::is_same_v<B, bfloat16>)
        return static_cast<float>(a) * static_cast<float>(b);
    else if constexpr (is_float<A> || is_float<B>)
        return limb_product(static_cast<float>(a), static_cast<float>(b));
    else
        return static_cast<std::int64_t>(a) * static_cast<std::int64_t>(b);
}

// A literal scalar takes the element type of the vector it meets; a vector stays where it is.
template <class X, class Y>
using operand = std::conditional_t<shape_of<X>::lanes == 0, element_of<Y>, const X &>;

template <class Tag, class T>
using tag_for = std::conditional_t<
    !std::is_same_v<Tag, accauto>, Tag,
    std::conditional_t<is_float<T>, accfloat,
                       std::conditional_t<sizeof(T) == 4, acc64, acc32>>>;

template <class A, class B> using meeting = std::conditional_t<shape_of<A>::lanes != 0, A, B>;

} // namespace detail

template <class T, unsigned N = 0> AIE_INLINE auto zeros() {
    if constexpr (detail::is_float<T> || std::is_integral_v<T>) {
        using R = vector<T, N == 0 ? detail::default_lanes<T> : N>;
        if constexpr (std::is_same_v<T, bfloat16>)
            return detail::build<R>([](unsigned) { return bfloat16::from_bits(0); });
        else
            return detail::build<R>([](unsigned) { return T(0); });
    } else {
        return detail::build<accum<T, N>>([](unsigned) { return typename T::lane(0); });
    }
}

template <class T, unsigned N = detail::default_lanes<T>> AIE_INLINE vector<T, N> broadcast(T x) {
    return detail::build<vector<T, N>>([&](unsigned) { return x; });
}

template <class T, unsigned N> AIE_INLINE auto concat(const vector<T, N> &a, const vector<T, N> &b) {
    vector<T, 2 * N> out(detail::blank);
    return out.template insert<N>(0, a).template insert<N>(1, b);
}
template <class T, unsigned N> AIE_INLINE auto concat(const accum<T, N> &a, const accum<T, N> &b) {
    accum<T, 2 * N> out(detail::blank);
    return out.template insert<N>(0, a).template insert<N>(1, b);
}
template <class V> AIE_INLINE auto concat(const V &a, const V &b, const V &c, const V &d) {
    return concat(concat(a, b), concat(c, d));
}

template <class Tag = accauto, class A, class B, class = std::enable_if_t<detail::match<A, B>>>
AIE_INLINE auto mul(const A &a, const B &b) {
    const detail::operand<A, B> x(a);
    const detail::operand<B, A> y(b);
    using T = detail::element_of<detail::meeting<A, B>>;
    using R = accum<detail::tag_for<Tag, T>, detail::lanes_of<A, B>>;
    return detail::build<R>([&](unsigned i) {
        return static_cast<typename R::lane>(
            detail::product(detail::lane(x, i), detail::lane(y, i)));
    });
}
template <class A, class B> AIE_INLINE auto negmul(const A &a, const B &b) {
    auto out = mul(a, b);
    for (auto &lane : out.lanes)
        lane = -lane;
    return out;
}
template <class Tag, unsigned N, class A, class B>
AIE_INLINE accum<Tag, N> mac(const accum<Tag, N> &acc, const A &a, const B &b) {
    const detail::operand<A, B> x(a);
    const detail::operand<B, A> y(b);
    return detail::build<accum<Tag, N>>([&](unsigned i) {
        return static_cast<typename Tag::lane>(
            acc.lanes[i] + detail::product(detail::lane(x, i), detail::lane(y, i)));
    });
}
template <class Tag, unsigned N, class A, class B>
AIE_INLINE accum<Tag, N> msc(const accum<Tag, N> &acc, const A &a, const B &b) {
    const detail::operand<A, B> x(a);
    const detail::operand<B, A> y(b);
    return detail::build<accum<Tag, N>>([&](unsigned i) {
        return static_cast<typename Tag::lane>(
            acc.lanes[i] - detail::product(detail::lane(x, i), detail::lane(y, i)));
    });
}
template <class T, unsigned N> AIE_INLINE auto mul_square(const vector<T, N> &v) {
    return mul(v, v);
}
template <class Tag, unsigned N, class T>
AIE_INLINE auto mac_square(const accum<Tag, N> &acc, const vector<T, N> &v) {
    return mac(acc, v, v);
}

namespace detail {

// Vector with vector or scalar gives a vector, rounded once; an accum on either side an accum.
template <class A, class B, class F> AIE_INLINE auto combine(const A &a, const B &b, F f) {
    if constexpr (is_accum<A>::value || is_accum<B>::value) {
        using R = std::conditional_t<is_accum<A>::value, A, B>;
        using L = typename R::lane;
        return build<R>([&](unsigned i) {
            return static_cast<L>(f(static_cast<L>(lane(a, i)), static_cast<L>(lane(b, i))));
        });
    } else {
        const operand<A, B> x(a);
        const operand<B, A> y(b);
        using T = element_of<meeting<A, B>>;
        const rounding round = crRnd.round;
        return build<vector<T, lanes_of<A, B>>>([&](unsigned i) {
            const auto value = f(static_cast<work<T>>(lane(x, i)), static_cast<work<T>>(lane(y, i)));
            if constexpr (is_float<T>)
                return from_lane<T>(value, round);
            else
                return static_cast<T>(value);
        });
    }
}

template <class A, class B, class F> AIE_INLINE auto compare(const A &a, const B &b, F f) {
    const operand<A, B> x(a);
    const operand<B, A> y(b);
    using W = work<element_of<meeting<A, B>>>;
    constexpr unsigned lanes = lanes_of<A, B>;
    mask<lanes> out;
    AIE_LANES
    for (unsigned i = 0; i < lanes; ++i)
        out.lanes[i] = f(static_cast<W>(lane(x, i)), static_cast<W>(lane(y, i)));
    return out;
}

} // namespace detail

#define AIE_HOST_LANEWISE(name, kind, expression)                                                  \
    template <class A, class B, class = std::enable_if_t<detail::match<A, B>>>                     \
    AIE_INLINE auto name(const A &a, const B &b) {                                                 \
        return detail::kind(a, b, [](auto x, auto y) { return expression; });                      \
    }
AIE_HOST_LANEWISE(add, combine, x + y)
AIE_HOST_LANEWISE(sub, combine, x - y)
AIE_HOST_LANEWISE(max, combine, (x < y ? y : x))
AIE_HOST_LANEWISE(min, combine, (y < x ? y : x))
AIE_HOST_LANEWISE(lt, compare, x < y)
AIE_HOST_LANEWISE(le, compare, x <= y)
AIE_HOST_LANEWISE(gt, compare, x > y)
AIE_HOST_LANEWISE(ge, compare, x >= y)
AIE_HOST_LANEWISE(eq, compare, x == y)
AIE_HOST_LANEWISE(neq, compare, x != y)
#undef AIE_HOST_LANEWISE

// Sign operations act on the sign bit, so that zeros and NaN follow the hardware.
template <class T, unsigned N> AIE_INLINE vector<T, N> neg(const vector<T, N> &v) {
    return detail::build<vector<T, N>>([&](unsigned i) {
        if constexpr (std::is_same_v<T, bfloat16>)
            return bfloat16::from_bits(v.lanes[i].bits ^ 0x8000);
        else
            return static_cast<T>(-v.lanes[i]);
    });
}
template <class Tag, unsigned N> AIE_INLINE accum<Tag, N> neg(const accum<Tag, N> &a) {
    return detail::build<accum<Tag, N>>([&](unsigned i) { return -a.lanes[i]; });
}
template <class T, unsigned N> AIE_INLINE vector<T, N> abs(const vector<T, N> &v) {
    return detail::build<vector<T, N>>([&](unsigned i) {
        if constexpr (std::is_same_v<T, bfloat16>)
            return bfloat16::from_bits(v.lanes[i].bits & 0x7fff);
        else if constexpr (std::is_same_v<T, float>)
            return __builtin_fabsf(v.lanes[i]);
        else
            return static_cast<T>(v.lanes[i] < 0 ? -v.lanes[i] : v.lanes[i]);
    });
}

template <class A, class B> AIE_INLINE auto max_cmp(const A &a, const B &b) {
    return std::make_pair(max(a, b), lt(a, b));
}
template <class A, class B> AIE_INLINE auto min_cmp(const A &a, const B &b) {
    return std::make_pair(min(a, b), gt(a, b));
}

// Lane i is b where the mask is set, else a.
template <class A, class B, unsigned N>
AIE_INLINE auto select(const A &a, const B &b, const mask<N> &m) {
    const detail::operand<A, B> x(a);
    const detail::operand<B, A> y(b);
    using T = detail::element_of<detail::meeting<A, B>>;
    return detail::build<vector<T, N>>(
        [&](unsigned i) { return m.lanes[i] ? detail::lane(y, i) : detail::lane(x, i); });
}

namespace detail {

// Groups of `Group` lanes one after the other, then halves onto halves.
template <unsigned Group, class T, unsigned N, class F>
AIE_INLINE work<T> reduce(const vector<T, N> &v, F f) {
    constexpr unsigned width = N < Group ? N : Group;
    work<T> total[width];
    AIE_LANES
    for (unsigned i = 0; i < width; ++i)
        total[i] = static_cast<work<T>>(v.lanes[i]);
    for (unsigned start = width; start < N; start += width)
        AIE_LANES
        for (unsigned i = 0; i < width; ++i)
            total[i] = f(total[i], static_cast<work<T>>(v.lanes[start + i]));
    for (unsigned half = width / 2; half > 0; half /= 2)
        AIE_LANES
        for (unsigned i = 0; i < half; ++i)
            total[i] = f(total[i], total[i + half]);
    return total[0];
}

} // namespace detail

template <class T, unsigned N> AIE_INLINE T reduce_add(const vector<T, N> &v) {
    return static_cast<T>(detail::reduce<32>(v, [](auto x, auto y) { return x + y; }));
}
template <class T, unsigned N> AIE_INLINE T reduce_max(const vector<T, N> &v) {
    return static_cast<T>(detail::reduce<32>(v, [](auto x, auto y) { return x < y ? y : x; }));
}
template <class T, unsigned N> AIE_INLINE T reduce_min(const vector<T, N> &v) {
    return static_cast<T>(detail::reduce<32>(v, [](auto x, auto y) { return y < x ? y : x; }));
}
// The sums of the arguments in the first lanes; the other lanes are undefined.
template <class T, unsigned N, class... Rest>
AIE_INLINE vector<T, N> reduce_add_v(const vector<T, N> &first, const Rest &...rest) {
    vector<T, N> out;
    unsigned i = 0;
    out.lanes[i++] = reduce_add(first);
    ((out.lanes[i++] = reduce_add(rest)), ...);
    return out;
}

// v is rows x cols row-major; the result is cols x rows.
template <class T, unsigned N>
AIE_INLINE vector<T, N> transpose(const vector<T, N> &v, unsigned rows, unsigned cols) {
    return detail::build<vector<T, N>>(
        [&](unsigned i) { return v.lanes[i % rows * cols + i / rows]; });
}

template <class T, unsigned N>
AIE_INLINE vector<T, N> shuffle_down(const vector<T, N> &v, unsigned n) {
    return detail::build<vector<T, N>>(
        [&](unsigned i) { return i + n < N ? v.lanes[i + n] : detail::poison<T>(); });
}
template <class T, unsigned N>
AIE_INLINE vector<T, N> shuffle_up(const vector<T, N> &v, unsigned n) {
    return detail::build<vector<T, N>>(
        [&](unsigned i) { return i >= n ? v.lanes[i - n] : detail::poison<T>(); });
}
template <class T, unsigned N>
AIE_INLINE vector<T, N> shuffle_down_rotate(const vector<T, N> &v, unsigned n) {
    return detail::build<vector<T, N>>([&](unsigned i) { return v.lanes[(i + n) % N]; });
}
template <class T, unsigned N>
AIE_INLINE vector<T, N> shuffle_up_rotate(const vector<T, N> &v, unsigned n) {
    return detail::build<vector<T, N>>([&](unsigned i) { return v.lanes[(i + N - n % N) % N]; });
}
template <class T, unsigned N>
AIE_INLINE vector<T, N> shuffle_down_fill(const vector<T, N> &v, const vector<T, N> &f,
                                          unsigned n) {
    return detail::build<vector<T, N>>(
        [&](unsigned i) { return i + n < N ? v.lanes[i + n] : f.lanes[i + n - N]; });
}

template <class T, unsigned N>
AIE_INLINE auto interleave_zip(const vector<T, N> &a, const vector<T, N> &b, unsigned chunk) {
    vector<T, 2 * N> both(detail::blank);
    AIE_LANES
    for (unsigned i = 0; i < 2 * N; ++i) {
        const unsigned place = i / (2 * chunk) * chunk + i % chunk;
        both.lanes[i] = (i / chunk) % 2 ? b.lanes[place] : a.lanes[place];
    }
    return std::make_pair(both.template extract<N>(0), both.template extract<N>(1));
}
template <class T, unsigned N>
AIE_INLINE vector<T, N / 2> filter_even(const vector<T, N> &v, unsigned chunk = 1) {
    return detail::build<vector<T, N / 2>>(
        [&](unsigned i) { return v.lanes[i / chunk * 2 * chunk + i % chunk]; });
}
template <class T, unsigned N>
AIE_INLINE vector<T, N / 2> filter_odd(const vector<T, N> &v, unsigned chunk = 1) {
    return detail::build<vector<T, N / 2>>(
        [&](unsigned i) { return v.lanes[i / chunk * 2 * chunk + chunk + i % chunk]; });
}
template <class T, unsigned N>
AIE_INLINE auto interleave_unzip(const vector<T, N> &a, const vector<T, N> &b, unsigned chunk) {
    const auto both = concat(a, b);
    return std::make_pair(filter_even(both, chunk), filter_odd(both, chunk));
}

template <class U, class T, unsigned N> AIE_INLINE auto vector_cast(const vector<T, N> &v) {
    return v.template cast_to<U>();
}

} // namespace aie
