#include "engine/key_cache.h"

#include <fmt/format.h>

#include <cstring>

#include "kernels/status.h"

namespace strata {

namespace {

size_t RingBytes(int64_t slots, const KeyLayout& layout) {
  return static_cast<size_t>(slots * kPoolRingCells * 2 * layout.dim) * sizeof(float);
}

}  // namespace

KeyCache::KeyCache(Backend& backend, const std::vector<bool>& layer_has_indexer, int64_t pages,
                   int64_t slots, const KeyLayout& layout)
    : layout_(layout), slots_(slots) {
  if (layout.kpool < 1 || kPageCells % layout.kpool != 0) {
    Fail(ErrorCode::kConfig,
         fmt::format("index_kpool {} does not divide the page of {} cells; 1, 2, 4, ... 64 do",
                     layout.kpool, kPageCells));
  }
  for (bool has_indexer : layer_has_indexer) {
    layers_.push_back(
        has_indexer ? backend.Allocate(static_cast<size_t>(pages * layout.PageBytes())) : Buffer());
    rings_.push_back(has_indexer && layout.kpool > 1 ? backend.Allocate(RingBytes(slots, layout))
                                                     : Buffer());
  }
}

KeyPages KeyCache::Pages(int64_t layer, const View<const int32_t, 2>& block_table) const {
  return KeyPages{.base = layers_[static_cast<size_t>(layer)].data(),
                  .layout = layout_,
                  .page_stride = layout_.PageBytes(),
                  .block_table = block_table};
}

View<float, 3> KeyCache::Ring(int64_t layer) const {
  return MakeView(reinterpret_cast<float*>(rings_[static_cast<size_t>(layer)].data()),
                  {slots_, kPoolRingCells, 2 * layout_.dim});
}

void KeyCache::CopyPage(int32_t from, int32_t to) {
  const int64_t bytes = layout_.PageBytes();
  for (Buffer& layer : layers_) {
    if (layer.data() == nullptr) continue;
    std::memcpy(layer.data() + to * bytes, layer.data() + from * bytes, static_cast<size_t>(bytes));
  }
}

std::span<std::byte> KeyCache::Page(int64_t layer, int32_t page) const {
  std::byte* base = layers_[static_cast<size_t>(layer)].data();
  if (base == nullptr) return {};
  const int64_t bytes = layout_.PageBytes();
  return {base + page * bytes, static_cast<size_t>(bytes)};
}

size_t KeyCache::Bytes(int64_t indexer_layers, int64_t pages, int64_t slots,
                       const KeyLayout& layout) {
  const size_t ring = layout.kpool > 1 ? RingBytes(slots, layout) : 0;
  return static_cast<size_t>(indexer_layers) *
         (static_cast<size_t>(pages * layout.PageBytes()) + ring);
}

}  // namespace strata
