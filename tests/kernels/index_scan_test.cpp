#include "kernels/index_scan.h"

#include "kernels/cache_write.h"
#include "kernels/order.h"
#include "tests/kernels/paged_fixture.h"

namespace strata {
namespace {

// Keys of all sequences, written through the cache; queries and lengths of one step.
struct ScanCase {
  KeyMemory memory;
  Groups groups;
  int64_t heads;
  int64_t dim;
  int64_t capacity;
  std::vector<int32_t> lengths;
  std::vector<float> query;
  std::vector<float> weights;

  ScanCase(const KeyLayout& layout, int64_t sequences, int64_t keys_per_sequence,
           const Groups& groups_, std::vector<int32_t> lengths_, int64_t heads_, uint64_t seed)
      : memory(layout, sequences, (keys_per_sequence * layout.kpool + kPageCells - 1) / kPageCells,
               seed),
        groups(groups_),
        heads(heads_),
        dim(layout.dim),
        capacity(keys_per_sequence),
        lengths(std::move(lengths_)) {
    Random random(seed + 1);
    query = random.Normals(groups.rows() * heads * dim);
    weights = random.Normals(groups.rows() * heads);
    for (int64_t sequence = 0; sequence < sequences; ++sequence) {
      for (int64_t j = 0; j < keys_per_sequence; ++j) {
        std::vector<float> key = random.Normals(dim);
        const float scale = std::ldexp(1.3f, static_cast<int>(j % 7));
        if (layout.dtype == DType::kFp8E4M3) {
          for (float& value : key) value *= scale;
        }
        StoreKey(memory.pages, sequence, j, key);
      }
    }
  }

  // Stores a key by the layout's own rules, without the kernels.
  static void StoreKey(const KeyPages& pages, int64_t sequence, int64_t index,
                       const std::vector<float>& key) {
    std::byte* out = KeyAddress(pages, sequence, index);
    float scale = 1.0f;
    if (pages.layout.dtype == DType::kFp8E4M3) {
      float largest = 0.0f;
      for (float value : key) largest = std::max(largest, std::fabs(value));
      scale = largest > 0.0f ? largest / 448.0f : 1.0f;
      const int64_t per_page = kPageCells / pages.layout.kpool;
      std::byte* page =
          pages.base + pages.block_table(sequence, index / per_page) * pages.page_stride;
      std::memcpy(page + per_page * pages.layout.dim + index % per_page * 4, &scale, sizeof(scale));
    }
    for (size_t d = 0; d < key.size(); ++d) {
      if (pages.layout.dtype == DType::kF32) std::memcpy(out + 4 * d, &key[d], 4);
      if (pages.layout.dtype == DType::kBf16) {
        const uint16_t bits = FloatToBf16(key[d]);
        std::memcpy(out + 2 * d, &bits, 2);
      }
      if (pages.layout.dtype == DType::kFp8E4M3) out[d] = std::byte{FloatToFp8(key[d] / scale)};
    }
  }

