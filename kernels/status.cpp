#include "kernels/status.h"

namespace strata {

const char* ErrorCodeName(ErrorCode code) {
  switch (code) {
    case ErrorCode::kUsage:
      return "usage";
    case ErrorCode::kConfig:
      return "config";
    case ErrorCode::kModelFile:
      return "model_file";
    case ErrorCode::kCapacity:
      return "capacity";
    case ErrorCode::kNumeric:
      return "numeric";
    case ErrorCode::kDevice:
      return "device";
    case ErrorCode::kShape:
      return "shape";
    case ErrorCode::kInternal:
      return "internal";
  }
  return "unknown";
}

void Fail(ErrorCode code, const std::string& message) { throw Error(code, message); }

}  // namespace strata
