// Flash attention of one core: 64 query rows against its share of the key blocks, 64 keys at a time.
//
// Scores S, the running maximum, the probabilities, the rescaling factor, the row sums and the output
// are kept in bf16, rounded to nearest even; both products go through the matrix unit. A block of 64
// rows is stored as 8x8 tiles, each row-major, in column-of-tiles order: tile (row m, column n) of S
// and O at (n * 8 + m) * 64, of Q (m, k) at (k * 8 + m) * 64. K arrives as tiles [key][depth], each 8
// keys x 8 depths, V as tiles [column][key], each 8 keys x 8 columns.
//
// HEAD_DIM, NUM_Q_TILES and CAUSAL are baked in, and SCALE = log2(e) / sqrt(HEAD_DIM) rounded to bf16.
#include <aie_api/aie.hpp>

#include <cstdint>

using Product = aie::mmul<8, 8, 8, bfloat16, bfloat16, accfloat>;
using Tile = aie::vector<bfloat16, 64>;

static constexpr unsigned kTile = 64;       // elements of an 8x8 tile
static constexpr unsigned kRows = 64;       // query rows of a core, keys of a block
static constexpr unsigned kTiles = kRows / 8;
static constexpr unsigned kDepth = HEAD_DIM / 8;
static constexpr unsigned kChunk = 4096;    // elements of one load of K or V
static constexpr unsigned kKeyTiles = kChunk / HEAD_DIM / 8;  // tiles along the keys of a K load
static_assert(HEAD_DIM % 64 == 0 && kKeyTiles % 2 == 0, "a load of K holds pairs of key tiles");

// bf16 patterns: the lowest finite value stands for minus infinity, the highest bounds nothing.
static constexpr std::uint16_t kLowest = 0xff7f, kHighest = 0x7f7f;

struct Triangle {
  alignas(64) std::uint16_t limit[kTile];
  constexpr Triangle() : limit() {
    for (unsigned i = 0; i < kTile; ++i) {
      limit[i] = i % 8 <= i / 8 ? kHighest : kLowest;
    }
  }
};
alignas(64) static constexpr Triangle kTriangle;

static inline Tile load(const bfloat16 *tile) { return aie::load_v<kTile>(tile); }

static inline aie::vector<bfloat16, 32> lowest() {
  return aie::broadcast<std::int16_t, 32>(static_cast<std::int16_t>(kLowest))
      .template cast_to<bfloat16>();
}

// Eight row values as a tile in which each stands in all columns of its row.
static inline Tile across(const bfloat16 *rows) {
  return aie::transpose(aie::load_v<8>(rows).template grow_replicate<kTile>(), 8, 8);
}

// exp2(SCALE * x): the product is exact in FP32, the hardware function gives bf16.
static inline aie::vector<bfloat16, 32> exponential(const aie::vector<bfloat16, 32> &x) {
  const aie::accum<accfloat, 32> scaled = aie::mul(x, bfloat16(SCALE));
  return aie::exp2<bfloat16>(scaled.template to_vector<float>());
}

static inline Tile exponential(const Tile &x) {
  return aie::concat(exponential(x.template extract<32>(0)), exponential(x.template extract<32>(1)));
}

static inline Tile scaled(const Tile &x, const Tile &factor) {
  return aie::mul(x, factor).template to_vector<bfloat16>();
}

extern "C" void fa_begin(bfloat16 *__restrict o, bfloat16 *__restrict top,
                         bfloat16 *__restrict sum) {
  const auto zero = aie::zeros<bfloat16, 32>();
  for (unsigned i = 0; i < kRows * HEAD_DIM; i += 32) {
    aie::store_v(o + i, zero);
  }
  for (unsigned i = 0; i < kRows; i += 32) {
    aie::store_v(top + i, lowest());
    aie::store_v(sum + i, zero);
  }
}

// Key blocks that this one lies after the query rows: `block` counts from the rows of the herd's
// first column, a column's own rows are column % NUM_Q_TILES blocks further.
static inline std::int32_t ahead(std::int32_t block, std::int32_t column) {
  return block - column % NUM_Q_TILES;
}

// Whether the mask hides the whole block: it would change no statistic and no output, so the core
// takes the load and computes nothing.
static inline bool hidden(std::int32_t block, std::int32_t column) {
  return CAUSAL && ahead(block, column) > 0;
}

