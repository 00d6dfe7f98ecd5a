#include "kernels/cache_write.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/isa/dense.h"
#include "kernels/cpu/partition.h"
#include "kernels/status.h"

namespace strata::cpu {

namespace {

// Page `index` of a sequence.
int64_t PageId(const char* op, const View<const int32_t, 2>& block_table, int64_t sequence,
               int64_t index) {
  if (sequence < 0 || sequence >= block_table.dim(0) || index >= block_table.dim(1)) {
    Fail(ErrorCode::kShape,
         fmt::format("{}: page {} of sequence {} is outside the block table of {} x {} pages", op,
                     index, sequence, block_table.dim(0), block_table.dim(1)));
  }
  return block_table(sequence, index);
}

// NaN when any value is.
float LargestMagnitude(const float* x, int64_t n) {
  float largest = 0.0f;
  for (int64_t i = 0; i < n; ++i) {
    const float magnitude = std::fabs(x[i]);
    largest = magnitude <= largest ? largest : magnitude;
    if (largest != largest) break;
  }
  return largest;
}

void StoreBf16(const float* x, int64_t n, std::byte* out) {
  for (int64_t i = 0; i < n; ++i) {
    const uint16_t bits = FloatToBf16(x[i]);
    std::memcpy(out + 2 * i, &bits, sizeof(bits));
  }
}

// The scale that puts the largest magnitude on `top`; 1 where that scale would be zero, NaN for
// values with a NaN.
float ScaleFor(const float* x, int64_t n, float top) {
  const float scale = LargestMagnitude(x, n) / top;
  return scale == 0.0f ? 1.0f : scale;
}

void StoreFp8(const float* x, int64_t n, float scale, std::byte* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = std::byte{FloatToFp8(x[i] / scale)};
}

int8_t ToInt8(float x) {
  const float rounded = std::nearbyint(x);
  return static_cast<int8_t>(rounded > 127.0f     ? 127.0f
                             : rounded < -127.0f  ? -127.0f
                             : rounded == rounded ? rounded
                                                  : 0.0f);
}

void StoreLatent(const LatentLayout& layout, const float* x, std::byte* out) {
  const int64_t width = layout.latent + layout.rope;
  switch (layout.dtype) {
    case DType::kF32:
      std::memcpy(out, x, static_cast<size_t>(width) * sizeof(float));
      return;
    case DType::kBf16:
      StoreBf16(x, width, out);
      return;
    case DType::kInt8: {
      const float scale = ScaleFor(x, layout.latent, 127.0f);
      for (int64_t i = 0; i < layout.latent; ++i)
        out[i] = std::byte(static_cast<uint8_t>(ToInt8(x[i] / scale)));
      std::memcpy(out + layout.latent, &scale, sizeof(scale));
      break;
    }
    default:
      for (int64_t begin = 0; begin < layout.latent; begin += kFp8ScaleBlock) {
        const int64_t n = std::min(kFp8ScaleBlock, layout.latent - begin);
        const float scale = ScaleFor(x + begin, n, 448.0f);
        StoreFp8(x + begin, n, scale, out + begin);
        std::memcpy(out + layout.latent + begin / kFp8ScaleBlock * 4, &scale, sizeof(scale));
      }
      break;
  }
  StoreBf16(x + layout.latent, layout.rope, out + layout.latent + layout.ScaleBytes());
}

// Key `index` of sequence `sequence`.
void StoreKey(const char* op, const KeyPages& pages, int64_t sequence, int64_t index,
              const float* x) {
  const KeyLayout& layout = pages.layout;
  const int64_t per_page = layout.KeysPerPage();
  const int64_t page_id = PageId(op, pages.block_table, sequence, index / per_page);
  std::byte* page = pages.base + page_id * pages.page_stride;
  const int64_t slot = index % per_page;
  std::byte* out = page + slot * layout.KeyBytes();
  switch (layout.dtype) {
    case DType::kF32:
      std::memcpy(out, x, static_cast<size_t>(layout.dim) * sizeof(float));
      return;
    case DType::kBf16:
      StoreBf16(x, layout.dim, out);
      return;
    default: {
      const float scale = ScaleFor(x, layout.dim, 448.0f);
      StoreFp8(x, layout.dim, scale, out);
      std::memcpy(page + layout.ScaleOffset() + slot * 4, &scale, sizeof(scale));
    }
  }
}

// Forms pool `pool` of a sequence from the ring and stores its key; dims in runs that fit the
// stack.
void FormPool(const WritePooledKeys& op, int64_t sequence, int64_t pool) {
  const DenseLoops& loops = ChosenDenseLoops();
  const int64_t kpool = op.pages.layout.kpool, dim = op.pages.layout.dim, cells = op.ring.dim(1);
  float maxima[kMaxPooledDim], weights[kMaxPooledDim], sums[kMaxPooledDim], key[kMaxPooledDim];
  const auto raw = [&](int64_t c) { return &op.ring(sequence, (pool * kpool + c) % cells, 0); };
  for (int64_t d = 0; d < dim; ++d) {
    maxima[d] = raw(0)[dim + d] + op.ape(0, d);
    for (int64_t c = 1; c < kpool; ++c)
      maxima[d] = std::max(maxima[d], raw(c)[dim + d] + op.ape(c, d));
    sums[d] = key[d] = 0.0f;
  }
  for (int64_t c = 0; c < kpool; ++c) {
    const float* cell = raw(c);
    for (int64_t d = 0; d < dim; ++d) weights[d] = cell[dim + d] + op.ape(c, d) - maxima[d];
    loops.exp(weights, weights, dim);
    for (int64_t d = 0; d < dim; ++d) {
      sums[d] += weights[d];
      key[d] += weights[d] * cell[d];
    }
  }
  for (int64_t d = 0; d < dim; ++d) key[d] /= sums[d];
  StoreKey("WritePooledKeys", op.pages, sequence, pool, key);
}

}  // namespace

void Run(const WriteLatent& op, Stream stream) {
  const LatentLayout& layout = op.pages.layout;
  const int64_t width = layout.latent + layout.rope;
  stream.pool->For(op.values.dim(0), Grain(8 * width), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t position = op.positions(row);
      if (position < 0) continue;
      const int64_t page =
          PageId("WriteLatent", op.pages.block_table, op.rows.sequence(row), position / kPageCells);
      StoreLatent(
          layout, op.values.row(row),
          op.pages.base + page * op.pages.page_stride + position % kPageCells * layout.RowBytes());
    }
  });
}

