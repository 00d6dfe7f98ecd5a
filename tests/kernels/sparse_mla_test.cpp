#include "kernels/sparse_mla.h"

#include "kernels/cache_write.h"
#include "tests/kernels/paged_fixture.h"

namespace strata {
namespace {

struct Attended {
  std::vector<float> out;  // [rows, heads, latent]
  std::vector<float> lse;  // [rows, heads]
};

// A filled cache of random cells, and one step of rows over it.
struct AttendCase {
  LatentMemory memory;
  Groups groups;
  int64_t heads;
  int64_t columns;
  std::vector<int32_t> ids;  // [rows, columns]
  std::vector<int32_t> lengths;
  std::vector<float> query;
  float scale = 0.11f;

  AttendCase(const LatentLayout& layout, int64_t sequences, int64_t cells, const Groups& groups_,
             int64_t heads_, int64_t columns_, uint64_t seed)
      : memory(layout, sequences, (cells + kPageCells - 1) / kPageCells, seed),
        groups(groups_),
        heads(heads_),
        columns(columns_) {
    Random random(seed + 1);
    const int64_t width = layout.latent + layout.rope;
    CpuStream stream(1);
    for (int32_t sequence = 0; sequence < sequences; ++sequence) {
      const Groups one({{sequence, static_cast<int32_t>(cells)}});
      std::vector<int32_t> positions(static_cast<size_t>(cells));
      std::iota(positions.begin(), positions.end(), 0);
      const std::vector<float> values = random.Normals(cells * width);
      stream.Execute(
          WriteLatent{.values = MakeView(values.data(), {cells, width}),
                      .rows = one.Map(),
                      .positions = MakeView(static_cast<const int32_t*>(positions.data()), {cells}),
                      .pages = memory.pages});
    }
    query = random.Normals(groups.rows() * heads * width);
    lengths.assign(static_cast<size_t>(groups.rows()), static_cast<int32_t>(cells));
    // Distinct ascending ids.
    for (int64_t r = 0; r < groups.rows(); ++r) {
      std::vector<int32_t> all(static_cast<size_t>(cells));
      std::iota(all.begin(), all.end(), 0);
      random.Shuffle(all);
      all.resize(static_cast<size_t>(columns), -1);
      std::sort(all.begin(), all.begin() + std::min(columns, cells));
      ids.insert(ids.end(), all.begin(), all.end());
    }
  }
  int64_t width() const { return memory.pages.layout.latent + memory.pages.layout.rope; }

  Attended Attend(int threads) const {
    constexpr int64_t kGuard = 3;  // canaries behind every head of the output
    const int64_t rows = groups.rows(), latent = memory.pages.layout.latent;
    std::vector<float> out(static_cast<size_t>(rows * heads * (latent + kGuard)), Poison());
    Attended result{.out = {},
                    .lse = std::vector<float>(static_cast<size_t>(rows * heads), Poison())};
    CpuStream stream(threads);
    const size_t bytes =
        SparseMla::WorkspaceBytes(rows, heads, columns, memory.pages.layout, stream());
    std::vector<std::byte> storage(bytes + 128, std::byte{0xff});
    std::byte* workspace =
        storage.data() + (64 - reinterpret_cast<uintptr_t>(storage.data()) % 64) % 64;
    View<float, 3> out_view = MakeView(out.data(), {rows, heads, latent + kGuard});
    stream.Execute(SparseMla{.query = AnyView<3>(MakeView(query.data(), {rows, heads, width()})),
                             .pages = memory.pages,
                             .rows = groups.Map(),
                             .ids = MakeView(ids.data(), {rows, columns}),
                             .lengths = MakeView(lengths.data(), {rows}),
                             .scale = scale,
                             .out = out_view.Columns(0, latent),
                             .lse = MakeView(result.lse.data(), {rows, heads}),
                             .workspace = MakeView(workspace, {static_cast<int64_t>(bytes)})});
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t h = 0; h < heads; ++h) {
        const float* head = &out_view(r, h, 0);
        result.out.insert(result.out.end(), head, head + latent);
        for (int64_t g = 0; g < kGuard; ++g) EXPECT_EQ(FloatToBits(head[latent + g]), kPoisonBits);
      }
    }
    for (size_t i = static_cast<size_t>(workspace - storage.data()) + bytes; i < storage.size();
         ++i) {
      EXPECT_EQ(storage[i], std::byte{0xff});
    }
    return result;
  }

