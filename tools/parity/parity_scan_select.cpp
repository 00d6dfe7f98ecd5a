// strata-parity: scan and selection as one unit. Its ids are the CPU's selection from the scores it
// leaves; eager and replayed runs give one hash, and so do both values of each switch.
#include <cstdio>
#include <memory>
#include <vector>

#include "kernels/cuda/backend.h"
#include "kernels/cuda/index_scan_variants.h"
#include "kernels/scan_select.h"
#include "tools/parity/device_array.h"
#include "tools/parity/parity.h"
#include "tools/parity/scan_cases.h"
#include "tools/parity/sparse_mla_cases.h"

namespace strata {

namespace {

constexpr int kRuns = 20;

struct Hashes {
  uint64_t scores = 0, ids = 0;
  bool operator==(const Hashes&) const = default;
};

// Counts a failure in `failures`.
Hashes Compare(const ScanShape& shape, int64_t k, ScanVariant scan, TopkVariant variant,
               Backend& cpu, Backend& gpu, int* failures) {
  const ScanCase c = MakeScanCase(shape, 29, cpu.DefaultStream());
  const Stream stream = gpu.DefaultStream();
  const DeviceScan device(c);
  DeviceArray<int32_t> ids(static_cast<size_t>(c.rows * k)), counts(static_cast<size_t>(c.rows));
  const size_t bytes = ScanSelect::WorkspaceBytes(c.rows, c.capacity, k, stream);
  const DeviceArray<std::byte> workspace(bytes);
  ScanSelect op;
  op.scan = device.Op(scan);
  op.scan.variant = scan;
  op.scan.histogram = {};
  op.select.k = k;
  op.select.ids = MakeView(ids.data(), {c.rows, k});
  op.select.counts = MakeView(counts.data(), {c.rows});
  op.select.workspace = MakeView(workspace.data(), {static_cast<int64_t>(bytes)});
  op.select.variant = variant;
  const std::unique_ptr<Graph> graph = gpu.Capture(stream, [&](Stream s) { Run(op, s); });
  Hashes first;
  bool same = true;
  for (int run = 0; run < kRuns; ++run) {
    device.Clear();
    ids.Poison();
    counts.Poison();
    CheckParityCuda(cudaDeviceSynchronize());
    if (run % 2 == 0) {
      Run(op, stream);
    } else {
      graph->Replay(stream);
    }
    gpu.Synchronize(stream);
    const std::vector<float> scores = device.scores.Host();
    const std::vector<int32_t> got = ids.Host();
    const Hashes now{HashBytes(scores.data(), scores.size() * 4),
                     HashBytes(got.data(), got.size() * 4)};
    if (run == 0) first = now;
    same = same && now == first;
  }
  // The CPU's answer from the same scores.
  const std::vector<float> scores = device.scores.Host();
  std::vector<int32_t> expected(ids.size()), expected_counts(counts.size());
  std::vector<std::byte> scratch(
      TopkSelect::WorkspaceBytes(c.rows, c.capacity, k, cpu.DefaultStream()));
  TopkSelect select;
  select.scores = MakeView(scores.data(), {c.rows, c.capacity});
  select.lengths = MakeView(c.lengths.data(), {c.rows});
  select.k = k;
  select.ids = MakeView(expected.data(), {c.rows, k});
  select.counts = MakeView(expected_counts.data(), {c.rows});
  select.workspace = MakeView(scratch.data(), {static_cast<int64_t>(scratch.size())});
  Run(select, cpu.DefaultStream());
  const bool good = same && expected == ids.Host() && expected_counts == counts.Host();
  std::printf(
      "%s scan_select %-5s %-7s %-4s keys, %ld x up to %ld, k %ld, %d runs: scores %016lx ids "
      "%016lx%s\n",
      good ? "PASS" : "FAIL", ScanVariantName(scan), TopkVariantName(variant), DTypeName(shape.key),
      static_cast<long>(c.rows), static_cast<long>(c.capacity), static_cast<long>(k), kRuns,
      static_cast<unsigned long>(first.scores), static_cast<unsigned long>(first.ids),
      same ? "" : ", runs differ");
  *failures += !good;
  return first;
}

// STRATA_SCORES_HALVE and STRATA_TOPK_SPLIT, both values of both: one hash of scores, one of ids.
int CompareSwitches(const ScanShape& shape, int64_t k, Backend& cpu, Backend& gpu) {
  int failures = 0;
  Hashes first;
  bool same = true;
  for (int halve : {0, 1}) {
    for (int split : {0, 1}) {
      const Hashes now = Compare(shape, k, SwitchedScanVariant(halve), SwitchedTopkVariant(split),
                                 cpu, gpu, &failures);
      if (halve == 0 && split == 0) first = now;
      same = same && now == first;
    }
  }
  std::printf("%s scan_select switches, %-4s keys, %ld heads: %s\n", same ? "PASS" : "FAIL",
              DTypeName(shape.key), static_cast<long>(shape.heads),
              same ? "one hash for all values" : "values differ");
  return failures + !same;
}

}  // namespace

int ParityScanSelect(bool small) {
  const std::unique_ptr<Backend> cpu = MakeCpuBackend(0), gpu = MakeCudaBackend(0);
  int failures = 0;
  for (TopkVariant variant : {TopkVariant::kAuto, TopkVariant::kWide, TopkVariant::kSplit}) {
    for (DType key : {DType::kFp8E4M3, DType::kBf16}) {
      for (int64_t window : {1, 4}) {
        Compare({.key = key, .heads = 32, .window = window, .longest = small ? 700 : 30000},
                small ? 64 : 2048, ScanVariant::kAuto, variant, *cpu, *gpu, &failures);
      }
    }
  }
  for (TopkVariant variant : {TopkVariant::kAuto, TopkVariant::kWide, TopkVariant::kSplit}) {
    Compare({.key = DType::kBf16,
             .heads = 32,
             .window = 3,
             .longest = small ? 700 : 20000,
             .special = true},
            small ? 64 : 2048, ScanVariant::kAuto, variant, *cpu, *gpu, &failures);
  }
  for (DType key : {DType::kF32, DType::kBf16}) {
    for (int64_t heads : {4, 32}) {
      if (small && heads == 32) continue;
      failures += CompareSwitches({.key = key,
                                   .heads = heads,
                                   .window = 3,
                                   .kpool = key == DType::kF32 ? 4 : 1,
                                   .longest = small ? 500 : 10000,
                                   .f32_query = true},
                                  small ? 64 : 2048, *cpu, *gpu);
    }
  }
  return failures;
}

}  // namespace strata