void Run(const WriteIndexKeys& op, Stream stream) {
  stream.pool->For(op.keys.dim(0), Grain(8 * op.keys.dim(1)), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t position = op.positions(row);
      if (position >= 0)
        StoreKey("WriteIndexKeys", op.pages, op.rows.sequence(row), position, op.keys.row(row));
    }
  });
}

void Run(const WritePooledKeys& op, Stream) {
  // In row order: a pool's last row finds the raw rows before it in the ring.
  const int64_t dim = op.keys.dim(1), kpool = op.pages.layout.kpool;
  const size_t bytes = static_cast<size_t>(dim) * sizeof(float);
  for (int64_t row = 0; row < op.keys.dim(0); ++row) {
    const int64_t position = op.positions(row);
    if (position < 0) continue;
    const int64_t sequence = op.rows.sequence(row);
    if (sequence < 0 || sequence >= op.ring.dim(0)) {
      Fail(ErrorCode::kShape, fmt::format("WritePooledKeys: sequence {} has no ring, there are {}",
                                          sequence, op.ring.dim(0)));
    }
    float* cell = &op.ring(sequence, position % op.ring.dim(1), 0);
    std::memcpy(cell, op.keys.row(row), bytes);
    std::memcpy(cell + dim, op.gate.row(row), bytes);
    if ((position + 1) % kpool == 0) FormPool(op, sequence, position / kpool);
  }
}

}  // namespace strata::cpu
