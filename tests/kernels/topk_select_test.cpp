#include "kernels/topk_select.h"

#include "kernels/order.h"
#include "tests/kernels/paged_fixture.h"

namespace strata {
namespace {

using Row = std::vector<float>;

// The selection by a full sort under the declared order, ascending.
std::vector<int32_t> SortedSelection(const Row& row, int64_t k) {
  std::vector<int32_t> order(row.size());
  std::iota(order.begin(), order.end(), 0);
  const auto number = [&](int32_t i) { return !std::isnan(row[i]); };
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    if (number(a) != number(b)) return number(a);
    return number(a) && row[a] > row[b];
  });
  order.resize(std::min<size_t>(order.size(), static_cast<size_t>(k)));
  std::sort(order.begin(), order.end());
  return order;
}

// Rows of any lengths in one call. Scores behind a length, ids and counts are poisoned, and so is
// the workspace.
struct Selected {
  std::vector<std::vector<int32_t>> ids;  // [rows][columns], padding included
  std::vector<int32_t> counts;
};
struct PoolRule {
  int64_t kpool = 1;
  PoolTail tail = PoolTail::kNone;
  std::vector<int32_t> cells = {};
};
Selected Select(const std::vector<Row>& rows, int64_t k, int threads, const PoolRule& rule = {}) {
  constexpr int64_t kGuard = 5;  // canaries behind every row of scores and ids
  const int64_t count = static_cast<int64_t>(rows.size());
  int64_t capacity = 1;
  for (const Row& row : rows)
    capacity = std::max<int64_t>(capacity, static_cast<int64_t>(row.size()));
  const int64_t columns = TopkSelect::IdColumns(k, rule.kpool, rule.tail);
  std::vector<float> scores(static_cast<size_t>(count * (capacity + kGuard)), kInfinity);
  std::vector<int32_t> lengths;
  for (int64_t r = 0; r < count; ++r) {
    std::copy(rows[r].begin(), rows[r].end(), scores.begin() + r * (capacity + kGuard));
    lengths.push_back(static_cast<int32_t>(rows[r].size()));
  }
  constexpr int32_t kCanary = 0x5eed5eed;
  std::vector<int32_t> ids(static_cast<size_t>(count * (columns + kGuard)), kCanary);
  std::vector<int32_t> counts(static_cast<size_t>(count), kCanary);
  CpuStream stream(threads);
  const size_t bytes = TopkSelect::WorkspaceBytes(count, capacity, k, stream());
  std::vector<std::byte> workspace(bytes + 64, std::byte{0xab});
  View<float, 2> score_view = MakeView(scores.data(), {count, capacity + kGuard});
  View<int32_t, 2> id_view = MakeView(ids.data(), {count, columns + kGuard});
  TopkSelect op{.scores = score_view.Columns(0, capacity),
                .lengths = MakeView(static_cast<const int32_t*>(lengths.data()), {count}),
                .k = k,
                .kpool = rule.kpool,
                .tail = rule.tail,
                .ids = id_view.Columns(0, columns),
                .counts = MakeView(counts.data(), {count}),
                .workspace = MakeView(workspace.data(), {static_cast<int64_t>(bytes)})};
  if (rule.kpool > 1) op.cells = MakeView(rule.cells.data(), {count});
  stream.Execute(op);
  Selected selected{.ids = {}, .counts = counts};
  for (int64_t r = 0; r < count; ++r) {
    selected.ids.emplace_back(id_view.row(r), id_view.row(r) + columns);
    for (int64_t g = 0; g < kGuard; ++g) EXPECT_EQ(id_view(r, columns + g), kCanary) << "row " << r;
  }
  for (size_t i = bytes; i < workspace.size(); ++i) EXPECT_EQ(workspace[i], std::byte{0xab});
  return selected;
}

::testing::AssertionResult Holds(const Selected& selected, size_t row,
                                 std::vector<int32_t> expected) {
  const std::vector<int32_t>& ids = selected.ids[row];
  if (selected.counts[row] != static_cast<int32_t>(expected.size())) {
    return ::testing::AssertionFailure() << "row " << row << " counts " << selected.counts[row]
                                         << " ids, expected " << expected.size();
  }
  expected.resize(ids.size(), -1);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] == expected[i]) continue;
    return ::testing::AssertionFailure() << "row " << row << " column " << i << " holds " << ids[i]
                                         << ", expected " << expected[i];
  }
  return ::testing::AssertionSuccess();
}

