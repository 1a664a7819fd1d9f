// aie::vector, aie::mask and aie::accum as aligned arrays, with loads, stores and iterators.
#pragma once

#include <cstddef>
#include <cstring>
#include <iterator>

#include "types.hpp"

namespace aie {
namespace detail {

struct blank_t {};
constexpr blank_t blank{};

// What an undefined lane holds, so that reliance on it shows.
template <class T> AIE_INLINE T poison() {
    if constexpr (std::is_same_v<T, bfloat16>)
        return bfloat16::from_bits(0x7fc0);
    else if constexpr (std::is_floating_point_v<T>)
        return std::numeric_limits<T>::quiet_NaN();
    else
        return std::numeric_limits<T>::min();
}

template <class T> constexpr unsigned default_lanes = 64 / sizeof(T);

constexpr unsigned alignment_of(std::size_t bytes) {
    return bytes >= 64 ? 64u : static_cast<unsigned>(bytes);
}

template <class T> AIE_INLINE T from_lane(float value, const rounding &round) {
    if constexpr (std::is_same_v<T, bfloat16>)
        return bfloat16::from_bits(narrow(value, round));
    else
        return static_cast<T>(value);
}

} // namespace detail

template <class T, unsigned N = detail::default_lanes<T>>
class alignas(detail::alignment_of(sizeof(T) * N)) vector {
    static_assert((N & (N - 1)) == 0, "the number of lanes is a power of two");
    static_assert(sizeof(T) * N >= 16, "a vector has at least 128 bits");

  public:
    using value_type = T;
    T lanes[N];

    AIE_INLINE vector() {
        AIE_LANES
        for (unsigned i = 0; i < N; ++i)
            lanes[i] = detail::poison<T>();
    }
    AIE_INLINE explicit vector(detail::blank_t) {}

    static constexpr unsigned size() { return N; }
    static constexpr unsigned bits() { return N * sizeof(T) * 8; }

    AIE_INLINE T &operator[](unsigned i) { return lanes[i]; }
    AIE_INLINE const T &operator[](unsigned i) const { return lanes[i]; }
    AIE_INLINE T get(unsigned i) const { return lanes[i]; }
    AIE_INLINE void set(T value, unsigned i) { lanes[i] = value; }
    AIE_INLINE void push(T value) {
        for (unsigned i = N - 1; i > 0; --i)
            lanes[i] = lanes[i - 1];
        lanes[0] = value;
    }

