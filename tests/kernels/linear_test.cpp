#include "kernels/linear.h"

#include "tests/kernels/dense_fixture.h"

namespace strata {
namespace {

struct Shape {
  int64_t rows, in, out;
};
// Tails of every kind: of the sixteen lanes, of the row and output tiles, of the scale blocks.
const std::vector<Shape> kShapes = {
    {1, 1, 1},    {1, 15, 16},   {1, 16, 17},    {1, 130, 33}, {2, 17, 15},   {2, 48, 16},
    {3, 16, 16},  {3, 130, 130}, {4, 48, 48},    {5, 1, 17},   {7, 257, 3},   {8, 64, 64},
    {16, 15, 15}, {17, 17, 48},  {17, 130, 130}, {66, 48, 19}, {130, 16, 17}, {9, 300, 20}};

std::string Name(DType dtype, const Shape& shape) {
  return std::string(DTypeName(dtype)) + " [" + std::to_string(shape.rows) + ", " +
         std::to_string(shape.in) + "] x [" + std::to_string(shape.out) + "]";
}

TEST(LinearTest, AgreesWithDouble) {
  for (DType dtype : kWeightTypes) {
    for (const Shape& shape : kShapes) {
      const Weights w(dtype, shape.out, shape.in, 1);
      const std::vector<float> x = Random(2).Normals(shape.rows * shape.in);
      const std::vector<float> y = Product(x, shape.rows, w, 1);
      for (int64_t r = 0; r < shape.rows; ++r) {
        for (int64_t o = 0; o < shape.out; ++o) {
          double sum = 0.0, magnitude = 0.0;
          for (int64_t i = 0; i < shape.in; ++i) {
            const double term = double{x[r * shape.in + i]} * w.At(o, i);
            sum += term;
            magnitude += std::fabs(term);
          }
          // in / 16 additions in a lane and four folds, each wrong by half an ulp at most.
          const double tolerance = 6e-8 * static_cast<double>(shape.in / 16 + 6) * magnitude;
          ASSERT_NEAR(y[r * shape.out + o], sum, tolerance)
              << Name(dtype, shape) << " row " << r << " output " << o;
        }
      }
    }
  }
}

TEST(LinearTest, EveryOutputIsOneFixedOrderDotProduct) {
  for (DType dtype : kWeightTypes) {
    for (const Shape& shape : kShapes) {
      const Weights w(dtype, shape.out, shape.in, 3);
      const std::vector<float> x = Random(4).Normals(shape.rows * shape.in);
      std::vector<float> expected;
      for (int64_t r = 0; r < shape.rows; ++r)
        for (int64_t o = 0; o < shape.out; ++o)
          expected.push_back(FixedOrderDot(x.data() + r * shape.in, w, o));
      for (int threads : {1, 2, 3}) {
        EXPECT_TRUE(SameBits(Product(x, shape.rows, w, threads), expected))
            << Name(dtype, shape) << ", " << threads << " threads";
      }
    }
  }
}

TEST(LinearTest, EveryVectorWidthComputesTheSameBits) {
  for (DType dtype : kWeightTypes) {
    for (const Shape& shape : kShapes) {
      const Weights w(dtype, shape.out, shape.in, 5);
      const std::vector<float> x = Random(6).Normals(shape.rows * shape.in);
      std::vector<float> first;
      for (const Level& level : SupportedLevels()) {
        std::vector<float> y = Poisoned(shape.rows * shape.out);
        const Matrix matrix = w.View();
        const cpu::LinearArgs args{.x = x.data(),
                                   .x_stride = shape.in,
                                   .w = matrix.data,
                                   .w_dtype = dtype,
                                   .w_stride = matrix.row_stride,
                                   .scales = matrix.scales,
                                   .scale_stride = matrix.scale_stride,
                                   .y = y.data(),
                                   .y_stride = shape.out,
                                   .in = shape.in,
                                   .accumulate = false};
        level.loops->linear(args, 0, shape.rows, 0, shape.out);
        if (first.empty()) first = y;
        EXPECT_TRUE(SameBits(y, first)) << level.name << ", " << Name(dtype, shape);
      }
    }
  }
}

TEST(LinearTest, ARowDoesNotDependOnItsNeighbours) {
  constexpr int64_t kRows = 37, kIn = 145, kOut = 70;
  for (DType dtype : kWeightTypes) {
    const Weights w(dtype, kOut, kIn, 7);
    const std::vector<float> x = Random(8).Normals(kRows * kIn);
    const std::vector<float> batch = Product(x, kRows, w, 2);
    for (int64_t count : {1, 2, 3, 4, 5, 8}) {
      for (int64_t r = 0; r + count <= kRows; r += count) {
        const std::vector<float> part(x.begin() + r * kIn, x.begin() + (r + count) * kIn);
        const std::vector<float> expected(batch.begin() + r * kOut,
                                          batch.begin() + (r + count) * kOut);
        ASSERT_TRUE(SameBits(Product(part, count, w, 1), expected))
            << DTypeName(dtype) << ": rows " << r << " to " << r + count;
      }
    }
  }
}

TEST(LinearTest, ThreadsShareLargeProductsWithoutChangingABit) {
  // Large enough that every pool splits them: by outputs, and by rows where outputs are few.
  for (const Shape& shape : {Shape{1, 256, 1000}, Shape{5, 256, 515}, Shape{600, 130, 9}}) {
    const Weights w(DType::kBf16, shape.out, shape.in, 9);
    const std::vector<float> x = Random(10).Normals(shape.rows * shape.in);
    const std::vector<float> one = Product(x, shape.rows, w, 1);
    for (int threads : {2, 3, 8}) {
      EXPECT_TRUE(SameBits(Product(x, shape.rows, w, threads), one)) << threads << " threads";
    }
  }
}

TEST(LinearTest, InputsOfAnyWidth) {
  for (const Shape& shape : {Shape{1, 30001, 5}, Shape{5, 9000, 18}, Shape{6, 30001, 18}}) {
    for (DType dtype : kWeightTypes) {
      const Weights w(dtype, shape.out, shape.in, 11);
      const std::vector<float> x = Random(12).Normals(shape.rows * shape.in);
      const std::vector<float> y = Product(x, shape.rows, w, 1);
      for (int64_t r = 0; r < shape.rows; ++r) {
        for (int64_t o : {int64_t{0}, shape.out - 1}) {
          ASSERT_EQ(y[r * shape.out + o], FixedOrderDot(x.data() + r * shape.in, w, o))
              << Name(dtype, shape) << " row " << r << " output " << o;
        }
      }
    }
  }
}

TEST(LinearTest, NoInputsGiveZerosAndNoRowsNothing) {
  const Weights w(DType::kF32, 5, 0, 1);
  EXPECT_EQ(Product({}, 3, w, 1), std::vector<float>(15, 0.0f));
  EXPECT_EQ(Product({}, 0, Weights(DType::kF32, 5, 7, 1), 1), std::vector<float>());
}

TEST(LinearTest, StaysInsideStridedRowsAndAccumulates) {
  constexpr int64_t kGap = 5;
  for (int64_t rows : {1, 2, 4, 21}) {
    for (bool accumulate : {false, true}) {
      constexpr int64_t kIn = 50, kOut = 37;
      const Weights w(DType::kBf16, kOut, kIn, 13);
      std::vector<float> x = Poisoned(rows * (kIn + kGap)), y = Poisoned(rows * (kOut + kGap));
      Random random(14);
      const View<float, 2> x_view = Rows(x, rows, kIn + kGap).Columns(0, kIn);
      const View<float, 2> y_view = Rows(y, rows, kOut + kGap).Columns(0, kOut);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t i = 0; i < kIn; ++i) x_view(r, i) = random.Normal();
        for (int64_t o = 0; accumulate && o < kOut; ++o) y_view(r, o) = static_cast<float>(r - o);
      }
      CpuStream(2).Execute(
          Linear{.x = x_view, .w = w.View(), .y = y_view, .accumulate = accumulate});
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t o = 0; o < kOut; ++o) {
          const float dot = FixedOrderDot(x_view.row(r), w, o);
          ASSERT_EQ(y_view(r, o), accumulate ? static_cast<float>(r - o) + dot : dot);
        }
        for (int64_t g = 0; g < kGap; ++g)
          ASSERT_EQ(FloatToBits(y[r * (kOut + kGap) + kOut + g]), kPoisonBits) << "row " << r;
      }
    }
  }
}

