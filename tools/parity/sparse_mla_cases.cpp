#include "tools/parity/sparse_mla_cases.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "kernels/cache_write.h"

namespace strata {

namespace {

constexpr int64_t kCells = 6144;  // of a sequence
constexpr int64_t kNaNRow = 12;   // the kind whose selected rows have a NaN among them

// The ids of a row: kSparseMlaKinds kinds in turn.
std::vector<int32_t> MakeIds(int64_t kind, int64_t columns, int32_t* length, std::mt19937& random) {
  std::vector<int32_t> cells(kCells), ids(columns, -1);
  std::iota(cells.begin(), cells.end(), 0);
  std::shuffle(cells.begin(), cells.end(), random);
  std::sort(cells.begin(), cells.begin() + std::min(columns, kCells));
  *length = kCells;
  const auto fill = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < std::min(end, columns); ++i) ids[i] = cells[i];
  };
  switch (kind) {
    case 0:  // full
      fill(0, columns);
      break;
    case 1:  // every third id missing
      fill(0, columns);
      for (int64_t i = 0; i < columns; i += 3) ids[i] = -1;
      break;
    case 2:  // nothing selected
      break;
    case 3:  // a short row: fewer cells than columns
      *length = 5;
      for (int64_t i = 0; i < std::min<int64_t>(5, columns); ++i) ids[i] = static_cast<int32_t>(i);
      break;
    case 4:  // ids at and behind the length, and wild ones
      fill(0, columns);
      *length = kCells / 2;
      for (int64_t i = 0; i < columns; i += 61)
        ids[i] = i % 2 ? std::numeric_limits<int32_t>::max() : std::numeric_limits<int32_t>::min();
      break;
    case 5:  // the tail is missing
      fill(0, columns / 2);
      break;
    case 6:  // the first chunks are empty
      fill(columns / 3, columns);
      break;
    case 7:  // one id, in the first column
      fill(0, 1);
      break;
    case 8:  // one id, in the last column
      fill(columns - 1, columns);
      break;
    case 9:  // a chunk of 64 and one more
      fill(0, 65);
      break;
    case 10:  // one cell over and over, among others
      fill(0, columns);
      for (int64_t i = 0; i < columns; i += 2) ids[i] = cells[columns / 2];
      break;
    case 11:  // no id is valid
      fill(0, columns);
      *length = 0;
      break;
    case kNaNRow:
      fill(0, columns);
      break;
    default:  // a length below zero, which no id is valid with either
      fill(0, columns);
      *length = -1;
      break;
  }
  return ids;
}

}  // namespace

