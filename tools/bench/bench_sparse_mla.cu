// strata-bench sparse-mla: sparse attention against the gather of the same rows.
//
// Rows lie in a shuffled block table over a 4 GB cache; every launch of a graph reads other ids of
// other sequences, so nothing is warm. The gather floor reads the same rows once, through the same
// tables, and multiplies nothing.
#include "tools/bench/bench_sparse_mla.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "kernels/cuda/sparse_mla_variants.h"
#include "kernels/status.h"

namespace strata::bench {

namespace {

constexpr int64_t kSequenceCells = 65536;
constexpr int64_t kSequences = 512;
constexpr int64_t kIdRows = 2048;
constexpr int64_t kColumns = 2048;
constexpr DType kFormats[] = {DType::kFp8E4M3, DType::kInt8, DType::kBf16};
constexpr size_t kCacheBytes = size_t{4} << 30;

void Check(cudaError_t status) { cuda::CheckCuda(status, "strata-bench sparse-mla"); }

__host__ __device__ inline uint32_t Mix(uint64_t x) {
  x ^= x >> 33, x *= 0xff51afd7ed558ccdull, x ^= x >> 33, x *= 0xc4ceb9fe1a85ec53ull, x ^= x >> 33;
  return static_cast<uint32_t>(x);
}
// A rough normal value: the sum of four uniform bytes.
__host__ __device__ inline float Normal(uint64_t seed) {
  const uint32_t m = Mix(seed);
  return (static_cast<float>((m & 255) + (m >> 8 & 255) + (m >> 16 & 255) + (m >> 24)) - 510.0f) *
         (1.0f / 148.0f);
}

// Rows that decode to about N(0, 1).
__global__ void FillRows(uint8_t* cache, int64_t rows, LatentLayout layout) {
  const int64_t row_bytes = layout.RowBytes();
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    uint8_t* out = cache + r * row_bytes;
    const int64_t width = layout.latent + layout.rope;
    for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
      const float x = Normal(static_cast<uint64_t>(r) * 1024 + i);
      const bool rope = i >= layout.latent;
      if (layout.dtype == DType::kBf16 || rope) {
        const int64_t at = layout.dtype == DType::kBf16
                               ? 2 * i
                               : layout.latent + layout.ScaleBytes() + 2 * (i - layout.latent);
        *reinterpret_cast<uint16_t*>(out + at) = FloatToBf16(x);
      } else if (layout.dtype == DType::kFp8E4M3) {
        out[i] = FloatToFp8(x * 128.0f);
      } else {
        out[i] = static_cast<uint8_t>(static_cast<int8_t>(x * 36.0f));
      }
    }
    if (threadIdx.x < layout.ScaleBytes() / 4) {
      *reinterpret_cast<float*>(out + layout.latent + threadIdx.x * 4) =
          layout.dtype == DType::kFp8E4M3 ? 1.0f / 128.0f : 1.0f / 36.0f;
    }
  }
}

// Reads every byte of the selected rows once: a warp takes four rows at a time.
__global__ void __launch_bounds__(256) GatherRowsFloor(SparseMla op, unsigned* sink) {
  const int64_t columns = op.ids.dim(1), count = op.ids.dim(0) * columns,
                row_bytes = op.pages.layout.RowBytes();
  const int lane = threadIdx.x & 31, pieces = static_cast<int>(row_bytes / 16);
  const int64_t warp = blockIdx.x * 8 + (threadIdx.x >> 5), warps = gridDim.x * 8;
  unsigned x = 0;
  for (int64_t i = warp * 4; i < count; i += warps * 4) {
    uint4 v[4][3];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int64_t row = (i + k) / columns;
      const int id = op.ids(row, (i + k) % columns);
      const int page = op.pages.block_table(op.rows.sequence(row), id >> 6);
      const std::byte* p = op.pages.base + page * op.pages.page_stride + (id & 63) * row_bytes;
#pragma unroll
      for (int part = 0; part < 3; ++part) {
        v[k][part] = make_uint4(0, 0, 0, 0);
        if (lane + 32 * part < pieces)
          v[k][part] = __ldg(reinterpret_cast<const uint4*>(p) + lane + 32 * part);
      }
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int part = 0; part < 3; ++part)
        x ^= v[k][part].x ^ v[k][part].y ^ v[k][part].z ^ v[k][part].w;
    }
  }
  if (x == 0x12345678u) *sink = x;
}
__global__ void EmptyKernel() {}