  IndexScan Op(std::vector<float>& scores) const {
    return IndexScan{.query = AnyView<3>(MakeView(query.data(), {groups.rows(), heads, dim})),
                     .weights = MakeView(weights.data(), {groups.rows(), heads}),
                     .rows = groups.Map(),
                     .lengths = MakeView(lengths.data(), {groups.rows()}),
                     .keys = memory.pages,
                     .scores = MakeView(scores.data(), {groups.rows(), capacity})};
  }
  // Scores of all rows; unwritten entries hold the poison.
  std::vector<float> Scan(int threads) const {
    std::vector<float> scores(static_cast<size_t>(groups.rows() * capacity), Poison());
    CpuStream stream(threads);
    stream.Execute(Op(scores));
    return scores;
  }
  double Reference(int64_t row, int64_t candidate) const {
    const std::vector<double> key = ReadKey(memory.pages, groups.sequence[row], candidate);
    double score = 0.0;
    for (int64_t h = 0; h < heads; ++h) {
      double dot = 0.0;
      for (int64_t d = 0; d < dim; ++d) dot += query[(row * heads + h) * dim + d] * key[d];
      score += weights[row * heads + h] * std::max(0.0, dot);
    }
    return score;
  }
};

// One score in the fixed order that all CPU implementations must keep: sixteen lanes per dot
// product, a tree over the lanes, heads in ascending order, an fp8 key's scale last.
float ScoreInFixedOrder(const ScanCase& c, int64_t row, int64_t candidate) {
  const std::byte* key = KeyAddress(c.memory.pages, c.groups.sequence[row], candidate);
  const DType dtype = c.memory.pages.layout.dtype;
  float sum = 0.0f;
  for (int64_t h = 0; h < c.heads; ++h) {
    float lanes[16] = {};
    for (int64_t d = 0; d < c.dim; ++d) {
      const float value = static_cast<float>(CodeValue(dtype, key + d * DTypeBytes(dtype)));
      lanes[d % 16] += c.query[(row * c.heads + h) * c.dim + d] * value;
    }
    for (int half = 8; half > 0; half /= 2) {
      for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
    }
    sum += c.weights[row * c.heads + h] * std::max(0.0f, lanes[0]);
  }
  return dtype == DType::kFp8E4M3
             ? sum * KeyScale(c.memory.pages, c.groups.sequence[row], candidate)
             : sum;
}

const std::vector<DType> kKeyTypes = {DType::kF32, DType::kBf16, DType::kFp8E4M3};

TEST(IndexScanTest, AgreesWithDoubleOnRandomKeys) {
  for (DType dtype : kKeyTypes) {
    for (auto [heads, dim] : {std::pair<int64_t, int64_t>{8, 128}, {32, 128}, {64, 64}, {3, 20}}) {
      SCOPED_TRACE(std::string(DTypeName(dtype)) + " keys, " + std::to_string(heads) + " x " +
                   std::to_string(dim));
      const ScanCase c({.dtype = dtype, .dim = dim, .kpool = 1}, 2, 200, Groups({{1, 1}, {0, 2}}),
                       {200, 131, 132}, heads, 3);
      const std::vector<float> scores = c.Scan(2);
      std::vector<float> values;
      std::vector<double> reference;
      for (int64_t row = 0; row < 3; ++row) {
        for (int64_t j = 0; j < c.lengths[row]; ++j) {
          values.push_back(scores[row * c.capacity + j]);
          reference.push_back(c.Reference(row, j));
        }
      }
      EXPECT_LE(RelativeError(values, reference), 3e-7);
    }
  }
}

TEST(IndexScanTest, KeepsTheFixedOrderBitForBit) {
  for (DType dtype : kKeyTypes) {
    for (auto [heads, dim] :
         {std::pair<int64_t, int64_t>{1, 16}, {4, 32}, {7, 40}, {8, 128}, {5, 7}}) {
      for (int64_t kpool : {1, 4, 64}) {
        SCOPED_TRACE(std::string(DTypeName(dtype)) + " keys, " + std::to_string(heads) + " x " +
                     std::to_string(dim) + ", kpool " + std::to_string(kpool));
        const ScanCase c({.dtype = dtype, .dim = dim, .kpool = kpool}, 2, 81,
                         Groups({{0, 5}, {1, 1}}), {77, 78, 79, 80, 81, 3}, heads, 17);
        const std::vector<float> scores = c.Scan(2);
        for (int64_t row = 0; row < 6; ++row) {
          for (int64_t j = 0; j < c.lengths[row]; ++j) {
            ASSERT_EQ(FloatToBits(scores[row * c.capacity + j]),
                      FloatToBits(ScoreInFixedOrder(c, row, j)))
                << "row " << row << " candidate " << j;
          }
        }
      }
    }
  }
}

TEST(IndexScanTest, WritesNothingAtOrBehindALength) {
  for (DType dtype : kKeyTypes) {
    const ScanCase c({.dtype = dtype, .dim = 32, .kpool = 1}, 1, 150, Groups({{0, 9}}),
                     {0, 1, 15, 16, 17, 63, 64, 65, 149}, 4, 5);
    const std::vector<float> scores = c.Scan(3);
    for (int64_t row = 0; row < 9; ++row) {
      for (int64_t j = 0; j < c.capacity; ++j) {
        const bool written = FloatToBits(scores[row * c.capacity + j]) != kPoisonBits;
        ASSERT_EQ(written, j < c.lengths[row]) << "row " << row << " candidate " << j;
      }
    }
  }
}

TEST(IndexScanTest, IgnoresWhatStaleKeysBehindTheLengthHold) {
  for (DType dtype : kKeyTypes) {
    ScanCase c({.dtype = dtype, .dim = 32, .kpool = 1}, 1, 128, Groups({{0, 3}}), {65, 66, 67}, 4,
               5);
    const std::vector<float> before = c.Scan(2);
    for (int64_t j = 67; j < 128; ++j) {
      ScanCase::StoreKey(c.memory.pages, 0, j, std::vector<float>(32, j % 2 == 0 ? 1e30f : -1e30f));
      std::memset(static_cast<void*>(KeyAddress(c.memory.pages, 0, j)), 0xff, 32);
    }
    EXPECT_TRUE(SameBits(c.Scan(2), before));
  }
}

TEST(IndexScanTest, SameBitsAloneInABatchInAnotherGroupAndFromAnyThreadCount) {
  for (DType dtype : kKeyTypes) {
    SCOPED_TRACE(DTypeName(dtype));
    const Groups groups({{2, 1}, {0, 6}, {1, 3}, {2, 2}});
    const ScanCase c({.dtype = dtype, .dim = 128, .kpool = 1}, 3, 700, groups,
                     {700, 64, 65, 66, 67, 68, 69, 1, 500, 501, 0, 333}, 8, 21);
    const std::vector<float> scores = c.Scan(1);
    EXPECT_TRUE(SameBits(c.Scan(2), scores));
    EXPECT_TRUE(SameBits(c.Scan(3), scores));
    for (int64_t row = 0; row < groups.rows(); ++row) {
      const Groups alone({{groups.sequence[row], 1}});
      std::vector<float> solo(static_cast<size_t>(c.capacity), Poison());
      IndexScan op = c.Op(solo);
      op.query = AnyView<3>(MakeView(&c.query[row * c.heads * c.dim], {1, c.heads, c.dim}));
      op.weights = MakeView(&c.weights[row * c.heads], {1, c.heads});
      op.lengths = MakeView(&c.lengths[row], {1});
      op.rows = alone.Map();
      op.scores = MakeView(solo.data(), {1, c.capacity});
      CpuStream stream(2);
      stream.Execute(op);
      const std::vector<float> row_scores(&scores[row * c.capacity],
                                          &scores[row * c.capacity] + c.capacity);
      EXPECT_TRUE(SameBits(solo, row_scores)) << "row " << row;
    }
  }
}

TEST(IndexScanTest, SameBitsInChunksOfManyRows) {
  // A prefill chunk: each row sees one key more than the row before it.
  constexpr int32_t kRows = 150;
  std::vector<int32_t> lengths(kRows);
  std::iota(lengths.begin(), lengths.end(), 40);
  const ScanCase c({.dtype = DType::kBf16, .dim = 16, .kpool = 1}, 1, 40 + kRows,
                   Groups({{0, kRows}}), lengths, 2, 5);
  const std::vector<float> scores = c.Scan(1);
  EXPECT_TRUE(SameBits(c.Scan(2), scores));
  EXPECT_TRUE(SameBits(c.Scan(3), scores));
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t j = 0; j < lengths[row]; j += 7) {
      ASSERT_EQ(FloatToBits(scores[row * c.capacity + j]),
                FloatToBits(ScoreInFixedOrder(c, row, j)))
          << "row " << row << " candidate " << j;
    }
  }
}

