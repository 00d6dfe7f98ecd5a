// Which cache pages are in use, and by how many owners. One page id stands for the same 64 cells in
// every layer of both caches, so latent rows and index keys can never part.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace strata {

// One owner thread.
class PagePool {
 public:
  explicit PagePool(int64_t pages) : references_(static_cast<size_t>(pages), 0) {
    for (int64_t page = pages - 1; page >= 0; --page) free_.push_back(static_cast<int32_t>(page));
  }
  // A page with one reference, or -1 when none is free.
  int32_t Take();
  void AddReference(int32_t page) { ++references_[static_cast<size_t>(page)]; }
  // Frees the page when this was the last reference.
  void Release(int32_t page);

  int references(int32_t page) const { return references_[static_cast<size_t>(page)]; }
  int64_t free_pages() const { return static_cast<int64_t>(free_.size()); }
  int64_t pages() const { return static_cast<int64_t>(references_.size()); }

 private:
  std::vector<int32_t> references_;
  std::vector<int32_t> free_;  // a stack
};

}  // namespace strata
