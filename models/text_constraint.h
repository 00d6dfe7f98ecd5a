// Answers whose text follows a language: the tokens that may come next, found byte by byte.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/token_constraint.h"
#include "kernels/status.h"
#include "models/json_vocabulary.h"

namespace strata {

// Masks by what a text's state can tell apart. Thread-safe.
class MaskCache {
 public:
  bool Look(const std::string& key, std::vector<uint32_t>& mask) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = masks_.find(key);
    if (found == masks_.end()) return false;
    mask = found->second;
    return true;
  }
  void Keep(const std::string& key, const std::vector<uint32_t>& mask) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const size_t more = key.size() + mask.size() * sizeof(uint32_t);
    if (bytes_ + more > kMostBytes) {
      masks_.clear();
      bytes_ = 0;
    }
    if (masks_.emplace(key, mask).second) bytes_ += more;
  }

 private:
  static constexpr size_t kMostBytes = size_t{16} << 20;
  std::mutex mutex_;  // guards the two below
  std::unordered_map<std::string, std::vector<uint32_t>> masks_;
  size_t bytes_ = 0;
};

// Sets the bits of the trie's tokens that may come after `from`. `walk` is scratch: the states at
// each depth of the trie.
template <class Language, class State>
void WalkTokens(const TokenTrie& trie, const Language& language, const State& from,
                std::vector<State>& walk, std::vector<uint32_t>& mask) {
  const std::vector<TokenTrie::Node>& nodes = trie.nodes();
  if (walk.empty()) walk.resize(1);
  walk[0] = from;
  for (size_t i = 0; i + 1 < nodes.size();) {
    const TokenTrie::Node& node = nodes[i];
    if (walk.size() == node.depth + 1u) walk.emplace_back();
    if (!language.Step(walk[node.depth], node.byte, walk[node.depth + 1u])) {
      i = node.skip;
      continue;
    }
    ++i;
    for (uint32_t token = node.first_token; token < nodes[i].first_token; ++token) {
      const int32_t id = trie.tokens()[token];
      mask[static_cast<size_t>(id) / 32] |= uint32_t{1} << (id % 32);
    }
  }
}

// The whole answer is one text of the language, then an end token. Any tokens may spell it. Masks
// that were found are shared by all clones, so make one constraint per language and clone it for
// each answer. Clone is thread-safe. A Language has
//   State            copyable
//   Start(), Step(from, byte, to), MayEnd(state)
//   AppendKey(state, reach, key)   equal keys only where the same texts of `reach` bytes may come
//   Find(vocabulary, state, walk, mask)   sets the bits of all tokens of text that may come
template <class Language>
class TextConstraint final : public TokenConstraint {
 public:
  template <class... Arguments>
  explicit TextConstraint(std::shared_ptr<const JsonVocabulary> vocabulary,
                          Arguments&&... arguments)
      : shared_(
            std::make_shared<Shared>(std::move(vocabulary), std::forward<Arguments>(arguments)...)),
        state_(shared_->language.Start()) {}

  void Allowed(std::vector<uint32_t>& mask) const override {
    const JsonVocabulary& vocabulary = *shared_->vocabulary;
    std::string key;
    if (!ended_) {
      shared_->language.AppendKey(state_, vocabulary.longest(), key);
      if (shared_->masks.Look(key, mask)) return;
    }
    mask.assign(vocabulary.words(), 0);
    if (ended_ || shared_->language.MayEnd(state_)) {
      for (const int32_t token : vocabulary.end_tokens())
        mask[static_cast<size_t>(token) / 32] |= uint32_t{1} << (token % 32);
    }
    if (ended_) return;
    shared_->language.Find(vocabulary, state_, walk_, mask);
    shared_->masks.Keep(key, mask);
  }

  // Fail(kInternal) when Allowed would not give it.
  void Accept(int32_t token) override {
    const JsonVocabulary& vocabulary = *shared_->vocabulary;
    const auto refuse = [&] {
      Fail(ErrorCode::kInternal,
           fmt::format("token {} cannot come next in a constrained answer", token));
    };
    if (token < 0 || token >= vocabulary.size()) refuse();
    if (vocabulary.IsEnd(token)) {
      if (!ended_ && !shared_->language.MayEnd(state_)) refuse();
      ended_ = true;
      return;
    }
    const std::string& bytes = vocabulary.bytes(token);
    if (ended_ || bytes.empty()) refuse();
    State state = state_, next;
    for (const char c : bytes) {
      if (!shared_->language.Step(state, static_cast<uint8_t>(c), next)) refuse();
      std::swap(state, next);
    }
    state_ = std::move(state);
  }

  std::unique_ptr<TokenConstraint> Clone() const override {
    std::unique_ptr<TextConstraint> copy(new TextConstraint(shared_));
    copy->state_ = state_;
    copy->ended_ = ended_;
    return copy;
  }

 private:
  using State = typename Language::State;
  struct Shared {
    template <class... Arguments>
    explicit Shared(std::shared_ptr<const JsonVocabulary> the_vocabulary, Arguments&&... arguments)
        : vocabulary(std::move(the_vocabulary)), language(std::forward<Arguments>(arguments)...) {}
    const std::shared_ptr<const JsonVocabulary> vocabulary;
    const Language language;
    MaskCache masks;
  };
  explicit TextConstraint(std::shared_ptr<Shared> shared)
      : shared_(std::move(shared)), state_(shared_->language.Start()) {}

  std::shared_ptr<Shared> shared_;
  State state_;
  bool ended_ = false;
  mutable std::vector<State> walk_;
};

}  // namespace strata
