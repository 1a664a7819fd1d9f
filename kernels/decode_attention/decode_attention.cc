// Attention of one new token on one core: the query heads of one KV head against the cache, in
// blocks of KEYS keys.
//
// Scores, statistics and the output stay in FP32; the probabilities are bf16, as the hardware exp2
// gives them. Keys after `position` do not count, whatever the cache holds there.
//
// HEAD_DIM, GROUP (query heads), KEYS and SCALE = log2(e) / sqrt(HEAD_DIM) are baked in.
#include <aie_api/aie.hpp>

#include <cstdint>

static constexpr unsigned kLanes = 16;  // one lane of each statistic per query head
static_assert(GROUP <= kLanes && HEAD_DIM % 64 == 0 && KEYS % 32 == 0, "vectors of 16, 64 and 32");

// Lowest finite bf16: stands for minus infinity.
static constexpr float kLowest = -3.3895313892515355e38f;

using Statistic = aie::vector<float, kLanes>;

// The statistics of a block of heads, one vector each.
struct State {
  float *place;
  Statistic get(unsigned i) const { return aie::load_v<kLanes>(place + i * kLanes); }
  void set(unsigned i, const Statistic &v) const { aie::store_v(place + i * kLanes, v); }
};
static constexpr unsigned kTop = 0, kSum = 1, kFactor = 2;

// Keys of the block at `first` that lie at or before the position.
static inline unsigned valid_keys(const std::int32_t *position, std::int32_t first) {
  const std::int32_t count = position[0] - first + 1;
  return count < 0 ? 0 : count < KEYS ? static_cast<unsigned>(count) : KEYS;
}

// The query comes in through the stream of K and V.
extern "C" void da_begin(const bfloat16 *__restrict stream, bfloat16 *__restrict q,
                         float *__restrict o, float *__restrict state) {
  for (unsigned i = 0; i < GROUP * HEAD_DIM; i += 32) {
    aie::store_v(q + i, aie::load_v<32>(stream + i));
    aie::store_v(o + i, aie::zeros<float, 32>());
  }
  const State s{state};
  s.set(kTop, aie::broadcast<float, kLanes>(kLowest));
  s.set(kSum, aie::zeros<float, kLanes>());
  s.set(kFactor, aie::zeros<float, kLanes>());
}

// Scores of one query head, times log2(e) / sqrt(HEAD_DIM). Returns the largest.
static inline float score(const bfloat16 *__restrict q, const bfloat16 *__restrict k,
                          float *__restrict s, unsigned valid) {
  for (unsigned key = 0; key < valid; ++key) {
    auto dot = aie::mul(aie::load_v<64>(q), aie::load_v<64>(k + key * HEAD_DIM));
    for (unsigned i = 64; i < HEAD_DIM; i += 64) {
      dot = aie::mac(dot, aie::load_v<64>(q + i), aie::load_v<64>(k + key * HEAD_DIM + i));
    }
    s[key] = aie::reduce_add(aie::add(dot.template extract<32>(0), dot.template extract<32>(1))
                                 .template to_vector<float>());
  }
  for (unsigned key = valid; key < KEYS; ++key) {
    s[key] = kLowest;
  }
  auto largest = aie::broadcast<float, 32>(kLowest);
  for (unsigned i = 0; i < KEYS; i += 32) {
    const auto scaled = aie::mul(aie::load_v<32>(s + i), static_cast<float>(SCALE));
    const auto v = aie::max(scaled.template to_vector<float>(), aie::broadcast<float, 32>(kLowest));
    aie::store_v(s + i, v);
    largest = aie::max(largest, v);
  }
  return aie::reduce_max(largest);
}

// Probabilities of the block's keys, P [GROUP, KEYS]; top, sum and the factor for the output so far.
extern "C" void da_scores(const bfloat16 *__restrict q, const bfloat16 *__restrict k,
                          float *__restrict s, bfloat16 *__restrict p, float *__restrict state,
                          const std::int32_t *__restrict position, std::int32_t first) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  const unsigned valid = valid_keys(position, first);
  if (valid == 0) {
    return;
  }
  const State statistics{state};
  const Statistic before = statistics.get(kTop);
  Statistic top = before, sum = aie::zeros<float, kLanes>();
  for (unsigned head = 0; head < GROUP; ++head) {
    top.set(score(q + head * HEAD_DIM, k, s + head * KEYS, valid), head);
  }
  top = aie::max(before, top);
  for (unsigned head = 0; head < GROUP; ++head) {
    const auto row_top = aie::broadcast<float, 32>(top.get(head));
    aie::accum<accfloat, 32> total = aie::zeros<accfloat, 32>();
    for (unsigned i = head * KEYS; i < (head + 1) * KEYS; i += 32) {
      const auto v = aie::exp2<bfloat16>(aie::sub(aie::load_v<32>(s + i), row_top));
      aie::store_v(p + i, v);
      total = aie::add(total, v);
    }
    sum.set(aie::reduce_add(total.template to_vector<float>()), head);
  }
  const auto exponential = aie::exp2<bfloat16>(aie::sub(before, top));
  const Statistic factor = aie::accum<accfloat, kLanes>(exponential).template to_vector<float>();
  statistics.set(kTop, top);
  statistics.set(kSum, aie::add(aie::mul(statistics.get(kSum), factor), sum));
  statistics.set(kFactor, factor);
}

// O = O * factor + P V.
extern "C" void da_accumulate(float *__restrict o, const bfloat16 *__restrict p,
                              const bfloat16 *__restrict v, const float *__restrict state,
                              const std::int32_t *__restrict position, std::int32_t first) {
  const unsigned valid = valid_keys(position, first);
  if (valid == 0) {
    return;
  }
  const Statistic factor = aie::load_v<kLanes>(state + kFactor * kLanes);
  for (unsigned head = 0; head < GROUP; ++head) {
    const float r = factor.get(head);
    for (unsigned i = 0; i < HEAD_DIM; i += 64) {
      float *__restrict out = o + head * HEAD_DIM + i;
      auto total = aie::concat(aie::mul(aie::load_v<32>(out), r),
                               aie::mul(aie::load_v<32>(out + 32), r));
      for (unsigned key = 0; key < valid; ++key) {
        total = aie::mac(total, aie::load_v<64>(v + key * HEAD_DIM + i), p[head * KEYS + key]);
      }
      aie::store_v(out, total.template extract<32>(0).template to_vector<float>());
      aie::store_v(out + 32, total.template extract<32>(1).template to_vector<float>());
    }
  }
}

// y = O / sum, rounded once.
extern "C" void da_finish(const float *__restrict o, const float *__restrict state,
                          bfloat16 *__restrict y) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  const Statistic sum = aie::load_v<kLanes>(state + kSum * kLanes);
  for (unsigned head = 0; head < GROUP; ++head) {
    const float reciprocal = aie::inv(sum.get(head));
    for (unsigned i = head * HEAD_DIM; i < (head + 1) * HEAD_DIM; i += 32) {
      const auto scaled = aie::mul(aie::load_v<32>(o + i), reciprocal);
      aie::store_v(y + i, scaled.template to_vector<bfloat16>());
    }
  }
}
