#include "engine/prefix_pages.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/paged.h"

namespace strata {

namespace {

// Calls `part` with the bytes of a page in each layer of both caches that has any.
template <class Part>
void ForEachPart(StepRunner& runner, int32_t page, const Part& part) {
  for (int64_t layer = 0; layer < runner.kv().layers(); ++layer)
    part(runner.kv().Page(layer, page));
  for (int64_t layer = 0; layer < runner.kv().layers(); ++layer) {
    const std::span<std::byte> keys = runner.keys().Page(layer, page);
    if (!keys.empty()) part(keys);  // shared layers own none
  }
}

// The whole pages of the longest known prefix, with a reference on each.
std::vector<int32_t> TakePages(PrefixCache& prefixes, PagePool& pool,
                               std::span<const int32_t> tokens) {
  const PrefixHit hit = prefixes.Match(tokens, static_cast<int64_t>(tokens.size()));
  if (hit.copy_page >= 0) pool.Release(hit.copy_page);
  return hit.pages;
}

}  // namespace

size_t PrefixPages::page_bytes() const {
  size_t bytes = 0;
  ForEachPart(runner_, 0, [&](std::span<const std::byte> part) { bytes += part.size(); });
  return bytes;
}

int64_t PrefixPages::Read(std::span<const int32_t> tokens, int64_t first, std::span<std::byte> to) {
  const std::vector<int32_t> pages = TakePages(prefixes_, runner_.pages(), tokens);
  const int64_t held = static_cast<int64_t>(pages.size());
  const int64_t end = std::min(held, first + static_cast<int64_t>(to.size() / page_bytes()));
  std::byte* place = to.data();
  for (int64_t page = first; page < end; ++page) {
    ForEachPart(runner_, pages[static_cast<size_t>(page)], [&](std::span<const std::byte> part) {
      std::memcpy(place, part.data(), part.size());
      place += part.size();
    });
  }
  for (const int32_t page : pages) runner_.pages().Release(page);
  return held;
}

bool PrefixPages::Write(std::span<const int32_t> tokens, int64_t first,
                        std::span<const std::byte> from) {
  PagePool& pool = runner_.pages();
  const int64_t count = static_cast<int64_t>(from.size() / page_bytes());
  std::vector<int32_t> pages =
      TakePages(prefixes_, pool, tokens.first(static_cast<size_t>(first * kPageCells)));
  const bool fits = static_cast<int64_t>(pages.size()) == first && prefixes_.Evict(count);
  if (fits) {
    const std::byte* place = from.data();
    for (int64_t i = 0; i < count; ++i) {
      pages.push_back(pool.Take());
      ForEachPart(runner_, pages.back(), [&](std::span<std::byte> part) {
        std::memcpy(part.data(), place, part.size());
        place += part.size();
      });
    }
    prefixes_.Insert(tokens.first(static_cast<size_t>((first + count) * kPageCells)), pages);
  }
  for (const int32_t page : pages) pool.Release(page);
  return fits;
}

}  // namespace strata
