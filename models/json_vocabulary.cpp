#include "models/json_vocabulary.h"

#include <fmt/format.h>

#include <algorithm>
#include <bitset>

#include "kernels/status.h"
#include "models/json_scalars.h"

namespace strata {

namespace {

void SetBit(std::vector<uint32_t>& mask, int32_t token) {
  mask[static_cast<size_t>(token) / 32] |= uint32_t{1} << (token % 32);
}

// Characters of a plain token; -1: it is none.
int64_t PlainCharacters(const std::string& bytes) {
  JsonStringText text;
  for (const char c : bytes) {
    if (c == '\\' || !text.Push(static_cast<uint8_t>(c))) return -1;
  }
  return text.phase == JsonStringText::Phase::kBoundary ? text.characters : -1;
}

std::vector<std::string> TextTokens(const Tokenizer& tokenizer, int64_t vocabulary,
                                    const std::vector<std::string_view>& spoken) {
  std::vector<std::string> tokens(static_cast<size_t>(std::max<int64_t>(vocabulary, 0)));
  const int64_t count = std::min(vocabulary, tokenizer.vocabulary());
  for (int32_t id = 0; id < count; ++id) {
    const std::string& bytes = tokenizer.TokenBytes(id);
    if (!tokenizer.IsSpecial(id) || std::find(spoken.begin(), spoken.end(), bytes) != spoken.end())
      tokens[static_cast<size_t>(id)] = bytes;
  }
  return tokens;
}

}  // namespace

TokenTrie::TokenTrie(const std::vector<std::pair<std::string_view, int32_t>>& sorted) {
  nodes_.clear();
  std::vector<size_t> path;  // nodes of the last token's bytes
  std::string_view last;
  const auto leave = [&](size_t depth) {
    for (; path.size() > depth; path.pop_back())
      nodes_[path.back()].skip = static_cast<uint32_t>(nodes_.size());
  };
  for (const auto& [bytes, token] : sorted) {
    const size_t common = static_cast<size_t>(
        std::mismatch(bytes.begin(), bytes.end(), last.begin(), last.end()).first - bytes.begin());
    leave(common);
    for (size_t depth = common; depth < bytes.size(); ++depth) {
      path.push_back(nodes_.size());
      nodes_.push_back({.byte = static_cast<uint8_t>(bytes[depth]),
                        .depth = static_cast<uint16_t>(depth),
                        .first_token = static_cast<uint32_t>(tokens_.size())});
    }
    tokens_.push_back(token);
    last = bytes;
  }
  leave(0);
  nodes_.push_back({.first_token = static_cast<uint32_t>(tokens_.size())});
}

JsonVocabulary::JsonVocabulary(const Tokenizer& tokenizer, int64_t vocabulary,
                               std::vector<int32_t> end_tokens,
                               const std::vector<std::string_view>& spoken)
    : JsonVocabulary(TextTokens(tokenizer, vocabulary, spoken), std::move(end_tokens)) {}

JsonVocabulary::JsonVocabulary(const std::vector<std::string>& tokens,
                               std::vector<int32_t> end_tokens)
    : bytes_(tokens), end_tokens_(std::move(end_tokens)), plain_mask_(words()) {
  std::sort(end_tokens_.begin(), end_tokens_.end());
  if (end_tokens_.empty())
    Fail(ErrorCode::kUsage, "JSON cannot be enforced: the model names no end token");
  for (const int32_t token : end_tokens_) {
    if (token < 0 || token >= size()) {
      Fail(ErrorCode::kUsage,
           fmt::format("end token {} is outside the vocabulary of {}", token, size()));
    }
    bytes_[static_cast<size_t>(token)].clear();
  }
  std::vector<std::pair<std::string_view, int32_t>> sorted, not_plain;
  std::bitset<256> single;
  for (size_t id = 0; id < bytes_.size(); ++id) {
    const std::string& bytes = bytes_[id];
    // Longer tokens exist in no vocabulary and would overflow the trie's depth.
    if (bytes.empty() || bytes.size() > UINT16_MAX) continue;
    if (bytes.size() == 1) single.set(static_cast<uint8_t>(bytes[0]));
    sorted.emplace_back(bytes, static_cast<int32_t>(id));
    longest_ = std::max(longest_, static_cast<int64_t>(bytes.size()));
  }
  std::string missing;
  for (unsigned byte = 0x20; byte <= 0xF4; ++byte) {
    if (!single[byte] && byte != 0xC0 && byte != 0xC1) missing += fmt::format(" {:02x}", byte);
  }
  if (!missing.empty()) {
    Fail(ErrorCode::kUsage,
         fmt::format("JSON cannot be enforced: the vocabulary has no token for each of the bytes{}",
                     missing));
  }
  std::sort(sorted.begin(), sorted.end());
  for (const auto& [bytes, token] : sorted) {
    const int64_t characters = PlainCharacters(std::string(bytes));
    if (characters < 0) {
      not_plain.emplace_back(bytes, token);
      continue;
    }
    SetBit(plain_mask_, token);
    if (plain_by_length_.size() <= static_cast<size_t>(characters))
      plain_by_length_.resize(static_cast<size_t>(characters) + 1);
    plain_by_length_[static_cast<size_t>(characters)].push_back(token);
  }
  all_ = TokenTrie(sorted);
  not_plain_ = TokenTrie(not_plain);
}

bool JsonVocabulary::IsEnd(int32_t token) const {
  return std::binary_search(end_tokens_.begin(), end_tokens_.end(), token);
}

void JsonVocabulary::AddPlain(int64_t characters, std::vector<uint32_t>& mask) const {
  if (characters >= static_cast<int64_t>(plain_by_length_.size()) - 1) {
    for (size_t i = 0; i < mask.size(); ++i) mask[i] |= plain_mask_[i];
    return;
  }
  for (int64_t length = 1; length <= characters; ++length) {
    for (const int32_t token : plain_by_length_[static_cast<size_t>(length)]) SetBit(mask, token);
  }
}

}  // namespace strata
