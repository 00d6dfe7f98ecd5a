// How cached rows lie in memory. Both caches use pages of 64 cells; a sequence's pages are listed
// in its block table. All byte offsets are 64-bit.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/view.h"

namespace strata {

constexpr int64_t kPageCells = 64;
constexpr int64_t kFp8ScaleBlock = 128;  // latent values under one fp32 scale in the fp8 row

// Which rows of a step belong together. Rows of one sequence are adjacent and in ascending
// position; a group is one sequence's rows (a verify window, or a prefill chunk).
struct RowMap {
  View<const int32_t, 1>
      sequence;  // [rows] row of the block table; on the stream's device, as all that follows
  View<const int32_t, 1>
      first_row;  // [groups + 1] ascending; group g has rows [first_row[g], first_row[g + 1])
};

// One latent row: `latent` compressed values, then `rope` RoPE values (0 is allowed).
//   fp32, bf16: latent + rope values of that type
//   fp8:  latent e4m3 codes | one fp32 scale per 128 of them, padded to 16 bytes | rope bf16   (512
//   + 64: 656 bytes) int8: latent codes      | one fp32 scale, padded to 16 bytes                 |
//   rope bf16   (512 + 64: 656 bytes)
// value = code * scale. Values whose scale would be zero have scale 1, values with a NaN among them
// scale NaN.
struct LatentLayout {
  DType dtype = DType::kBf16;
  int64_t latent = 0;
  int64_t rope = 0;

  STRATA_HD int64_t ScaleBytes() const {
    if (dtype == DType::kFp8E4M3) {
      const int64_t blocks = (latent + kFp8ScaleBlock - 1) / kFp8ScaleBlock;
      return (blocks * 4 + 15) / 16 * 16;
    }
    return dtype == DType::kInt8 ? 16 : 0;
  }
  STRATA_HD int64_t RowBytes() const {
    if (dtype == DType::kF32) return (latent + rope) * 4;
    if (dtype == DType::kBf16) return (latent + rope) * 2;
    return latent + ScaleBytes() + rope * 2;
  }
  STRATA_HD int64_t PageBytes() const { return kPageCells * RowBytes(); }
};

// The latent cache of one layer. Cell p of sequence s is at
// base + block_table(s, p / 64) * page_stride + (p % 64) * layout.RowBytes().
struct LatentPages {
  std::byte* base = nullptr;
  LatentLayout layout;
  int64_t page_stride = 0;             // bytes, at least layout.PageBytes()
  View<const int32_t, 2> block_table;  // [sequences, max_pages] page ids
};

// The index keys of one layer. A page holds 64 / kpool keys, key j of sequence s in page
// block_table(s, j * kpool / 64).
//   fp32, bf16: keys [64 / kpool][dim]
//   fp8: keys [64 / kpool][dim] e4m3, then scales [64 / kpool] fp32; key = code * scale; scale 1
//   and NaN as above
struct KeyLayout {
  DType dtype = DType::kBf16;
  int64_t dim = 0;
  int64_t kpool = 1;  // cells per key: 1 (per token), 2, 4, ... 64

  STRATA_HD int64_t KeysPerPage() const { return kPageCells / kpool; }
  STRATA_HD int64_t KeyBytes() const { return dim * DTypeBytes(dtype); }
  // Offset of the scales inside a page (fp8 only).
  STRATA_HD int64_t ScaleOffset() const { return KeysPerPage() * KeyBytes(); }
  STRATA_HD int64_t PageBytes() const {
    return ScaleOffset() + (dtype == DType::kFp8E4M3 ? KeysPerPage() * 4 : 0);
  }
};

struct KeyPages {
  std::byte* base = nullptr;
  KeyLayout layout;
  int64_t page_stride = 0;             // bytes, at least layout.PageBytes()
  View<const int32_t, 2> block_table;  // [sequences, max_pages] page ids
};

}  // namespace strata
