#include "models/bpe.h"

#include <queue>

namespace strata {

bool BytePairEncoder::AddMerge(const std::string& left, const std::string& right) {
  const auto l = ids_.find(left), r = ids_.find(right), both = ids_.find(left + right);
  if (l == ids_.end() || r == ids_.end() || both == ids_.end()) return false;
  merges_.emplace(Key(l->second, r->second),
                  Merge{static_cast<int32_t>(merges_.size()), both->second});
  return true;
}

bool BytePairEncoder::CoversAllBytes() const {
  for (int byte = 0; byte < 256; ++byte) {
    if (!ids_.contains(std::string(1, static_cast<char>(byte)))) return false;
  }
  return true;
}

void BytePairEncoder::Encode(std::string_view word, std::vector<int32_t>& out) const {
  if (ignore_merges_) {
    const auto whole = ids_.find(std::string(word));
    if (whole != ids_.end()) {
      out.push_back(whole->second);
      return;
    }
  }
  // Symbols in a linked list; candidates in a heap by (rank, position). A candidate whose symbols
  // have changed since is dropped when it comes up.
  struct Symbol {
    int32_t id;
    int32_t previous, next;
  };
  struct Candidate {
    int32_t rank, left, left_id, right_id, result;
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : left > other.left;
    }
  };
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  for (size_t i = 0; i < word.size(); ++i) {
    const int32_t at = static_cast<int32_t>(i);
    symbols.push_back(
        {ids_.at(std::string(1, word[i])), at - 1, i + 1 < word.size() ? at + 1 : -1});
  }
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;
  const auto consider = [&](int32_t left) {
    if (left < 0 || symbols[left].next < 0) return;
    const int32_t right_id = symbols[symbols[left].next].id;
    const auto merge = merges_.find(Key(symbols[left].id, right_id));
    if (merge != merges_.end()) {
      candidates.push({merge->second.rank, left, symbols[left].id, right_id, merge->second.result});
    }
  };
  for (size_t i = 0; i < symbols.size(); ++i) consider(static_cast<int32_t>(i));
  while (!candidates.empty()) {
    const Candidate best = candidates.top();
    candidates.pop();
    Symbol& left = symbols[best.left];
    if (left.id != best.left_id || left.next < 0 || symbols[left.next].id != best.right_id)
      continue;
    const int32_t merged = left.next;
    left.id = best.result;
    left.next = symbols[merged].next;
    symbols[merged].id = -1;  // no candidate matches it any more
    if (left.next >= 0) symbols[left.next].previous = best.left;
    consider(left.previous);
    consider(best.left);
  }
  for (int32_t at = symbols.empty() ? -1 : 0; at >= 0; at = symbols[at].next)
    out.push_back(symbols[at].id);
}

}  // namespace strata
