// strata-bench cpu: the three kernels of the indexer path against what the same cores stream and
// multiply.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "kernels/cpu/isa.h"
#include "kernels/device.h"
#include "kernels/index_scan.h"
#include "kernels/sparse_mla.h"
#include "kernels/topk_select.h"
#include "tools/bench/bench.h"
#include "tools/bench/floors_cpu.h"

namespace strata::bench {

namespace {

constexpr double kBudgetSeconds = 0.25;  // per measurement

struct Geometry {
  const char* name;
  int64_t index_heads;
  int64_t index_dim;
  int64_t k;
  int64_t heads;
  int64_t latent;
  int64_t rope;
};
constexpr Geometry kTiny = {"tiny", 8, 128, 256, 8, 512, 64};
constexpr Geometry kGlm5 = {"glm-5", 32, 128, 2048, 64, 512, 64};

// Cheap values in [-1, 1).
class Values {
 public:
  float Next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<float>(static_cast<int32_t>(state_ >> 32)) * 0x1p-31f;
  }
  void Fill(float* data, int64_t n) {
    for (int64_t i = 0; i < n; ++i) data[i] = Next();
  }
  void FillBf16(std::byte* data, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      const uint16_t bits = FloatToBf16(Next());
      std::memcpy(data + 2 * i, &bits, sizeof(bits));
    }
  }

 private:
  uint64_t state_ = 88172645463325252u;
};

class CpuBench {
 public:
  CpuBench(int threads, bool json)
      : backend_(MakeCpuBackend(threads)), stream_(backend_->DefaultStream()), report_(json) {
    const double flops = MulAddInRegisters(*stream_.pool, 1000);
    const double seconds =
        MedianSeconds(kBudgetSeconds, [&] { MulAddInRegisters(*stream_.pool, 1000); });
    peak_flops_ = flops / seconds;
    Buffer large = backend_->Allocate(256 << 20);
    std::memset(large.data(), 1, large.bytes());
    memory_rate_ = static_cast<double>(large.bytes()) / MedianSeconds(kBudgetSeconds, [&] {
                     StreamBytes(*stream_.pool, large.data(), large.bytes());
                   });
    report_.Note(fmt::format("{}: mul+add in registers {:.1f} GFLOP/s, memory {:.1f} GB/s",
                             backend_->Info().name, peak_flops_ * 1e-9, memory_rate_ * 1e-9));
  }

  void Run() {
    Scan(kTiny, 1024, 1);
    Scan(kTiny, 1024, 256);
    Scan(kTiny, 32768, 1);
    Scan(kTiny, 32768, 4);
    Scan(kGlm5, 65536, 1);
    Scan(kGlm5, 262144, 1);
    Scan(kGlm5, 65536, 4);
    report_.Finish();
    for (const char* scores : {"indexer", "zeros", "equal", "normal"}) {
      Select(kTiny, 1024, 256, scores);
      Select(kTiny, 32768, 1, scores);
      Select(kGlm5, 65536, 1, scores);
      Select(kGlm5, 262144, 1, scores);
    }
    report_.Finish();
    for (DType dtype : {DType::kBf16, DType::kFp8E4M3, DType::kInt8}) {
      Attend(kTiny, dtype, 1024, 1);
      Attend(kTiny, dtype, 32768, 1);
      Attend(kTiny, dtype, 1024, 64);
    }
    Attend(kGlm5, DType::kBf16, 65536, 1);
    report_.Finish();
  }

 private:
  template <class T>
  T* Take(std::vector<Buffer>& buffers, int64_t count) {
    buffers.push_back(backend_->Allocate(static_cast<size_t>(count) * sizeof(T)));
    return reinterpret_cast<T*>(buffers.back().data());
  }

  // Pages in shuffled order, as a server that has run for a while has them.
  View<const int32_t, 2> ShuffledTable(std::vector<Buffer>& buffers, int64_t pages) {
    int32_t* table = Take<int32_t>(buffers, pages);
    std::iota(table, table + pages, 0);
    std::shuffle(table, table + pages, std::mt19937(7));
    return MakeView(static_cast<const int32_t*>(table), {1, pages});
  }

