#include "kernels/dtype.h"

namespace strata {

const char* DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "fp32";
    case DType::kBf16:
      return "bf16";
    case DType::kFp8E4M3:
      return "fp8";
    case DType::kInt8:
      return "int8";
    case DType::kI32:
      return "int32";
  }
  return "unknown";
}

}  // namespace strata
