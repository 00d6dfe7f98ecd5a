// Which CUDA selection runs, and its launch.
#include <fmt/format.h>

#include "kernels/cuda/device_scope.h"
#include "kernels/cuda/topk_variants.h"
#include "kernels/status.h"

namespace strata::cuda {

namespace {

constexpr int64_t kMostCandidates = int64_t{1} << 30;  // of a row: places in it are 32-bit

}  // namespace

TopkVariant ResolveTopkVariant(const TopkSelect& op, const DeviceLimits& limits) {
  if (op.variant == TopkVariant::kCluster && limits.sm != 90) {
    Fail(ErrorCode::kDevice,
         fmt::format("TopkSelect cluster: asked for on sm_{}; it serves sm_90a", limits.sm));
  }
  if (op.variant != TopkVariant::kAuto) return op.variant;
  if (limits.sm == 90) return TopkVariant::kCluster;
  // One CTA per row as long as rows fill the device or are short.
  const bool wide = op.scores.dim(1) <= 8192 || op.ids.dim(0) >= limits.multiprocessors;
  return wide ? TopkVariant::kWide : TopkVariant::kSplit;
}

size_t TopkWorkspaceBytes(int64_t rows, int64_t capacity, int64_t) {
  return TopkSplitWorkspaceBytes(rows, capacity);
}

void Run(const TopkSelect& op, Stream stream) {
  const DeviceLimits& limits = LimitsOf(stream.device.ordinal);
  const DeviceScope scope(stream.device.ordinal);
  if (op.scores.dim(1) > kMostCandidates) {
    Fail(ErrorCode::kShape,
         fmt::format("TopkSelect: {} candidates a row; on CUDA up to {} are served",
                     op.scores.dim(1), kMostCandidates));
  }
  // Other devices' kernels do not wait for what they are launched behind.
  const bool behind = op.behind_scan && limits.sm == 90;
  const auto native = static_cast<cudaStream_t>(stream.native);
  switch (ResolveTopkVariant(op, limits)) {
    case TopkVariant::kWide:
      return RunTopkRows(op, TopkRowsPlan{}, behind, limits, native);
    case TopkVariant::kSplit:
      return RunTopkSplit(op, limits, native);
    case TopkVariant::kCluster:
      return RunTopkRows(op, ChooseTopkRows(op, limits), behind, limits, native);
    case TopkVariant::kAuto:
      break;
  }
}

}  // namespace strata::cuda
