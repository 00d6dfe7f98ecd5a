// strata-bench indexer, select, fused: the index scan, the exact selection, and both as one unit,
// against the time of reading the same bytes.
#include <cuda_runtime.h>

#include <cstring>
#include <string>
#include <vector>

#include "kernels/cuda/backend.h"
#include "kernels/cuda/index_scan_variants.h"
#include "kernels/cuda/topk_variants.h"
#include "kernels/status.h"
#include "tools/bench/bench_cuda.h"
#include "tools/bench/bench_indexer.h"

namespace strata::bench {

namespace {

__global__ void FillPagesKernel(uint8_t* pages, int64_t count, KeyLayout layout) {
  const int64_t page_bytes = layout.PageBytes(), keys_end = layout.ScaleOffset();
  for (int64_t p = blockIdx.x; p < count; p += gridDim.x) {
    uint8_t* page = pages + p * page_bytes;
    const int64_t values = layout.KeysPerPage() * layout.dim;
    for (int64_t i = threadIdx.x; i < values; i += blockDim.x) {
      const float x = RandomNormal(static_cast<uint64_t>(p) << 16 | static_cast<uint64_t>(i));
      if (layout.dtype == DType::kFp8E4M3) page[i] = FloatToFp8(x * 64.0f);
      if (layout.dtype == DType::kBf16) reinterpret_cast<uint16_t*>(page)[i] = FloatToBf16(x);
      if (layout.dtype == DType::kF32) reinterpret_cast<float*>(page)[i] = x;
    }
    if (layout.dtype == DType::kFp8E4M3) {
      for (int64_t i = threadIdx.x; i < layout.KeysPerPage(); i += blockDim.x) {
        reinterpret_cast<float*>(page + keys_end)[i] =
            (0.5f + (MixBits(p * 64 + i) & 255) / 256.0f) / 64.0f;
      }
    }
  }
}
__global__ void FillNormalKernel(float* data, size_t count, uint64_t seed) {
  for (size_t i = blockIdx.x * size_t{256} + threadIdx.x; i < count; i += gridDim.x * size_t{256}) {
    data[i] = RandomNormal(seed << 40 | i) + 1e-4f * RandomNormal((seed + 7) << 40 | i);
  }
}

}  // namespace

IndexerData::IndexerData(DType dtype, int64_t kpool, int64_t heads, int64_t streams, int64_t keys,
                         int64_t window)
    : streams(streams), keys(keys), window(window), heads(heads) {
  layout.dtype = dtype;
  layout.dim = 128;
  layout.kpool = kpool;
  pages_per_stream = keys / layout.KeysPerPage();
  pages_per_launch = pages_per_stream * streams;
  const int64_t launch_bytes = pages_per_launch * layout.PageBytes();
  launches = static_cast<int>(std::clamp<int64_t>((int64_t{1200} << 20) / launch_bytes, 1, 16));
  const int64_t pages = pages_per_launch * launches;
  page_data =
      std::make_unique<BenchArray<std::byte>>(static_cast<size_t>(pages * layout.PageBytes()));
  FillPagesKernel<<<2112, 256>>>(reinterpret_cast<uint8_t*>(page_data->data()), pages, layout);
  CheckBench(cudaGetLastError());
  std::vector<int32_t> order(static_cast<size_t>(pages));
  for (int64_t l = 0; l < launches; ++l) {
    int32_t* mine = order.data() + l * pages_per_launch;
    for (int64_t i = 0; i < pages_per_launch; ++i)
      mine[i] = static_cast<int32_t>(l * pages_per_launch + i);
    for (int64_t i = pages_per_launch - 1; i > 0; --i)
      std::swap(mine[i], mine[MixBits(i * 13 + l) % (i + 1)]);
  }
  table = std::make_unique<BenchArray<int32_t>>(order);
  const int64_t rows = streams * window;
  std::vector<int32_t> sequence, first_row = {0}, lengths;
  for (int64_t s = 0; s < streams; ++s) {
    for (int64_t w = 0; w < window; ++w) {
      sequence.push_back(static_cast<int32_t>(s));
      lengths.push_back(static_cast<int32_t>(keys - window + 1 + w));
    }
    first_row.push_back(static_cast<int32_t>(sequence.size()));
  }
  row_sequence = std::make_unique<BenchArray<int32_t>>(sequence);
  row_first = std::make_unique<BenchArray<int32_t>>(first_row);
  row_lengths = std::make_unique<BenchArray<int32_t>>(lengths);
  // Every launch has queries of its own, as every step has.
  std::vector<float> q32(static_cast<size_t>(launches * rows * heads * 128)),
      w32(static_cast<size_t>(launches * rows * heads));
  for (size_t i = 0; i < q32.size(); ++i) q32[i] = RandomNormal(i + (uint64_t{3} << 40));
  for (size_t i = 0; i < w32.size(); ++i)
    w32[i] = 0.01f + 0.02f * std::abs(RandomNormal(i + (uint64_t{5} << 40)));
  std::vector<uint16_t> q16(q32.size());
  std::vector<uint8_t> q8(q32.size());
  for (size_t i = 0; i < q32.size(); ++i)
    q16[i] = FloatToBf16(q32[i]), q8[i] = FloatToFp8(q32[i] * 64.0f);
  query_f32 = std::make_unique<BenchArray<float>>(q32);
  query_bf16 = std::make_unique<BenchArray<uint16_t>>(q16);
  query_fp8 = std::make_unique<BenchArray<uint8_t>>(q8);
  weights = std::make_unique<BenchArray<float>>(w32);
  scores =
      std::make_unique<BenchArray<float>>(static_cast<size_t>(rows * keys * std::min(launches, 2)));
  CheckBench(cudaDeviceSynchronize());
}

IndexScan IndexerData::Scan(int launch, DType query) const {
  const int64_t rows = streams * window, first = launch * rows * heads;
  const void* data =
      query == DType::kF32    ? static_cast<const void*>(query_f32->data() + first * 128)
      : query == DType::kBf16 ? static_cast<const void*>(query_bf16->data() + first * 128)
                              : static_cast<const void*>(query_fp8->data() + first * 128);
  IndexScan op;
  op.query = AnyView<3>(data, query, {rows, heads, 128});
  op.weights = MakeView(static_cast<const float*>(weights->data() + first), {rows, heads});
  op.rows = {MakeView(static_cast<const int32_t*>(row_sequence->data()), {rows}),
             MakeView(static_cast<const int32_t*>(row_first->data()), {streams + 1})};
  op.lengths = MakeView(static_cast<const int32_t*>(row_lengths->data()), {rows});
  op.keys = {page_data->data(), layout, layout.PageBytes(),
             MakeView(static_cast<const int32_t*>(table->data() + launch * pages_per_launch),
                      {streams, pages_per_stream})};
  op.scores = MakeView(scores->data() + (launch % 2) * rows * keys, {rows, keys});
  return op;
}

double IndexerData::Floor(ColdTimer& timer, double* flat) const {
  const double contiguous = timer.Flat(launches, page_data->data(),
                                       static_cast<size_t>(pages_per_launch * layout.PageBytes()));
  const double paged = timer.Paged(launches, page_data->data(), layout.PageBytes(), table->data(),
                                   static_cast<int>(pages_per_launch));
  if (flat != nullptr) *flat = contiguous;
  return paged;
}

SelectData::SelectData(int64_t rows, int64_t keys, int64_t k)
    : rows(rows),
      keys(keys),
      k(k),
      launches(static_cast<int>(std::clamp<int64_t>((int64_t{1} << 28) / (rows * keys), 2, 16))),
      scores(static_cast<size_t>(rows * keys * launches)),
      lengths(std::vector<int32_t>(static_cast<size_t>(rows), static_cast<int32_t>(keys))),
      ids(static_cast<size_t>(rows * k)),
      counts(static_cast<size_t>(rows)),
      workspace(cuda::TopkWorkspaceBytes(rows, keys, k)) {
  FillNormalKernel<<<2112, 256>>>(scores.data(), scores.size(), 9);
  CheckBench(cudaDeviceSynchronize());
}

TopkSelect SelectData::Op(int launch) const {
  TopkSelect op;
  op.scores =
      MakeView(static_cast<const float*>(scores.data() + launch * rows * keys), {rows, keys});
  op.lengths = MakeView(static_cast<const int32_t*>(lengths.data()), {rows});
  op.k = k;
  op.ids = MakeView(ids.data(), {rows, k});
  op.counts = MakeView(counts.data(), {rows});
  op.workspace = MakeView(workspace.data(), {static_cast<int64_t>(workspace.size())});
  return op;
}

}  // namespace strata::bench