  // Dense attention over the valid ids in double.
  void Reference(std::vector<double>& out, std::vector<double>& lse) const {
    const int64_t latent = memory.pages.layout.latent;
    for (int64_t r = 0; r < groups.rows(); ++r) {
      std::vector<std::vector<float>> cells;
      for (int64_t i = 0; i < columns; ++i) {
        const int32_t id = ids[r * columns + i];
        if (id >= 0 && id < lengths[r])
          cells.push_back(ReadCell(memory.pages, groups.sequence[r], id));
      }
      for (int64_t h = 0; h < heads; ++h) {
        std::vector<double> scores, sums(static_cast<size_t>(latent), 0.0);
        double largest = -kInfinity, total = 0.0;
        for (const std::vector<float>& cell : cells) {
          double dot = 0.0;
          for (int64_t d = 0; d < width(); ++d)
            dot += double{query[(r * heads + h) * width() + d]} * cell[d];
          scores.push_back(scale * dot);
          largest = std::max(largest, scores.back());
        }
        for (size_t i = 0; i < cells.size(); ++i) {
          const double p = std::exp(scores[i] - largest);
          total += p;
          for (int64_t d = 0; d < latent; ++d) sums[d] += p * cells[i][d];
        }
        for (double& sum : sums) out.push_back(cells.empty() ? 0.0 : sum / total);
        lse.push_back(cells.empty() ? -kInfinity : largest + std::log(total));
      }
    }
  }
  void ExpectReference(double tolerance) const {
    std::vector<double> out, lse;
    Reference(out, lse);
    const Attended attended = Attend(2);
    EXPECT_LE(RelativeError(attended.out, out), tolerance);
    for (size_t i = 0; i < lse.size(); ++i) {
      if (std::isinf(lse[i])) {
        EXPECT_EQ(attended.lse[i], lse[i]);
      } else {
        EXPECT_NEAR(attended.lse[i], lse[i], 1e-5 * (1.0 + std::fabs(lse[i])));
      }
    }
  }
};

std::vector<LatentLayout> Layouts() {
  std::vector<LatentLayout> layouts;
  for (DType dtype : {DType::kF32, DType::kBf16, DType::kInt8, DType::kFp8E4M3}) {
    for (auto [latent, rope] :
         {std::pair<int64_t, int64_t>{512, 64}, {32, 0}, {200, 8}, {33, 5}, {7, 0}}) {
      layouts.push_back({.dtype = dtype, .latent = latent, .rope = rope});
    }
  }
  return layouts;
}
std::string LayoutName(const LatentLayout& layout) {
  return std::string(DTypeName(layout.dtype)) + " " + std::to_string(layout.latent) + " + " +
         std::to_string(layout.rope);
}

TEST(SparseMlaTest, AgreesWithDenseAttentionInDouble) {
  for (const LatentLayout& layout : Layouts()) {
    SCOPED_TRACE(LayoutName(layout));
    for (int64_t heads : {1, 8, 11}) {
      for (int64_t columns : {1, 17, 100}) {
        AttendCase(layout, 2, 130, Groups({{1, 1}, {0, 1}}), heads, columns, 5)
            .ExpectReference(1e-6);
      }
    }
  }
}

TEST(SparseMlaTest, SameBitsAloneInABatchAndFromAnyThreadCount) {
  for (const LatentLayout& layout : Layouts()) {
    SCOPED_TRACE(LayoutName(layout));
    AttendCase c(layout, 3, 130, Groups({{2, 1}, {0, 5}, {1, 0}, {1, 4}}), 8, 70, 9);
    for (size_t r = 0; r < c.lengths.size(); ++r) c.lengths[r] = static_cast<int32_t>(130 - 13 * r);
    const Attended all = c.Attend(1);
    for (int threads : {2, 3}) {
      const Attended other = c.Attend(threads);
      EXPECT_TRUE(SameBits(other.out, all.out)) << threads << " threads";
      EXPECT_TRUE(SameBits(other.lse, all.lse)) << threads << " threads";
    }
    for (int64_t r = 0; r < c.groups.rows(); ++r) {
      AttendCase solo = c;
      solo.groups = Groups({{c.groups.sequence[r], 1}});
      const auto slice = [r](const auto& values, int64_t n) {
        return std::vector(values.begin() + r * n, values.begin() + (r + 1) * n);
      };
      solo.ids = slice(c.ids, c.columns);
      solo.lengths = slice(c.lengths, 1);
      solo.query = slice(c.query, c.heads * c.width());
      for (int threads : {1, 2, 3}) {
        const Attended alone = solo.Attend(threads);
        EXPECT_TRUE(SameBits(alone.out, slice(all.out, c.heads * layout.latent))) << "row " << r;
        EXPECT_TRUE(SameBits(alone.lse, slice(all.lse, c.heads))) << "row " << r;
      }
    }
  }
}