// Median microseconds of one launch, over replays of a graph of `launches` launches.
template <class Launch>
float MedianMicroseconds(int launches, int replays, Launch&& launch) {
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  cudaEvent_t begin, end;
  Check(cudaStreamCreate(&stream));
  Check(cudaEventCreate(&begin));
  Check(cudaEventCreate(&end));
  Check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  for (int i = 0; i < launches; ++i) launch(i, stream);
  Check(cudaStreamEndCapture(stream, &graph));
  Check(cudaGraphInstantiate(&executable, graph, 0));
  std::vector<float> times;
  for (int r = 0; r < replays + 2; ++r) {
    float milliseconds = 0;
    Check(cudaEventRecord(begin, stream));
    Check(cudaGraphLaunch(executable, stream));
    Check(cudaEventRecord(end, stream));
    Check(cudaStreamSynchronize(stream));
    Check(cudaEventElapsedTime(&milliseconds, begin, end));
    if (r >= 2) times.push_back(milliseconds * 1000.0f / static_cast<float>(launches));
  }
  std::sort(times.begin(), times.end());
  Check(cudaGraphExecDestroy(executable));
  Check(cudaGraphDestroy(graph));
  Check(cudaEventDestroy(begin));
  Check(cudaEventDestroy(end));
  Check(cudaStreamDestroy(stream));
  return times[times.size() / 2];
}

