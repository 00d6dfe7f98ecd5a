// strata-parity: every scan variant against the CPU op, within the bound of its family; the
// butterfly family bit for bit with itself.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/backend.h"
#include "kernels/cuda/index_scan_variants.h"
#include "kernels/order.h"
#include "tools/parity/device_array.h"
#include "tools/parity/parity.h"
#include "tools/parity/scan_cases.h"
#include "tools/parity/sparse_mla_cases.h"

namespace strata {

namespace {

double Bound(DType key) { return key == DType::kFp8E4M3 ? 3e-4 : 3e-7; }

// Largest relative error of any row, norm of difference over norm; infinity when an entry behind a
// length was written or one before it was not (it was filled with a NaN that no kernel writes), or
// NaN stands on one side only.
double RowError(const ScanCase& c, const std::vector<float>& got) {
  double worst = 0.0;
  for (int64_t r = 0; r < c.rows; ++r) {
    double difference = 0.0, norm = 0.0;
    for (int64_t j = 0; j < c.capacity; ++j) {
      const size_t at = static_cast<size_t>(r * c.capacity + j);
      if (j >= c.lengths[r]) {
        if (FloatToBits(got[at]) != 0xffffffffu) return std::numeric_limits<double>::infinity();
        continue;
      }
      if (FloatToBits(got[at]) == 0xffffffffu || std::isnan(got[at]) != std::isnan(c.scores[at]))
        return std::numeric_limits<double>::infinity();
      if (std::isnan(got[at])) continue;
      const double d = static_cast<double>(got[at]) - c.scores[at];
      difference += d * d;
      norm += static_cast<double>(c.scores[at]) * c.scores[at];
    }
    const double error = norm > 0.0 ? std::sqrt(difference / norm) : std::sqrt(difference);
    worst = std::max(worst, error);
  }
  return worst;
}

std::vector<uint32_t> HistogramOf(const ScanCase& c, const std::vector<float>& scores) {
  std::vector<uint32_t> bins(static_cast<size_t>(c.rows * kScanHistogramBins));
  for (int64_t r = 0; r < c.rows; ++r) {
    for (int64_t j = 0; j < c.lengths[r]; ++j) {
      ++bins[static_cast<size_t>(r * kScanHistogramBins) +
             (OrderKey(FloatToBits(scores[static_cast<size_t>(r * c.capacity + j)])) >> 21)];
    }
  }
  return bins;
}

int Compare(const ScanShape& shape, Backend& cpu, Backend& gpu) {
  const ScanCase c = MakeScanCase(shape, 17, cpu.DefaultStream());
  const Stream stream = gpu.DefaultStream();
  const cuda::DeviceLimits& limits = cuda::LimitsOf(stream.device.ordinal);
  const DeviceScan device(c);
  int failures = 0;
  uint64_t butterfly = 0;
  for (ScanVariant variant :
       {ScanVariant::kMulti, ScanVariant::kHalve, ScanVariant::kMma, ScanVariant::kSm90}) {
    IndexScan op = device.Op(variant);
    if (!cuda::Supports(variant, op, limits.sm)) continue;
    op.variant = variant;
    const std::unique_ptr<Graph> graph = gpu.Capture(stream, [&](Stream s) { cuda::Run(op, s); });
    uint64_t hash = 0;
    std::vector<float> together;
    bool same = true, counted = true;
    double error = 0.0;
    for (int pass = 0; pass < 4; ++pass) {
      device.Clear();
      if (pass == 0)
        cuda::Run(op, stream);
      else
        graph->Replay(stream);
      gpu.Synchronize(stream);
      const std::vector<float> got = device.scores.Host();
      const uint64_t now = HashBytes(got.data(), got.size() * 4);
      if (pass == 0) {
        hash = now;
        together = got;
        error = RowError(c, got);
        counted = device.histogram.Host() == HistogramOf(c, got);
      }
      same = same && now == hash;
    }
    // As it is called for a step: without a histogram.
    IndexScan plain = op;
    plain.histogram = {};
    device.Clear();
    cuda::Run(plain, stream);
    gpu.Synchronize(stream);
    const std::vector<float> uncounted = device.scores.Host();
    same = same && HashBytes(uncounted.data(), uncounted.size() * 4) == hash;
    // Rows that share the keys have the bits that they have alone.
    bool alone = true;
    if (shape.window > 1) {
      std::vector<int32_t> bounds(static_cast<size_t>(c.rows) + 1);
      std::iota(bounds.begin(), bounds.end(), 0);
      const DeviceArray<int32_t> first_row(bounds);
      IndexScan apart = op;
      apart.rows.first_row = MakeView(static_cast<const int32_t*>(first_row.data()), {c.rows + 1});
      device.Clear();
      cuda::Run(apart, stream);
      gpu.Synchronize(stream);
      const std::vector<float> got = device.scores.Host();
      alone = HashBytes(got.data(), got.size() * 4) == hash;
      for (int64_t i = 0; !alone && i < static_cast<int64_t>(got.size()); ++i) {
        const size_t at = static_cast<size_t>(i);
        if (FloatToBits(got[at]) == FloatToBits(together[at])) continue;
        std::printf("FAIL scan %s: row %ld alone, key %ld: %g, in its window %g, on the CPU %g\n",
                    ScanVariantName(variant), static_cast<long>(i / c.capacity),
                    static_cast<long>(i % c.capacity), static_cast<double>(got[at]),
                    static_cast<double>(together[at]), static_cast<double>(c.scores[at]));
        break;
      }
    }
    bool family = true;
    if (variant == ScanVariant::kMulti) butterfly = hash;
    if (variant == ScanVariant::kHalve) family = hash == butterfly;
    const bool good = same && counted && alone && family && error <= Bound(shape.key);
    failures += !good;
    std::printf(
        "%s scan %-5s %-4s keys %2ld heads, %ld x up to %ld, kpool %ld, windows to %ld: error "
        "%.2e, scores %016lx%s%s%s%s\n",
        good ? "PASS" : "FAIL", ScanVariantName(variant), DTypeName(shape.key),
        static_cast<long>(shape.heads), static_cast<long>(c.rows), static_cast<long>(c.capacity),
        static_cast<long>(shape.kpool), static_cast<long>(shape.window), error,
        static_cast<unsigned long>(hash), same ? "" : ", runs differ",
        counted ? "" : ", histogram wrong", alone ? "" : ", rows alone differ",
        family ? "" : ", differs from multi");
  }
  return failures;
}

}  // namespace

int ParityIndexScan(bool small) {
  const std::unique_ptr<Backend> cpu = MakeCpuBackend(0), gpu = MakeCudaBackend(0);
  int failures = 0;
  const int64_t long_keys = small ? 700 : 20000;
  for (int64_t window : {1, 2, 3, 4, 8}) {
    for (int64_t heads : {32, 64}) {
      for (DType key : {DType::kFp8E4M3, DType::kBf16}) {
        if (small && window > 1 && heads == 64) continue;
        failures += Compare({.key = key, .heads = heads, .window = window, .longest = long_keys},
                            *cpu, *gpu);
      }
    }
  }
  failures += Compare(
      {.key = DType::kFp8E4M3, .heads = 64, .window = 2, .kpool = 4, .longest = long_keys / 4},
      *cpu, *gpu);
  failures +=
      Compare({.key = DType::kBf16, .heads = 8, .window = 3, .kpool = 4, .longest = long_keys / 4},
              *cpu, *gpu);
  failures += Compare({.key = DType::kFp8E4M3, .heads = 32, .window = 13, .longest = long_keys / 4},
                      *cpu, *gpu);
  for (int64_t window : {1, 2, 13}) {
    failures += Compare({.key = DType::kFp8E4M3,
                         .heads = 64,
                         .window = window,
                         .single = true,
                         .longest = long_keys},
                        *cpu, *gpu);
  }
  for (int64_t kpool : {2, 16}) {
    failures +=
        Compare({.key = DType::kFp8E4M3, .heads = 64, .kpool = kpool, .longest = 700}, *cpu, *gpu);
  }
  for (DType key : {DType::kFp8E4M3, DType::kBf16, DType::kF32}) {
    for (int64_t window : {1, 3}) {
      failures += Compare({.key = key,
                           .heads = 32,
                           .window = window,
                           .longest = 700,
                           .f32_query = key == DType::kF32,
                           .special = true},
                          *cpu, *gpu);
    }
  }
  failures +=
      Compare({.key = DType::kBf16, .heads = 8, .longest = 700, .f32_query = true, .special = true},
              *cpu, *gpu);
  for (int64_t window = 1; window <= 8; ++window) {
    for (int64_t heads : {4, 8, 16, 32}) {
      if (small && (window + heads) % 3 != 0) continue;
      for (DType key : {DType::kF32, DType::kBf16}) {
        const int64_t kpool = window % 2 == 0 ? 1 : 4;
        failures += Compare({.key = key,
                             .heads = heads,
                             .window = window,
                             .kpool = kpool,
                             .longest = small ? 300 : 3000,
                             .f32_query = true},
                            *cpu, *gpu);
      }
    }
  }
  return failures;
}

}  // namespace strata
