#include "engine/ngram_index.h"

#include <gtest/gtest.h>

#include <vector>

namespace strata {
namespace {

NgramIndex::Match Look(const std::vector<int32_t>& tokens) {
  NgramIndex index;
  index.Extend(tokens);
  return index.Find(tokens);
}

TEST(NgramIndex, FindsWhatFollowedTheLastTokensBefore) {
  const NgramIndex::Match match = Look({9, 1, 2, 3, 4, 5, 8, 1, 2, 3});
  EXPECT_EQ(match.next, 4);
  EXPECT_EQ(match.length, 3);
}

TEST(NgramIndex, TheMostRecentOccurrenceWins) {
  EXPECT_EQ(Look({1, 2, 3, 4, 1, 2, 3, 5, 6, 1, 2, 3}).next, 7);
}

TEST(NgramIndex, TheLengthCountsHowFarBackTheTextsAgree) {
  EXPECT_EQ(Look({7, 8, 9, 1, 2, 3, 4, 0, 7, 8, 9, 1, 2, 3}).length, 6);
  std::vector<int32_t> repeated;
  for (int i = 0; i < 200; ++i) repeated.push_back(i % 50);
  EXPECT_EQ(Look(repeated).length, NgramIndex::kMaxLength);
}

TEST(NgramIndex, NothingIsFoundWhereNothingRepeats) {
  EXPECT_EQ(Look({}).length, 0);
  EXPECT_EQ(Look({1, 2}).length, 0);
  EXPECT_EQ(Look({1, 2, 3}).length, 0);
  EXPECT_EQ(Look({1, 2, 3, 4, 2, 3}).length, 0);
}

TEST(NgramIndex, OneTokenOverAndOverIsItsOwnContinuation) {
  const NgramIndex::Match match = Look({5, 5, 5, 5});
  EXPECT_EQ(match.next, 3);
  EXPECT_EQ(match.length, 3);
}

TEST(NgramIndex, GrowingTokenByTokenEqualsLearningAllAtOnce) {
  NgramIndex growing;
  std::vector<int32_t> tokens;
  for (int i = 0; i < 300; ++i) {
    tokens.push_back((i * i + i / 7) % 11);
    growing.Extend(tokens);
    const NgramIndex::Match found = growing.Find(tokens), fresh = Look(tokens);
    EXPECT_EQ(found.length, fresh.length);
    if (found.length > 0) {
      EXPECT_EQ(found.next, fresh.next);
    }
  }
}

}  // namespace
}  // namespace strata