template <class T>
T* DeviceCopy(const std::vector<T>& host) {
  T* data = nullptr;
  Check(cudaMalloc(&data, host.size() * sizeof(T)));
  Check(cudaMemcpy(data, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
  return data;
}

// Everything on the device that does not depend on the storage type.
struct Inputs {
  uint8_t* cache = nullptr;
  uint16_t* query = nullptr;
  float* out = nullptr;
  float* lse = nullptr;
  int32_t* ids = nullptr;
  int32_t* sequence = nullptr;
  int32_t* first_row = nullptr;
  int32_t* lengths = nullptr;
  std::byte* workspace = nullptr;
  size_t workspace_bytes = 0;
  unsigned* sink = nullptr;
};

constexpr int64_t kMaxRows = 128, kMaxHeads = 128;

Inputs MakeInputs() {
  Inputs in;
  Check(cudaMalloc(&in.cache, kCacheBytes));
  std::vector<uint16_t> query(kMaxRows * kMaxHeads * 576);
  for (size_t i = 0; i < query.size(); ++i)
    query[i] = FloatToBf16(1.5f * Normal(i + (uint64_t{1} << 40)));
  in.query = DeviceCopy(query);
  Check(cudaMalloc(&in.out, kMaxRows * kMaxHeads * 512 * sizeof(float)));
  Check(cudaMalloc(&in.lse, kMaxRows * kMaxHeads * sizeof(float)));
  std::vector<int32_t> ids(kIdRows * kColumns), sequence(kIdRows), lengths(kIdRows, kSequenceCells);
  constexpr int64_t kStep = kSequenceCells / kColumns;
  for (int64_t r = 0; r < kIdRows; ++r) {
    sequence[r] = static_cast<int32_t>(r % kSequences);
    for (int64_t i = 0; i < kColumns; ++i) {
      ids[r * kColumns + i] =
          static_cast<int32_t>(i * kStep + Mix(static_cast<uint64_t>(r) << 20 | i) % kStep);
    }
  }
  in.ids = DeviceCopy(ids);
  in.sequence = DeviceCopy(sequence);
  in.first_row = DeviceCopy(std::vector<int32_t>{0, static_cast<int32_t>(kIdRows)});
  in.lengths = DeviceCopy(lengths);
  in.workspace_bytes = size_t{512} << 20;
  Check(cudaMalloc(&in.workspace, in.workspace_bytes));
  Check(cudaMalloc(&in.sink, sizeof(unsigned)));
  return in;
}

// Launch `launch` of a graph: `rows` rows of ids that no neighbour shares.
SparseMla MakeOp(const Inputs& in, const LatentPages& pages, int64_t rows, int64_t heads,
                 int launch) {
  const int64_t first = launch * rows % (kIdRows - rows + 1);
  SparseMla op;
  op.query =
      AnyView<3>(in.query, DType::kBf16, {rows, heads, pages.layout.latent + pages.layout.rope});
  op.pages = pages;
  op.rows = {MakeView<const int32_t>(in.sequence + first, {rows}),
             MakeView<const int32_t>(in.first_row, {2})};
  op.ids = MakeView<const int32_t>(in.ids + first * kColumns, {rows, kColumns});
  op.lengths = MakeView<const int32_t>(in.lengths + first, {rows});
  op.scale = 1.0f / 24.0f;
  op.out = MakeView(in.out, {rows, heads, pages.layout.latent});
  op.lse = MakeView(in.lse, {rows, heads});
  op.workspace = MakeView(in.workspace, {static_cast<int64_t>(in.workspace_bytes)});
  return op;
}

struct Figure {
  std::string format, variant;
  int64_t rows, heads;
  float gather, time;
};

}  // namespace

int RunSparseMla(int argc, const char* const* argv) {
  bool json = false, all_plans = false;
  std::string only_format, only_variant;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--json") {
      json = true;
    } else if (argument == "--all-plans") {
      all_plans = true;
    } else if (argument == "--format" && i + 1 < argc) {
      only_format = argv[++i];
    } else if (argument == "--variant" && i + 1 < argc) {
      only_variant = argv[++i];
    } else if (argument == "--help") {
      std::printf(
          "usage: strata-bench sparse-mla [--json] [--format fp8|int8|bf16]\n"
          "                               [--variant sm90|mma|simple] [--all-plans]\n"
          "--all-plans times every plan of the sm90 variant, not only the chosen one.\n");
      return 0;
    } else {
      Fail(ErrorCode::kUsage, "strata-bench sparse-mla: unknown argument '" + argument +
                                  "'; strata-bench sparse-mla --help lists the flags");
    }
  }
  const auto known = [](const std::string& name, const auto& names, const auto& name_of) {
    return name.empty() || std::any_of(std::begin(names), std::end(names),
                                       [&](const auto& one) { return name == name_of(one); });
  };
  if (!known(only_format, kFormats, DTypeName)) {
    Fail(ErrorCode::kUsage,
         "strata-bench sparse-mla: --format " + only_format + " is not one of fp8, int8, bf16");
  }
  if (!known(only_variant, cuda::kSparseMlaVariants,
             [](const cuda::SparseMlaVariant* variant) { return variant->name; })) {
    Fail(ErrorCode::kUsage,
         "strata-bench sparse-mla: --variant " + only_variant + " is not one of sm90, mma, simple");
  }
  cudaDeviceProp device;
  Check(cudaGetDeviceProperties(&device, 0));
  const int sm = device.major * 10 + device.minor;
  const Inputs in = MakeInputs();
  std::vector<Figure> figures;
  if (!json) std::printf("%s, %d multiprocessors\n", device.name, device.multiProcessorCount);
  for (DType dtype : kFormats) {
    if (!only_format.empty() && only_format != DTypeName(dtype)) continue;
    const LatentLayout layout{dtype, 512, 64};
    const int64_t pages = static_cast<int64_t>(kCacheBytes) / layout.PageBytes();
    FillRows<<<2048, 192>>>(in.cache, pages * kPageCells, layout);
    Check(cudaDeviceSynchronize());
    std::vector<int32_t> table(kSequences * kSequenceCells / kPageCells);
    for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(Mix(i) % pages);
    int32_t* device_table = DeviceCopy(table);
    const LatentPages latent_pages{
        reinterpret_cast<std::byte*>(in.cache), layout, layout.PageBytes(),
        MakeView<const int32_t>(device_table, {kSequences, kSequenceCells / kPageCells})};
    for (int64_t heads : {64, 128}) {
      for (int64_t rows : {1, 4, 8, 16, 64, 128}) {
        const int launches = static_cast<int>(std::clamp<int64_t>(512 / rows, 8, 128)), replays = 9;
        const float gather = MedianMicroseconds(launches, replays, [&](int i, cudaStream_t stream) {
          GatherRowsFloor<<<static_cast<unsigned>(std::min<int64_t>(rows * 64, 132 * 8)), 256, 0,
                            stream>>>(MakeOp(in, latent_pages, rows, heads, i), in.sink);
        });
        const auto add = [&](const std::string& name, auto&& run) {
          const float time = MedianMicroseconds(launches, replays, [&](int i, cudaStream_t stream) {
            run(MakeOp(in, latent_pages, rows, heads, i), stream);
          });
          figures.push_back({DTypeName(dtype), name, rows, heads, gather, time});
          if (!json) {
            std::printf("%-5s %4ld rows %4ld heads  %-14s %9.2f us  gather %7.2f us  %6.2fx\n",
                        DTypeName(dtype), static_cast<long>(rows), static_cast<long>(heads),
                        name.c_str(), time, gather, time / gather);
            std::fflush(stdout);
          }
        };
        for (const cuda::SparseMlaVariant* variant : cuda::kSparseMlaVariants) {
          if (!only_variant.empty() && only_variant != variant->name) continue;
          if (!variant->Supports(MakeOp(in, latent_pages, rows, heads, 0), sm)) continue;
          add(variant->name, variant->Run);
        }
        if (!all_plans || sm != 90) continue;
        for (const cuda::SparseMlaPlan& plan : cuda::SparseMlaPlans()) {
          const int64_t ctas = rows * (heads / 64) * plan.splits * plan.parts;
          if (ctas > 2112 || (plan.splits == 1 && rows < 8) ||
              !cuda::SparseMlaPlanFits(plan, kColumns) ||
              cuda::SparseMlaPlanBytes(plan, rows, heads, kColumns, dtype) > in.workspace_bytes) {
            continue;
          }
          add("sm90 " + std::to_string(plan.splits) + "/" + std::to_string(plan.parts),
              [&](const SparseMla& op, cudaStream_t stream) {
                cuda::RunSparseMlaSm90(op, plan, stream);
              });
        }
      }
    }
    Check(cudaFree(device_table));
  }
  const float empty =
      MedianMicroseconds(256, 9, [](int, cudaStream_t s) { EmptyKernel<<<1, 32, 0, s>>>(); });
  if (!json) {
    std::printf("empty kernel %.2f us\n", empty);
    return 0;
  }
  std::printf(
      "{\"bench\": \"sparse-mla\", \"device\": \"%s\", \"ids\": %ld, \"empty_us\": %.3f, "
      "\"figures\": [",
      device.name, static_cast<long>(kColumns), empty);
  for (size_t i = 0; i < figures.size(); ++i) {
    const Figure& f = figures[i];
    std::printf(
        "%s\n  {\"format\": \"%s\", \"rows\": %ld, \"heads\": %ld, \"variant\": \"%s\", \"us\": "
        "%.3f, "
        "\"gather_us\": %.3f}",
        i ? "," : "", f.format.c_str(), static_cast<long>(f.rows), static_cast<long>(f.heads),
        f.variant.c_str(), f.time, f.gather);
  }
  std::printf("\n]}\n");
  return 0;
}

}  // namespace strata::bench
