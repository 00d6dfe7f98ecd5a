#include "engine/ngram_index.h"

namespace strata {

uint64_t NgramIndex::Key(std::span<const int32_t> tokens, int64_t end) {
  uint64_t key = 0;
  for (int64_t i = end - kLength; i < end; ++i)
    key = (key ^ static_cast<uint32_t>(tokens[static_cast<size_t>(i)])) * 0x9e3779b97f4a7c15ull;
  return key;
}

void NgramIndex::Extend(std::span<const int32_t> tokens) {
  // The occurrence at the very end has no continuation yet: it is what Find looks for.
  for (; learned_ < static_cast<int64_t>(tokens.size()); ++learned_)
    last_[Key(tokens, learned_)] = learned_;
}

NgramIndex::Match NgramIndex::Find(std::span<const int32_t> tokens) const {
  const int64_t end = static_cast<int64_t>(tokens.size());
  if (end < kLength) return {};
  const auto found = last_.find(Key(tokens, end));
  if (found == last_.end()) return {};
  Match match{.next = found->second, .length = 0};
  while (match.length < kMaxLength && match.length < match.next &&
         tokens[static_cast<size_t>(match.next - 1 - match.length)] ==
             tokens[static_cast<size_t>(end - 1 - match.length)])
    ++match.length;
  if (match.length < kLength) match.length = 0;
  return match;
}

}  // namespace strata