TEST(SparseMlaTest, IgnoresInvalidIdsWhereverTheyStand) {
  const LatentLayout layout{.dtype = DType::kBf16, .latent = 64, .rope = 16};
  AttendCase c(layout, 1, 256, Groups({{0, 1}}), 4, 69, 3);
  c.lengths = {200};
  const std::vector<int32_t> valid = {3, 64, 65, 130, 199};
  const auto place = [&](const std::vector<int64_t>& at) {
    // Every kind of id that is not valid, positive ones behind the length among them.
    const int32_t invalid[] = {-1,  200,    std::numeric_limits<int32_t>::min(),
                               255, 114514, std::numeric_limits<int32_t>::max(),
                               -2};
    for (int64_t i = 0; i < c.columns; ++i) c.ids[i] = invalid[i % 7];
    for (size_t i = 0; i < at.size(); ++i) c.ids[at[i]] = valid[i];
    return c.Attend(2);
  };
  const Attended leading = place({0, 1, 2, 3, 4});
  c.ExpectReference(1e-6);
  for (const std::vector<int64_t>& at :
       {std::vector<int64_t>{64, 65, 66, 67, 68}, {0, 17, 31, 32, 68}, {5, 6, 30, 47, 64}}) {
    const Attended other = place(at);
    EXPECT_TRUE(SameBits(other.out, leading.out));
    EXPECT_TRUE(SameBits(other.lse, leading.lse));
  }
}

TEST(SparseMlaTest, NeverReadsACellThatIsNotSelected) {
  // Every other cell is all ones bits, which no storage type reads as a number; rows of no
  // sequence's pages are too.
  for (DType dtype : {DType::kF32, DType::kBf16, DType::kInt8, DType::kFp8E4M3}) {
    AttendCase c({.dtype = dtype, .latent = 64, .rope = 16}, 1, 256, Groups({{0, 1}}), 4, 40, 3);
    c.lengths = {200};
    const Attended before = c.Attend(2);
    std::vector<bool> selected(256);
    for (int32_t id : c.ids) {
      if (id >= 0 && id < 200) selected[id] = true;
    }
    for (int64_t cell = 0; cell < 256; ++cell) {
      if (selected[cell]) continue;
      std::memset(static_cast<void*>(CellAddress(c.memory.pages, 0, cell)), 0xff,
                  static_cast<size_t>(c.memory.pages.layout.RowBytes()));
    }
    EXPECT_TRUE(SameBits(c.Attend(2).out, before.out)) << DTypeName(dtype);
  }
}

TEST(SparseMlaTest, ARowWithoutValidIdsGivesZerosAndAnLseThatAddsNothing) {
  for (int64_t rows : {1, 9}) {
    AttendCase c({.dtype = DType::kBf16, .latent = 64, .rope = 16}, 1, 64,
                 Groups({{0, static_cast<int32_t>(rows)}}), 4, 40, 3);
    const Attended healthy = c.Attend(2);
    std::fill_n(c.ids.begin(), c.columns, -1);
    if (rows > 2) c.lengths[2] = 0;  // an idle row
    if (rows > 3) c.lengths[3] = -7;
    const Attended attended = c.Attend(2);
    for (int64_t r = 0; r < rows; ++r) {
      const bool empty = r == 0 || r == 2 || r == 3;
      for (int64_t i = r * 4 * 64; i < (r + 1) * 4 * 64; ++i) {
        ASSERT_EQ(FloatToBits(attended.out[i]), empty ? 0u : FloatToBits(healthy.out[i]))
            << "row " << r;
      }
      for (int64_t h = 0; h < 4; ++h) {
        ASSERT_EQ(attended.lse[r * 4 + h], empty ? -kInfinity : healthy.lse[r * 4 + h])
            << "row " << r;
      }
    }
  }
}

TEST(SparseMlaTest, PartsMergeByTheirLseIntoTheWhole) {
  // Three ranks own the even ids, the odd ids, and none.
  AttendCase whole({.dtype = DType::kBf16, .latent = 64, .rope = 16}, 1, 256, Groups({{0, 2}}), 4,
                   60, 3);
  std::vector<double> out, lse;
  whole.Reference(out, lse);
  std::vector<Attended> parts;
  for (int rank = 0; rank < 3; ++rank) {
    AttendCase part = whole;
    for (int32_t& id : part.ids) id = rank < 2 && id % 2 == rank ? id : -1;
    parts.push_back(part.Attend(1));
  }
  std::vector<float> merged;
  for (size_t i = 0; i < out.size(); ++i) {
    const size_t head = i / 64;
    double sum = 0.0, total = 0.0;
    for (const Attended& part : parts) {
      const double weight = std::exp(double{part.lse[head]} - lse[head]);
      total += weight;
      sum += weight * part.out[i];
    }
    EXPECT_NEAR(total, 1.0, 1e-5);
    merged.push_back(static_cast<float>(sum));
  }
  EXPECT_LE(RelativeError(merged, out), 1e-5);
}

