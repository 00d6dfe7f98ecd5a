// Index scan cases on the host, with the CPU op's scores, and their copies on the device.
#pragma once

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/device.h"
#include "kernels/index_scan.h"
#include "tools/parity/device_array.h"

namespace strata {

struct ScanShape {
  DType key = DType::kFp8E4M3;
  int64_t heads = 64;
  int64_t window = 1;   // rows of the longest group; other groups have fewer, one has none
  bool single = false;  // the longest group alone
  int64_t kpool = 1;
  int64_t longest = 1000;  // keys
  bool f32_query = false;  // else the queries have the keys' type
  int64_t dim = 128;
  // NaN in a few keys and in the last row's query, a row of negative length, pages further apart
  // than they are long.
  bool special = false;
};

struct ScanCase {
  ScanShape shape;
  KeyLayout layout;
  int64_t rows = 0, sequences = 0, max_pages = 0, capacity = 0;
  int64_t page_stride = 0;            // bytes
  std::vector<float> query;           // values that every query type of the case holds exactly
  std::vector<std::byte> query_code;  // the same in the keys' type
  std::vector<float> weights, scores;
  std::vector<std::byte> cache;
  std::vector<int32_t> block_table, sequence, first_row, lengths;

  IndexScan Op(const AnyView<3>& query_view, const float* weight_data, const int32_t* sequence_data,
               const int32_t* first_data, const int32_t* length_data, std::byte* cache_data,
               const int32_t* table_data, float* score_data) const {
    IndexScan op;
    op.query = query_view;
    op.weights = MakeView(weight_data, {rows, shape.heads});
    op.rows = {MakeView(sequence_data, {rows}),
               MakeView(first_data, {static_cast<int64_t>(first_row.size())})};
    op.lengths = MakeView(length_data, {rows});
    op.keys = {cache_data, layout, page_stride, MakeView(table_data, {sequences, max_pages})};
    op.scores = MakeView(score_data, {rows, capacity});
    return op;
  }
};

inline ScanCase MakeScanCase(const ScanShape& shape, uint64_t seed, Stream cpu) {
  ScanCase c;
  c.shape = shape;
  c.layout = {shape.key, shape.dim, shape.kpool};
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  // Groups of 1 to `window` rows with lengths that grow inside a group; idle ones, short ones and
  // the longest.
  std::vector<int64_t> ends = {shape.longest,    0, 1, 63, 64, 65, shape.longest / 3, 200,
                               shape.longest - 1};
  if (shape.single) ends.resize(1);
  c.first_row = {0};
  for (size_t g = 0; g < ends.size(); ++g) {
    const int64_t count =
        g == 2 ? 0 : std::max<int64_t>(1, shape.window - static_cast<int64_t>(g) % 3);
    for (int64_t w = 0; w < count; ++w) {
      c.sequence.push_back(static_cast<int32_t>(g));
      c.lengths.push_back(
          static_cast<int32_t>(std::clamp<int64_t>(ends[g] - count + 1 + w, 0, shape.longest)));
    }
    c.first_row.push_back(static_cast<int32_t>(c.sequence.size()));
  }
  c.rows = static_cast<int64_t>(c.sequence.size());
  c.sequences = static_cast<int64_t>(ends.size());
  c.max_pages = (shape.longest + c.layout.KeysPerPage() - 1) / c.layout.KeysPerPage();
  c.capacity = c.max_pages * c.layout.KeysPerPage();
  c.page_stride = c.layout.PageBytes() + (shape.special ? 64 : 0);
  if (shape.special) c.lengths[1] = -5;
  const int64_t pages = c.sequences * c.max_pages;
  c.block_table.resize(static_cast<size_t>(pages));
  std::iota(c.block_table.begin(), c.block_table.end(), 0);
  std::shuffle(c.block_table.begin(), c.block_table.end(), random);
  c.cache.resize(static_cast<size_t>(pages * c.page_stride));
  for (int64_t p = 0; p < pages; ++p) {
    std::byte* page = c.cache.data() + p * c.page_stride;
    for (int64_t i = 0; i < c.layout.KeysPerPage() * shape.dim; ++i) {
      const float x = normal(random);
      if (shape.key == DType::kF32) reinterpret_cast<float*>(page)[i] = x;
      if (shape.key == DType::kBf16) reinterpret_cast<uint16_t*>(page)[i] = FloatToBf16(x);
      if (shape.key == DType::kFp8E4M3) reinterpret_cast<uint8_t*>(page)[i] = FloatToFp8(x * 64.0f);
    }
    if (shape.key == DType::kFp8E4M3) {
      for (int64_t j = 0; j < c.layout.KeysPerPage(); ++j) {
        reinterpret_cast<float*>(page + c.layout.ScaleOffset())[j] =
            (0.25f + std::abs(normal(random))) / 64.0f;
      }
    }
    if (!shape.special || p % 3 != 0) continue;
    // An fp8 key that has a NaN has it in its scale.
    constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
    const int64_t value = c.layout.KeysPerPage() / 2 * shape.dim + 5;
    if (shape.key == DType::kF32) reinterpret_cast<float*>(page)[value] = kNaN;
    if (shape.key == DType::kBf16) reinterpret_cast<uint16_t*>(page)[value] = FloatToBf16(kNaN);
    if (shape.key == DType::kFp8E4M3)
      reinterpret_cast<float*>(page + c.layout.ScaleOffset())[c.layout.KeysPerPage() / 2] = kNaN;
  }
  const int64_t values = c.rows * shape.heads * shape.dim;
  c.query_code.resize(static_cast<size_t>(values * DTypeBytes(shape.key)));
  for (int64_t i = 0; i < values; ++i) {
    float x = normal(random);
    if (shape.special && i == values - 7) x = std::numeric_limits<float>::quiet_NaN();
    if (shape.key == DType::kBf16 && !shape.f32_query) {
      const uint16_t code = FloatToBf16(x);
      reinterpret_cast<uint16_t*>(c.query_code.data())[i] = code;
      x = Bf16ToFloat(code);
    } else if (shape.key == DType::kFp8E4M3) {
      const uint8_t code = FloatToFp8(x * 64.0f);
      reinterpret_cast<uint8_t*>(c.query_code.data())[i] = code;
      x = Fp8ToFloat(code);
    }
    c.query.push_back(x);
  }
  for (int64_t i = 0; i < c.rows * shape.heads; ++i) c.weights.push_back(normal(random) * 0.02f);
  c.scores.assign(static_cast<size_t>(c.rows * c.capacity), 0.0f);
  Run(c.Op(AnyView<3>(c.query.data(), DType::kF32, {c.rows, shape.heads, shape.dim}),
           c.weights.data(), c.sequence.data(), c.first_row.data(), c.lengths.data(),
           c.cache.data(), c.block_table.data(), c.scores.data()),
      cpu);
  return c;
}

struct DeviceScan {
  explicit DeviceScan(const ScanCase& host)
      : host(host),
        query(host.query),
        query_code(host.query_code),
        cache(host.cache),
        weights(host.weights),
        block_table(host.block_table),
        sequence(host.sequence),
        first_row(host.first_row),
        lengths(host.lengths),
        scores(host.scores.size()),
        histogram(static_cast<size_t>(host.rows * kScanHistogramBins)) {}
  // NaN in the scores, zeros in the histogram.
  void Clear() const {
    scores.Poison();
    histogram.FillBytes(0);
  }
  // The op with the queries that the variant takes.
  IndexScan Op(ScanVariant variant) const {
    const bool f32 =
        variant == ScanVariant::kMulti || variant == ScanVariant::kHalve || host.shape.f32_query;
    const AnyView<3> view =
        f32 ? AnyView<3>(query.data(), DType::kF32, {host.rows, host.shape.heads, host.shape.dim})
            : AnyView<3>(query_code.data(), host.shape.key,
                         {host.rows, host.shape.heads, host.shape.dim});
    IndexScan op = host.Op(view, weights.data(), sequence.data(), first_row.data(), lengths.data(),
                           cache.data(), block_table.data(), scores.data());
    op.histogram = MakeView(histogram.data(), {host.rows, kScanHistogramBins});
    return op;
  }

  const ScanCase& host;
  DeviceArray<float> query;
  DeviceArray<std::byte> query_code, cache;
  DeviceArray<float> weights;
  DeviceArray<int32_t> block_table, sequence, first_row, lengths;
  DeviceArray<float> scores;
  DeviceArray<uint32_t> histogram;
};

}  // namespace strata
