// Scalar types, the rounding register and the loop macros of the host implementation of aie_api.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <type_traits>

#define AIE_HOST 1
#define AIE_VECTOR_LDST_ALIGN 64
#define AIE_INLINE inline __attribute__((always_inline))

// Before a loop over lanes. GCC would unroll one of 16 lanes or fewer before it looks for vectors, and
// then find none.
#if defined(__GNUC__) && !defined(__clang__)
#define AIE_LANES _Pragma("GCC unroll 1") _Pragma("GCC ivdep")
#else
#define AIE_LANES
#endif

// Pipelining hints of the AIE compilers mean nothing to the host's.
#define AIE_PREPARE_FOR_PIPELINING
#define AIE_LOOP_RANGE(...)
#define AIE_LOOP_MIN_ITERATION_COUNT(n)
#define AIE_LOOP_MAX_ITERATION_COUNT(n)
#define AIE_LOOP_UNROLL(n)
#define AIE_LOOP_UNROLL_FULL
#define AIE_LOOP_NO_UNROLL
#define AIE_LOOP_FLATTEN
#define AIE_TRY_INITIATION_INTERVAL(n)
#define chess_prepare_for_pipelining
#define chess_loop_range(...)
#define chess_loop_count(...)
#define chess_flatten_loop
#define chess_unroll_loop(...)
#define chess_copy(x) (x)
#define chess_protect_access
#define chess_storage(...)

static AIE_INLINE void event0() {}
static AIE_INLINE void event1() {}

namespace aie {

enum class rounding_mode : int {
    floor = 0,
    ceil = 1,
    symmetric_floor = 2,
    symmetric_ceil = 3,
    negative_inf = 8,
    positive_inf = 9,
    symmetric_zero = 10,
    symmetric_inf = 11,
    conv_even = 12,
    conv_odd = 13,
};

enum class saturation_mode : int { none = 0, truncate = 0, saturate = 1, symmetric = 3 };

namespace detail {

// How a mode rounds the upper 16 bits of a float: add a bias that depends on the sign and, for the
// two convergent modes, one more where the last kept bit (plus `odd`) is set; then drop 16 bits.
struct rounding {
    std::uint32_t positive, negative, parity, odd;
};

constexpr rounding rounding_of(rounding_mode mode) {
    switch (mode) {
    case rounding_mode::floor: return {0, 0xffff, 0, 0};
    case rounding_mode::ceil: return {0xffff, 0, 0, 0};
    case rounding_mode::symmetric_floor: return {0, 0, 0, 0};
    case rounding_mode::symmetric_ceil: return {0xffff, 0xffff, 0, 0};
    case rounding_mode::negative_inf: return {0x7fff, 0x8000, 0, 0};
    case rounding_mode::positive_inf: return {0x8000, 0x7fff, 0, 0};
    case rounding_mode::symmetric_zero: return {0x7fff, 0x7fff, 0, 0};
    case rounding_mode::symmetric_inf: return {0x8000, 0x8000, 0, 0};
    case rounding_mode::conv_even: return {0x7fff, 0x7fff, 1, 0};
    case rounding_mode::conv_odd: return {0x7fff, 0x7fff, 1, 1};
    }
    return {0, 0xffff, 0, 0};
}

struct core_state {
    rounding_mode mode;
    rounding round;
};

// The register crRnd of the emulated core: one per thread, floor (toward minus infinity) at power
// up, and kept from call to call. Local-dynamic: the room for static thread-local storage would end
// after some eighty dispatches in one process.
inline thread_local core_state crRnd
    __attribute__((tls_model("local-dynamic"), visibility("hidden"))) = {rounding_mode::floor,
                                                                        {0, 0xffff, 0, 0}};

AIE_INLINE float widen(std::uint16_t bits) {
    return __builtin_bit_cast(float, static_cast<std::uint32_t>(bits) << 16);
}

AIE_INLINE std::uint16_t narrow(float value, const rounding &round) {
    const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, value);
    const std::uint32_t sign = static_cast<std::uint32_t>(static_cast<std::int32_t>(bits) >> 31);
    const std::uint32_t bias = (round.negative & sign) | (round.positive & ~sign);
    const std::uint32_t high = bits >> 16;
    const std::uint32_t rounded = (bits + bias + ((high + round.odd) & round.parity)) >> 16;
    // Infinity has no low bits, so no bias reaches its upper ones; a NaN is kept apart.
    return static_cast<std::uint16_t>(value != value ? high | 0x40u : rounded);
}

[[noreturn]] inline void misaligned(const void *address, unsigned alignment) {
    std::fprintf(stderr, "aie: vector access at %p is not aligned to %u bytes\n", address,
                 alignment);
    std::abort();
}

} // namespace detail

inline void set_rounding(rounding_mode mode) {
    detail::crRnd = {mode, detail::rounding_of(mode)};
}
inline rounding_mode get_rounding() { return detail::crRnd.mode; }
inline rounding_mode swap_rounding(rounding_mode mode) {
    const rounding_mode before = get_rounding();
    set_rounding(mode);
    return before;
}
inline void set_saturation(saturation_mode) {}

} // namespace aie

// The upper half of a float. Narrowing rounds as the register says.
struct bfloat16 {
    std::uint16_t bits;

    bfloat16() = default;
    AIE_INLINE bfloat16(float value) : bits(aie::detail::narrow(value, aie::detail::crRnd.round)) {}
    AIE_INLINE bfloat16(double value) : bfloat16(static_cast<float>(value)) {}
    AIE_INLINE bfloat16(int value) : bfloat16(static_cast<float>(value)) {}
    AIE_INLINE operator float() const { return aie::detail::widen(bits); }

    static constexpr AIE_INLINE bfloat16 from_bits(std::uint16_t bits) {
        return bfloat16(bits, raw{});
    }

  private:
    struct raw {};
    constexpr bfloat16(std::uint16_t pattern, raw) : bits(pattern) {}
};
static_assert(sizeof(bfloat16) == 2, "bfloat16 is two bytes");

// Accumulator tags: lanes of float, 32-bit or 64-bit integers; `accauto` follows the operands.
struct accfloat {
    using lane = float;
};
struct acc32 {
    using lane = std::int32_t;
};
struct acc64 {
    using lane = std::int64_t;
};
struct accauto {};
