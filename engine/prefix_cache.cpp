#include "engine/prefix_cache.h"

#include <xxhash.h>

#include <algorithm>

#include "kernels/paged.h"

namespace strata {

namespace {

uint64_t HashTokens(std::span<const int32_t> tokens) {
  return XXH3_64bits(tokens.data(), tokens.size_bytes());
}

int64_t CommonLength(std::span<const int32_t> a, std::span<const int32_t> b) {
  const auto [end, other] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return end - a.begin();
}

}  // namespace

PrefixCache::PrefixCache(PagePool& pool, int64_t kpool) : pool_(&pool), kpool_(kpool) {}

PrefixCache::~PrefixCache() {
  while (!leaves_.empty()) Remove(leaves_.begin()->second);
}

PrefixCache::Node* PrefixCache::FindChild(Node& parent, std::span<const int32_t> tokens) const {
  const auto [begin, end] = parent.children.equal_range(HashTokens(tokens));
  for (auto child = begin; child != end; ++child) {
    if (std::equal(tokens.begin(), tokens.end(), child->second->tokens.begin(),
                   child->second->tokens.end())) {
      return child->second.get();
    }
  }
  return nullptr;
}

PrefixHit PrefixCache::Match(std::span<const int32_t> tokens, int64_t limit) {
  limit = std::min(limit, static_cast<int64_t>(tokens.size())) / kpool_ * kpool_;
  PrefixHit hit;
  Node* node = &root_;
  while (hit.cells + kPageCells <= limit) {
    Node* child = FindChild(*node, tokens.subspan(static_cast<size_t>(hit.cells), kPageCells));
    if (child == nullptr) break;
    Touch(child);
    pool_->AddReference(child->page);
    hit.pages.push_back(child->page);
    hit.cells += kPageCells;
    node = child;
  }
  // The child that shares most of the remaining tokens is copied.
  const std::span<const int32_t> rest =
      tokens.subspan(static_cast<size_t>(hit.cells), static_cast<size_t>(limit - hit.cells));
  Node* best = nullptr;
  int64_t best_cells = 0;
  for (const auto& [hash, child] : node->children) {
    const int64_t common = CommonLength(rest, child->tokens) / kpool_ * kpool_;
    if (common > best_cells) best = child.get(), best_cells = common;
  }
  if (best != nullptr) {
    Touch(best);
    pool_->AddReference(best->page);
    hit.copy_page = best->page;
    hit.cells += best_cells;
  }
  return hit;
}

void PrefixCache::Insert(std::span<const int32_t> tokens, std::span<const int32_t> pages) {
  Node* node = &root_;
  for (size_t page = 0; page * kPageCells < tokens.size(); ++page) {
    const size_t begin = page * kPageCells;
    const std::span<const int32_t> part =
        tokens.subspan(begin, std::min<size_t>(kPageCells, tokens.size() - begin));
    Node* child = FindChild(*node, part);
    if (child == nullptr) {
      auto fresh = std::make_unique<Node>();
      fresh->tokens.assign(part.begin(), part.end());
      fresh->page = pages[page];
      fresh->parent = node;
      pool_->AddReference(fresh->page);
      child = fresh.get();
      leaves_.erase(node->last_used);
      node->children.emplace(HashTokens(part), std::move(fresh));
      ++nodes_;
    }
    Touch(child);
    node = child;
  }
}

void PrefixCache::Touch(Node* node) {
  leaves_.erase(node->last_used);
  node->last_used = ++clock_;
  if (node->children.empty()) leaves_.emplace(node->last_used, node);
}

void PrefixCache::Remove(Node* node) {
  pool_->Release(node->page);
  --nodes_;
  leaves_.erase(node->last_used);
  Node* parent = node->parent;
  const auto [begin, end] = parent->children.equal_range(HashTokens(node->tokens));
  parent->children.erase(
      std::find_if(begin, end, [&](const auto& child) { return child.second.get() == node; }));
  if (parent->children.empty() && parent != &root_) leaves_.emplace(parent->last_used, parent);
}

bool PrefixCache::Evict(int64_t pages) {
  while (pool_->free_pages() < pages) {
    // A leaf in use frees nothing, and neither would its ancestors, which are in use with it.
    const auto oldest = std::find_if(leaves_.begin(), leaves_.end(), [&](const auto& leaf) {
      return pool_->references(leaf.second->page) == 1;
    });
    if (oldest == leaves_.end()) return false;
    Remove(oldest->second);
  }
  return true;
}

}  // namespace strata
