// Prompt lookup: what followed a sequence's last tokens when it had them before.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>

namespace strata {

class NgramIndex {
 public:
  // Tokens that must repeat before a continuation is proposed.
  static constexpr int64_t kLength = 3;

  // Learns the tokens that are new since the last call; `tokens` is the same sequence, grown.
  void Extend(std::span<const int32_t> tokens);

  struct Match {
    int64_t next = 0;    // index of the token that followed the most recent earlier occurrence
    int64_t length = 0;  // tokens that agree backwards from there, kMaxLength at most; 0: none
  };
  static constexpr int64_t kMaxLength = 32;
  // Where the last tokens of `tokens` (as given to Extend) stood before.
  Match Find(std::span<const int32_t> tokens) const;

 private:
  // Key of the kLength tokens that end before `end`. Equal keys of other tokens are told apart by
  // comparison.
  static uint64_t Key(std::span<const int32_t> tokens, int64_t end);

  std::unordered_map<uint64_t, int64_t> last_;  // key -> index behind its most recent occurrence
  int64_t learned_ = kLength;                   // occurrences that end before this are in `last_`
};

}  // namespace strata
