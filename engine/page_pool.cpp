#include "engine/page_pool.h"

#include <fmt/format.h>

#include "kernels/status.h"

namespace strata {

int32_t PagePool::Take() {
  if (free_.empty()) return -1;
  const int32_t page = free_.back();
  free_.pop_back();
  references_[static_cast<size_t>(page)] = 1;
  return page;
}

void PagePool::Release(int32_t page) {
  int32_t& count = references_[static_cast<size_t>(page)];
  if (count <= 0)
    Fail(ErrorCode::kInternal, fmt::format("page {} is released but nobody holds it", page));
  if (--count == 0) free_.push_back(page);
}

}  // namespace strata
