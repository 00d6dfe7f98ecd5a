// Normalisations against double; every vector width, thread count and neighbour gives the same
// bits.
#include "kernels/norm.h"

#include "tests/kernels/dense_fixture.h"

namespace strata {
namespace {

constexpr int64_t kWidths[] = {1, 2, 15, 16, 17, 48, 130, 1000};
constexpr float kEpsilon = 1e-6f;
constexpr double kTolerance = 1e-6;  // of the largest value of a row

struct Inputs {
  std::vector<float> x, weight, bias;
  Inputs(int64_t rows, int64_t width, float mean = 0.0f) {
    Random random(static_cast<uint64_t>(rows * 1000 + width));
    x = random.Normals(rows * width);
    for (float& value : x) value = value * 3.0f + mean;
    weight = random.Normals(width);
    bias = random.Normals(width);
  }
};
std::vector<float> Normed(bool layer_norm, const Inputs& in, int64_t rows, int64_t width,
                          int threads) {
  std::vector<float> y = Poisoned(rows * width);
  CpuStream stream(threads);
  const auto x = Rows(in.x, rows, width);
  if (layer_norm) {
    stream.Execute(LayerNorm{.x = x,
                             .weight = List(in.weight),
                             .bias = List(in.bias),
                             .epsilon = kEpsilon,
                             .y = Rows(y, rows, width)});
  } else {
    stream.Execute(
        RmsNorm{.x = x, .weight = List(in.weight), .epsilon = kEpsilon, .y = Rows(y, rows, width)});
  }
  return y;
}

TEST(NormTest, AgreesWithDouble) {
  for (const int64_t width : kWidths) {
    const int64_t rows = 5;
    const Inputs in(rows, width, 1.0f);
    for (const bool layer_norm : {false, true}) {
      const std::vector<float> y = Normed(layer_norm, in, rows, width, 1);
      for (int64_t r = 0; r < rows; ++r) {
        const float* x = in.x.data() + r * width;
        double mean = 0.0, squares = 0.0;
        if (layer_norm) {
          for (int64_t i = 0; i < width; ++i) mean += x[i] / static_cast<double>(width);
        }
        for (int64_t i = 0; i < width; ++i) squares += (x[i] - mean) * (x[i] - mean);
        const double factor =
            1.0 / std::sqrt(squares / static_cast<double>(width) + double{kEpsilon});
        double largest = 1.0;
        for (int64_t i = 0; i < width; ++i)
          largest = std::max(largest, std::fabs((x[i] - mean) * factor * in.weight[i]));
        for (int64_t i = 0; i < width; ++i) {
          const double expected =
              (x[i] - mean) * factor * in.weight[i] + (layer_norm ? in.bias[i] : 0.0f);
          ASSERT_NEAR(y[r * width + i], expected, kTolerance * largest)
              << layer_norm << " " << width << " " << r << " " << i;
        }
      }
    }
  }
}

TEST(NormTest, TheBitsDependOnNothingButTheRow) {
  for (const int64_t width : kWidths) {
    const int64_t rows = 70;
    const Inputs in(rows, width);
    for (const bool layer_norm : {false, true}) {
      const std::vector<float> y = Normed(layer_norm, in, rows, width, 1);
      for (int threads : {2, 3})
        EXPECT_TRUE(SameBits(y, Normed(layer_norm, in, rows, width, threads)));
      for (const Level& level : SupportedLevels()) {
        std::vector<float> other = Poisoned(rows * width);
        for (int64_t r = 0; r < rows; ++r) {
          const float* x = in.x.data() + r * width;
          if (layer_norm) {
            level.loops->layer_norm(x, in.weight.data(), in.bias.data(), kEpsilon,
                                    other.data() + r * width, width);
          } else {
            level.loops->rms_norm(x, in.weight.data(), kEpsilon, other.data() + r * width, width);
          }
        }
        EXPECT_TRUE(SameBits(y, other)) << level.name << " " << width;
      }
    }
  }
}

TEST(NormTest, InPlaceAndInsideStridedRows) {
  constexpr int64_t kRows = 3, kWidth = 17, kStride = 20;
  const Inputs in(kRows, kWidth);
  const std::vector<float> dense = Normed(false, in, kRows, kWidth, 1);
  std::vector<float> buffer = Poisoned(kRows * kStride);
  for (int64_t r = 0; r < kRows; ++r)
    std::copy_n(in.x.data() + r * kWidth, kWidth, buffer.data() + r * kStride);
  const View<float, 2> part = Rows(buffer, kRows, kStride).Columns(0, kWidth);
  CpuStream(1).Execute(
      RmsNorm{.x = part, .weight = List(in.weight), .epsilon = kEpsilon, .y = part});
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t i = 0; i < kStride; ++i) {
      const uint32_t expected = i < kWidth ? FloatToBits(dense[r * kWidth + i]) : kPoisonBits;
      EXPECT_EQ(FloatToBits(buffer[r * kStride + i]), expected) << r << " " << i;
    }
  }
}

