// Experts against the single ops, slot by slot: the grouping by expert, the shares of the threads
// and the other rows change no bit.
#include "kernels/elementwise.h"
#include "kernels/moe.h"
#include "tests/kernels/dense_fixture.h"

namespace strata {
namespace {

// Experts with weights of one type, and a step of rows routed to them.
struct MoeCase {
  int64_t rows, top_k, experts, hidden, inner;
  std::vector<Weights> gate, up, down;
  std::vector<Matrix> gate_views, up_views, down_views;
  std::vector<float> x, weights;
  std::vector<int32_t> ids;

  MoeCase(DType dtype, int64_t rows_, int64_t top_k_, int64_t experts_, int64_t hidden_,
          int64_t inner_, uint64_t seed)
      : rows(rows_), top_k(top_k_), experts(experts_), hidden(hidden_), inner(inner_) {
    Random random(seed);
    for (int64_t e = 0; e < experts; ++e) {
      gate.emplace_back(dtype, inner, hidden, random.Below(1 << 30));
      up.emplace_back(dtype, inner, hidden, random.Below(1 << 30));
      down.emplace_back(dtype, hidden, inner, random.Below(1 << 30));
    }
    for (int64_t e = 0; e < experts; ++e) {
      gate_views.push_back(gate[e].View());
      up_views.push_back(up[e].View());
      down_views.push_back(down[e].View());
    }
    x = random.Normals(rows * hidden);
    for (int64_t r = 0; r < rows; ++r) {
      std::vector<int32_t> order(static_cast<size_t>(experts));
      std::iota(order.begin(), order.end(), 0);
      random.Shuffle(order);
      order.resize(static_cast<size_t>(top_k));
      std::sort(order.begin(), order.end());
      ids.insert(ids.end(), order.begin(), order.end());
    }
    weights = random.Normals(rows * top_k);
  }
  MoeCase(const MoeCase&) = delete;

