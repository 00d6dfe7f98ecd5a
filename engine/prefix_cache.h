// Pages of finished sequences, kept for prompts that begin alike.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/page_pool.h"

namespace strata {

struct PrefixHit {
  std::vector<int32_t> pages;  // whole pages to share, each with a reference taken for the caller
  int32_t copy_page = -1;      // a page whose first cells fit too: to be copied, not shared; a
                               // reference is taken as well
  int64_t cells = 0;           // cells covered, the copied page's included
};

// A tree of pages: a node is a page whose cells hold `tokens` after all tokens of its ancestors.
// Children are found by a hash of their tokens, and the tokens are always compared, so a collision
// can never hand out another prompt's cells. The cache holds one reference on each page. One owner
// thread.
class PrefixCache {
 public:
  // Hits are cut back to whole pools of `kpool` cells: raw rows of an unfinished pool are not kept.
  PrefixCache(PagePool& pool, int64_t kpool);
  ~PrefixCache();

  // The longest known prefix of `tokens`, of at most `limit` cells. Every page of the result must
  // be released once.
  PrefixHit Match(std::span<const int32_t> tokens, int64_t limit);
  // Remembers a sequence's pages; the cache takes references of its own. tokens.size() is the
  // number of cells written.
  void Insert(std::span<const int32_t> tokens, std::span<const int32_t> pages);
  // Gives up least recently used pages that no sequence uses until `pages` are free in the pool;
  // false when that many cannot be freed. O(log nodes) per page.
  bool Evict(int64_t pages);

  int64_t cached_pages() const { return nodes_; }

 private:
  struct Node {
    std::vector<int32_t> tokens;
    int32_t page = -1;
    Node* parent = nullptr;
    uint64_t last_used = 0;  // no two nodes have the same
    std::unordered_multimap<uint64_t, std::unique_ptr<Node>> children;
  };

  Node* FindChild(Node& parent, std::span<const int32_t> tokens) const;
  void Touch(Node* node);
  void Remove(Node* node);

  PagePool* pool_;
  int64_t kpool_;
  Node root_;
  std::map<uint64_t, Node*> leaves_;  // by last_used
  uint64_t clock_ = 0;
  int64_t nodes_ = 0;
};

}  // namespace strata
