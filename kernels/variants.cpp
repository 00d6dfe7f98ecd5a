#include "kernels/index_scan.h"
#include "kernels/topk_select.h"

namespace strata {

const char* ScanVariantName(ScanVariant variant) {
  switch (variant) {
    case ScanVariant::kAuto:
      return "auto";
    case ScanVariant::kMulti:
      return "multi";
    case ScanVariant::kHalve:
      return "halve";
    case ScanVariant::kMma:
      return "mma";
    case ScanVariant::kSm90:
      return "sm90";
  }
  return "unknown";
}

ScanVariant SwitchedScanVariant(int scores_halve) {
  if (scores_halve < 0) return ScanVariant::kAuto;
  return scores_halve == 0 ? ScanVariant::kMulti : ScanVariant::kHalve;
}

const char* TopkVariantName(TopkVariant variant) {
  switch (variant) {
    case TopkVariant::kAuto:
      return "auto";
    case TopkVariant::kWide:
      return "wide";
    case TopkVariant::kSplit:
      return "split";
    case TopkVariant::kCluster:
      return "cluster";
  }
  return "unknown";
}

TopkVariant SwitchedTopkVariant(int topk_split) {
  if (topk_split < 0) return TopkVariant::kAuto;
  return topk_split == 0 ? TopkVariant::kWide : TopkVariant::kSplit;
}

}  // namespace strata