// S[:, part] = Q K^T for load `part` of the block's keys.
extern "C" void fa_scores(const bfloat16 *__restrict q, const bfloat16 *__restrict k,
                          bfloat16 *__restrict s, std::int32_t part, std::int32_t block,
                          std::int32_t column) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  if (hidden(block, column)) {
    return;
  }
  bfloat16 *__restrict out = s + part * (kChunk / HEAD_DIM) * kRows;
  for (unsigned n = 0; n < kKeyTiles; n += 2) {
    for (unsigned m = 0; m < kTiles; m += 2) {
      Product s00, s10, s01, s11;
      for (unsigned d = 0; d < kDepth; ++d) {
        const Tile q0 = load(q + (d * kTiles + m) * kTile);
        const Tile q1 = load(q + (d * kTiles + m + 1) * kTile);
        const Tile k0 = aie::transpose(load(k + (n * kDepth + d) * kTile), 8, 8);
        const Tile k1 = aie::transpose(load(k + ((n + 1) * kDepth + d) * kTile), 8, 8);
        s00.mac(q0, k0);
        s10.mac(q1, k0);
        s01.mac(q0, k1);
        s11.mac(q1, k1);
      }
      bfloat16 *__restrict left = out + (n * kTiles + m) * kTile;
      bfloat16 *__restrict right = left + kTiles * kTile;
      aie::store_v(left, s00.template to_vector<bfloat16>());
      aie::store_v(left + kTile, s10.template to_vector<bfloat16>());
      aie::store_v(right, s01.template to_vector<bfloat16>());
      aie::store_v(right + kTile, s11.template to_vector<bfloat16>());
    }
  }
}

// In the block of the query rows themselves, keys after the query become lowest().
static inline void mask(bfloat16 *__restrict s) {
  const Tile limit = load(reinterpret_cast<const bfloat16 *>(kTriangle.limit));
  const Tile none = aie::concat(lowest(), lowest());
  for (unsigned n = 0; n < kTiles; ++n) {
    for (unsigned m = 0; m < kTiles; ++m) {
      bfloat16 *tile = s + (n * kTiles + m) * kTile;
      if (n > m) {
        aie::store_v(tile, none);
      } else if (n == m) {
        aie::store_v(tile, aie::min(load(tile), limit));
      }
    }
  }
}

// Largest score of each row of S.
static inline void row_max(const bfloat16 *__restrict s, bfloat16 *__restrict top) {
  for (unsigned m = 0; m < kTiles; ++m) {
    Tile largest = load(s + m * kTile);
    for (unsigned n = 1; n < kTiles; ++n) {
      largest = aie::max(largest, load(s + (n * kTiles + m) * kTile));
    }
    largest = aie::transpose(largest, 8, 8);  // rows along the lanes: fold the columns
    const auto v32 = aie::max(largest.template extract<32>(0), largest.template extract<32>(1));
    const auto v16 = aie::max(v32.template extract<16>(0), v32.template extract<16>(1));
    aie::store_v(top + m * 8, aie::max(v16.template extract<8>(0), v16.template extract<8>(1)));
  }
}

// S = exp2(SCALE * (S - top)), and the sum of each row, in FP32 and then rounded.
static inline void probabilities(bfloat16 *__restrict s, const bfloat16 *__restrict top,
                                 bfloat16 *__restrict sum) {
  for (unsigned m = 0; m < kTiles; ++m) {
    const Tile row_top = across(top + m * 8);
    aie::accum<accfloat, 64> total = aie::zeros<accfloat, 64>();
    for (unsigned n = 0; n < kTiles; ++n) {
      bfloat16 *tile = s + (n * kTiles + m) * kTile;
      const Tile p = exponential(aie::sub(load(tile), row_top));
      aie::store_v(tile, p);
      total = aie::add(total, aie::transpose(p, 8, 8));
    }
    const auto a32 = aie::add(total.template extract<32>(0), total.template extract<32>(1));
    const auto a16 = aie::add(a32.template extract<16>(0), a32.template extract<16>(1));
    const auto a8 = aie::add(a16.template extract<8>(0), a16.template extract<8>(1));
    aie::store_v(sum + m * 8, a8.template to_vector<bfloat16>());
  }
}

// One block of scores becomes probabilities; the running maximum and sum take it in. `factor` is
// what the output so far has to be multiplied by.
extern "C" void fa_softmax(bfloat16 *__restrict s, bfloat16 *__restrict top,
                           bfloat16 *__restrict sum, bfloat16 *__restrict factor,
                           std::int32_t block, std::int32_t column) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  if (hidden(block, column)) {
    return;
  }
  if (CAUSAL && ahead(block, column) == 0) {
    mask(s);
  }
  alignas(64) bfloat16 block_sum[kRows];
  row_max(s, factor);
  for (unsigned i = 0; i < kRows; i += 32) {
    const auto before = aie::load_v<32>(top + i);
    const auto after = aie::max(before, aie::load_v<32>(factor + i));
    aie::store_v(factor + i, exponential(aie::sub(before, after)));
    aie::store_v(top + i, after);
  }
  probabilities(s, top, block_sum);
  for (unsigned i = 0; i < kRows; i += 32) {
    const auto carried = aie::mul(aie::load_v<32>(sum + i), aie::load_v<32>(factor + i));
    const auto total = aie::add(carried, aie::load_v<32>(block_sum + i));
    aie::store_v(sum + i, total.template to_vector<bfloat16>());
  }
}

