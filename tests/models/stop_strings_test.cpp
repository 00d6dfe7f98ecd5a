#include "models/stop_strings.h"

#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "kernels/status.h"

namespace strata {
namespace {

struct Result {
  std::string text;
  bool matched = false;
  std::string match;
  bool operator==(const Result&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Result& result) {
  return out << '"' << result.text << "\" " << result.matched << " \"" << result.match << '"';
}

Result Filter(const std::vector<std::string>& stops, const std::vector<std::string>& pieces) {
  StopStrings filter(stops);
  Result result;
  for (const std::string& piece : pieces) result.text += filter.Push(piece);
  result.text += filter.Finish();
  result.matched = filter.matched();
  if (result.matched) result.match = filter.match();
  return result;
}

std::vector<std::string> Cut(const std::string& text, size_t bytes) {
  std::vector<std::string> pieces;
  for (size_t at = 0; at < text.size(); at += bytes) pieces.push_back(text.substr(at, bytes));
  return pieces;
}

// Searches the whole text: the earliest start, then the shortest.
Result Reference(const std::vector<std::string>& stops, const std::string& text) {
  size_t first = std::string::npos;
  const std::string* match = nullptr;
  for (const std::string& stop : stops) {
    const size_t at = text.find(stop);
    if (at == std::string::npos) continue;
    if (match == nullptr || at < first || (at == first && stop.size() < match->size())) {
      first = at;
      match = &stop;
    }
  }
  if (match == nullptr) return {text, false, ""};
  return {text.substr(0, first), true, *match};
}

TEST(StopStrings, TheStartOfAStopStringNeverLeaksAndNothingIsLost) {
  const std::string text = "The quick brown fox";
  for (size_t bytes = 1; bytes <= text.size(); ++bytes) {
    EXPECT_EQ(Filter({"own fox"}, Cut(text, bytes)), (Result{"The quick br", true, "own fox"}));
    EXPECT_EQ(Filter({"own fix"}, Cut(text, bytes)), (Result{text, false, ""}));
    EXPECT_EQ(Filter({}, Cut(text, bytes)), (Result{text, false, ""}));
  }
}

TEST(StopStrings, OnlyTheAmbiguousEndIsHeldBack) {
  StopStrings filter({"own fox"});
  EXPECT_EQ(filter.Push("The quick br"), "The quick br");
  EXPECT_EQ(filter.Push("ow"), "");
  EXPECT_EQ(filter.Push("n"), "");
  EXPECT_EQ(filter.Push("ow"), "own");  // "ow" may start anew
  EXPECT_EQ(filter.Push("l"), "owl");
  EXPECT_EQ(filter.Push("\n o"), "\n ");
  EXPECT_EQ(filter.Finish(), "o");
  EXPECT_FALSE(filter.matched());
}

TEST(StopStrings, NothingComesOutBehindAMatch) {
  StopStrings filter({"##"});
  EXPECT_EQ(filter.Push("a# b##c"), "a# b");
  EXPECT_TRUE(filter.matched());
  EXPECT_EQ(filter.match(), "##");
  EXPECT_EQ(filter.Push("more"), "");
  EXPECT_EQ(filter.Finish(), "");
  EXPECT_EQ(filter.Finish(), "");
}

TEST(StopStrings, TheEarliestStartWins) {
  // One a prefix of the other: the shorter ends the text as soon as it is there.
  StopStrings prefix({"\n\nUser", "\n\n"});
  EXPECT_EQ(prefix.Push("hi\n"), "hi");
  EXPECT_EQ(prefix.Push("\n"), "");
  EXPECT_TRUE(prefix.matched());
  EXPECT_EQ(prefix.match(), "\n\n");

  // "bc" is complete, but "abcd" would start in front of it.
  StopStrings inside({"abcd", "bc"});
  EXPECT_EQ(inside.Push("xabc"), "x");
  EXPECT_FALSE(inside.matched());
  EXPECT_EQ(inside.Push("d"), "");
  EXPECT_EQ(inside.match(), "abcd");

  StopStrings undecided({"abcd", "bc"});
  EXPECT_EQ(undecided.Push("xabc"), "x");
  EXPECT_EQ(undecided.Push("e"), "a");
  EXPECT_EQ(undecided.match(), "bc");

  EXPECT_EQ(Filter({"abcd", "bc"}, {"xabc"}), (Result{"xa", true, "bc"}));  // decided by the end
}

TEST(StopStrings, CharactersOfSeveralBytesStayWhole) {
  EXPECT_EQ(Filter({"é"}, {"caf", "é", "!"}), (Result{"caf", true, "é"}));
  EXPECT_EQ(Filter({"!"}, {"日", "本", "語", "!", "x"}), (Result{"日本語", true, "!"}));
  // "è" and "é" share their first byte: a whole character that differs is given out at once.
  StopStrings filter({"èx"});
  EXPECT_EQ(filter.Push("é"), "é");
  EXPECT_EQ(filter.Push("è"), "");
  EXPECT_EQ(filter.Push("é"), "èé");
}

TEST(StopStrings, AnEmptyStopStringIsRefused) { EXPECT_THROW(StopStrings({"a", ""}), Error); }

TEST(StopStrings, AMovedFilterGoesOn) {
  StopStrings first({"stop", "st"});
  StopStrings filter({"lost"});
  EXPECT_EQ(first.Push("a s"), "a ");
  filter = std::move(first);
  EXPECT_EQ(filter.Push("o"), "so");
  EXPECT_EQ(filter.Push("s"), "");
  EXPECT_EQ(filter.Finish(), "s");
}

TEST(StopStrings, EveryTextInEveryCutEqualsASearchOfTheWhole) {
  std::mt19937 random(7);
  const auto word = [&](size_t longest) {
    std::string text(random() % longest + 1, 'a');
    for (char& c : text) c = static_cast<char>('a' + random() % 2);
    return text;
  };
  int matches = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::string> stops(random() % 4 + 1);
    for (std::string& stop : stops) stop = word(6);
    const std::string text = word(24);
    const Result expected = Reference(stops, text);
    matches += expected.matched;
    std::vector<std::string> pieces;
    for (size_t at = 0; at < text.size();) {
      const size_t bytes = random() % 5;
      pieces.push_back(text.substr(at, bytes));
      at += bytes;
    }
    ASSERT_EQ(Filter(stops, pieces), expected) << text;
    ASSERT_EQ(Filter(stops, Cut(text, 1)), expected) << text;
    ASSERT_EQ(Filter(stops, {text}), expected) << text;
  }
  EXPECT_GT(matches, 2000);
  EXPECT_LT(matches, 19000);
}

TEST(StopStrings, LongTextsCostTimeInProportion) {
  // Each byte extends every stop string's start; a search from each place would take hours.
  const std::string stop = std::string(50000, 'a') + "b";
  StopStrings filter({stop, "a" + stop, stop + "b"});
  const auto start = std::chrono::steady_clock::now();
  size_t given = 0;
  for (int i = 0; i < 100000; ++i) given += filter.Push("aaaaaaaaaa").size();
  EXPECT_EQ(given, 1000000u - 50001u);
  EXPECT_FALSE(filter.matched());
  EXPECT_EQ(filter.Push("b"), "");
  EXPECT_EQ(filter.match(), "a" + stop);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

}  // namespace
}  // namespace strata
