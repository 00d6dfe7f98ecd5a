// Inputs of the GPU benches of the indexer path, several launches' worth, so that no launch finds
// its data in L2.
#pragma once

#include <memory>

#include "kernels/index_scan.h"
#include "kernels/topk_select.h"
#include "tools/bench/bench_cuda.h"

namespace strata::bench {

struct IndexerData {
  IndexerData(DType dtype, int64_t kpool, int64_t heads, int64_t streams, int64_t keys,
              int64_t window);
  // The op of launch `launch` with queries of this type.
  IndexScan Scan(int launch, DType query) const;
  // Microseconds of reading the keys of one launch page by page; `flat`, when given, those of
  // reading them in order.
  double Floor(ColdTimer& timer, double* flat) const;

  KeyLayout layout;
  int64_t streams, keys, window, heads;
  int64_t pages_per_stream = 0, pages_per_launch = 0;
  int launches = 1;
  std::unique_ptr<BenchArray<std::byte>> page_data;
  std::unique_ptr<BenchArray<int32_t>> table, row_sequence, row_first, row_lengths;
  std::unique_ptr<BenchArray<float>> query_f32, weights, scores;
  std::unique_ptr<BenchArray<uint16_t>> query_bf16;
  std::unique_ptr<BenchArray<uint8_t>> query_fp8;
};

struct SelectData {
  SelectData(int64_t rows, int64_t keys, int64_t k);
  TopkSelect Op(int launch) const;

  int64_t rows, keys, k;
  int launches;
  BenchArray<float> scores;
  BenchArray<int32_t> lengths, ids, counts;
  BenchArray<std::byte> workspace;
};

}  // namespace strata::bench