TEST(IndexScanTest, ServesIdleRowsGroupsWithoutRowsAndEmptySteps) {
  const KeyLayout layout{.dtype = DType::kBf16, .dim = 32, .kpool = 1};
  const ScanCase busy(layout, 4, 70, Groups({{0, 2}, {3, 1}}), {69, 70, 12}, 4, 5);
  const std::vector<float> expected = busy.Scan(2);
  // The same rows with an idle slot, groups of no rows and negative lengths between them.
  ScanCase c = busy;
  c.groups = Groups({{1, 0}, {0, 2}, {2, 0}, {1, 2}, {3, 1}, {2, 0}});
  c.lengths = {69, 70, 0, -3, 12};
  Random random(1);
  const auto widen = [&](std::vector<float> values, int64_t width) {
    const std::vector<float> idle = random.Normals(2 * width);
    values.insert(values.begin() + 2 * width, idle.begin(), idle.end());
    return values;
  };
  c.query = widen(c.query, c.heads * c.dim);
  c.weights = widen(c.weights, c.heads);
  for (int threads : {1, 3}) {
    std::vector<float> scores = c.Scan(threads);
    for (int64_t j = 2 * c.capacity; j < 4 * c.capacity; ++j)
      ASSERT_EQ(FloatToBits(scores[j]), kPoisonBits);
    scores.erase(scores.begin() + 2 * c.capacity, scores.begin() + 4 * c.capacity);
    EXPECT_TRUE(SameBits(scores, expected));
  }
  // A batch of idle rows alone, and no rows at all.
  ScanCase idle = busy;
  idle.lengths = {0, 0, -1};
  for (float score : idle.Scan(2)) ASSERT_EQ(FloatToBits(score), kPoisonBits);
  ScanCase none(layout, 1, 10, Groups(std::vector<std::pair<int32_t, int32_t>>{}), {}, 4, 5);
  EXPECT_TRUE(none.Scan(2).empty());
}

