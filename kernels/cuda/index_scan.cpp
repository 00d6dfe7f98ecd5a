// Which CUDA index scan serves an op, and its launch.
#include <fmt/format.h>

#include "kernels/cuda/backend.h"
#include "kernels/cuda/device_scope.h"
#include "kernels/cuda/index_scan_variants.h"
#include "kernels/status.h"

namespace strata::cuda {

namespace {

constexpr int64_t kMaxHeads = 64;
constexpr int64_t kTensorDim = 128;
constexpr ScanVariant kPreferred[] = {ScanVariant::kSm90, ScanVariant::kMma, ScanVariant::kHalve,
                                      ScanVariant::kMulti};

// Rows of queries start at multiples of 16 bytes, and so do pages.
bool Aligned(const IndexScan& op) {
  const int64_t bytes = DTypeBytes(op.query.dtype);
  return reinterpret_cast<uintptr_t>(op.query.data) % 16 == 0 &&
         op.query.stride[0] * bytes % 16 == 0 && op.query.stride[1] * bytes % 16 == 0 &&
         op.query.stride[2] == 1 && reinterpret_cast<uintptr_t>(op.keys.base) % 16 == 0 &&
         op.keys.page_stride % 16 == 0;
}

bool PowerOfTwo(int64_t value) { return value > 0 && (value & (value - 1)) == 0; }

const char* Features(ScanVariant variant) {
  switch (variant) {
    case ScanVariant::kMulti:
    case ScanVariant::kHalve:
      return "sm_75 and up, fp32 queries, fp32 or bf16 keys of at most 128 values (a multiple of "
             "8), 1 to 32 heads (a power of two), 16-byte aligned";
    case ScanVariant::kMma:
      return "sm_80 and up, bf16 queries and keys of 128 values, at most 64 heads, 16-byte aligned";
    case ScanVariant::kSm90:
      return "sm_90a, fp8 queries and keys or bf16 queries and keys of 128 values, at most 64 "
             "heads, kpool at most 16, 16-byte aligned";
    case ScanVariant::kAuto:
      break;
  }
  return "";
}

bool Serves(ScanVariant variant, const IndexScan& op, int sm) {
  const DType query = op.query.dtype, key = op.keys.layout.dtype;
  const int64_t heads = op.query.dim(1), dim = op.keys.layout.dim;
  if (!Aligned(op)) return false;
  switch (variant) {
    case ScanVariant::kMulti:
    case ScanVariant::kHalve:
      return sm >= 75 && query == DType::kF32 && (key == DType::kF32 || key == DType::kBf16) &&
             dim <= 128 && dim % 8 == 0 && PowerOfTwo(heads) && heads <= 32;
    case ScanVariant::kMma:
      return sm >= 80 && query == DType::kBf16 && key == DType::kBf16 && dim == kTensorDim &&
             heads <= kMaxHeads;
    case ScanVariant::kSm90:
      return sm == 90 && query == key && (key == DType::kFp8E4M3 || key == DType::kBf16) &&
             dim == kTensorDim && heads <= kMaxHeads && op.keys.layout.kpool <= 16;
    case ScanVariant::kAuto:
      break;
  }
  return false;
}

std::string Asked(const IndexScan& op, int sm) {
  return fmt::format("sm_{}, {} queries, {} keys of {} values, {} heads, kpool {}{}", sm,
                     DTypeName(op.query.dtype), DTypeName(op.keys.layout.dtype), op.keys.layout.dim,
                     op.query.dim(1), op.keys.layout.kpool,
                     Aligned(op) ? "" : ", not 16-byte aligned");
}

}  // namespace

bool Supports(ScanVariant variant, const IndexScan& op, int sm, std::string* why) {
  const bool serves = Serves(variant, op, sm);
  if (!serves && why != nullptr) {
    *why = fmt::format("IndexScan {}: asked for {}; it serves {}", ScanVariantName(variant),
                       Asked(op, sm), Features(variant));
  }
  return serves;
}

ScanVariant ResolveScanVariant(const IndexScan& op, int sm) {
  if (op.variant != ScanVariant::kAuto) {
    std::string why;
    if (!Supports(op.variant, op, sm, &why)) Fail(ErrorCode::kDevice, why);
    return op.variant;
  }
  for (ScanVariant variant : kPreferred) {
    if (Serves(variant, op, sm)) return variant;
  }
  std::string all;
  for (ScanVariant variant : kPreferred)
    all += fmt::format("; {} serves {}", ScanVariantName(variant), Features(variant));
  Fail(ErrorCode::kDevice, fmt::format("IndexScan: no variant serves {}{}", Asked(op, sm), all));
}

void Run(const IndexScan& op, Stream stream) {
  const DeviceLimits& limits = LimitsOf(stream.device.ordinal);
  const DeviceScope scope(stream.device.ordinal);
  const auto native = static_cast<cudaStream_t>(stream.native);
  const ScanVariant variant = ResolveScanVariant(op, limits.sm);
  switch (variant) {
    case ScanVariant::kMulti:
    case ScanVariant::kHalve:
      return RunScanButterfly(op, variant == ScanVariant::kHalve, limits.multiprocessors, native);
    case ScanVariant::kMma:
      return RunScanMma(op, limits.multiprocessors, native);
    case ScanVariant::kSm90:
      return RunScanSm90(op, limits.multiprocessors, limits.shared_bytes, native);
    case ScanVariant::kAuto:
      break;
  }
}

}  // namespace strata::cuda
