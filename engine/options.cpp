#include "engine/options.h"

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "kernels/status.h"

namespace strata {

namespace {

constexpr KvFormat kFormats[] = {KvFormat::kFp32, KvFormat::kBf16, KvFormat::kInt8, KvFormat::kFp8};

int ReadSwitch(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return -1;
  if (std::strcmp(value, "0") == 0) return 0;
  if (std::strcmp(value, "1") == 0) return 1;
  Fail(ErrorCode::kUsage,
       fmt::format("{}={} is neither 0 nor 1; unset it for the measured best", name, value));
}

}  // namespace

const char* KvFormatName(KvFormat format) {
  switch (format) {
    case KvFormat::kFp32:
      return "fp32";
    case KvFormat::kBf16:
      return "bf16";
    case KvFormat::kInt8:
      return "int8";
    case KvFormat::kFp8:
      return "fp8";
  }
  return "unknown";
}

std::optional<KvFormat> ParseKvFormat(const char* name) {
  for (KvFormat format : kFormats) {
    if (std::strcmp(name, KvFormatName(format)) == 0) return format;
  }
  return std::nullopt;
}

DType LatentType(KvFormat format) {
  switch (format) {
    case KvFormat::kFp32:
      return DType::kF32;
    case KvFormat::kBf16:
      return DType::kBf16;
    case KvFormat::kInt8:
      return DType::kInt8;
    case KvFormat::kFp8:
      return DType::kFp8E4M3;
  }
  return DType::kBf16;
}

DType IndexKeyType(KvFormat format) {
  if (format == KvFormat::kFp32) return DType::kF32;
  return format == KvFormat::kFp8 ? DType::kFp8E4M3 : DType::kBf16;
}

Switches ReadSwitches() {
  return Switches{ReadSwitch("STRATA_SCORES_HALVE"), ReadSwitch("STRATA_TOPK_SPLIT")};
}

}  // namespace strata