// All rows in one call against the sort, from one and from three threads.
void ExpectSorted(const std::vector<Row>& rows, int64_t k) {
  for (int threads : {1, 3}) {
    const Selected selected = Select(rows, k, threads);
    for (size_t r = 0; r < rows.size(); ++r) {
      ASSERT_TRUE(Holds(selected, r, SortedSelection(rows[r], k)))
          << threads << " threads, length " << rows[r].size();
    }
  }
}

Row Repeat(int64_t n, float value) { return Row(static_cast<size_t>(n), value); }
Row With(Row row, const std::vector<std::pair<int64_t, float>>& changes) {
  for (const auto& [index, value] : changes) row[static_cast<size_t>(index)] = value;
  return row;
}
// Distinct floats from 1.0 in steps of `ulps`, shuffled.
Row Ladder(int64_t n, uint32_t ulps, uint64_t seed) {
  Row row;
  for (int64_t i = 0; i < n; ++i)
    row.push_back(BitsToFloat(0x3f800000u + static_cast<uint32_t>(i) * ulps));
  Random(seed).Shuffle(row);
  return row;
}
// What an indexer with ReLU produces: most scores exactly zero, the others positive or negative.
Row ZeroPlateau(int64_t n, int64_t others, uint64_t seed) {
  Random random(seed);
  Row row = Repeat(n, 0.0f);
  for (int64_t i = 0; i < others; ++i) row[static_cast<size_t>(random.Below(n))] = random.Normal();
  return row;
}
Row Normals(int64_t n, uint64_t seed) { return Random(seed).Normals(n); }

TEST(TopkSelectTest, EqualsAFullSortOnAdversarialRowsMixedInOneCall) {
  for (int64_t k : {1, 8, 256}) {
    std::vector<Row> rows;
    for (int64_t n : {int64_t{0}, int64_t{1}, k - 1, k, k + 1, 2 * k + 3, int64_t{300},
                      int64_t{4097}, int64_t{6000}}) {
      if (n < 0) continue;
      rows.push_back(Normals(n, 3));
      rows.push_back(Repeat(n, 0.0f));
      rows.push_back(Repeat(n, -kInfinity));
      rows.push_back(Repeat(n, kInfinity));
      rows.push_back(Repeat(n, kNaN));
      rows.push_back(Ladder(n, 1, 5));
      if (n < 20) continue;
      rows.push_back(ZeroPlateau(n, n / 10, 7));
      rows.push_back(With(Normals(n, 9),
                          {{3, kNaN}, {5, kInfinity}, {7, -kInfinity}, {n - 1, kNaN}, {0, -0.0f}}));
      rows.push_back(With(Repeat(n, -kInfinity),
                          {{n / 2, kNaN}, {n - 1, -3.0f}, {1, BitsToFloat(0xffc12345)}}));
      // -0.0 and +0.0 are one value: the lower position wins.
      Row zeros = Repeat(n, 0.0f);
      for (int64_t i = 0; i < n; i += 3) zeros[static_cast<size_t>(i)] = -0.0f;
      rows.push_back(zeros);
      // Smallest subnormals of both signs around zero.
      rows.push_back(
          With(Repeat(n, 0.0f), {{n - 1, BitsToFloat(1)}, {0, BitsToFloat(0x80000001)}}));
      // Ascending, descending, and a saw of few values.
      Row ascending(static_cast<size_t>(n)), saw(static_cast<size_t>(n));
      for (int64_t i = 0; i < n; ++i) {
        ascending[static_cast<size_t>(i)] = static_cast<float>(i);
        saw[static_cast<size_t>(i)] = static_cast<float>(i * 7 % 11);
      }
      rows.push_back(ascending);
      rows.push_back(Row(ascending.rbegin(), ascending.rend()));
      rows.push_back(saw);
    }
    ExpectSorted(rows, k);
  }
}