  // One group of rows; the last sees `cells`, each before it one less.
  RowMap OneGroup(std::vector<Buffer>& buffers, int64_t rows, int64_t cells,
                  View<const int32_t, 1>* lengths) {
    int32_t* sequence = Take<int32_t>(buffers, rows);
    int32_t* bounds = Take<int32_t>(buffers, 2);
    int32_t* seen = Take<int32_t>(buffers, rows);
    for (int64_t r = 0; r < rows; ++r) seen[r] = static_cast<int32_t>(cells - rows + 1 + r);
    bounds[1] = static_cast<int32_t>(rows);
    *lengths = MakeView(static_cast<const int32_t*>(seen), {rows});
    return RowMap{.sequence = MakeView(static_cast<const int32_t*>(sequence), {rows}),
                  .first_row = MakeView(static_cast<const int32_t*>(bounds), {2})};
  }

  // Scores as an indexer makes them, into scores [rows, candidates].
  IndexScan MakeScan(std::vector<Buffer>& buffers, const Geometry& geometry, int64_t candidates,
                     int64_t rows) {
    IndexScan op;
    const int64_t heads = geometry.index_heads, dim = geometry.index_dim;
    op.keys.layout = {.dtype = DType::kBf16, .dim = dim, .kpool = 1};
    op.keys.page_stride = op.keys.layout.PageBytes();
    op.keys.base = Take<std::byte>(buffers, candidates / kPageCells * op.keys.page_stride);
    op.keys.block_table = ShuffledTable(buffers, candidates / kPageCells);
    values_.FillBf16(op.keys.base, candidates * dim);
    float* query = Take<float>(buffers, rows * heads * dim);
    values_.Fill(query, rows * heads * dim);
    float* weights = Take<float>(buffers, rows * heads);
    values_.Fill(weights, rows * heads);
    op.query = AnyView<3>(MakeView(static_cast<const float*>(query), {rows, heads, dim}));
    op.weights = MakeView(static_cast<const float*>(weights), {rows, heads});
    op.rows = OneGroup(buffers, rows, candidates, &op.lengths);
    op.scores = MakeView(Take<float>(buffers, rows * candidates), {rows, candidates});
    return op;
  }

  void Scan(const Geometry& geometry, int64_t candidates, int64_t rows) {
    std::vector<Buffer> buffers;
    const IndexScan op = MakeScan(buffers, geometry, candidates, rows);
    const double seconds = MedianSeconds(kBudgetSeconds, [&] { strata::Run(op, stream_); });
    const size_t bytes = static_cast<size_t>(candidates * op.keys.layout.KeyBytes());
    Add("scan", geometry, "bf16", rows, candidates, seconds, op.keys.base, bytes,
        2.0 * static_cast<double>(rows * candidates * geometry.index_heads * geometry.index_dim));
  }

  void Select(const Geometry& geometry, int64_t candidates, int64_t rows, const std::string& kind) {
    std::vector<Buffer> buffers;
    View<float, 2> scores;
    View<const int32_t, 1> lengths;
    if (kind == "indexer") {
      const IndexScan scan = MakeScan(buffers, geometry, candidates, rows);
      strata::Run(scan, stream_);
      scores = scan.scores;
      lengths = scan.lengths;
    } else {
      OneGroup(buffers, rows, candidates, &lengths);
      scores = MakeView(Take<float>(buffers, rows * candidates), {rows, candidates});
      std::mt19937 engine(3);
      std::normal_distribution<float> normal;
      for (int64_t i = 0; i < rows * candidates; ++i) {
        const float value = normal(engine);
        // "zeros": one score in a hundred is positive, the plateau crosses the k-th place.
        scores.data[i] = kind == "normal"                  ? value
                         : kind == "zeros" && i % 100 == 0 ? std::fabs(value)
                                                           : 0.0f;
      }
    }
    const int64_t bytes =
        static_cast<int64_t>(TopkSelect::WorkspaceBytes(rows, candidates, geometry.k, stream_));
    const TopkSelect op{
        .scores = scores,
        .lengths = lengths,
        .k = geometry.k,
        .ids = MakeView(Take<int32_t>(buffers, rows * geometry.k), {rows, geometry.k}),
        .counts = MakeView(Take<int32_t>(buffers, rows), {rows}),
        .workspace = MakeView(Take<std::byte>(buffers, bytes), {bytes})};
    const double seconds = MedianSeconds(kBudgetSeconds, [&] { strata::Run(op, stream_); });
    Add("select", geometry, kind, rows, candidates, seconds,
        reinterpret_cast<const std::byte*>(scores.data),
        static_cast<size_t>(rows * candidates) * sizeof(float), NAN);
  }

