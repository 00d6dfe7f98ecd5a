#include "engine/kv_cache.h"

#include <cstring>

namespace strata {

KvCache::KvCache(Backend& backend, int64_t layers, int64_t pages, const LatentLayout& layout)
    : layout_(layout) {
  for (int64_t layer = 0; layer < layers; ++layer) {
    layers_.push_back(backend.Allocate(static_cast<size_t>(pages * layout.PageBytes())));
  }
}

LatentPages KvCache::Pages(int64_t layer, const View<const int32_t, 2>& block_table) const {
  return LatentPages{.base = layers_[static_cast<size_t>(layer)].data(),
                     .layout = layout_,
                     .page_stride = layout_.PageBytes(),
                     .block_table = block_table};
}

void KvCache::CopyPage(int32_t from, int32_t to) {
  const int64_t bytes = layout_.PageBytes();
  for (Buffer& layer : layers_) {
    std::memcpy(layer.data() + to * bytes, layer.data() + from * bytes, static_cast<size_t>(bytes));
  }
}

std::span<std::byte> KvCache::Page(int64_t layer, int32_t page) const {
  const int64_t bytes = layout_.PageBytes();
  return {layers_[static_cast<size_t>(layer)].data() + page * bytes, static_cast<size_t>(bytes)};
}

}  // namespace strata
