// What the tests of the dense ops share: weights of every storage type, the fixed-order dot product
// written out, and the tables of every vector width that this machine runs.
#pragma once

#include "kernels/cpu/isa.h"
#include "kernels/cpu/isa/dense.h"
#include "kernels/linear.h"
#include "tests/kernels/paged_fixture.h"

namespace strata {

struct Level {
  const char* name;
  const cpu::DenseLoops* loops;
};
inline std::vector<Level> SupportedLevels() {
  std::vector<Level> levels = {{"baseline", &cpu::baseline::kDenseLoops}};
  if (cpu::IsaSupported(cpu::Isa::kAvx2)) levels.push_back({"avx2", &cpu::avx2::kDenseLoops});
  if (cpu::IsaSupported(cpu::Isa::kAvx512)) levels.push_back({"avx512", &cpu::avx512::kDenseLoops});
  return levels;
}

inline View<const float, 2> Rows(const std::vector<float>& values, int64_t rows, int64_t width) {
  return MakeView(values.data(), {rows, width});
}
inline View<float, 2> Rows(std::vector<float>& values, int64_t rows, int64_t width) {
  return MakeView(values.data(), {rows, width});
}
template <class T>
View<const T, 1> List(const std::vector<T>& values) {
  return MakeView(values.data(), {static_cast<int64_t>(values.size())});
}
template <class T>
View<T, 1> List(std::vector<T>& values) {
  return MakeView(values.data(), {static_cast<int64_t>(values.size())});
}
inline std::vector<float> Poisoned(int64_t count) {
  return std::vector<float>(static_cast<size_t>(count), Poison());
}

// A random weight; between two rows lie `gap` elements of 0xff bytes, which are NaN in every type.
// Every fp8 block has a scale of its own.
class Weights {
 public:
  Weights(DType dtype, int64_t rows, int64_t cols, uint64_t seed, int64_t gap = 3)
      : dtype_(dtype), rows_(rows), cols_(cols), stride_(cols + gap) {
    Random random(seed);
    bytes_.assign(static_cast<size_t>(rows * stride_ * DTypeBytes(dtype)), std::byte{0xff});
    const int64_t blocks = (cols + kWeightScaleBlock - 1) / kWeightScaleBlock;
    scale_stride_ = blocks + 1;
    if (dtype == DType::kFp8E4M3) {
      scales_.assign(
          static_cast<size_t>((rows + kWeightScaleBlock - 1) / kWeightScaleBlock * scale_stride_),
          Poison());
      for (int64_t i = 0; i < static_cast<int64_t>(scales_.size()); ++i) {
        if (i % scale_stride_ < blocks) scales_[i] = random.Uniform(0.01f, 0.3f);
      }
    }
    for (int64_t o = 0; o < rows; ++o)
      for (int64_t i = 0; i < cols; ++i) Set(o, i, random.Normal());
  }

  // Stores the value, or for fp8 its code before the scale.
  void Set(int64_t o, int64_t i, float value) {
    std::byte* p = Address(o, i);
    if (dtype_ == DType::kF32) std::memcpy(p, &value, 4);
    if (dtype_ == DType::kBf16) {
      const uint16_t bits = FloatToBf16(value);
      std::memcpy(p, &bits, 2);
    }
    if (dtype_ == DType::kFp8E4M3) *p = std::byte{FloatToFp8(value)};
  }
  // The value an op must see: a code times its scale is rounded to fp32.
  float At(int64_t o, int64_t i) const {
    const double code = CodeValue(dtype_, const_cast<Weights*>(this)->Address(o, i));
    if (dtype_ != DType::kFp8E4M3) return static_cast<float>(code);
    const int64_t block = o / kWeightScaleBlock * scale_stride_ + i / kWeightScaleBlock;
    return static_cast<float>(code) * scales_[static_cast<size_t>(block)];
  }
  Matrix View() const {
    return Matrix{.data = bytes_.data(),
                  .dtype = dtype_,
                  .rows = rows_,
                  .cols = cols_,
                  .row_stride = stride_,
                  .scales = scales_.empty() ? nullptr : scales_.data(),
                  .scale_stride = scales_.empty() ? 0 : scale_stride_};
  }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }

 private:
  std::byte* Address(int64_t o, int64_t i) {
    return bytes_.data() + (o * stride_ + i) * DTypeBytes(dtype_);
  }

  DType dtype_;
  int64_t rows_;
  int64_t cols_;
  int64_t stride_;
  int64_t scale_stride_ = 0;
  std::vector<std::byte> bytes_;
  std::vector<float> scales_;
};

const std::vector<DType> kWeightTypes = {DType::kF32, DType::kBf16, DType::kFp8E4M3};

// Sixteen sums of every sixteenth product, folded by halves: the order every CPU dot product keeps.
inline float FoldLanes(float (&lanes)[16]) {
  for (int half = 8; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  }
  return lanes[0];
}
inline float FixedOrderDot(const float* x, const Weights& w, int64_t output) {
  float lanes[16] = {};
  for (int64_t i = 0; i < w.cols(); ++i) lanes[i % 16] += x[i] * w.At(output, i);
  return FoldLanes(lanes);
}

inline std::vector<float> Product(const std::vector<float>& x, int64_t rows, const Weights& w,
                                  int threads) {
  std::vector<float> y = Poisoned(rows * w.rows());
  CpuStream stream(threads);
  stream.Execute(Linear{.x = Rows(x, rows, w.cols()), .w = w.View(), .y = Rows(y, rows, w.rows())});
  return y;
}

}  // namespace strata