  MoeExperts Op(std::vector<float>& y, std::vector<std::byte>& workspace) const {
    return MoeExperts{
        .x = Rows(x, rows, hidden),
        .experts = MakeView(ids.data(), {rows, top_k}),
        .weights = Rows(weights, rows, top_k),
        .gate = List(gate_views),
        .up = List(up_views),
        .down = List(down_views),
        .y = Rows(y, rows, hidden),
        .workspace = MakeView(workspace.data(), {static_cast<int64_t>(workspace.size())})};
  }
  std::vector<std::byte> Workspace() const {
    return std::vector<std::byte>(MoeExperts::WorkspaceBytes(rows, top_k, experts, hidden, inner),
                                  std::byte{0xff});
  }
  std::vector<float> Compute(int threads, float limit = 0.0f) const {
    std::vector<float> y = Poisoned(rows * hidden);
    std::vector<std::byte> workspace = Workspace();
    const size_t bytes = workspace.size();
    workspace.resize(bytes + 64, std::byte{0xab});
    MoeExperts op = Op(y, workspace);
    op.workspace.shape[0] = static_cast<int64_t>(bytes);
    op.limit = limit;
    CpuStream(threads).Execute(op);
    for (size_t i = bytes; i < workspace.size(); ++i) EXPECT_EQ(workspace[i], std::byte{0xab});
    return y;
  }
  // One row by single ops, slot by slot in ascending order.
  std::vector<float> ByOps(int64_t row, float limit) const {
    const std::vector<float> input(x.begin() + row * hidden, x.begin() + (row + 1) * hidden);
    std::vector<float> sum(static_cast<size_t>(hidden), 0.0f);
    for (int64_t k = 0; k < top_k; ++k) {
      const int32_t e = ids[row * top_k + k];
      const std::vector<float> gated = Product(input, 1, gate[e], 1);
      const std::vector<float> upper = Product(input, 1, up[e], 1);
      std::vector<float> middle = Poisoned(inner);
      CpuStream(1).Execute(SiluMul{.gate = Rows(gated, 1, inner),
                                   .up = Rows(upper, 1, inner),
                                   .limit = limit,
                                   .y = Rows(middle, 1, inner)});
      const std::vector<float> output = Product(middle, 1, down[e], 1);
      for (int64_t i = 0; i < hidden; ++i) {
        const float scaled = output[i] * weights[row * top_k + k];
        sum[i] += scaled;
      }
    }
    return sum;
  }
};

struct MoeShape {
  int64_t rows, top_k, experts, hidden, inner;
};
const std::vector<MoeShape> kMoeShapes = {{1, 2, 8, 48, 32},  {1, 1, 1, 17, 15},
                                          {5, 3, 4, 130, 17}, {40, 2, 8, 64, 48},
                                          {9, 4, 4, 16, 130}, {3, 2, 300, 15, 16}};

TEST(ExpertRowsTest, EqualsTheSingleOpsBitForBitOnAnyThreadCount) {
  for (DType dtype : kWeightTypes) {
    for (const MoeShape& s : kMoeShapes) {
      const MoeCase c(dtype, s.rows, s.top_k, s.experts, s.hidden, s.inner, 2);
      for (float limit : {0.0f, 1.5f}) {
        std::vector<float> expected;
        for (int64_t r = 0; r < s.rows; ++r) {
          const std::vector<float> row = c.ByOps(r, limit);
          expected.insert(expected.end(), row.begin(), row.end());
        }
        for (int threads : {1, 2, 3}) {
          EXPECT_TRUE(SameBits(c.Compute(threads, limit), expected))
              << DTypeName(dtype) << ", " << s.rows << " rows, " << s.experts << " experts, "
              << threads << " threads";
        }
      }
    }
  }
}

TEST(ExpertRowsTest, SharesOfLargeStepsKeepTheBits) {
  const MoeCase c(DType::kBf16, 70, 2, 4, 130, 96, 3);
  const std::vector<float> one = c.Compute(1);
  for (int threads : {2, 3, 5}) EXPECT_TRUE(SameBits(c.Compute(threads), one)) << threads;
  for (int64_t r : {0, 35, 69}) {
    EXPECT_TRUE(SameBits(c.ByOps(r, 0.0f), std::vector<float>(one.begin() + r * c.hidden,
                                                              one.begin() + (r + 1) * c.hidden)))
        << "row " << r;
  }
}

TEST(ExpertRowsTest, AllRowsOnOneExpertWhileTheOthersHoldNaN) {
  MoeCase c(DType::kF32, 20, 1, 5, 32, 16, 4);
  std::fill(c.ids.begin(), c.ids.end(), 3);
  for (int64_t e = 0; e < c.experts; ++e) {
    if (e == 3) continue;
    for (int64_t i = 0; i < c.hidden; ++i) c.gate[e].Set(0, i, kNaN);
  }
  for (float value : c.Compute(2)) ASSERT_FALSE(std::isnan(value));
  c.ids[7] = 1;
  const std::vector<float> y = c.Compute(2);
  for (int64_t r = 0; r < c.rows; ++r)
    for (int64_t i = 0; i < c.hidden; ++i) ASSERT_EQ(std::isnan(y[r * c.hidden + i]), r == 7);
}

TEST(ExpertRowsTest, NamesAnExpertThatDoesNotExist) {
  for (int32_t bad : {-1, 4}) {
    MoeCase c(DType::kF32, 3, 2, 4, 16, 16, 5);
    c.ids[3] = bad;
    std::vector<float> y(3 * 16);
    std::vector<std::byte> workspace = c.Workspace();
    const std::string message =
        MessageOf(ErrorCode::kInternal, [&] { CpuStream(1).Execute(c.Op(y, workspace)); });
    EXPECT_NE(message.find(std::to_string(bad)), std::string::npos) << message;
    EXPECT_NE(message.find("row 1"), std::string::npos) << message;
  }
}

TEST(ExpertRowsTest, RefusesWhatDoesNotFit) {
  MoeCase c(DType::kF32, 3, 2, 4, 16, 8, 6);
  std::vector<float> y(3 * 16);
  std::vector<std::byte> workspace = c.Workspace();
  CpuStream stream(1);
  const auto message = [&](auto change) {
    MoeExperts op = c.Op(y, workspace);
    change(op);
    return MessageOf(ErrorCode::kShape, [&] { stream.Execute(op); });
  };
  EXPECT_EQ(message([](MoeExperts&) {}), "");
  EXPECT_NE(message([](MoeExperts& op) { op.y.shape[1] = 15; }), "");
  EXPECT_NE(message([](MoeExperts& op) { op.weights.shape[1] = 1; }), "");
  EXPECT_NE(message([](MoeExperts& op) { op.up.shape[0] = 3; }), "");
  EXPECT_NE(
      message([](MoeExperts& op) { op.gate.shape[0] = op.up.shape[0] = op.down.shape[0] = 0; }),
      "");
  EXPECT_NE(message([](MoeExperts& op) { op.x.stride[1] = 2; }), "");
  const std::string small = message([](MoeExperts& op) { --op.workspace.shape[0]; });
  for (const char* word : {"MoeExperts", "workspace"})
    EXPECT_NE(small.find(word), std::string::npos) << small;
  EXPECT_NE(small.find(std::to_string(workspace.size())), std::string::npos) << small;
  c.down_views[2].rows = 15;
  const std::string down = message([](MoeExperts&) {});
  for (const char* word : {"MoeExperts", "down", "15", "16", "hidden"})
    EXPECT_NE(down.find(word), std::string::npos) << down;
}

}  // namespace
}  // namespace strata