  void Attend(const Geometry& geometry, DType dtype, int64_t cells, int64_t rows) {
    std::vector<Buffer> buffers;
    SparseMla op;
    const LatentLayout layout{.dtype = dtype, .latent = geometry.latent, .rope = geometry.rope};
    const int64_t width = geometry.latent + geometry.rope, heads = geometry.heads;
    op.pages.layout = layout;
    op.pages.page_stride = layout.PageBytes();
    op.pages.base = Take<std::byte>(buffers, cells / kPageCells * op.pages.page_stride);
    op.pages.block_table = ShuffledTable(buffers, cells / kPageCells);
    for (int64_t cell = 0; cell < cells; ++cell) {
      std::byte* row = op.pages.base + cell * layout.RowBytes();
      if (dtype == DType::kBf16) {
        values_.FillBf16(row, width);
        continue;
      }
      for (int64_t i = 0; i < geometry.latent; ++i)
        row[i] = std::byte(static_cast<uint8_t>(40 + (cell + i) % 20));
      for (int64_t i = 0; i < layout.ScaleBytes() / 4; ++i) {
        const float scale = 0.01f;
        std::memcpy(row + geometry.latent + 4 * i, &scale, sizeof(scale));
      }
      values_.FillBf16(row + geometry.latent + layout.ScaleBytes(), geometry.rope);
    }
    float* query = Take<float>(buffers, rows * heads * width);
    values_.Fill(query, rows * heads * width);
    op.query = AnyView<3>(MakeView(static_cast<const float*>(query), {rows, heads, width}));
    op.rows = OneGroup(buffers, rows, cells, &op.lengths);
    int32_t* ids = Take<int32_t>(buffers, rows * geometry.k);
    std::vector<int32_t> all(static_cast<size_t>(cells - rows + 1));
    std::mt19937 engine(5);
    for (int64_t r = 0; r < rows; ++r) {
      std::iota(all.begin(), all.end(), 0);
      std::shuffle(all.begin(), all.end(), engine);
      std::sort(all.begin(), all.begin() + geometry.k);
      std::copy(all.begin(), all.begin() + geometry.k, ids + r * geometry.k);
    }
    op.ids = MakeView(static_cast<const int32_t*>(ids), {rows, geometry.k});
    op.scale = 1.0f / std::sqrt(static_cast<float>(width));
    op.out = MakeView(Take<float>(buffers, rows * heads * geometry.latent),
                      {rows, heads, geometry.latent});
    const int64_t workspace =
        static_cast<int64_t>(SparseMla::WorkspaceBytes(rows, heads, geometry.k, layout, stream_));
    op.workspace = MakeView(Take<std::byte>(buffers, workspace), {workspace});
    const double seconds = MedianSeconds(kBudgetSeconds, [&] { strata::Run(op, stream_); });
    const size_t bytes = static_cast<size_t>(rows * geometry.k * layout.RowBytes());
    Add("attend", geometry, DTypeName(dtype), rows, cells, seconds, op.pages.base,
        std::min(bytes, static_cast<size_t>(cells * layout.RowBytes())),
        2.0 * static_cast<double>(rows * geometry.k * heads * (width + geometry.latent)));
  }

  // `data`: as many bytes as the kernel must read at least once, streamed for the floor.
  void Add(const char* kernel, const Geometry& geometry, const std::string& kind, int64_t rows,
           int64_t candidates, double seconds, const std::byte* data, size_t bytes, double flops) {
    const double stream_seconds =
        MedianSeconds(kBudgetSeconds / 5, [&] { StreamBytes(*stream_.pool, data, bytes); });
    report_.Add(Report::Row()
                    .Text("kernel", kernel)
                    .Text("model", geometry.name)
                    .Text("kind", kind)
                    .Number("rows", static_cast<double>(rows), 0)
                    .Number("candidates", static_cast<double>(candidates), 0)
                    .Number("us", seconds * 1e6, 1)
                    .Number("GB/s", static_cast<double>(bytes) / seconds * 1e-9, 2)
                    .Number("GFLOP/s", flops / seconds * 1e-9, 1)
                    .Number("x_stream", seconds / stream_seconds, 2)
                    .Number("of_peak", flops / seconds / peak_flops_, 3));
  }

  std::unique_ptr<Backend> backend_;
  Stream stream_;
  Report report_;
  Values values_;
  double peak_flops_ = 0;
  double memory_rate_ = 0;
};

}  // namespace

int RunCpu(int argc, const char* const* argv) {
  int threads = 0;
  bool json = false;
  CLI::App app("Times scan, selection and sparse attention on the CPU.", "strata-bench cpu");
  app.add_option("--threads", threads, "threads, 0: as many as cores may be used")
      ->check(CLI::Range(0, 1024));
  app.add_flag("--json", json, "one JSON object a line");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  CpuBench(threads, json).Run();
  return 0;
}

}  // namespace strata::bench