SparseMlaCase MakeSparseMlaCase(const SparseMlaShape& shape, uint64_t seed, Stream cpu) {
  std::mt19937 random(static_cast<uint32_t>(seed));
  std::normal_distribution<float> normal;
  SparseMlaCase c;
  c.shape = shape;
  c.layout = {shape.dtype, shape.latent, shape.rope};
  const int64_t width = shape.latent + shape.rope;
  c.scale = 1.0f / std::sqrt(static_cast<float>(width));
  c.query.resize(shape.rows * shape.heads * width);
  c.query_bf16.resize(c.query.size());
  for (size_t i = 0; i < c.query.size(); ++i) {
    c.query[i] = 1.5f * normal(random);
    c.query_bf16[i] = FloatToBf16(c.query[i]);
    if (shape.bf16_query) c.query[i] = Bf16ToFloat(c.query_bf16[i]);
  }
  // Two rows share a sequence, as a verify window does.
  c.sequences = (shape.rows + 1) / 2;
  c.max_pages = kCells / kPageCells;
  c.block_table.resize(c.sequences * c.max_pages);
  std::iota(c.block_table.begin(), c.block_table.end(), 0);
  std::shuffle(c.block_table.begin(), c.block_table.end(), random);
  c.cache.assign(c.block_table.size() * c.layout.PageBytes(), std::byte{0xff});
  for (int64_t s = 0; s < c.sequences; ++s) c.first_row.push_back(static_cast<int32_t>(2 * s));
  c.first_row.push_back(static_cast<int32_t>(shape.rows));

  const View<const int32_t, 2> table =
      MakeView<const int32_t>(c.block_table.data(), {c.sequences, c.max_pages});
  const LatentPages pages{c.cache.data(), c.layout, c.layout.PageBytes(), table};
  for (int64_t row = 0; row < shape.rows; ++row) {
    int32_t length = 0;
    const std::vector<int32_t> ids = MakeIds(row % kSparseMlaKinds, shape.columns, &length, random);
    c.ids.insert(c.ids.end(), ids.begin(), ids.end());
    c.lengths.push_back(length);
    c.sequence.push_back(static_cast<int32_t>(row / 2));
    std::vector<int32_t> positions;
    for (int32_t id : ids) {
      if (id >= 0 && id < length) positions.push_back(id);
    }
    // A cell that is selected more than once is written once: of two writes either may stay.
    std::sort(positions.begin(), positions.end());
    positions.erase(std::unique(positions.begin(), positions.end()), positions.end());
    if (positions.empty()) continue;
    const int64_t count = static_cast<int64_t>(positions.size());
    std::vector<float> values(count * width);
    for (float& value : values) value = normal(random);
    for (int64_t i = 1; i < count; i += 97) {  // rows of other magnitudes
      for (int64_t d = 0; d < shape.latent; ++d) values[i * width + d] *= i % 2 ? 1e-3f : 0.0f;
    }
    if (row % kSparseMlaKinds == kNaNRow)
      values[count / 2 * width + 3] = std::numeric_limits<float>::quiet_NaN();
    const std::vector<int32_t> sequence(count, static_cast<int32_t>(row / 2));
    const std::vector<int32_t> bounds = {0, static_cast<int32_t>(count)};
    cpu::Run(WriteLatent{.values = MakeView<const float>(values.data(), {count, width}),
                         .rows = {MakeView<const int32_t>(sequence.data(), {count}),
                                  MakeView<const int32_t>(bounds.data(), {2})},
                         .positions = MakeView<const int32_t>(positions.data(), {count}),
                         .pages = pages},
             cpu);
  }
  c.out.assign(shape.rows * shape.heads * shape.latent, std::numeric_limits<float>::quiet_NaN());
  c.lse.assign(shape.rows * shape.heads, std::numeric_limits<float>::quiet_NaN());
  std::vector<std::byte> workspace(
      cpu::SparseMlaWorkspaceBytes(shape.heads, shape.columns, c.layout, cpu.pool->threads()));
  cpu::Run(
      SparseMla{.query = MakeView<const float>(c.query.data(), {shape.rows, shape.heads, width}),
                .pages = pages,
                .rows = {MakeView<const int32_t>(c.sequence.data(), {shape.rows}),
                         MakeView<const int32_t>(c.first_row.data(), {c.sequences + 1})},
                .ids = MakeView<const int32_t>(c.ids.data(), {shape.rows, shape.columns}),
                .lengths = MakeView<const int32_t>(c.lengths.data(), {shape.rows}),
                .scale = c.scale,
                .out = MakeView(c.out.data(), {shape.rows, shape.heads, shape.latent}),
                .lse = MakeView(c.lse.data(), {shape.rows, shape.heads}),
                .workspace = MakeView(workspace.data(), {static_cast<int64_t>(workspace.size())})},
      cpu);
  return c;
}

namespace {

// NaN, and not the one that outputs are filled with.
bool WrittenNaN(float x) { return std::isnan(x) && FloatToBits(x) != 0xffffffffu; }

}  // namespace

SparseMlaDifference Compare(const SparseMlaCase& expected, const std::vector<float>& out,
                            const std::vector<float>& lse) {
  SparseMlaDifference difference;
  const SparseMlaShape& shape = expected.shape;
  const int64_t width = shape.heads * shape.latent;
  for (int64_t row = 0; row < shape.rows; ++row) {
    double error = 0.0, norm = 0.0;
    for (int64_t i = row * width; i < (row + 1) * width; ++i) {
      if (std::isnan(expected.out[i])) {
        difference.nan &= WrittenNaN(out[i]);
        continue;
      }
      const double d = static_cast<double>(out[i]) - expected.out[i];
      error += d * d, norm += static_cast<double>(expected.out[i]) * expected.out[i];
    }
    const bool empty = std::isinf(expected.lse[row * shape.heads]);
    if (empty) {
      difference.exact_empty &= error == 0.0;
    } else {
      const double relative = error > 0.0 || norm > 0.0 ? std::sqrt(error / norm) : 0.0;
      difference.out = std::isnan(relative) ? std::numeric_limits<double>::infinity()
                                            : std::max(difference.out, relative);
    }
    for (int64_t i = row * shape.heads; i < (row + 1) * shape.heads; ++i) {
      if (empty) {
        difference.exact_empty &= lse[i] == expected.lse[i];
      } else if (std::isnan(expected.lse[i])) {
        difference.nan &= WrittenNaN(lse[i]);
      } else {
        const double d = std::fabs(static_cast<double>(lse[i]) - expected.lse[i]);
        difference.lse =
            std::isnan(d) ? std::numeric_limits<double>::infinity() : std::max(difference.lse, d);
      }
    }
  }
  return difference;
}

uint64_t HashBytes(const void* data, size_t bytes) {
  const auto* p = static_cast<const unsigned char*>(data);
  uint64_t hash = 0xcbf29ce484222325ull;
  for (size_t i = 0; i < bytes; ++i) hash = (hash ^ p[i]) * 0x100000001b3ull;
  return hash;
}

}  // namespace strata