// O[:, part] = O[:, part] * factor + P V for load `part` of the block's columns of V.
extern "C" void fa_accumulate(bfloat16 *__restrict o, const bfloat16 *__restrict p,
                              const bfloat16 *__restrict v, const bfloat16 *__restrict factor,
                              std::int32_t part, std::int32_t block, std::int32_t column) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  if (hidden(block, column)) {
    return;
  }
  bfloat16 *__restrict out = o + part * kChunk;
  for (unsigned m = 0; m < kTiles; m += 2) {
    const Tile r0 = across(factor + m * 8), r1 = across(factor + m * 8 + 8);
    for (unsigned n = 0; n < 8; n += 2) {
      bfloat16 *__restrict left = out + (n * kTiles + m) * kTile;
      bfloat16 *__restrict right = left + kTiles * kTile;
      Product o00(scaled(load(left), r0)), o10(scaled(load(left + kTile), r1));
      Product o01(scaled(load(right), r0)), o11(scaled(load(right + kTile), r1));
      for (unsigned k = 0; k < kTiles; ++k) {
        const Tile p0 = load(p + (k * kTiles + m) * kTile);
        const Tile p1 = load(p + (k * kTiles + m + 1) * kTile);
        const Tile v0 = load(v + (n * kTiles + k) * kTile);
        const Tile v1 = load(v + ((n + 1) * kTiles + k) * kTile);
        o00.mac(p0, v0);
        o10.mac(p1, v0);
        o01.mac(p0, v1);
        o11.mac(p1, v1);
      }
      aie::store_v(left, o00.template to_vector<bfloat16>());
      aie::store_v(left + kTile, o10.template to_vector<bfloat16>());
      aie::store_v(right, o01.template to_vector<bfloat16>());
      aie::store_v(right + kTile, o11.template to_vector<bfloat16>());
    }
  }
}

// The statistics of the stage above join this one's; the factors say what each output is worth.
extern "C" void fa_merge_statistics(bfloat16 *__restrict top, bfloat16 *__restrict sum,
                                    const bfloat16 *__restrict top_above,
                                    const bfloat16 *__restrict sum_above,
                                    bfloat16 *__restrict factor,
                                    bfloat16 *__restrict factor_above) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  for (unsigned i = 0; i < kRows; i += 32) {
    const auto here = aie::load_v<32>(top + i), above = aie::load_v<32>(top_above + i);
    const auto both = aie::max(here, above);
    const auto r = exponential(aie::sub(here, both));
    const auto r_above = exponential(aie::sub(above, both));
    const aie::vector<bfloat16, 32> s = aie::mul(aie::load_v<32>(sum + i), r);
    const aie::vector<bfloat16, 32> s_above = aie::mul(aie::load_v<32>(sum_above + i), r_above);
    aie::store_v(top + i, both);
    aie::store_v(factor + i, r);
    aie::store_v(factor_above + i, r_above);
    aie::store_v(sum + i, aie::add(s, s_above));
  }
}

// O[:, part] = O[:, part] * factor + (the output of the stage above) * factor_above.
extern "C" void fa_merge(bfloat16 *__restrict o, const bfloat16 *__restrict above,
                         const bfloat16 *__restrict factor,
                         const bfloat16 *__restrict factor_above) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  for (unsigned m = 0; m < kTiles; ++m) {
    const Tile r = across(factor + m * 8), r_above = across(factor_above + m * 8);
    for (unsigned n = 0; n < 8; ++n) {
      const unsigned place = (n * kTiles + m) * kTile;
      aie::store_v(o + place, aie::add(scaled(load(o + place), r),
                                       scaled(load(above + place), r_above)));
    }
  }
}

// O divided by the row sums, as a product with their bf16 reciprocals.
extern "C" void fa_finish(bfloat16 *__restrict o, bfloat16 *__restrict sum) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  for (unsigned i = 0; i < kRows; i += 32) {
    aie::store_v(sum + i, aie::inv(aie::load_v<32>(sum + i)));
  }
  for (unsigned m = 0; m < kTiles; ++m) {
    const Tile reciprocal = across(sum + m * 8);
    for (unsigned n = 0; n < kDepth; ++n) {
      bfloat16 *tile = o + (n * kTiles + m) * kTile;
      aie::store_v(tile, scaled(load(tile), reciprocal));
    }
  }
}
