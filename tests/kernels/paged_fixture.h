// What the tests of the indexer path share: paged caches with shuffled block tables and poisoned
// memory, row groups, random numbers, streams, and comparisons that name the place of a difference.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "kernels/paged.h"
#include "kernels/status.h"

namespace strata {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
// A NaN that no computation makes: what must not be written still holds it, what must not be read
// spoils the result.
constexpr uint32_t kPoisonBits = 0x7fc0dead;
inline float Poison() { return BitsToFloat(kPoisonBits); }

// Runs ops on the CPU with a thread pool of its own. (Inside a TEST an unqualified Run is the
// test's own.)
class CpuStream {
 public:
  explicit CpuStream(int threads) : pool_(threads) {}
  Stream operator()() { return Stream{Device{DeviceKind::kCpu, 0}, &pool_, nullptr}; }
  template <class Op>
  void Execute(const Op& op) {
    Run(op, (*this)());
  }

 private:
  ThreadPool pool_;
};

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  float Normal() { return normal_(engine_); }
  float Uniform(float low, float high) {
    return std::uniform_real_distribution<float>(low, high)(engine_);
  }
  int64_t Below(int64_t n) { return static_cast<int64_t>(engine_() % static_cast<uint64_t>(n)); }
  std::vector<float> Normals(int64_t n) {
    std::vector<float> values(static_cast<size_t>(n));
    for (float& value : values) value = Normal();
    return values;
  }
  template <class T>
  void Shuffle(std::vector<T>& values) {
    std::shuffle(values.begin(), values.end(), engine_);
  }

 private:
  std::mt19937_64 engine_;
  std::normal_distribution<float> normal_;
};

// The rows of a step by group: {sequence, rows}. A group without rows is legal.
struct Groups {
  std::vector<int32_t> sequence;
  std::vector<int32_t> first_row = {0};

  Groups() = default;
  explicit Groups(const std::vector<std::pair<int32_t, int32_t>>& groups) {
    for (const auto& [id, rows] : groups) {
      sequence.insert(sequence.end(), static_cast<size_t>(rows), id);
      first_row.push_back(static_cast<int32_t>(sequence.size()));
    }
  }
  int64_t rows() const { return static_cast<int64_t>(sequence.size()); }
  RowMap Map() const {
    return RowMap{
        .sequence = MakeView(sequence.data(), {rows()}),
        .first_row = MakeView(first_row.data(), {static_cast<int64_t>(first_row.size())})};
  }
};

// The memory of one layer's cache. Every sequence owns as many pages as its block table is wide;
// page ids are shuffled over a pool that is larger than needed, pages lie further apart than they
// are large, and all bytes start as 0xab.
template <class Pages>
struct PagedMemory {
  Pages pages;
  std::vector<int32_t> table;
  std::vector<std::byte> bytes;

  PagedMemory(decltype(Pages::layout) layout, int64_t sequences, int64_t max_pages, uint64_t seed,
              int64_t gap_bytes = 64) {
    const int64_t pool = sequences * max_pages + 3;
    table.resize(static_cast<size_t>(pool));
    std::iota(table.begin(), table.end(), 0);
    Random(seed).Shuffle(table);
    table.resize(static_cast<size_t>(sequences * max_pages));
    pages.layout = layout;
    pages.page_stride = layout.PageBytes() + gap_bytes;
    bytes.assign(static_cast<size_t>(pool * pages.page_stride), std::byte{0xab});
    pages.base = bytes.data();
    pages.block_table = MakeView(static_cast<const int32_t*>(table.data()), {sequences, max_pages});
  }
  PagedMemory(const PagedMemory& other)
      : pages(other.pages), table(other.table), bytes(other.bytes) {
    pages.base = bytes.data();
    pages.block_table.data = table.data();
  }
  PagedMemory& operator=(const PagedMemory&) = delete;
};
using KeyMemory = PagedMemory<KeyPages>;
using LatentMemory = PagedMemory<LatentPages>;

