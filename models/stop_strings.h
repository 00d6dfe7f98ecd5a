// Stop strings in streamed text, whatever pieces it arrives in.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace strata {

// Finds the stop string that starts first in the whole text (of two that start together, the
// shorter one) and gives out the text in front of it, as early as no stop string can reach back
// into it. Works on bytes; pieces and stop strings that are whole UTF-8 characters give whole
// characters. Time: bytes of text times number of stop strings (Knuth, Morris and Pratt).
class StopStrings {
 public:
  // An empty stop string: Fail(kUsage).
  explicit StopStrings(std::vector<std::string> stops);

  // The text that is now certain to stand in front of every stop string. What is held back is the
  // longest end of the text that is the start of a stop string. After a match: nothing.
  std::string Push(std::string_view text);
  // The text has ended: what was held back. Nothing may be pushed afterwards.
  std::string Finish();

  // A stop string was found and none that starts in front of it can follow. The latter may take
  // bytes that come later: in "abc" with the stops "abcd" and "bc", the next byte decides.
  bool matched() const { return matched_.has_value(); }
  // The stop string that ended the text; only when matched().
  const std::string& match() const { return stops_[*matched_].text; }

 private:
  struct Stop {
    std::string text;
    std::vector<uint32_t> border;  // per prefix length: its longest proper prefix that ends it too
    uint32_t depth = 0;            // bytes of this stop string that the text ends with
  };
  struct Match {
    size_t stop;
    int64_t start;  // in bytes of text
  };

  void Read(char byte);
  std::string Take(int64_t until, int64_t piece_start, std::string_view piece);

  std::vector<Stop> stops_;
  int64_t read_ = 0;            // bytes pushed
  int64_t given_ = 0;           // bytes given out
  size_t held_stop_ = 0;        // bytes [given_, read_) are the start of this stop string
  std::optional<Match> found_;  // the first match so far
  std::optional<size_t> matched_;
};

}  // namespace strata