TEST(TopkSelectTest, NoCandidateOfACrowdedBinIsLost) {
  // Distinct values that share every leading digit: whatever buffer holds the boundary bin, all of
  // it competes.
  for (int64_t n : {2049, 3709, 4097, 8193, 16385, 65000}) ExpectSorted({Ladder(n, 2, 11)}, 2048);
  std::vector<Row> rows;
  for (uint64_t r = 0; r < 33; ++r) rows.push_back(Ladder(r % 2 == 0 ? 4097 : 8193, 2, r));
  ExpectSorted(rows, 2048);
}

TEST(TopkSelectTest, TiesAtTheThresholdFillWithTheLowestIndices) {
  Row row = Repeat(8320, 0.0f);
  Random random(4);
  for (int i = 0; i < 100; ++i)
    row[static_cast<size_t>(i * 83 + 7)] = 1.0f + random.Uniform(0.0f, 1.0f);
  const Row infinite = With(row, {{11, kInfinity}, {4000, kInfinity}, {8319, kInfinity}});
  ExpectSorted({row, infinite, Repeat(8320, 2.5f), Repeat(8320, -2.5f)}, 2048);
}

TEST(TopkSelectTest, NaNNeverBeatsANumber) {
  const Row healthy = Normals(3000, 6);
  const Row five = With(healthy, {{0, kNaN}, {1, -kNaN}, {1500, kNaN}, {2998, kNaN}, {2999, kNaN}});
  ExpectSorted({five, Repeat(3000, kNaN), Repeat(3000, -kInfinity), healthy}, 2048);
  // Whatever bits the NaN has.
  Row payloads = healthy;
  const uint32_t bits[] = {0x7f800001u, 0xff800001u, 0x7fffffffu, 0xffffffffu, 0x7fc00000u};
  for (int i = 0; i < 500; ++i) payloads[static_cast<size_t>(i * 6)] = BitsToFloat(bits[i % 5]);
  ExpectSorted({payloads}, 2048);
  // Fewer numbers than places: they all win, then the first NaNs.
  ExpectSorted({With(Repeat(3000, kNaN), {{2999, -kInfinity}, {2000, 1.0f}})}, 2048);
}

