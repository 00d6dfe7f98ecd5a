#include "engine/page_pool.h"

#include <gtest/gtest.h>

#include <set>

#include "engine/prefix_cache.h"
#include "kernels/paged.h"
#include "kernels/status.h"

namespace strata {
namespace {

std::vector<int32_t> Tokens(int64_t count, int32_t salt = 0) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>(i * 7 + salt));
  return tokens;
}

std::vector<int32_t> TakePages(PagePool& pool, int64_t cells) {
  std::vector<int32_t> pages;
  while (static_cast<int64_t>(pages.size()) * kPageCells < cells) pages.push_back(pool.Take());
  return pages;
}

void ReleaseAll(PagePool& pool, const std::vector<int32_t>& pages) {
  for (int32_t page : pages) pool.Release(page);
}

TEST(PagePool, GivesEveryPageOnceAndTakesItBackWithItsLastReference) {
  PagePool pool(3);
  const int32_t a = pool.Take(), b = pool.Take(), c = pool.Take();
  EXPECT_EQ(std::set<int32_t>({a, b, c}).size(), 3u);
  EXPECT_EQ(pool.Take(), -1);
  pool.AddReference(b);
  pool.Release(b);
  EXPECT_EQ(pool.free_pages(), 0);
  pool.Release(b);
  EXPECT_EQ(pool.free_pages(), 1);
  EXPECT_THROW(pool.Release(b), Error);
}

TEST(PrefixCache, SharesWholePagesAndCopiesTheRest) {
  PagePool pool(16);
  PrefixCache cache(pool, 1);
  const std::vector<int32_t> tokens = Tokens(150);
  const std::vector<int32_t> pages = TakePages(pool, 150);
  cache.Insert(tokens, pages);
  ReleaseAll(pool, pages);
  EXPECT_EQ(pool.free_pages(), 13);

  PrefixHit hit = cache.Match(tokens, 149);
  EXPECT_EQ(hit.cells, 149);
  EXPECT_EQ(hit.pages, (std::vector<int32_t>{pages[0], pages[1]}));
  EXPECT_EQ(hit.copy_page, pages[2]);
  ReleaseAll(pool, hit.pages);
  pool.Release(hit.copy_page);

  std::vector<int32_t> other = tokens;
  other[70] = -5;
  hit = cache.Match(other, 149);
  EXPECT_EQ(hit.cells, 70);  // one shared page, six cells of a copied one
  EXPECT_EQ(hit.pages, (std::vector<int32_t>{pages[0]}));
  EXPECT_EQ(hit.copy_page, pages[1]);
  ReleaseAll(pool, hit.pages);
  pool.Release(hit.copy_page);

  hit = cache.Match(Tokens(100, 3), 99);
  EXPECT_EQ(hit.cells, 0);
  EXPECT_EQ(hit.copy_page, -1);
}

TEST(PrefixCache, CutsBackToWholePools) {
  PagePool pool(8);
  PrefixCache cache(pool, 4);
  const std::vector<int32_t> pages = TakePages(pool, 63);
  cache.Insert(Tokens(63), pages);
  const PrefixHit hit = cache.Match(Tokens(63), 62);
  EXPECT_EQ(hit.cells, 60);
  pool.Release(hit.copy_page);
}

TEST(PrefixCache, EvictsLeastRecentlyUsedLeavesFirstAndNeverAPageInUse) {
  PagePool pool(6);
  PrefixCache cache(pool, 1);
  const std::vector<int32_t> first = TakePages(pool, 128), second = TakePages(pool, 128);
  cache.Insert(Tokens(128), first);
  cache.Insert(Tokens(128, 1), second);
  ReleaseAll(pool, first);
  ReleaseAll(pool, second);
  const PrefixHit used =
      cache.Match(Tokens(128), 127);  // the first conversation is the younger one now
  EXPECT_EQ(used.pages, (std::vector<int32_t>{first[0]}));
  pool.Release(used.copy_page);
  EXPECT_TRUE(cache.Evict(4));
  const PrefixHit gone = cache.Match(Tokens(128, 1), 127);
  EXPECT_EQ(gone.cells, 0);
  EXPECT_EQ(cache.cached_pages(), 2);
  EXPECT_FALSE(cache.Evict(6));  // one page is still held by `used`, and giving it up frees nothing
  EXPECT_EQ(pool.free_pages(), 5);
  EXPECT_EQ(cache.cached_pages(), 1);
  ReleaseAll(pool, used.pages);
  EXPECT_TRUE(cache.Evict(6));
}

TEST(PrefixCache, ReleasesEverythingWhenItEnds) {
  PagePool pool(4);
  {
    PrefixCache cache(pool, 1);
    const std::vector<int32_t> pages = TakePages(pool, 200);
    cache.Insert(Tokens(200), pages);
    ReleaseAll(pool, pages);
    EXPECT_EQ(pool.free_pages(), 0);
  }
  EXPECT_EQ(pool.free_pages(), 4);
}

}  // namespace
}  // namespace strata
