// strata-bench indexer, select, fused: tables of times against the read floors of the same run.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <string>
#include <vector>

#include "kernels/cuda/backend.h"
#include "kernels/cuda/index_scan_variants.h"
#include "kernels/cuda/topk_variants.h"
#include "kernels/scan_select.h"
#include "kernels/status.h"
#include "tools/bench/bench.h"
#include "tools/bench/bench_indexer.h"

namespace strata::bench {

namespace {

constexpr int kReplays = 12;
constexpr int64_t kSelected = 2048;

struct ScanShape {
  DType key;
  int64_t heads, streams, keys, window, kpool;
};
constexpr ScanShape kScanShapes[] = {
    {DType::kFp8E4M3, 64, 1, 65536, 1, 1},  {DType::kFp8E4M3, 64, 8, 65536, 1, 1},
    {DType::kFp8E4M3, 64, 64, 65536, 1, 1}, {DType::kFp8E4M3, 64, 1, 262144, 1, 1},
    {DType::kFp8E4M3, 64, 8, 262144, 1, 1}, {DType::kFp8E4M3, 64, 32, 262144, 1, 1},
    {DType::kBf16, 32, 32, 262144, 1, 1},   {DType::kBf16, 32, 32, 262144, 4, 1},
    {DType::kBf16, 32, 32, 262144, 8, 1},   {DType::kFp8E4M3, 64, 8, 65536, 1, 4},
    {DType::kFp8E4M3, 64, 64, 65536, 1, 4}, {DType::kF32, 4, 1, 104960, 3, 4},
};
struct SelectShape {
  int64_t rows, keys;
};
constexpr SelectShape kSelectShapes[] = {{1, 65536},  {8, 65536},   {64, 65536},  {1, 262144},
                                         {8, 262144}, {32, 262144}, {64, 262144}, {1, 524288}};

struct Flags {
  bool json = false;
  std::string variant;      // the only one to time; empty: all
  std::vector<int> shapes;  // rows of the shape table, from 0; empty: all

  bool Wants(const char* name) const { return variant.empty() || variant == name; }
  bool Wants(int shape) const {
    return shapes.empty() || std::find(shapes.begin(), shapes.end(), shape) != shapes.end();
  }
};

Flags ReadFlags(const char* command, bool has_variants, int argc, const char* const* argv) {
  Flags flags;
  CLI::App app(fmt::format("strata-bench {}", command));
  app.add_flag("--json", flags.json, "one JSON object a line");
  if (has_variants) app.add_option("--variant", flags.variant, "time this variant only");
  app.add_option("--shapes", flags.shapes, "rows of the shape table to time, counted from 0")
      ->delimiter(',');
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      fmt::print("{}", app.help());
      std::exit(0);
    }
    Fail(ErrorCode::kUsage, error.what());
  }
  return flags;
}

// The CUDA stream of a timed launch as the ops want it.
Stream On(cudaStream_t native) { return Stream{Device{DeviceKind::kCuda, 0}, nullptr, native}; }

Report::Row ShapeRow(const ScanShape& shape) {
  Report::Row row;
  row.Text("keys", DTypeName(shape.key)).Number("heads", static_cast<double>(shape.heads), 0);
  row.Number("streams", static_cast<double>(shape.streams), 0)
      .Number("each", static_cast<double>(shape.keys), 0);
  row.Number("window", static_cast<double>(shape.window), 0)
      .Number("kpool", static_cast<double>(shape.kpool), 0);
  return row;
}

void Device(Report& report, ColdTimer& timer) {
  report.Note(
      fmt::format("{}, empty kernel {:.2f} us; microseconds are medians of {} replays, L2 cold",
                  MakeCudaBackend(0)->Info().name, timer.Empty(), kReplays));
}

}  // namespace

int RunIndexer(int argc, const char* const* argv) {
  const Flags flags = ReadFlags("indexer", true, argc, argv);
  Report report(flags.json);
  ColdTimer timer(kReplays);
  Device(report, timer);
  const int sm = cuda::LimitsOf(0).sm;
  for (int number = 0; number < static_cast<int>(std::size(kScanShapes)); ++number) {
    if (!flags.Wants(number)) continue;
    const ScanShape& shape = kScanShapes[number];
    const IndexerData data(shape.key, shape.kpool, shape.heads, shape.streams, shape.keys,
                           shape.window);
    double flat = 0;
    const double paged = data.Floor(timer, &flat);
    for (ScanVariant variant :
         {ScanVariant::kSm90, ScanVariant::kMma, ScanVariant::kHalve, ScanVariant::kMulti}) {
      const bool tensor = variant == ScanVariant::kSm90 || variant == ScanVariant::kMma;
      const DType query = tensor ? shape.key : DType::kF32;
      if (!flags.Wants(ScanVariantName(variant)) ||
          !cuda::Supports(variant, data.Scan(0, query), sm)) {
        continue;
      }
      const double time = timer.Microseconds(data.launches, [&](int i, cudaStream_t stream) {
        IndexScan op = data.Scan(i, query);
        op.variant = variant;
        cuda::Run(op, On(stream));
      });
      report.Add(ShapeRow(shape)
                     .Text("variant", ScanVariantName(variant))
                     .Number("us", time, 2)
                     .Number("flat us", flat, 2)
                     .Number("paged us", paged, 2)
                     .Number("of floor", time / paged, 3));
    }
  }
  report.Finish();
  return 0;
}

