// strata-parity: every selection variant against the CPU op, bit for bit, on rows of every
// distribution.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/backend.h"
#include "kernels/cuda/topk_variants.h"
#include "tools/parity/device_array.h"
#include "tools/parity/parity.h"
#include "tools/parity/score_rows.h"
#include "tools/parity/sparse_mla_cases.h"

namespace strata {

namespace {

struct PoolRule {
  int64_t k = 2048;
  int64_t kpool = 1;
  PoolTail tail = PoolTail::kNone;
};

// One launch's rows, with what the CPU selects.
struct TopkCase {
  TopkCase(const std::vector<std::vector<float>>& values, const PoolRule& rule, Stream cpu)
      : rule(rule) {
    rows = static_cast<int64_t>(values.size());
    for (const auto& row : values)
      capacity = std::max<int64_t>(capacity, static_cast<int64_t>(row.size()));
    stride = (capacity + 7) / 4 * 4;
    // Stale scores behind a length are the best there are.
    scores.assign(static_cast<size_t>(rows * stride), std::numeric_limits<float>::infinity());
    for (int64_t r = 0; r < rows; ++r) {
      std::copy(values[r].begin(), values[r].end(), scores.begin() + r * stride);
      lengths.push_back(static_cast<int32_t>(values[r].size()));
      cells.push_back(static_cast<int32_t>(values[r].size() * rule.kpool + r % rule.kpool));
    }
    columns = TopkSelect::IdColumns(rule.k, rule.kpool, rule.tail);
    ids.assign(static_cast<size_t>(rows * columns), 77);
    counts.assign(static_cast<size_t>(rows), 77);
    std::vector<std::byte> workspace(TopkSelect::WorkspaceBytes(rows, capacity, rule.k, cpu));
    Run(Op(scores.data(), lengths.data(), cells.data(), ids.data(), counts.data(), workspace.data(),
           workspace.size()),
        cpu);
  }
  TopkSelect Op(const float* score_data, const int32_t* length_data, const int32_t* cell_data,
                int32_t* id_data, int32_t* count_data, std::byte* workspace,
                size_t workspace_bytes) const {
    TopkSelect op;
    op.scores = MakeView(score_data, {rows, stride}).Columns(0, capacity);
    op.lengths = MakeView(length_data, {rows});
    op.k = rule.k;
    op.kpool = rule.kpool;
    op.tail = rule.tail;
    op.cells = MakeView(cell_data, {rows});
    op.ids = MakeView(id_data, {rows, columns});
    op.counts = MakeView(count_data, {rows});
    op.workspace = MakeView(workspace, {static_cast<int64_t>(workspace_bytes)});
    return op;
  }