TEST(IndexScanTest, EachFp8KeyIsScaledByItsOwnScaleInEveryLayer) {
  // 64 tokens with scales 1.3 * 2^(t mod 7) of the same direction, an all-zero key among them; two
  // layers.
  const int64_t dim = 128;
  for (uint64_t layer : {0u, 1u}) {
    ScanCase c({.dtype = DType::kFp8E4M3, .dim = dim, .kpool = 1}, 1, 64, Groups({{0, 1}}), {64}, 2,
               30 + layer);
    for (int64_t t = 0; t < 64; ++t) {
      std::vector<float> key = Random(layer).Normals(dim);
      for (float& value : key)
        value = t == 13 ? 0.0f : value * std::ldexp(1.3f, static_cast<int>(t % 7));
      ScanCase::StoreKey(c.memory.pages, 0, t, key);
    }
    std::fill(c.weights.begin(), c.weights.end(), 1.0f);
    const std::vector<float> scores = c.Scan(1);
    EXPECT_EQ(scores[13], 0.0f);
    EXPECT_GT(scores[0], 0.0f);
    for (int64_t t = 0; t < 64; ++t) {
      ASSERT_NEAR(scores[t], c.Reference(0, t), 1e-5 * std::fabs(c.Reference(0, t)))
          << "token " << t;
      if (t == 13) continue;
      ASSERT_NEAR(scores[t], scores[0] * std::ldexp(1.0, static_cast<int>(t % 7)),
                  1e-4 * scores[t]);
    }
  }
}

TEST(IndexScanTest, ANaNKeyScoresNaNAndNothingElseDoes) {
  for (DType dtype : kKeyTypes) {
    ScanCase c({.dtype = dtype, .dim = 40, .kpool = 1}, 1, 70, Groups({{0, 1}}), {70}, 3, 8);
    std::vector<float> key(40, 1.0f);
    key[3] = kNaN;
    const Groups one({{0, 1}});
    const std::vector<int32_t> position = {66};
    CpuStream stream(1);
    stream.Execute(WriteIndexKeys{.keys = MakeView(static_cast<const float*>(key.data()), {1, 40}),
                                  .rows = one.Map(),
                                  .positions = MakeView(position.data(), {1}),
                                  .pages = c.memory.pages});
    const std::vector<float> scores = c.Scan(1);
    for (int64_t j = 0; j < 70; ++j)
      EXPECT_EQ(std::isnan(scores[j]), j == 66) << DTypeName(dtype) << " " << j;
  }
}