TEST(LinearTest, NaNAndInfinityReachExactlyTheirOutputs) {
  constexpr int64_t kRows = 9, kIn = 40, kOut = 21;
  for (DType dtype : kWeightTypes) {
    for (int64_t rows : {int64_t{1}, int64_t{2}, int64_t{4}, kRows}) {
      for (int64_t place : {3, 39}) {  // among full lanes and in the tail
        Weights w(dtype, kOut, kIn, 15);
        std::vector<float> x = Random(16).Normals(rows * kIn);
        w.Set(17, place, kNaN);
        w.Set(2, place, -kNaN);
        std::vector<float> y = Product(x, rows, w, 1);
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t o = 0; o < kOut; ++o)
            ASSERT_EQ(std::isnan(y[r * kOut + o]), o == 17 || o == 2)
                << DTypeName(dtype) << " row " << r << " output " << o;
        w = Weights(dtype, kOut, kIn, 15);
        x[(rows - 1) * kIn + place] = kNaN;
        y = Product(x, rows, w, 1);
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t o = 0; o < kOut; ++o)
            ASSERT_EQ(std::isnan(y[r * kOut + o]), r == rows - 1)
                << DTypeName(dtype) << " row " << r << " output " << o;
        x[(rows - 1) * kIn + place] = kInfinity;
        y = Product(x, rows, w, 1);
        for (int64_t o = 0; o < kOut; ++o)
          ASSERT_FALSE(std::isfinite(y[(rows - 1) * kOut + o])) << DTypeName(dtype);
      }
    }
  }
}