TEST(SparseMlaTest, ScoresFarApartNeitherOverflowNorVanish) {
  AttendCase c({.dtype = DType::kF32, .latent = 32, .rope = 0}, 1, 64, Groups({{0, 1}}), 4, 20, 3);
  for (float scale : {0.0f, 1.0f, 40.0f, 1000.0f, -1000.0f}) {
    c.scale = scale;
    c.ExpectReference(
        scale == 0.0f ? 1e-6 : 2e-4);  // the scores themselves are rounded: relative to their size
  }
}

TEST(SparseMlaTest, NonFiniteScores) {
  AttendCase c({.dtype = DType::kF32, .latent = 32, .rope = 4}, 1, 64, Groups({{0, 1}}), 1, 20, 3);
  const auto set_rope = [&](int64_t column, float value) {
    float* rope = reinterpret_cast<float*>(CellAddress(c.memory.pages, 0, c.ids[column])) + 32;
    std::fill_n(rope, 4, value);
  };
  std::fill_n(c.query.begin() + 32, 4, 1.0f);
  // A score of -infinity takes no part.
  set_rope(3, -kInfinity);
  AttendCase without = c;
  without.ids[3] = -1;
  EXPECT_LE(RelativeError(c.Attend(1).out,
                          [&] {
                            std::vector<double> out, lse;
                            without.Reference(out, lse);
                            return out;
                          }()),
            1e-6);
  // All of them: as good as no cell.
  for (int64_t i = 0; i < 20; ++i) set_rope(i, -kInfinity);
  const Attended none = c.Attend(1);
  EXPECT_TRUE(SameBits(none.out, std::vector<float>(32, 0.0f)));
  EXPECT_EQ(none.lse[0], -kInfinity);
  // A NaN score is seen in the result.
  for (int64_t i = 0; i < 20; ++i) set_rope(i, i == 7 ? kNaN : 0.5f);
  for (float value : c.Attend(1).out) EXPECT_TRUE(std::isnan(value));
  EXPECT_TRUE(std::isnan(c.Attend(1).lse[0]));
}

TEST(SparseMlaTest, RefusesWhatItCannotServe) {
  const AttendCase c({.dtype = DType::kBf16, .latent = 32, .rope = 8}, 1, 64, Groups({{0, 2}}), 4,
                     10, 3);
  std::vector<float> out(2 * 4 * 32), lse(8);
  CpuStream stream(1);
  std::vector<std::byte> workspace(
      SparseMla::WorkspaceBytes(2, 4, 10, c.memory.pages.layout, stream()));
  const auto message = [&](auto change) {
    SparseMla op{.query = AnyView<3>(MakeView(c.query.data(), {2, 4, 40})),
                 .pages = c.memory.pages,
                 .rows = c.groups.Map(),
                 .ids = MakeView(c.ids.data(), {2, 10}),
                 .lengths = MakeView(c.lengths.data(), {2}),
                 .scale = 1.0f,
                 .out = MakeView(out.data(), {2, 4, 32}),
                 .lse = MakeView(lse.data(), {2, 4}),
                 .workspace = MakeView(workspace.data(), {static_cast<int64_t>(workspace.size())})};
    change(op);
    return MessageOf(ErrorCode::kShape, [&] { stream.Execute(op); });
  };
  EXPECT_EQ(message([](SparseMla&) {}), "");
  EXPECT_NE(message([](SparseMla& op) { op.query.shape[2] = 39; }), "");
  EXPECT_NE(message([](SparseMla& op) { op.query.dtype = DType::kBf16; }), "");
  EXPECT_NE(message([](SparseMla& op) { op.ids.shape[0] = 1; }), "");
  EXPECT_NE(message([](SparseMla& op) { op.lengths.shape[0] = 1; }), "");
  EXPECT_NE(message([](SparseMla& op) { op.out.shape[2] = 31; }), "");
  EXPECT_NE(message([](SparseMla& op) { op.lse.shape[1] = 3; }), "");
  EXPECT_NE(message([](SparseMla& op) { op.workspace.shape[0] -= 1; }), "");
  EXPECT_EQ(message([](SparseMla& op) { op.workspace.data += 4; }),
            "SparseMla: the workspace does not start at 16 bytes");
  EXPECT_EQ(
      message([](SparseMla& op) { op.query.shape[1] = op.out.shape[1] = op.lse.shape[1] = 0; }),
      "SparseMla: query has no heads");
  EXPECT_NE(message([](SparseMla& op) { op.pages.page_stride -= 65; }), "");
  EXPECT_NE(message([](SparseMla& op) { op.pages.layout.dtype = DType::kI32; }), "");
  const std::vector<int32_t> too_long = {64, 65};
  EXPECT_NE(message([&](SparseMla& op) { op.lengths = MakeView(too_long.data(), {2}); }), "");
}

}  // namespace
}  // namespace strata