template <class T>
T ReadAs(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

// The value a storage code stands for, without its scale, written independently of the kernels.
inline double CodeValue(DType dtype, const std::byte* p) {
  switch (dtype) {
    case DType::kF32:
      return ReadAs<float>(p);
    case DType::kBf16:
      return BitsToFloat(uint32_t{ReadAs<uint16_t>(p)} << 16);
    case DType::kInt8:
      return ReadAs<int8_t>(p);
    case DType::kFp8E4M3: {
      const int code = ReadAs<uint8_t>(p);
      const int exponent = code >> 3 & 15, mantissa = code & 7;
      const double magnitude = exponent == 15 && mantissa == 7 ? static_cast<double>(kNaN)
                               : exponent == 0                 ? std::ldexp(mantissa, -9)
                                               : std::ldexp(8 + mantissa, exponent - 10);
      return (code & 0x80) != 0 ? -magnitude : magnitude;
    }
    case DType::kI32:
      break;
  }
  return 0.0;
}

inline std::byte* KeyAddress(const KeyPages& pages, int64_t sequence, int64_t index) {
  const int64_t per_page = kPageCells / pages.layout.kpool;
  return pages.base + pages.block_table(sequence, index / per_page) * pages.page_stride +
         index % per_page * pages.layout.dim * DTypeBytes(pages.layout.dtype);
}
inline float KeyScale(const KeyPages& pages, int64_t sequence, int64_t index) {
  if (pages.layout.dtype != DType::kFp8E4M3) return 1.0f;
  const int64_t per_page = kPageCells / pages.layout.kpool;
  const std::byte* page =
      pages.base + pages.block_table(sequence, index / per_page) * pages.page_stride;
  return ReadAs<float>(page + per_page * pages.layout.dim + index % per_page * 4);
}
inline std::vector<double> ReadKey(const KeyPages& pages, int64_t sequence, int64_t index) {
  std::vector<double> key;
  const std::byte* codes = KeyAddress(pages, sequence, index);
  for (int64_t d = 0; d < pages.layout.dim; ++d) {
    key.push_back(CodeValue(pages.layout.dtype, codes + d * DTypeBytes(pages.layout.dtype)) *
                  KeyScale(pages, sequence, index));
  }
  return key;
}

inline std::byte* CellAddress(const LatentPages& pages, int64_t sequence, int64_t cell) {
  return pages.base + pages.block_table(sequence, cell / kPageCells) * pages.page_stride +
         cell % kPageCells * pages.layout.RowBytes();
}
// A cell's latent and RoPE values as a reader must see them: code times scale, rounded once to
// fp32.
inline std::vector<float> ReadCell(const LatentPages& pages, int64_t sequence, int64_t cell) {
  const LatentLayout& layout = pages.layout;
  const std::byte* row = CellAddress(pages, sequence, cell);
  const bool quantised = layout.dtype == DType::kFp8E4M3 || layout.dtype == DType::kInt8;
  std::vector<float> values;
  for (int64_t i = 0; i < layout.latent + layout.rope; ++i) {
    if (!quantised) {
      values.push_back(
          static_cast<float>(CodeValue(layout.dtype, row + i * DTypeBytes(layout.dtype))));
    } else if (i < layout.latent) {
      const int64_t block = layout.dtype == DType::kFp8E4M3 ? i / kFp8ScaleBlock : 0;
      const float scale = ReadAs<float>(row + layout.latent + 4 * block);
      values.push_back(static_cast<float>(CodeValue(layout.dtype, row + i)) * scale);
    } else {
      const std::byte* rope = row + layout.latent + layout.ScaleBytes();
      values.push_back(static_cast<float>(CodeValue(DType::kBf16, rope + 2 * (i - layout.latent))));
    }
  }
  return values;
}

// Equal bit for bit; a failure names the first difference.
inline ::testing::AssertionResult SameBits(const std::vector<float>& a,
                                           const std::vector<float>& b) {
  if (a.size() != b.size()) {
    return ::testing::AssertionFailure() << a.size() << " values against " << b.size();
  }
  for (size_t i = 0; i < a.size(); ++i) {
    if (FloatToBits(a[i]) == FloatToBits(b[i])) continue;
    return ::testing::AssertionFailure()
           << "first difference at " << i << ": " << a[i] << " (0x" << std::hex << FloatToBits(a[i])
           << ") against " << b[i] << " (0x" << FloatToBits(b[i]) << ")";
  }
  return ::testing::AssertionSuccess();
}

// Norm of the difference over the norm of the reference.
inline double RelativeError(const std::vector<float>& values,
                            const std::vector<double>& reference) {
  double difference = 0.0, norm = 0.0;
  for (size_t i = 0; i < values.size(); ++i) {
    difference += (values[i] - reference[i]) * (values[i] - reference[i]);
    norm += reference[i] * reference[i];
  }
  return std::sqrt(difference / std::max(norm, 1e-300));
}

// Runs `call` and returns the message of the Error it throws with this code; "" when it does not
// throw.
template <class Call>
std::string MessageOf(ErrorCode code, const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(ErrorCodeName(error.code()), std::string(ErrorCodeName(code))) << error.what();
    return error.what();
  }
  return "";
}

}  // namespace strata