TEST(LinearTest, RefusesWhatDoesNotFit) {
  std::vector<float> x(4 * 8), y(4 * 6), values(6 * 8), scales(1);
  CpuStream stream(1);
  const auto message = [&](auto change) {
    Linear op{.x = Rows(x, 4, 8),
              .w = Matrix{.data = values.data(), .rows = 6, .cols = 8, .row_stride = 8},
              .y = Rows(y, 4, 6)};
    change(op);
    return MessageOf(ErrorCode::kShape, [&] { stream.Execute(op); });
  };
  EXPECT_EQ(message([](Linear&) {}), "");
  const std::string rows = message([](Linear& op) { op.y.shape[0] = 3; });
  for (const char* word : {"Linear", "y", "3", "4", "rows"})
    EXPECT_NE(rows.find(word), std::string::npos) << rows;
  const std::string inputs = message([](Linear& op) { op.w.cols = 7; });
  for (const char* word : {"Linear", "w", "7", "8", "inputs"})
    EXPECT_NE(inputs.find(word), std::string::npos) << inputs;
  EXPECT_NE(message([](Linear& op) { op.w.rows = 5; }), "");
  EXPECT_NE(message([](Linear& op) { op.x.stride[1] = 2; }).find("stride 2"), std::string::npos);
  EXPECT_NE(message([](Linear& op) { op.y.stride[1] = 3; }).find("stride 3"), std::string::npos);
  EXPECT_NE(message([](Linear& op) { op.w.row_stride = 0; }).find("row_stride"), std::string::npos);
  EXPECT_NE(message([](Linear& op) { op.w.dtype = DType::kInt8; }).find("int8"), std::string::npos);
  EXPECT_NE(message([](Linear& op) { op.w.dtype = DType::kFp8E4M3; }).find("scales"),
            std::string::npos);
  const Linear good{.x = Rows(x, 4, 8),
                    .w = Matrix{.data = values.data(), .rows = 6, .cols = 8, .row_stride = 8},
                    .y = Rows(y, 4, 6)};
  EXPECT_NE(MessageOf(ErrorCode::kDevice,
                      [&] {
                        Stream cuda = stream();
                        cuda.device.kind = DeviceKind::kCuda;
                        strata::Run(good, cuda);
                      })
                .find("Linear"),
            std::string::npos);
}

