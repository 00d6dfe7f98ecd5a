// The prefix cache's pages, copied out and in: what saved conversations are made of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/prefix_cache.h"
#include "engine/step_runner.h"

namespace strata {

// Whole pages only, and so whole pools: no raw rows of an unfinished pool belong to them. A page's
// bytes are its latent rows in every layer (the prediction layers that are loaded among them), then
// its index keys in every layer that has an indexer. Used by the engine's owner between steps, some
// pages at a time: what is not copied yet may be evicted in between.
class PrefixPages {
 public:
  PrefixPages(StepRunner& runner, PrefixCache& prefixes) : runner_(runner), prefixes_(prefixes) {}

  size_t page_bytes() const;
  // How many pages of `tokens` the cache holds. Copies those from `first` on to `to`, which has
  // room for to.size() / page_bytes() of them.
  int64_t Read(std::span<const int32_t> tokens, int64_t first, std::span<std::byte> to);
  // Makes the cache hold pages [first, first + from.size() / page_bytes()) of `tokens`. False, and
  // nothing happens, when it does not hold the pages in front of them or has no room.
  bool Write(std::span<const int32_t> tokens, int64_t first, std::span<const std::byte> from);

 private:
  StepRunner& runner_;
  PrefixCache& prefixes_;
};

}  // namespace strata
