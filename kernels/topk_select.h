// Exact selection of the k best candidates of each row.
#pragma once

#include "kernels/device.h"
#include "kernels/view.h"

namespace strata {

// What happens to the cells of an incomplete pool at the end of a row (kpool > 1).
enum class PoolTail : uint8_t {
  kNone,    // they are not selectable
  kAppend,  // they are added behind the selected pools: up to kpool - 1 ids more than k
  kForce,   // they win one of the k / kpool places
};

// Implementations on CUDA; all give the same ids.
enum class TopkVariant : uint8_t {
  kAuto,     // the best on the device
  kWide,     // one CTA per row
  kSplit,    // a row's chunks over many CTAs, a few short launches
  kCluster,  // a cluster of CTAs per row that talk through shared memory: sm_90
};
const char* TopkVariantName(TopkVariant variant);
// What STRATA_TOPK_SPLIT asks for: 0 is kWide, 1 is kSplit, -1 (unset) kAuto.
TopkVariant SwitchedTopkVariant(int topk_split);

// The k largest scores of each row under SelectionKey (order.h): equal scores lowest index first,
// NaN last. Ids come out ascending, the count beside them, the rest of the row is -1. length <= k
// selects everything without reading a score. kpool > 1: candidates are pools; k / kpool of them
// win and each is written as its kpool cells; see PoolTail.
struct TopkSelect {
  View<const float, 2> scores;     // [rows, capacity]
  View<const int32_t, 1> lengths;  // [rows] candidates of the row
  int64_t k = 0;                   // cells to select
  int64_t kpool = 1;               // cells per candidate; divides k
  PoolTail tail = PoolTail::kNone;
  View<const int32_t, 1> cells = {};  // [rows] visible cells of the row; needed when kpool > 1
  View<int32_t, 2> ids;               // [rows, IdColumns(k, kpool, tail)]
  View<int32_t, 1> counts;            // [rows]
  View<std::byte, 1> workspace = {};
  TopkVariant variant = TopkVariant::kAuto;  // CUDA only
  // CUDA: the launch before on the stream is the scan; its end may overlap this one's start.
  // Lengths and cells were there before the scan began.
  bool behind_scan = false;

  static int64_t IdColumns(int64_t k, int64_t kpool, PoolTail tail) {
    return tail == PoolTail::kAppend ? k + kpool - 1 : k;
  }
  static size_t WorkspaceBytes(int64_t rows, int64_t capacity, int64_t k, Stream stream);
};
void Run(const TopkSelect& op, Stream stream);

namespace cpu {
void Run(const TopkSelect& op, Stream stream);
size_t TopkWorkspaceBytes(int64_t capacity, int64_t k, int threads);
}  // namespace cpu
namespace cuda {
void Run(const TopkSelect& op, Stream stream);
size_t TopkWorkspaceBytes(int64_t rows, int64_t capacity, int64_t k);
}  // namespace cuda
}  // namespace strata
