// A tokenizer's tokens arranged for finding all those that may come next in a JSON text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/tokenizer.h"

namespace strata {

// Tokens by their bytes, in the order of a walk that visits a node, then its children.
class TokenTrie {
 public:
  struct Node {
    uint8_t byte = 0;
    uint16_t depth = 0;        // bytes above this one
    uint32_t skip = 0;         // the next node that is not below this one
    uint32_t first_token = 0;  // in tokens(); they end where the next node's begin
  };

  TokenTrie() = default;
  // `sorted` ascending by bytes, none empty.
  explicit TokenTrie(const std::vector<std::pair<std::string_view, int32_t>>& sorted);

  const std::vector<Node>& nodes() const { return nodes_; }  // one more than there are: an end mark
  const std::vector<int32_t>& tokens() const { return tokens_; }

 private:
  std::vector<Node> nodes_ = {Node{}};
  std::vector<int32_t> tokens_;
};

// Built once per tokenizer and shared; immutable, thread-safe.
class JsonVocabulary {
 public:
  // `vocabulary`: how many logits the model has; tokens beyond it are left out, and logits beyond
  // the tokenizer's belong to no token. Special tokens are never part of a text, but for those
  // whose text is one of `spoken`; `end_tokens` end it. Fail(kUsage): no end token, one outside the
  // vocabulary, or one of the bytes that JSON needs is no token (named), so that a text might get
  // stuck.
  JsonVocabulary(const Tokenizer& tokenizer, int64_t vocabulary, std::vector<int32_t> end_tokens,
                 const std::vector<std::string_view>& spoken = {});
  // tokens[id]: its bytes; empty: never part of a text.
  JsonVocabulary(const std::vector<std::string>& tokens, std::vector<int32_t> end_tokens);

  int64_t size() const { return static_cast<int64_t>(bytes_.size()); }
  size_t words() const { return (bytes_.size() + 31) / 32; }
  const std::string& bytes(int32_t token) const { return bytes_[static_cast<size_t>(token)]; }
  const std::vector<int32_t>& end_tokens() const { return end_tokens_; }
  bool IsEnd(int32_t token) const;
  int64_t longest() const { return longest_; }  // bytes

  // Plain tokens are complete characters that stand in a string as they are: neither quotes nor
  // backslashes nor control characters. They are most of a vocabulary.
  const TokenTrie& all() const { return all_; }
  const TokenTrie& not_plain() const { return not_plain_; }
  // Sets the bits of the plain tokens of at most `characters` characters.
  void AddPlain(int64_t characters, std::vector<uint32_t>& mask) const;

 private:
  std::vector<std::string> bytes_;
  std::vector<int32_t> end_tokens_;
  int64_t longest_ = 0;
  TokenTrie all_, not_plain_;
  std::vector<uint32_t> plain_mask_;
  std::vector<std::vector<int32_t>> plain_by_length_;  // [characters]
};

}  // namespace strata