TEST(TopkSelectTest, LongRowsOfAnyDistribution) {
  constexpr int64_t kLong = 200'000;
  ExpectSorted({Normals(kLong, 1)}, 2048);
  ExpectSorted({ZeroPlateau(kLong, 1500, 2)}, 2048);
  ExpectSorted({ZeroPlateau(kLong, 60'000, 3)}, 2048);
  ExpectSorted({Repeat(kLong, 1.0f)}, 2048);
  ExpectSorted({Ladder(kLong, 1, 4)}, 2048);
  // Hardly any numbers, fewer and more than there are places: no sample tells where the k-th
  // stands.
  Row sparse = Repeat(kLong, kNaN);
  for (int64_t i = 0; i < 1500; ++i)
    sparse[static_cast<size_t>(i * 131 + 5)] = static_cast<float>(i * 37 % 400);
  ExpectSorted({sparse}, 2048);
  ExpectSorted({sparse}, 1000);
  // An even sample of this row sees small values only; the large ones stand between.
  Row hidden = Repeat(kLong, 0.0f);
  for (int64_t i = 0; i < kLong; ++i)
    hidden[static_cast<size_t>(i)] = i % 97 == 1 ? 5.0f + Normals(1, i)[0] : 0.25f;
  ExpectSorted({hidden}, 2048);
  // The large values all stand at the end, the NaNs at the front.
  Row end = Normals(kLong, 7);
  for (int64_t i = 0; i < 3000; ++i) end[static_cast<size_t>(kLong - 1 - i)] += 100.0f;
  for (int64_t i = 0; i < 3000; ++i) end[static_cast<size_t>(i)] = kNaN;
  ExpectSorted({end}, 2048);
}

TEST(TopkSelectTest, AMillionCandidatesOnEveryThreadCount) {
  const Row row = Normals(1'000'000, 12);
  const std::vector<int32_t> expected = SortedSelection(row, 2048);
  for (int threads : {1, 2, 3})
    EXPECT_TRUE(Holds(Select({row}, 2048, threads), 0, expected)) << threads << " threads";
}

TEST(TopkSelectTest, RandomRowsOfFewDistinctValues) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Random random(seed);
    const int64_t k = 1 + random.Below(300);
    std::vector<Row> rows;
    for (int r = 0; r < 4; ++r) {
      Row row(static_cast<size_t>(random.Below(seed % 6 == 0 ? 9000 : 900)));
      const int64_t distinct = 1 + random.Below(40);
      for (float& value : row) value = static_cast<float>(random.Below(distinct)) - 7.0f;
      rows.push_back(row);
    }
    ExpectSorted(rows, k);
  }
}

TEST(TopkSelectTest, ReadsNoScoreWhereEverythingIsSelected) {
  // A view without memory behind it: touching a score is an invalid access.
  const std::vector<int32_t> lengths = {0, 1, 16, -4};
  std::vector<int32_t> ids(4 * 16, 77), counts(4, 77);
  CpuStream stream(2);
  std::vector<std::byte> workspace(TopkSelect::WorkspaceBytes(4, 0, 16, stream()));
  stream.Execute(TopkSelect{
      .scores = MakeView(static_cast<const float*>(nullptr), {4, 0}),
      .lengths = MakeView(lengths.data(), {4}),
      .k = 16,
      .ids = MakeView(ids.data(), {4, 16}),
      .counts = MakeView(counts.data(), {4}),
      .workspace = MakeView(workspace.data(), {static_cast<int64_t>(workspace.size())})});
  EXPECT_EQ(counts, (std::vector<int32_t>{0, 1, 16, 0}));
  for (int64_t r = 0; r < 4; ++r) {
    for (int32_t i = 0; i < 16; ++i)
      EXPECT_EQ(ids[r * 16 + i], i < lengths[r] ? i : -1) << "row " << r;
  }
}

TEST(TopkSelectTest, StaleScoresBehindALengthAreNotSelectable) {
  // Select() fills everything behind a row's length with +infinity.
  std::vector<Row> rows = {Normals(70, 1), Normals(4200, 2), Normals(9000, 3)};
  ExpectSorted(rows, 64);
}

TEST(TopkSelectTest, RefusesWhatItCannotServe) {
  std::vector<float> scores(2 * 64);
  std::vector<int32_t> lengths = {64, 64}, cells = {256, 256}, ids(2 * 19), counts(2);
  std::vector<std::byte> workspace(1 << 20);
  CpuStream stream(1);
  const auto message = [&](auto change) {
    TopkSelect op{.scores = MakeView(static_cast<const float*>(scores.data()), {2, 64}),
                  .lengths = MakeView(static_cast<const int32_t*>(lengths.data()), {2}),
                  .k = 16,
                  .ids = MakeView(ids.data(), {2, 16}),
                  .counts = MakeView(counts.data(), {2}),
                  .workspace = MakeView(workspace.data(), {1 << 20})};
    change(op);
    return MessageOf(ErrorCode::kShape, [&] { stream.Execute(op); });
  };
  const auto cells_view = MakeView(static_cast<const int32_t*>(cells.data()), {2});
  EXPECT_EQ(message([](TopkSelect&) {}), "");
  EXPECT_EQ(message([&](TopkSelect& op) { op.kpool = 4, op.cells = cells_view; }), "");
  EXPECT_NE(message([](TopkSelect& op) { op.k = 0; }), "");
  EXPECT_NE(message([](TopkSelect& op) { op.ids.shape[1] = 15; }), "");
  EXPECT_NE(message([](TopkSelect& op) { op.counts.shape[0] = 1; }), "");
  EXPECT_NE(message([](TopkSelect& op) { op.lengths.shape[0] = 3; }), "");
  EXPECT_NE(message([](TopkSelect& op) { op.kpool = 4; }), "");  // no cells
  EXPECT_NE(message([&](TopkSelect& op) { op.kpool = 3, op.cells = cells_view; }), "");
  EXPECT_NE(message([&](TopkSelect& op) {
              op.kpool = 4, op.cells = cells_view, op.tail = PoolTail::kAppend;
            }),
            "");
  EXPECT_NE(message([](TopkSelect& op) { op.workspace.shape[0] = 0; }), "");
  lengths[1] = 65;
  EXPECT_NE(message([](TopkSelect&) {}), "");
}

}  // namespace
}  // namespace strata
