// A trie over a handful of byte strings: the property names of an object, the literals of an enum.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

namespace strata {

class JsonTrie {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr uint32_t kRoot = 0;

  // Values must not decrease from call to call. A text that is there already keeps its value.
  void Add(std::string_view text, uint32_t value) {
    uint32_t node = kRoot;
    below_[kRoot].push_back(value);
    for (char c : text) {
      const uint8_t byte = static_cast<uint8_t>(c);
      uint32_t child = Child(node, byte);
      if (child == kNone) {
        child = static_cast<uint32_t>(nodes_.size());
        nodes_.push_back({.next_sibling = nodes_[node].first_child, .byte = byte});
        below_.emplace_back();
        nodes_[node].first_child = child;
      }
      node = child;
      below_[node].push_back(value);
    }
    if (nodes_[node].value == kNone) nodes_[node].value = value;
  }
  uint32_t Child(uint32_t node, uint8_t byte) const {
    for (uint32_t child = nodes_[node].first_child; child != kNone;
         child = nodes_[child].next_sibling) {
      if (nodes_[child].byte == byte) return child;
    }
    return kNone;
  }
  // Of the text that ends at `node`; kNone when none does.
  uint32_t Value(uint32_t node) const { return nodes_[node].value; }
  uint32_t Find(std::string_view text) const {
    uint32_t node = kRoot;
    for (size_t i = 0; i < text.size() && node != kNone; ++i)
      node = Child(node, static_cast<uint8_t>(text[i]));
    return node == kNone ? kNone : Value(node);
  }
  // Values of all texts that begin with the node's, ascending.
  const std::vector<uint32_t>& Below(uint32_t node) const { return below_[node]; }

 private:
  struct Node {
    uint32_t first_child = kNone;
    uint32_t next_sibling = kNone;
    uint32_t value = kNone;
    uint8_t byte = 0;
  };
  std::vector<Node> nodes_ = {Node{}};
  std::vector<std::vector<uint32_t>> below_ = {{}};
};

}  // namespace strata
