// The latent rows of all layers, in pages.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/device.h"
#include "kernels/paged.h"

namespace strata {

// Storage only: which pages belong to whom is PagePool's and the sequences' business. A layer's
// pool is one allocation of `pages` pages, addressed with 64-bit offsets.
class KvCache {
 public:
  KvCache(Backend& backend, int64_t layers, int64_t pages, const LatentLayout& layout);

  // The layer's pages as ops take them.
  LatentPages Pages(int64_t layer, const View<const int32_t, 2>& block_table) const;
  // Copies whole pages between page ids in every layer (host call, between steps).
  void CopyPage(int32_t from, int32_t to);

  // The bytes of one page in one layer (host call, between steps).
  std::span<std::byte> Page(int64_t layer, int32_t page) const;

  int64_t layers() const { return static_cast<int64_t>(layers_.size()); }
  const LatentLayout& layout() const { return layout_; }
  static size_t Bytes(int64_t layers, int64_t pages, const LatentLayout& layout) {
    return static_cast<size_t>(layers) * static_cast<size_t>(pages) *
           static_cast<size_t>(layout.PageBytes());
  }

 private:
  LatentLayout layout_;
  std::vector<Buffer> layers_;
};

}  // namespace strata