// The heads of an absorbed projection: x [rows, heads, in] read heads first.
struct BatchedCase {
  int64_t batch, rows, in, out;
  Weights w;
  std::vector<float> x;
  BatchedCase(DType dtype, int64_t batch_, int64_t rows_, int64_t in_, int64_t out_)
      : batch(batch_),
        rows(rows_),
        in(in_),
        out(out_),
        w(dtype, batch_ * out_, in_, 21),
        x(Random(22).Normals(batch_ * rows_ * in_)) {}
  std::vector<float> Compute(int threads) const {
    std::vector<float> y = Poisoned(rows * batch * out);
    BatchedLinear op{.x = MakeView(x.data(), {batch, rows, in}),
                     .w = w.View(),
                     .batch_stride = w.View().row_stride * out,
                     .y = MakeView(y.data(), {batch, rows, out})};
    op.w.rows = out;
    op.x.stride[0] = in;
    op.x.stride[1] = batch * in;
    op.y.stride[0] = out;
    op.y.stride[1] = batch * out;
    CpuStream(threads).Execute(op);
    return y;
  }
};

TEST(BatchedLinearTest, EveryOutputIsOneFixedOrderDotProduct) {
  for (DType dtype : {DType::kF32, DType::kBf16}) {
    for (const auto& [batch, rows, in, out] :
         {std::array<int64_t, 4>{1, 1, 16, 16}, {3, 1, 15, 17}, {8, 5, 64, 130}, {2, 33, 48, 7}}) {
      const BatchedCase c(dtype, batch, rows, in, out);
      std::vector<float> expected;
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t b = 0; b < batch; ++b)
          for (int64_t o = 0; o < out; ++o)
            expected.push_back(FixedOrderDot(c.x.data() + (r * batch + b) * in, c.w, b * out + o));
      for (int threads : {1, 2, 3}) {
        EXPECT_TRUE(SameBits(c.Compute(threads), expected))
            << DTypeName(dtype) << ' ' << batch << " of " << rows << " rows, " << threads
            << " threads";
      }
    }
  }
}

TEST(BatchedLinearTest, RefusesWhatDoesNotFit) {
  std::vector<float> x(2 * 3 * 4), y(2 * 3 * 5), values(2 * 5 * 4), scales(1);
  CpuStream stream(1);
  const auto message = [&](auto change) {
    BatchedLinear op{.x = MakeView(static_cast<const float*>(x.data()), {2, 3, 4}),
                     .w = Matrix{.data = values.data(), .rows = 5, .cols = 4, .row_stride = 4},
                     .batch_stride = 20,
                     .y = MakeView(y.data(), {2, 3, 5})};
    change(op);
    return MessageOf(ErrorCode::kShape, [&] { stream.Execute(op); });
  };
  EXPECT_EQ(message([](BatchedLinear&) {}), "");
  EXPECT_NE(message([](BatchedLinear& op) { op.y.shape[0] = 1; }), "");
  EXPECT_NE(message([](BatchedLinear& op) { op.y.shape[1] = 2; }), "");
  EXPECT_NE(message([](BatchedLinear& op) { op.w.rows = 6; }), "");
  EXPECT_NE(message([](BatchedLinear& op) { op.w.cols = 3; }), "");
  EXPECT_NE(message([](BatchedLinear& op) { op.x.stride[2] = 2; }), "");
  const std::string fp8 = message([&](BatchedLinear& op) {
    op.w.dtype = DType::kFp8E4M3;
    op.w.scales = scales.data();
  });
  EXPECT_NE(fp8.find("fp8"), std::string::npos) << fp8;
}

}  // namespace
}  // namespace strata
