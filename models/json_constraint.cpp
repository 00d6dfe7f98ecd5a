#include "models/json_constraint.h"

#include <fmt/format.h>

#include <mutex>
#include <string>
#include <unordered_map>

#include "kernels/status.h"

namespace strata {

namespace {

constexpr size_t kMaskCacheBytes = size_t{16} << 20;

}  // namespace

struct JsonConstraint::Shared {
  Shared(std::shared_ptr<const JsonVocabulary> the_vocabulary, JsonSchema the_schema)
      : vocabulary(std::move(the_vocabulary)), schema(std::move(the_schema)), automaton(schema) {}

  const std::shared_ptr<const JsonVocabulary> vocabulary;
  const JsonSchema schema;
  const JsonAutomaton automaton;

  bool Look(const std::string& key, std::vector<uint32_t>& mask) {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = masks.find(key);
    if (found == masks.end()) return false;
    mask = found->second;
    return true;
  }
  void Keep(const std::string& key, const std::vector<uint32_t>& mask) {
    const std::lock_guard<std::mutex> lock(mutex);
    const size_t more = key.size() + mask.size() * sizeof(uint32_t);
    if (bytes + more > kMaskCacheBytes) {
      masks.clear();
      bytes = 0;
    }
    if (masks.emplace(key, mask).second) bytes += more;
  }

 private:
  std::mutex mutex;  // guards masks and bytes
  std::unordered_map<std::string, std::vector<uint32_t>> masks;
  size_t bytes = 0;
};

JsonConstraint::JsonConstraint(std::shared_ptr<const JsonVocabulary> vocabulary, JsonSchema schema)
    : JsonConstraint(std::make_shared<Shared>(std::move(vocabulary), std::move(schema))) {}

JsonConstraint::JsonConstraint(std::shared_ptr<Shared> shared)
    : shared_(std::move(shared)), state_(shared_->automaton.Start()) {}

void JsonConstraint::Allowed(std::vector<uint32_t>& mask) const {
  const JsonVocabulary& vocabulary = *shared_->vocabulary;
  std::string key;
  if (!ended_) {
    shared_->automaton.AppendKey(state_, vocabulary.longest(), key);
    if (shared_->Look(key, mask)) return;
  }
  mask.assign(vocabulary.words(), 0);
  if (ended_ || shared_->automaton.MayEnd(state_)) {
    for (const int32_t token : vocabulary.end_tokens())
      mask[static_cast<size_t>(token) / 32] |= uint32_t{1} << (token % 32);
  }
  if (ended_) return;
  Find(mask);
  shared_->Keep(key, mask);
}

void JsonConstraint::Find(std::vector<uint32_t>& mask) const {
  const JsonVocabulary& vocabulary = *shared_->vocabulary;
  const JsonAutomaton& automaton = shared_->automaton;
  const int64_t plain = automaton.AnyCharacters(state_);
  if (plain < 0) return Walk(vocabulary.all(), state_, mask);
  vocabulary.AddPlain(plain, mask);
  Walk(vocabulary.not_plain(), state_, mask);
  if (plain >= vocabulary.longest()) return;
  // A plain token that is too long for the string may still be part of a literal.
  const JsonState literals = automaton.LiteralsOf(state_);
  if (!literals.active.empty()) Walk(vocabulary.all(), literals, mask);
}

// Sets the bits of the trie's tokens that may come after `from`.
void JsonConstraint::Walk(const TokenTrie& trie, const JsonState& from,
                          std::vector<uint32_t>& mask) const {
  const std::vector<TokenTrie::Node>& nodes = trie.nodes();
  if (walk_.empty()) walk_.resize(1);
  walk_[0] = from;
  for (size_t i = 0; i + 1 < nodes.size();) {
    const TokenTrie::Node& node = nodes[i];
    if (walk_.size() == node.depth + 1u) walk_.emplace_back();
    if (!shared_->automaton.Step(walk_[node.depth], node.byte, walk_[node.depth + 1u])) {
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

void JsonConstraint::Accept(int32_t token) {
  const JsonVocabulary& vocabulary = *shared_->vocabulary;
  const auto refuse = [&] {
    Fail(ErrorCode::kInternal, fmt::format("token {} cannot come next in the JSON answer", token));
  };
  if (token < 0 || token >= vocabulary.size()) refuse();
  if (vocabulary.IsEnd(token)) {
    if (!ended_ && !shared_->automaton.MayEnd(state_)) refuse();
    ended_ = true;
    return;
  }
  const std::string& bytes = vocabulary.bytes(token);
  if (ended_ || bytes.empty()) refuse();
  JsonState state = state_, next;
  for (const char c : bytes) {
    if (!shared_->automaton.Step(state, static_cast<uint8_t>(c), next)) refuse();
    std::swap(state, next);
  }
  state_ = std::move(state);
}

std::unique_ptr<TokenConstraint> JsonConstraint::Clone() const {
  std::unique_ptr<JsonConstraint> copy(new JsonConstraint(shared_));
  copy->state_ = state_;
  copy->ended_ = ended_;
  return copy;
}

}  // namespace strata
