// Pages that one engine wrote go on in another: latent rows and pooled keys travel together.
#include <gtest/gtest.h>

#include <memory>

#include "engine/engine.h"
#include "kernels/paged.h"
#include "tests/engine/toy_models.h"

namespace strata {
namespace {

constexpr int64_t kPromptTokens = 3 * kPageCells + 17;

class PrefixPagesOfPools : public ::testing::Test {
 protected:
  PrefixPagesOfPools() : backend_(MakeCpuBackend(1)), model_(*backend_) {
    for (int64_t i = 0; i < kPromptTokens; ++i)
      request_.prompt.push_back(static_cast<int32_t>((i * 29 + i * i * 7) % 48));
    request_.max_tokens = 24;
  }
  std::unique_ptr<Engine> NewEngine(int64_t context = 512) {
    EngineOptions options;
    options.max_context = context;
    options.max_sequences = 1;
    options.kv_format = KvFormat::kFp32;
    options.score_scratch_mib = 1;
    return std::make_unique<Engine>(model_, *backend_, options);
  }
  // Tokens and the bits of their log-probabilities; `cached`: prompt tokens that were not read.
  std::vector<std::pair<int32_t, float>> Answer(Engine& engine, int64_t* cached) const {
    std::vector<std::pair<int32_t, float>> answer;
    engine.Submit(request_, [&](const TokenEvent& event) {
      answer.push_back({event.token, event.logprob});
      *cached = event.cached_tokens;
    });
    engine.RunUntilIdle();
    return answer;
  }
  std::vector<std::byte> SavedPages(Engine& engine) const {
    std::vector<std::byte> pages(3 * engine.prefix_pages().page_bytes());
    EXPECT_EQ(engine.prefix_pages().Read(request_.prompt, 0, pages), 3);
    return pages;
  }
  std::unique_ptr<Backend> backend_;
  PooledToyModel model_;
  Request request_;
};

TEST_F(PrefixPagesOfPools, AnswersGoOnBitForBitInAnotherEngine) {
  const std::unique_ptr<Engine> first = NewEngine(), second = NewEngine();
  int64_t cached = -1;
  const auto expected = Answer(*first, &cached);
  EXPECT_EQ(cached, 0);
  const std::vector<std::byte> pages = SavedPages(*first);
  ASSERT_TRUE(second->prefix_pages().Write(request_.prompt, 0, pages));
  EXPECT_EQ(Answer(*second, &cached), expected);
  EXPECT_EQ(cached, 3 * kPageCells);
}

TEST_F(PrefixPagesOfPools, EveryByteOfAPageCounts) {
  const std::unique_ptr<Engine> first = NewEngine();
  int64_t cached = -1;
  const auto expected = Answer(*first, &cached);
  const std::vector<std::byte> pages = SavedPages(*first);
  const size_t page = pages.size() / 3, latents = first->runner().kv().Page(0, 0).size();
  // Latent rows of the first page, then its pooled keys: either one lost changes the answer.
  for (const auto& [begin, end] : {std::pair(size_t{0}, latents), std::pair(latents, page)}) {
    std::vector<std::byte> broken = pages;
    std::fill(broken.begin() + static_cast<int64_t>(begin),
              broken.begin() + static_cast<int64_t>(end), std::byte{0});
    const std::unique_ptr<Engine> other = NewEngine();
    ASSERT_TRUE(other->prefix_pages().Write(request_.prompt, 0, broken));
    EXPECT_NE(Answer(*other, &cached), expected) << begin;
  }
}

TEST_F(PrefixPagesOfPools, PagesAreTakenInOrderAndOnlyWhereThereIsRoom) {
  const std::unique_ptr<Engine> first = NewEngine(), second = NewEngine();
  int64_t cached = -1;
  Answer(*first, &cached);
  const std::vector<std::byte> pages = SavedPages(*first);
  const std::span<const std::byte> all = pages;
  const size_t page = pages.size() / 3;
  EXPECT_FALSE(second->prefix_pages().Write(request_.prompt, 1, all.subspan(page)));
  EXPECT_TRUE(second->prefix_pages().Write(request_.prompt, 0, all.first(page)));
  EXPECT_TRUE(second->prefix_pages().Write(request_.prompt, 1, all.subspan(page)));
  std::vector<std::byte> again(pages.size());
  EXPECT_EQ(second->prefix_pages().Read(request_.prompt, 0, again), 3);
  EXPECT_TRUE(again == pages);
  const std::unique_ptr<Engine> small = NewEngine(2 * kPageCells);
  EXPECT_FALSE(small->prefix_pages().Write(request_.prompt, 0, pages));
  EXPECT_TRUE(small->prefix_pages().Write(request_.prompt, 0, all.first(2 * page)));
}

}  // namespace
}  // namespace strata