    template <unsigned M> AIE_INLINE vector<T, M> extract(unsigned index) const {
        vector<T, M> out(detail::blank);
        AIE_LANES
        for (unsigned i = 0; i < M; ++i)
            out.lanes[i] = lanes[index * M + i];
        return out;
    }
    template <unsigned M> AIE_INLINE vector &insert(unsigned index, const vector<T, M> &part) {
        AIE_LANES
        for (unsigned i = 0; i < M; ++i)
            lanes[index * M + i] = part.lanes[i];
        return *this;
    }
    template <unsigned M> AIE_INLINE vector<T, M> grow(unsigned index = 0) const {
        vector<T, M> out;
        out.template insert<N>(index, *this);
        return out;
    }
    template <unsigned M> AIE_INLINE vector<T, M> grow_replicate() const {
        vector<T, M> out(detail::blank);
        AIE_LANES
        for (unsigned i = 0; i < M; ++i)
            out.lanes[i] = lanes[i % N];
        return out;
    }
    template <class U> AIE_INLINE auto cast_to() const {
        vector<U, N * sizeof(T) / sizeof(U)> out(detail::blank);
        std::memcpy(static_cast<void *>(out.lanes), lanes, sizeof(lanes));
        return out;
    }
};

template <unsigned N> class mask {
  public:
    bool lanes[N] = {};

    static constexpr unsigned size() { return N; }
    AIE_INLINE bool test(unsigned i) const { return lanes[i]; }
    AIE_INLINE void set(unsigned i) { lanes[i] = true; }
    AIE_INLINE void clear(unsigned i) { lanes[i] = false; }
    AIE_INLINE unsigned count() const {
        unsigned n = 0;
        AIE_LANES
        for (unsigned i = 0; i < N; ++i)
            n += lanes[i];
        return n;
    }
    AIE_INLINE bool empty() const { return count() == 0; }
    AIE_INLINE bool full() const { return count() == N; }
    AIE_INLINE mask operator~() const {
        return combine([&](unsigned i) { return !lanes[i]; });
    }
    AIE_INLINE mask operator&(const mask &o) const {
        return combine([&](unsigned i) { return lanes[i] && o.lanes[i]; });
    }
    AIE_INLINE mask operator|(const mask &o) const {
        return combine([&](unsigned i) { return lanes[i] || o.lanes[i]; });
    }
    AIE_INLINE mask operator^(const mask &o) const {
        return combine([&](unsigned i) { return lanes[i] != o.lanes[i]; });
    }

  private:
    template <class F> static AIE_INLINE mask combine(F f) {
        mask out;
        AIE_LANES
        for (unsigned i = 0; i < N; ++i)
            out.lanes[i] = f(i);
        return out;
    }
};

template <class Tag, unsigned N> class alignas(64) accum {
  public:
    using lane = typename Tag::lane;
    lane lanes[N];

    AIE_INLINE accum() {
        AIE_LANES
        for (unsigned i = 0; i < N; ++i)
            lanes[i] = detail::poison<lane>();
    }
    AIE_INLINE explicit accum(detail::blank_t) {}
    template <class T> AIE_INLINE explicit accum(const vector<T, N> &v, int shift = 0) {
        from_vector(v, shift);
    }
    template <class T> AIE_INLINE accum &operator=(const vector<T, N> &v) {
        from_vector(v);
        return *this;
    }

    static constexpr unsigned size() { return N; }

    template <class T> AIE_INLINE void from_vector(const vector<T, N> &v, int shift = 0) {
        AIE_LANES
        for (unsigned i = 0; i < N; ++i) {
            if constexpr (std::is_integral_v<lane>)
                lanes[i] = static_cast<lane>(v.lanes[i]) << shift;
            else
                lanes[i] = static_cast<lane>(v.lanes[i]);
        }
    }
    // To bf16 it rounds as the register says; to float it is a copy. `shift` is for integers.
    template <class T> AIE_INLINE vector<T, N> to_vector(int shift = 0) const {
        const detail::rounding round = detail::crRnd.round;
        vector<T, N> out(detail::blank);
        AIE_LANES
        for (unsigned i = 0; i < N; ++i) {
            if constexpr (std::is_integral_v<lane>)
                out.lanes[i] = static_cast<T>(lanes[i] >> shift);
            else
                out.lanes[i] = detail::from_lane<T>(lanes[i], round);
        }
        return out;
    }
    template <class T, unsigned M = N,
              class = std::enable_if_t<(M <= 32) && std::is_floating_point_v<lane> &&
                                       !std::is_integral_v<T>>>
    AIE_INLINE operator vector<T, N>() const {
        return to_vector<T>();
    }
    template <unsigned M> AIE_INLINE accum<Tag, M> extract(unsigned index) const {
        accum<Tag, M> out(detail::blank);
        AIE_LANES
        for (unsigned i = 0; i < M; ++i)
            out.lanes[i] = lanes[index * M + i];
        return out;
    }
    template <unsigned M> AIE_INLINE accum &insert(unsigned index, const accum<Tag, M> &part) {
        AIE_LANES
        for (unsigned i = 0; i < M; ++i)
            lanes[index * M + i] = part.lanes[i];
        return *this;
    }
    template <unsigned M> AIE_INLINE accum<Tag, M> grow(unsigned index = 0) const {
        accum<Tag, M> out;
        out.template insert<N>(index, *this);
        return out;
    }
    template <class U> AIE_INLINE auto cast_to() const {
        accum<U, N * sizeof(lane) / sizeof(typename U::lane)> out(detail::blank);
        std::memcpy(out.lanes, lanes, sizeof(lanes));
        return out;
    }
};

// An aligned access on a core drops the low address bits silently; here it stops.
template <unsigned N, class T> AIE_INLINE vector<T, N> &at(T *p) {
    constexpr unsigned alignment = detail::alignment_of(sizeof(T) * N);
    if (__builtin_expect((reinterpret_cast<std::uintptr_t>(p) & (alignment - 1)) != 0, 0))
        detail::misaligned(p, alignment);
    return *reinterpret_cast<vector<T, N> *>(p);
}
template <unsigned N, class T> AIE_INLINE const vector<T, N> &at(const T *p) {
    return at<N>(const_cast<T *>(p));
}

template <unsigned N, class T> AIE_INLINE vector<T, N> load_v(const T *p) { return at<N>(p); }
template <class T> AIE_INLINE auto load_v(const T *p) {
    return load_v<detail::default_lanes<T>>(p);
}
template <unsigned N, class T>
AIE_INLINE vector<T, N> load_unaligned_v(const T *p, unsigned aligned_elems = 1) {
    (void)aligned_elems;
    vector<T, N> out(detail::blank);
    std::memcpy(static_cast<void *>(out.lanes), p, sizeof(out.lanes));
    return out;
}
template <unsigned N, class T> AIE_INLINE vector<T, N> load_floor_v(const T *p, unsigned n = N) {
    const std::uintptr_t step = n * sizeof(T);
    return load_unaligned_v<N>(
        reinterpret_cast<const T *>(reinterpret_cast<std::uintptr_t>(p) / step * step));
}
template <class T, unsigned N> AIE_INLINE T *store_v(T *p, const vector<T, N> &v) {
    at<N>(p) = v;
    return p;
}
template <class T, unsigned N>
AIE_INLINE T *store_unaligned_v(T *p, const vector<T, N> &v, unsigned aligned_elems = 1) {
    (void)aligned_elems;
    std::memcpy(static_cast<void *>(p), v.lanes, sizeof(v.lanes));
    return p;
}

// Random access over consecutive vectors; T is const for a read-only one.
template <class T, unsigned N> class vector_iterator {
    T *place;

  public:
    using lane = std::remove_const_t<T>;
    using value_type = vector<lane, N>;
    using difference_type = std::ptrdiff_t;
    using reference = std::conditional_t<std::is_const_v<T>, const value_type &, value_type &>;
    using pointer = std::remove_reference_t<reference> *;
    using iterator_category = std::random_access_iterator_tag;

    AIE_INLINE explicit vector_iterator(T *p) : place(p) {}
    AIE_INLINE reference operator*() const { return at<N>(place); }
    AIE_INLINE pointer operator->() const { return &at<N>(place); }
    AIE_INLINE reference operator[](difference_type n) const { return at<N>(place + n * N); }
    AIE_INLINE vector_iterator &operator+=(difference_type n) {
        place += n * static_cast<difference_type>(N);
        return *this;
    }
    AIE_INLINE vector_iterator &operator-=(difference_type n) { return *this += -n; }
    AIE_INLINE vector_iterator &operator++() { return *this += 1; }
    AIE_INLINE vector_iterator &operator--() { return *this -= 1; }
    AIE_INLINE vector_iterator operator++(int) {
        vector_iterator before = *this;
        *this += 1;
        return before;
    }
    AIE_INLINE vector_iterator operator--(int) {
        vector_iterator before = *this;
        *this -= 1;
        return before;
    }
    friend AIE_INLINE vector_iterator operator+(vector_iterator it, difference_type n) {
        return it += n;
    }
    friend AIE_INLINE vector_iterator operator-(vector_iterator it, difference_type n) {
        return it -= n;
    }
    friend AIE_INLINE difference_type operator-(vector_iterator a, vector_iterator b) {
        return (a.place - b.place) / static_cast<difference_type>(N);
    }
    friend AIE_INLINE bool operator==(vector_iterator a, vector_iterator b) {
        return a.place == b.place;
    }
    friend AIE_INLINE bool operator!=(vector_iterator a, vector_iterator b) { return !(a == b); }
    friend AIE_INLINE bool operator<(vector_iterator a, vector_iterator b) {
        return a.place < b.place;
    }
};

template <unsigned N, class T> AIE_INLINE auto begin_vector(T *p) {
    return vector_iterator<T, N>(p);
}
template <unsigned N, class T> AIE_INLINE auto cbegin_vector(const T *p) {
    return vector_iterator<const T, N>(p);
}
template <unsigned N, class T> AIE_INLINE auto begin_restrict_vector(T *p) {
    return vector_iterator<T, N>(p);
}
template <unsigned N, class T> AIE_INLINE auto cbegin_restrict_vector(const T *p) {
    return vector_iterator<const T, N>(p);
}

} // namespace aie
