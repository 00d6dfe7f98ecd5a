// When to wake the other threads. The partition never changes a bit of any result: every output is
// computed whole by one thread, in one order.
#pragma once

#include <algorithm>
#include <cstdint>

namespace strata::cpu {

// Multiply-adds below which a call is cheaper on one thread than waking the others (about 1-2 us).
constexpr int64_t kInlineWork = 32 * 1024;

// Smallest share of items worth a thread, as a multiple of `unit`: items * work_per_item >=
// kInlineWork.
inline int64_t Grain(int64_t work_per_item, int64_t unit = 1) {
  const int64_t items = kInlineWork / std::max<int64_t>(1, work_per_item) + 1;
  return (items + unit - 1) / unit * unit;
}

// The same with even shares: as many threads as there is work for, each with the same share of the
// items, up to rounding to `unit`.
inline int64_t EvenGrain(int64_t threads, int64_t items, int64_t work_per_item, int64_t unit = 1) {
  const int64_t shares = std::clamp<int64_t>(items * work_per_item / kInlineWork, 1, threads);
  const int64_t grain = (items + shares - 1) / shares;
  return std::max<int64_t>(1, (grain + unit - 1) / unit * unit);
}

}  // namespace strata::cpu