TEST(NormTest, ZerosAndEqualValuesStayFinite) {
  Inputs in(2, 48);
  std::fill(in.x.begin(), in.x.begin() + 48, 0.0f);
  std::fill(in.x.begin() + 48, in.x.end(), 7.0f);
  const std::vector<float> rms = Normed(false, in, 2, 48, 1), layer = Normed(true, in, 2, 48, 1);
  for (int64_t i = 0; i < 48; ++i) {
    EXPECT_EQ(rms[i], 0.0f);
    EXPECT_EQ(layer[i], in.bias[i]);
    EXPECT_NEAR(rms[48 + i], in.weight[i], 1e-6);
    EXPECT_EQ(layer[48 + i], in.bias[i]);
  }
}

TEST(NormTest, NaNSpoilsItsRowAndNoOther) {
  constexpr int64_t kRows = 3, kWidth = 50;
  const std::vector<float> weight = Random(7).Normals(kWidth), bias = Random(8).Normals(kWidth);
  for (int64_t place : {0, 17, 49}) {
    std::vector<float> x = Random(9).Normals(kRows * kWidth);
    x[kWidth + place] = kNaN;
    std::vector<float> rms = Poisoned(kRows * kWidth), layer = rms;
    CpuStream stream(1);
    stream.Execute(RmsNorm{.x = Rows(std::as_const(x), kRows, kWidth),
                           .weight = List(weight),
                           .y = Rows(rms, kRows, kWidth)});
    stream.Execute(LayerNorm{.x = Rows(std::as_const(x), kRows, kWidth),
                             .weight = List(weight),
                             .bias = List(bias),
                             .y = Rows(layer, kRows, kWidth)});
    for (int64_t i = 0; i < kRows * kWidth; ++i) {
      ASSERT_EQ(std::isnan(rms[i]), i / kWidth == 1) << i;
      ASSERT_EQ(std::isnan(layer[i]), i / kWidth == 1) << i;
    }
  }
}

TEST(NormTest, ShapeErrorsNameOpViewAndNumbers) {
  std::vector<float> x(12), weight(5), y(12);
  CpuStream stream(1);
  const auto rms = MessageOf(ErrorCode::kShape, [&] {
    stream.Execute(RmsNorm{.x = Rows(x, 2, 6), .weight = List(weight), .y = Rows(y, 2, 6)});
  });
  for (const char* part : {"RmsNorm", "weight", "5", "6"})
    EXPECT_NE(rms.find(part), std::string::npos) << rms;
  const auto layer = MessageOf(ErrorCode::kShape, [&] {
    stream.Execute(LayerNorm{
        .x = Rows(x, 2, 5), .weight = List(weight), .bias = List(weight), .y = Rows(y, 3, 4)});
  });
  for (const char* part : {"LayerNorm", "y", "3", "2"})
    EXPECT_NE(layer.find(part), std::string::npos) << layer;
}

}  // namespace
}  // namespace strata
