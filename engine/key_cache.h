// The index keys of the layers that own an indexer, per cell or per pool of cells.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/device.h"
#include "kernels/paged.h"

namespace strata {

// Cells of the ring that keeps raw pooled keys: the largest verify window (8) plus an unfinished
// pool, so that a roll-back into a pool that drafts had finished finds its raw rows.
constexpr int64_t kPoolRingCells = 16;

// Granularity is data: kpool 1 stores a key per cell, kpool > 1 a key per pool plus the ring of raw
// rows per sequence slot. Layers without an indexer own nothing.
class KeyCache {
 public:
  KeyCache(Backend& backend, const std::vector<bool>& layer_has_indexer, int64_t pages,
           int64_t slots, const KeyLayout& layout);

  KeyPages Pages(int64_t layer, const View<const int32_t, 2>& block_table) const;
  // [slots, kPoolRingCells, 2 * dim] of a pooled layer.
  View<float, 3> Ring(int64_t layer) const;
  void CopyPage(int32_t from, int32_t to);
  // The bytes of one page in one layer, none for a layer without an indexer (host call, between
  // steps).
  std::span<std::byte> Page(int64_t layer, int32_t page) const;

  const KeyLayout& layout() const { return layout_; }
  static size_t Bytes(int64_t indexer_layers, int64_t pages, int64_t slots,
                      const KeyLayout& layout);

 private:
  KeyLayout layout_;
  int64_t slots_;
  std::vector<Buffer> layers_;  // empty buffers for layers without an indexer
  std::vector<Buffer> rings_;
};

}  // namespace strata
