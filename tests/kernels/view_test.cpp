#include "kernels/view.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "kernels/status.h"

namespace strata {
namespace {

std::vector<int> Counting(int n) {
  std::vector<int> values(static_cast<size_t>(n));
  std::iota(values.begin(), values.end(), 0);
  return values;
}

TEST(ViewTest, DenseViewsAreRowMajor) {
  std::vector<int> values = Counting(24);
  const View<int, 3> view = MakeView(values.data(), {2, 3, 4});
  for (int64_t i = 0; i < 2; ++i)
    for (int64_t j = 0; j < 3; ++j)
      for (int64_t k = 0; k < 4; ++k) EXPECT_EQ(view(i, j, k), 12 * i + 4 * j + k);
  EXPECT_EQ(view.row(1), values.data() + 12);
  EXPECT_EQ(view.dim(2), 4);
}

TEST(ViewTest, RowsAndColumnsKeepTheStrides) {
  std::vector<int> values = Counting(20);
  const View<int, 2> view = MakeView(values.data(), {4, 5});
  const View<int, 2> part = view.Rows(1, 3).Columns(2, 5);
  EXPECT_EQ(part.dim(0), 2);
  EXPECT_EQ(part.dim(1), 3);
  EXPECT_EQ(part(0, 0), 7);
  EXPECT_EQ(part(1, 2), 14);
  part(1, 2) = -1;
  EXPECT_EQ(values[14], -1);
  const View<const int, 2> constant = part;
  EXPECT_EQ(constant(1, 2), -1);
  EXPECT_EQ(constant.stride[0], 5);
}

TEST(ViewTest, EmptyMeansThatSomeDimensionIsZero) {
  int value = 0;
  EXPECT_TRUE((View<int, 2>().empty()));
  EXPECT_TRUE(MakeView(&value, {3, 0}).empty());
  EXPECT_FALSE(MakeView(&value, {1, 1}).empty());
}

TEST(ViewTest, AnyViewKeepsShapeStridesAndType) {
  std::vector<float> values(24);
  View<float, 3> view = MakeView(values.data(), {2, 3, 4});
  view.stride[1] = 7;
  const AnyView<3> any = view;
  EXPECT_EQ(any.data, values.data());
  EXPECT_EQ(any.dtype, DType::kF32);
  EXPECT_EQ(any.dim(1), 3);
  EXPECT_EQ(any.stride[1], 7);
  const AnyView<2> typed(values.data(), DType::kBf16, {3, 5});
  EXPECT_EQ(typed.dtype, DType::kBf16);
  EXPECT_EQ(typed.stride[0], 5);
  EXPECT_EQ(typed.stride[1], 1);
}

TEST(ViewTest, MatchBindsASizeAndRefusesAnother) {
  std::vector<float> values(12);
  Dim rows{"rows"}, width{"width", 4};
  Match("Op", "x", MakeView(values.data(), {3, 4}), {&rows, &width});
  EXPECT_EQ(rows.value, 3);
  Match("Op", "y", MakeView(values.data(), {3}), {&rows});
  try {
    Match("Op", "z", MakeView(values.data(), {3, 2}), {&rows, &width});
    FAIL() << "width is 4";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kShape);
    const std::string message = error.what();
    for (const char* word : {"Op", "z", "2", "width", "4"})
      EXPECT_NE(message.find(word), std::string::npos) << message;
  }
  // A size of zero is a size like any other.
  Dim none{"none"};
  Match("Op", "a", MakeView(values.data(), {0}), {&none});
  EXPECT_THROW(Match("Op", "b", MakeView(values.data(), {1}), {&none}), Error);
}

}  // namespace
}  // namespace strata