  PoolRule rule;
  int64_t rows = 0, capacity = 1, stride = 0, columns = 0;
  std::vector<float> scores;
  std::vector<int32_t> lengths, cells, ids, counts;
};

// Runs every variant on the case, eager and replayed; returns the number of runs that differ.
int Compare(const char* name, const TopkCase& c, bool small, Backend& gpu) {
  const cuda::DeviceLimits& limits = cuda::LimitsOf(gpu.DefaultStream().device.ordinal);
  const Stream stream = gpu.DefaultStream();
  const DeviceArray<float> scores(c.scores);
  const DeviceArray<int32_t> lengths(c.lengths), cells(c.cells);
  DeviceArray<int32_t> ids(c.ids.size()), counts(c.counts.size());
  const DeviceArray<std::byte> workspace(cuda::TopkWorkspaceBytes(c.rows, c.capacity, c.rule.k));
  const TopkSelect op = c.Op(scores.data(), lengths.data(), cells.data(), ids.data(), counts.data(),
                             workspace.data(), workspace.size());
  int failures = 0;
  const auto check = [&](const std::string& variant, const auto& run) {
    const std::unique_ptr<Graph> graph =
        gpu.Capture(stream, [&](Stream s) { run(static_cast<cudaStream_t>(s.native)); });
    for (int pass = 0; pass < (small ? 1 : 2); ++pass) {
      ids.Poison();
      counts.Poison();
      gpu.Synchronize(Stream{stream.device, nullptr, nullptr});
      if (pass == 0)
        run(static_cast<cudaStream_t>(stream.native));
      else
        graph->Replay(stream);
      gpu.Synchronize(stream);
      const std::vector<int32_t> got = ids.Host(), got_counts = counts.Host();
      if (got == c.ids && got_counts == c.counts) continue;
      ++failures;
      for (size_t i = 0; i < got.size(); ++i) {
        if (got[i] == c.ids[i]) continue;
        const size_t row = i / static_cast<size_t>(c.columns);
        std::printf(
            "FAIL select %s %s %s: row %zu of length %d, column %zu holds %d, expected %d\n", name,
            variant.c_str(), pass == 0 ? "eager" : "replayed", row, c.lengths[row],
            i % static_cast<size_t>(c.columns), got[i], c.ids[i]);
        break;
      }
    }
  };
  check("wide", [&](cudaStream_t s) { cuda::RunTopkRows(op, {}, false, limits, s); });
  if (limits.max_cluster > 1) {
    const int most = small ? std::min(4, limits.max_cluster) : limits.max_cluster;
    for (int cluster = 1; cluster <= most; cluster *= small ? 4 : 2) {
      check("cluster " + std::to_string(cluster), [&](cudaStream_t s) {
        cuda::RunTopkRows(op, {cluster, true}, false, limits, s);
      });
      check("cluster " + std::to_string(cluster) + ", no list", [&](cudaStream_t s) {
        cuda::RunTopkRows(op, {cluster, false}, false, limits, s);
      });
    }
  }
  check("split", [&](cudaStream_t s) { cuda::RunTopkSplit(op, limits, s); });
  std::printf("%s select %-22s %3ld rows up to %7ld, k %4ld kpool %ld: ids %016lx\n",
              failures == 0 ? "PASS" : "FAIL", name, static_cast<long>(c.rows),
              static_cast<long>(c.capacity), static_cast<long>(c.rule.k),
              static_cast<long>(c.rule.kpool),
              static_cast<unsigned long>(HashBytes(c.ids.data(), c.ids.size() * 4)));
  return failures;
}

}  // namespace

int ParityTopk(bool small) {
  const std::unique_ptr<Backend> cpu = MakeCpuBackend(0), gpu = MakeCudaBackend(0);
  int failures = 0;
  const auto run = [&](const char* name, const std::vector<std::vector<float>>& rows,
                       const PoolRule& rule) {
    failures += Compare(name, TopkCase(rows, rule, cpu->DefaultStream()), small, *gpu);
  };
  for (ScoreShape shape : kScoreShapes) {
    std::vector<std::vector<float>> rows;
    for (int64_t n : small ? std::vector<int64_t>{0, 64, 65, 700}
                           : std::vector<int64_t>{0, 1, 2, 2047, 2048, 2049, 2050, 4097, 8193,
                                                  16385, 65000, 105000}) {
      rows.push_back(MakeScoreRow(shape, n, static_cast<uint64_t>(n) + 1));
    }
    run(ScoreShapeName(shape), rows, PoolRule{.k = small ? 64 : 2048});
    if (small) {
      // Long enough for a list behind a sampled cut.
      if (shape == ScoreShape::kNormal || shape == ScoreShape::kZeroPlateau)
        run(ScoreShapeName(shape), {MakeScoreRow(shape, 8200, 5)}, PoolRule{.k = 64});
      continue;
    }
    run(ScoreShapeName(shape), {MakeScoreRow(shape, 1 << 20, 5)}, PoolRule{});
    for (PoolTail tail : {PoolTail::kNone, PoolTail::kAppend, PoolTail::kForce}) {
      rows.clear();
      for (int64_t n : {int64_t{0}, int64_t{1}, int64_t{511}, int64_t{512}, int64_t{513},
                        int64_t{5000}, int64_t{30001}}) {
        rows.push_back(MakeScoreRow(shape, n, static_cast<uint64_t>(n) + 3));
      }
      run(ScoreShapeName(shape), rows, PoolRule{.k = 2048, .kpool = 4, .tail = tail});
    }
    for (int64_t k : {1, 8, 256, 2047, 4096}) run(ScoreShapeName(shape), rows, PoolRule{.k = k});
  }
  return failures;
}

}  // namespace strata
