// Pooled index keys: how they form, survive a roll-back, are scanned and selected.
#include "kernels/cache_write.h"
#include "kernels/index_scan.h"
#include "kernels/topk_select.h"
#include "tests/kernels/paged_fixture.h"

namespace strata {
namespace {

constexpr int64_t kRingCells = 16;

// The cache of one layer: pooled keys and the ring of raw rows.
struct PooledCache {
  KeyMemory memory;
  std::vector<float> ring;
  std::vector<float> ape;

  PooledCache(const KeyLayout& layout, int64_t sequences, int64_t cells, uint64_t seed)
      : memory(layout, sequences, (cells + kPageCells - 1) / kPageCells, seed),
        ring(static_cast<size_t>(sequences * kRingCells * 2 * layout.dim), Poison()),
        ape(Random(seed + 1).Normals(layout.kpool * layout.dim)) {}

  int64_t dim() const { return memory.pages.layout.dim; }

  // Rows of raw keys and pooling logits at these positions of one sequence.
  void Write(int32_t sequence, const std::vector<int32_t>& positions,
             const std::vector<float>& keys, const std::vector<float>& gate, int threads = 1) {
    const int64_t rows = static_cast<int64_t>(positions.size());
    const Groups groups({{sequence, static_cast<int32_t>(rows)}});
    Write(groups, positions, keys, gate, threads);
  }
  void Write(const Groups& groups, const std::vector<int32_t>& positions,
             const std::vector<float>& keys, const std::vector<float>& gate, int threads) {
    CpuStream stream(threads);
    const KeyLayout& layout = memory.pages.layout;
    stream.Execute(WritePooledKeys{
        .keys = MakeView(keys.data(), {groups.rows(), layout.dim}),
        .gate = MakeView(gate.data(), {groups.rows(), layout.dim}),
        .ape = MakeView(static_cast<const float*>(ape.data()), {layout.kpool, layout.dim}),
        .rows = groups.Map(),
        .positions = MakeView(positions.data(), {groups.rows()}),
        .pages = memory.pages,
        .ring =
            MakeView(ring.data(), {memory.pages.block_table.dim(0), kRingCells, 2 * layout.dim})});
  }
};

// What a token of a sequence writes, as a function of its position and a variant (a draft differs
// from the real token).
std::vector<float> Token(int64_t position, int variant, int64_t dim, int which) {
  return Random(static_cast<uint64_t>(position * 1000 + variant * 10 + which)).Normals(dim);
}
std::vector<float> Tokens(int64_t begin, int64_t end, int variant, int64_t dim, int which) {
  std::vector<float> rows;
  for (int64_t p = begin; p < end; ++p) {
    const std::vector<float> token = Token(p, variant, dim, which);
    rows.insert(rows.end(), token.begin(), token.end());
  }
  return rows;
}
std::vector<int32_t> Positions(int64_t begin, int64_t end) {
  std::vector<int32_t> positions(static_cast<size_t>(end - begin));
  std::iota(positions.begin(), positions.end(), static_cast<int32_t>(begin));
  return positions;
}
void WriteTokens(PooledCache& cache, int32_t sequence, int64_t begin, int64_t end, int variant) {
  if (begin == end) return;
  cache.Write(sequence, Positions(begin, end), Tokens(begin, end, variant, cache.dim(), 0),
              Tokens(begin, end, variant, cache.dim(), 1));
}

TEST(PooledKeysTest, EachDimensionIsASoftmaxOverThePoolsCells) {
  for (int64_t kpool : {2, 4, 8}) {
    for (int64_t dim : {32, 20}) {
      PooledCache cache({.dtype = DType::kF32, .dim = dim, .kpool = kpool}, 2, 200, 3);
      WriteTokens(cache, 1, 0, 131, 0);
      for (int64_t pool = 0; pool < 131 / kpool; ++pool) {
        std::vector<double> expected;
        for (int64_t d = 0; d < dim; ++d) {
          double sum = 0.0, total = 0.0;
          for (int64_t c = 0; c < kpool; ++c) {
            const int64_t p = pool * kpool + c;
            const double weight = std::exp(double{Token(p, 0, dim, 1)[d]} + cache.ape[c * dim + d]);
            total += weight;
            sum += weight * Token(p, 0, dim, 0)[d];
          }
          expected.push_back(sum / total);
        }
        const std::vector<double> key = ReadKey(cache.memory.pages, 1, pool);
        EXPECT_LE(RelativeError(std::vector<float>(key.begin(), key.end()), expected), 5e-7)
            << "pool " << pool;
      }
    }
  }
}

TEST(PooledKeysTest, LogitsFarApartNeitherOverflowNorVanish) {
  PooledCache cache({.dtype = DType::kF32, .dim = 16, .kpool = 4}, 1, 64, 3);
  std::fill(cache.ape.begin(), cache.ape.end(), 0.0f);
  std::vector<float> keys, gate;
  for (float value : {1.0f, 2.0f, 3.0f, 4.0f}) keys.insert(keys.end(), 16, value);
  for (float value : {-1000.0f, 1000.0f, 999.0f, -kInfinity}) gate.insert(gate.end(), 16, value);
  cache.Write(0, Positions(0, 4), keys, gate);
  const double expected = (2.0 + 3.0 * std::exp(-1.0)) / (1.0 + std::exp(-1.0));
  for (double value : ReadKey(cache.memory.pages, 0, 0)) EXPECT_NEAR(value, expected, 1e-6);
}

TEST(PooledKeysTest, SameBytesFromAnyCutOfTheRowsAndAnyThreadCount) {
  for (DType dtype : {DType::kF32, DType::kBf16, DType::kFp8E4M3}) {
    const KeyLayout layout{.dtype = dtype, .dim = 32, .kpool = 4};
    PooledCache whole(layout, 1, 130, 3);
    WriteTokens(whole, 0, 0, 61, 0);
    for (int64_t step : {1, 2, 3, 5, 8, 9}) {
      PooledCache cut(layout, 1, 130, 3);
      for (int64_t p = 0; p < 61; p += step)
        WriteTokens(cut, 0, p, std::min<int64_t>(61, p + step), 0);
      EXPECT_EQ(cut.memory.bytes, whole.memory.bytes) << "steps of " << step;
      EXPECT_TRUE(SameBits(cut.ring, whole.ring)) << "steps of " << step;
    }
    // Two sequences interleaved in one call give each what it gets alone; negative positions write
    // nothing.
    PooledCache alone(layout, 2, 130, 3), together(layout, 2, 130, 3);
    WriteTokens(alone, 0, 0, 20, 0);
    WriteTokens(alone, 1, 0, 30, 1);
    const Groups groups({{0, 20}, {1, 31}});
    std::vector<int32_t> positions = Positions(0, 20);
    std::vector<float> keys = Tokens(0, 20, 0, 32, 0), gate = Tokens(0, 20, 0, 32, 1);
    const auto append = [](auto& to, const auto& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    append(positions, Positions(0, 30));
    append(positions, std::vector<int32_t>{-1});
    append(keys, Tokens(0, 31, 1, 32, 0));
    append(gate, Tokens(0, 31, 1, 32, 1));
    together.Write(groups, positions, keys, gate, 3);
    EXPECT_EQ(together.memory.bytes, alone.memory.bytes);
    EXPECT_TRUE(SameBits(together.ring, alone.ring));
  }
}

TEST(PooledKeysTest, RolledBackDraftsLeaveNoTrace) {
  // From every start offset in a ring, a window of drafts is written, any number of them accepted,
  // the rest replaced by other tokens, twice over; then plain steps follow. Pools and ring end as
  // if no draft had ever been written.
  for (DType dtype : {DType::kF32, DType::kFp8E4M3}) {
    const KeyLayout layout{.dtype = dtype, .dim = 16, .kpool = 4};
    for (int64_t start = 0; start < kRingCells; ++start) {
      for (int64_t window : {4, 8}) {
        for (int64_t accepted = 1; accepted <= window; ++accepted) {
          PooledCache drafted(layout, 1, 192, 3), plain(layout, 1, 192, 3);
          const int64_t begin = 32 + start;
          WriteTokens(drafted, 0, 0, begin, 0);
          int64_t length = begin;
          for (int round = 0; round < 2; ++round) {
            // The first `accepted` rows are the real tokens, the others are drafts that will not
            // stand.
            WriteTokens(drafted, 0, length, length + accepted, 0);
            WriteTokens(drafted, 0, length + accepted, length + window, 1 + round);
            length += accepted;
          }
          WriteTokens(drafted, 0, length, length + 20, 0);
          WriteTokens(plain, 0, 0, length + 20, 0);
          for (int64_t pool = 0; pool < (length + 20) / 4; ++pool) {
            ASSERT_EQ(ReadKey(drafted.memory.pages, 0, pool), ReadKey(plain.memory.pages, 0, pool))
                << "start " << start << " window " << window << " accepted " << accepted << " pool "
                << pool;
          }
          // The unfinished pool's raw rows are the real ones.
          for (int64_t p = (length + 20) / 4 * 4; p < length + 20; ++p) {
            const float* cell = &drafted.ring[p % kRingCells * 2 * 16];
            ASSERT_TRUE(SameBits(std::vector<float>(cell, cell + 16), Token(p, 0, 16, 0)));
          }
        }
      }
    }
  }
}

TEST(PooledKeysTest, TwoSequencesInTurnsFillEveryPhysicalRowExactlyOnce) {
  constexpr int64_t kTokens = 4096, kDim = 8;
  PooledCache cache({.dtype = DType::kF32, .dim = kDim, .kpool = 4}, 2, kTokens, 3);
  for (int64_t p = 0; p < kTokens; p += 33) {
    for (int32_t sequence : {0, 1})
      WriteTokens(cache, sequence, p, std::min(kTokens, p + 33), sequence);
  }
  // Physical rows that no longer hold the poison they started with.
  const KeyPages& pages = cache.memory.pages;
  int64_t written = 0;
  const int64_t pool_pages = static_cast<int64_t>(cache.memory.bytes.size()) / pages.page_stride;
  for (int64_t page = 0; page < pool_pages; ++page) {
    for (int64_t slot = 0; slot < 16; ++slot) {
      const std::byte* row = pages.base + page * pages.page_stride + slot * kDim * 4;
      written += ReadAs<uint32_t>(row) != 0xababababu;
    }
    for (int64_t byte = 16 * kDim * 4; byte < pages.page_stride; ++byte) {
      ASSERT_EQ(pages.base[page * pages.page_stride + byte], std::byte{0xab})
          << "behind the keys of page " << page;
    }
  }
  EXPECT_EQ(written, 2 * kTokens / 4);
  // Every row reads back what its own tokens make: pools of a cache that holds this sequence alone.
  for (int32_t sequence : {0, 1}) {
    PooledCache alone({.dtype = DType::kF32, .dim = kDim, .kpool = 4}, 2, kTokens, 3);
    WriteTokens(alone, sequence, 0, kTokens, sequence);
    for (int64_t pool = 0; pool < kTokens / 4; ++pool) {
      ASSERT_EQ(ReadKey(pages, sequence, pool), ReadKey(alone.memory.pages, sequence, pool))
          << "pool " << pool;
    }
  }
}

TEST(PooledKeysTest, RefusesWhatItCannotServe) {
  PooledCache cache({.dtype = DType::kF32, .dim = 16, .kpool = 4}, 1, 64, 3);
  const std::vector<float> rows(2 * 16);
  const std::vector<int32_t> positions = {0, 1};
  const Groups groups({{0, 2}});
  CpuStream stream(1);
  const auto message = [&](auto change) {
    WritePooledKeys op{.keys = MakeView(rows.data(), {2, 16}),
                       .gate = MakeView(rows.data(), {2, 16}),
                       .ape = MakeView(static_cast<const float*>(cache.ape.data()), {4, 16}),
                       .rows = groups.Map(),
                       .positions = MakeView(positions.data(), {2}),
                       .pages = cache.memory.pages,
                       .ring = MakeView(cache.ring.data(), {1, kRingCells, 32})};
    change(op);
    return MessageOf(ErrorCode::kShape, [&] { stream.Execute(op); });
  };
  EXPECT_EQ(message([](WritePooledKeys&) {}), "");
  EXPECT_NE(message([](WritePooledKeys& op) { op.gate.shape[1] = 15; }), "");
  EXPECT_NE(message([](WritePooledKeys& op) { op.ape.shape[0] = 2; }), "");
  EXPECT_NE(message([](WritePooledKeys& op) { op.ring.shape[2] = 16; }), "");
  EXPECT_NE(message([](WritePooledKeys& op) { op.ring.shape[1] = 3; }), "");
  EXPECT_NE(message([](WritePooledKeys& op) { op.pages.layout.kpool = 1, op.ape.shape[0] = 1; }),
            "");
  // 640 cells of a manager's block against pages of 64: pools that do not divide a page.
  EXPECT_NE(message([](WritePooledKeys& op) { op.pages.layout.kpool = 5, op.ape.shape[0] = 5; }),
            "");
  const std::vector<int32_t> behind = {66, 67};
  EXPECT_NE(message([&](WritePooledKeys& op) { op.positions = MakeView(behind.data(), {2}); }), "");
  const std::vector<int32_t> nobody = {0, 3};
  EXPECT_NE(message([&](WritePooledKeys& op) { op.rows.sequence = MakeView(nobody.data(), {2}); }),
            "");
}

// ---- scan and selection over pools ----

// The cells a row selects, by the rules written out.
std::vector<int32_t> ExpectedCells(const std::vector<float>& scores, int64_t k, int64_t kpool,
                                   PoolTail tail, int64_t cells) {
  const int64_t pools = cells / kpool;
  int64_t places = k / kpool;
  if (tail == PoolTail::kForce && cells % kpool != 0) --places;
  std::vector<int64_t> order(static_cast<size_t>(pools));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return scores[a] > scores[b]; });
  order.resize(static_cast<size_t>(std::min(places, pools)));
  std::sort(order.begin(), order.end());
  std::vector<int32_t> ids;
  for (int64_t pool : order) {
    for (int64_t c = 0; c < kpool; ++c) ids.push_back(static_cast<int32_t>(pool * kpool + c));
  }
  if (tail != PoolTail::kNone) {
    for (int64_t c = pools * kpool; c < cells; ++c) ids.push_back(static_cast<int32_t>(c));
  }
  return ids;
}

TEST(PooledSelectTest, WholePoolsCompeteAndTheTailFollowsItsRule) {
  for (PoolTail tail : {PoolTail::kNone, PoolTail::kAppend, PoolTail::kForce}) {
    for (auto [k, kpool] :
         {std::pair<int64_t, int64_t>{16, 4}, {8, 8}, {64, 2}, {4, 4}, {2048, 4}}) {
      SCOPED_TRACE("tail " + std::to_string(static_cast<int>(tail)) + ", k " + std::to_string(k) +
                   ", kpool " + std::to_string(kpool));
      // Rows of every remainder and around the place where selection starts.
      std::vector<int32_t> cells = {0, 1, static_cast<int32_t>(kpool - 1),
                                    static_cast<int32_t>(kpool)};
      for (int64_t more = -kpool; more <= 2 * kpool; ++more)
        cells.push_back(static_cast<int32_t>(k + more));
      for (int64_t more = 0; more < kpool; ++more)
        cells.push_back(static_cast<int32_t>(40000 / kpool * kpool + more));
      const int64_t rows = static_cast<int64_t>(cells.size()), capacity = 40000 / kpool;
      const int64_t columns = TopkSelect::IdColumns(k, kpool, tail);
      std::vector<float> scores = Random(5).Normals(rows * capacity);
      for (float& score : scores) score = std::max(0.0f, score);  // a plateau of zeros
      std::vector<int32_t> lengths, ids(static_cast<size_t>(rows * columns), 77),
          counts(static_cast<size_t>(rows));
      for (int32_t count : cells) lengths.push_back(static_cast<int32_t>(count / kpool));
      CpuStream stream(2);
      std::vector<std::byte> workspace(TopkSelect::WorkspaceBytes(rows, capacity, k, stream()));
      stream.Execute(TopkSelect{
          .scores = MakeView(static_cast<const float*>(scores.data()), {rows, capacity}),
          .lengths = MakeView(static_cast<const int32_t*>(lengths.data()), {rows}),
          .k = k,
          .kpool = kpool,
          .tail = tail,
          .cells = MakeView(static_cast<const int32_t*>(cells.data()), {rows}),
          .ids = MakeView(ids.data(), {rows, columns}),
          .counts = MakeView(counts.data(), {rows}),
          .workspace = MakeView(workspace.data(), {static_cast<int64_t>(workspace.size())})});
      for (int64_t r = 0; r < rows; ++r) {
        const std::vector<float> row(&scores[r * capacity], &scores[r * capacity] + capacity);
        std::vector<int32_t> expected = ExpectedCells(row, k, kpool, tail, cells[r]);
        EXPECT_EQ(counts[r], static_cast<int32_t>(expected.size())) << cells[r] << " cells";
        expected.resize(static_cast<size_t>(columns), -1);
        const std::vector<int32_t> found(&ids[r * columns], &ids[r * columns] + columns);
        EXPECT_EQ(found, expected) << cells[r] << " cells";
      }
    }
  }
}

TEST(PooledScanTest, PooledKeysAreScoredFromTheirOwnPages) {
  // Two sequences, pools in shuffled pages; the score of a pool is that of the key its tokens
  // formed.
  for (DType dtype : {DType::kF32, DType::kBf16, DType::kFp8E4M3}) {
    const int64_t dim = 32, heads = 4, pools = 200 / 4;
    PooledCache cache({.dtype = dtype, .dim = dim, .kpool = 4}, 2, 200, 3);
    WriteTokens(cache, 0, 0, 200, 0);
    WriteTokens(cache, 1, 0, 200, 1);
    const Groups groups({{1, 1}, {0, 1}});
    const std::vector<float> query = Random(8).Normals(2 * heads * dim),
                             weights = Random(9).Normals(2 * heads);
    const std::vector<int32_t> lengths = {static_cast<int32_t>(pools),
                                          static_cast<int32_t>(pools - 3)};
    std::vector<float> scores(static_cast<size_t>(2 * pools), Poison());
    CpuStream stream(2);
    stream.Execute(IndexScan{.query = AnyView<3>(MakeView(query.data(), {2, heads, dim})),
                             .weights = MakeView(weights.data(), {2, heads}),
                             .rows = groups.Map(),
                             .lengths = MakeView(lengths.data(), {2}),
                             .keys = cache.memory.pages,
                             .scores = MakeView(scores.data(), {2, pools})});
    for (int64_t r = 0; r < 2; ++r) {
      std::vector<float> values;
      std::vector<double> reference;
      for (int64_t j = 0; j < lengths[r]; ++j) {
        const std::vector<double> key = ReadKey(cache.memory.pages, groups.sequence[r], j);
        double score = 0.0;
        for (int64_t h = 0; h < heads; ++h) {
          double dot = 0.0;
          for (int64_t d = 0; d < dim; ++d) dot += query[(r * heads + h) * dim + d] * key[d];
          score += weights[r * heads + h] * std::max(0.0, dot);
        }
        values.push_back(scores[r * pools + j]);
        reference.push_back(score);
      }
      EXPECT_LE(RelativeError(values, reference), 3e-7) << DTypeName(dtype);
    }
    for (int64_t j = pools - 3; j < pools; ++j)
      EXPECT_EQ(FloatToBits(scores[pools + j]), kPoisonBits);
  }
}

}  // namespace
}  // namespace strata
