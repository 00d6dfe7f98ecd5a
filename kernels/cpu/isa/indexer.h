// The hot loops of the indexer path and of sparse attention, one table per vector width; all compute the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"

namespace strata::cpu {

constexpr int64_t kScanTile = 64;    // candidates scored together by one row
constexpr int64_t kAttendTile = 16;  // cells converted to fp32 together

// One tile of at most kScanTile candidate keys of one sequence against rows [0, rows) of its group.
struct ScanArgs {
  const std::byte* const* keys;  // [count] addresses of the keys
  const float* key_scales;       // [count], fp8 only
  int64_t count;
  DType key_dtype;
  int64_t dim;
  int64_t first_candidate;       // index of keys[0]
  const float* query;            // row r, head h at query + r * row_stride + h * head_stride
  int64_t query_row_stride;
  int64_t query_head_stride;
  const float* weights;          // [rows, heads]
  int64_t weights_stride;
  const int32_t* lengths;        // [rows] with stride
  int64_t lengths_stride;
  float* scores;                 // [rows, capacity]
  int64_t scores_stride;
  int64_t rows;
  int64_t heads;
  float* panel;                  // [kScanTile, padded dim] scratch
  float* dots;                   // [heads, kScanTile] scratch
};

// One row of sparse attention over `count` cells at known addresses.
struct AttendArgs {
  const std::byte* const* cells;  // [count] addresses of the latent rows
  int64_t count;
  DType dtype;
  int64_t latent;
  int64_t rope;
  int64_t rope_offset;            // bytes from the row's start to its RoPE part (quantised types)
  int64_t scale_offset;           // bytes to its scales (quantised types)
  const float* query;             // [heads, latent + rope]
  int64_t query_stride;
  int64_t heads;
  float scale;
  float* probabilities;           // [heads, probability_stride]: scores, then exp(score - max)
  int64_t probability_stride;     // at least count, a multiple of 16
  float* sums;                    // [heads] sum of the probabilities
  float* maxima;                  // [heads]
  float* out;                     // [heads, latent]
  int64_t out_stride;
  float* panel;                   // [kAttendTile, padded latent + rope] scratch
};

struct IndexerLoops {
  // Scores of the tile's candidates below each row's length.
  void (*scan_tile)(const ScanArgs& args);
  // Scores of cells [begin, end) into probabilities.
  void (*attend_scores)(const AttendArgs& args, int64_t begin, int64_t end);
  // Maximum, exp and sum of heads [begin, end).
  void (*attend_softmax)(const AttendArgs& args, int64_t begin, int64_t end);
  // out(:, d) for d in [begin, end), multiples of 16 or the end of the latent.
  void (*attend_values)(const AttendArgs& args, int64_t begin, int64_t end);
  // Appends position and score bits of every v[i] >= threshold, i in [begin, end), as SelectionKey words; returns the
  // new count, or capacity + 1 when they do not fit.
  int64_t (*collect_at_least)(const float* v, int64_t begin, int64_t end, float threshold, uint64_t* words,
                              int64_t count, int64_t capacity);
};

namespace baseline { extern const IndexerLoops kIndexerLoops; }
namespace avx2 { extern const IndexerLoops kIndexerLoops; }
namespace avx512 { extern const IndexerLoops kIndexerLoops; }

const IndexerLoops& ChosenIndexerLoops();

}  // namespace strata::cpu