TEST(IndexScanTest, NegativeDotsCountAsPositiveZero) {
  ScanCase c({.dtype = DType::kF32, .dim = 16, .kpool = 1}, 1, 3, Groups({{0, 1}}), {3}, 2, 8);
  std::fill(c.query.begin(), c.query.end(), 1.0f);
  c.weights = {2.0f, 3.0f};
  ScanCase::StoreKey(c.memory.pages, 0, 0, std::vector<float>(16, -1.0f));
  ScanCase::StoreKey(c.memory.pages, 0, 1, std::vector<float>(16, 1.0f));
  ScanCase::StoreKey(c.memory.pages, 0, 2, std::vector<float>(16, -0.0f));
  EXPECT_TRUE(SameBits(c.Scan(1), {0.0f, 80.0f, 0.0f}));
}

TEST(IndexScanTest, AddsEveryScoreToItsHistogramBin) {
  const ScanCase c({.dtype = DType::kBf16, .dim = 32, .kpool = 1}, 2, 300, Groups({{1, 2}, {0, 1}}),
                   {299, 300, 0}, 4, 5);
  std::vector<float> scores(3 * 300, Poison());
  std::vector<uint32_t> histogram(3 * kScanHistogramBins, 5);
  IndexScan op = c.Op(scores);
  op.histogram = MakeView(histogram.data(), {3, kScanHistogramBins});
  CpuStream stream(2);
  stream.Execute(op);
  std::vector<uint32_t> expected(3 * kScanHistogramBins, 5);
  for (int64_t row = 0; row < 3; ++row) {
    for (int64_t j = 0; j < c.lengths[row]; ++j) {
      ++expected[row * kScanHistogramBins + (OrderKey(FloatToBits(scores[row * 300 + j])) >> 21)];
    }
  }
  EXPECT_EQ(histogram, expected);
}

TEST(IndexScanTest, RefusesWhatItCannotServe) {
  ScanCase c({.dtype = DType::kBf16, .dim = 32, .kpool = 1}, 1, 128, Groups({{0, 2}}), {127, 128},
             4, 5);
  std::vector<float> scores(2 * 128);
  CpuStream stream(1);
  const auto message = [&](auto change) {
    IndexScan op = c.Op(scores);
    change(op);
    return MessageOf(ErrorCode::kShape, [&] { stream.Execute(op); });
  };
  EXPECT_EQ(message([](IndexScan&) {}), "");
  EXPECT_NE(message([](IndexScan& op) { op.query.shape[2] = 16; }), "");
  EXPECT_NE(message([](IndexScan& op) { op.weights.shape[1] = 3; }), "");
  EXPECT_EQ(message([](IndexScan& op) { op.query.shape[1] = op.weights.shape[1] = 0; }),
            "IndexScan: query has no heads");
  EXPECT_NE(message([](IndexScan& op) { op.lengths.shape[0] = 1; }), "");
  EXPECT_NE(message([](IndexScan& op) { op.query.dtype = DType::kBf16; }), "");
  EXPECT_NE(message([](IndexScan& op) { op.keys.layout.kpool = 3; }), "");
  EXPECT_NE(message([](IndexScan& op) { op.keys.layout.kpool = 128; }), "");
  EXPECT_NE(message([](IndexScan& op) { op.keys.layout.dtype = DType::kInt8; }), "");
  EXPECT_NE(message([](IndexScan& op) { op.keys.page_stride = 63 * 64; }), "");
  EXPECT_NE(message([](IndexScan& op) { op.keys.block_table.shape[1] = 1; }),
            "");  // 64 keys, scores hold 128
  c.lengths = {5, 129};
  EXPECT_NE(message([](IndexScan&) {}), "");
  Stream other = stream();
  other.device.kind = DeviceKind::kCuda;
#if !defined(STRATA_HAVE_CUDA)
  EXPECT_NE(MessageOf(ErrorCode::kDevice, [&] { strata::Run(c.Op(scores), other); }), "");
#endif
}

}  // namespace
}  // namespace strata
