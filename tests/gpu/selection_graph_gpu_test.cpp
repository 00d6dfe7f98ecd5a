// A selection captured once serves rows that grow: the lengths live on the device.
#include "engine/selection_graph.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/backend.h"
#include "tools/parity/device_array.h"
#include "tools/parity/score_rows.h"

namespace strata {
namespace {

constexpr int64_t kRows = 3, kCapacity = 70000, kSelected = 2048;

class SelectionGraphGpuTest : public testing::TestWithParam<TopkVariant> {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0)
      GTEST_SKIP() << "no CUDA device on this machine";
  }
};

TopkSelect Op(const float* scores, const int32_t* lengths, int32_t* ids, int32_t* counts,
              std::byte* workspace, size_t workspace_bytes) {
  TopkSelect op;
  op.scores = MakeView(scores, {kRows, kCapacity});
  op.lengths = MakeView(lengths, {kRows});
  op.k = kSelected;
  op.ids = MakeView(ids, {kRows, kSelected});
  op.counts = MakeView(counts, {kRows});
  op.workspace = MakeView(workspace, {static_cast<int64_t>(workspace_bytes)});
  return op;
}

TEST_P(SelectionGraphGpuTest, GrowingLengthsReplayOneCapture) {
  const std::unique_ptr<Backend> cpu = MakeCpuBackend(0), gpu = MakeCudaBackend(0);
  const Stream host_stream = cpu->DefaultStream(), stream = gpu->DefaultStream();
  std::vector<float> scores;
  for (ScoreShape shape : {ScoreShape::kNormal, ScoreShape::kFewLevels, ScoreShape::kHidden}) {
    const std::vector<float> row = MakeScoreRow(shape, kCapacity, 11);
    scores.insert(scores.end(), row.begin(), row.end());
  }
  const DeviceArray<float> device_scores(scores);
  DeviceArray<int32_t> lengths(kRows), ids(kRows * kSelected), counts(kRows);
  const DeviceArray<std::byte> workspace(
      TopkSelect::WorkspaceBytes(kRows, kCapacity, kSelected, stream));
  std::vector<std::byte> host_workspace(
      TopkSelect::WorkspaceBytes(kRows, kCapacity, kSelected, host_stream));

  SelectionGraph graph(*gpu);
  std::vector<int64_t> steps = {0, 1, kSelected - 1, kSelected, kSelected + 1, kSelected + 2};
  for (int64_t n = 3000; n < kCapacity; n = n * 7 / 4) steps.push_back(n);
  for (int64_t n : {kCapacity - 1, kCapacity}) steps.push_back(n);
  for (int64_t step : steps) {
    // Rows of one window see one candidate more each.
    std::vector<int32_t> now(kRows), expected(ids.size()), expected_counts(kRows);
    for (int64_t r = 0; r < kRows; ++r)
      now[static_cast<size_t>(r)] =
          static_cast<int32_t>(std::max<int64_t>(step - (kRows - 1 - r), 0));
    strata::Run(Op(scores.data(), now.data(), expected.data(), expected_counts.data(),
                   host_workspace.data(), host_workspace.size()),
                host_stream);

    ids.Poison();
    counts.Poison();
    lengths.Assign(now);
    TopkSelect op = Op(device_scores.data(), lengths.data(), ids.data(), counts.data(),
                       workspace.data(), workspace.size());
    op.variant = GetParam();
    graph.Run(op, stream);
    gpu->Synchronize(stream);
    ASSERT_EQ(counts.Host(), expected_counts) << "at " << step << " candidates";
    ASSERT_EQ(ids.Host(), expected) << "at " << step << " candidates";
  }
  EXPECT_EQ(graph.captured_graphs(), 1);
}

INSTANTIATE_TEST_SUITE_P(Variants, SelectionGraphGpuTest,
                         testing::Values(TopkVariant::kAuto, TopkVariant::kWide,
                                         TopkVariant::kSplit),
                         [](const testing::TestParamInfo<TopkVariant>& variant) {
                           return std::string(TopkVariantName(variant.param));
                         });

}  // namespace
}  // namespace strata