int RunSelect(int argc, const char* const* argv) {
  const Flags flags = ReadFlags("select", true, argc, argv);
  Report report(flags.json);
  ColdTimer timer(kReplays);
  Device(report, timer);
  const cuda::DeviceLimits& limits = cuda::LimitsOf(0);
  for (int number = 0; number < static_cast<int>(std::size(kSelectShapes)); ++number) {
    if (!flags.Wants(number)) continue;
    const SelectShape& shape = kSelectShapes[number];
    const SelectData data(shape.rows, shape.keys, kSelected);
    const double floor =
        timer.Flat(data.launches, reinterpret_cast<const std::byte*>(data.scores.data()),
                   static_cast<size_t>(shape.rows * shape.keys) * sizeof(float));
    const auto add = [&](const std::string& variant, const auto& run) {
      if (!flags.Wants(variant.substr(0, variant.find(' ')).c_str())) return;
      const double time = timer.Microseconds(
          data.launches, [&](int i, cudaStream_t stream) { run(data.Op(i), stream); });
      report.Add(Report::Row()
                     .Number("rows", static_cast<double>(shape.rows), 0)
                     .Number("each", static_cast<double>(shape.keys), 0)
                     .Text("variant", variant)
                     .Number("us", time, 2)
                     .Number("read us", floor, 2)
                     .Number("of floor", time / floor, 2));
    };
    add("wide", [&](const TopkSelect& op, cudaStream_t stream) {
      cuda::RunTopkRows(op, {}, false, limits, stream);
    });
    const cuda::TopkRowsPlan chosen = cuda::ChooseTopkRows(data.Op(0), limits);
    for (int cluster = 1; cluster <= limits.max_cluster; cluster *= 2) {
      for (bool shortlist : {true, false}) {
        if (cluster == 1 && !shortlist) continue;  // as wide
        const bool mark = cluster == chosen.cluster && shortlist == chosen.shortlist;
        add(fmt::format("cluster of {}{}{}", cluster, shortlist ? ", list" : "",
                        mark ? ", chosen" : ""),
            [&](const TopkSelect& op, cudaStream_t stream) {
              cuda::RunTopkRows(op, {cluster, shortlist}, false, limits, stream);
            });
      }
    }
    add("split",
        [&](const TopkSelect& op, cudaStream_t stream) { cuda::RunTopkSplit(op, limits, stream); });
  }
  report.Finish();
  return 0;
}

int RunFused(int argc, const char* const* argv) {
  const Flags flags = ReadFlags("fused", false, argc, argv);
  Report report(flags.json);
  ColdTimer timer(kReplays);
  Device(report, timer);
  for (int number = 0; number < static_cast<int>(std::size(kScanShapes)); ++number) {
    if (!flags.Wants(number)) continue;
    const ScanShape& shape = kScanShapes[number];
    const IndexerData data(shape.key, shape.kpool, shape.heads, shape.streams, shape.keys,
                           shape.window);
    const DType query = shape.key;
    const int64_t rows = shape.streams * shape.window;
    const SelectData select(rows, 4, kSelected);
    const BenchArray<std::byte> workspace(
        ScanSelect::WorkspaceBytes(rows, shape.keys, kSelected, On(timer.stream())));
    const double paged = data.Floor(timer, nullptr);
    const auto time = [&](const auto& run) {
      return timer.Microseconds(data.launches, [&](int i, cudaStream_t stream) {
        ScanSelect op{.scan = data.Scan(i, query), .select = select.Op(0)};
        op.select.scores = op.scan.scores;
        op.select.lengths = op.scan.lengths;
        op.select.workspace = MakeView(workspace.data(), {static_cast<int64_t>(workspace.size())});
        run(op, On(stream));
      });
    };
    const double scan = time([](const ScanSelect& op, Stream stream) { Run(op.scan, stream); });
    const double apart = time([](const ScanSelect& op, Stream stream) {
      Run(op.scan, stream);
      Run(op.select, stream);
    });
    const double fused = time([](const ScanSelect& op, Stream stream) { Run(op, stream); });
    report.Add(ShapeRow(shape)
                   .Number("scan us", scan, 2)
                   .Number("scan, select us", apart, 2)
                   .Number("unit us", fused, 2)
                   .Number("paged us", paged, 2)
                   .Number("of floor", fused / paged, 3));
  }
  report.Finish();
  return 0;
}

}  // namespace strata::bench
