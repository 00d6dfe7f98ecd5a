#include "server/selection_store.h"

#include <map>
#include <utility>

namespace strata {

void SelectionStore::Keep(const std::string& id, WatchedAnswer answer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  kept_.emplace_front(id, std::make_shared<const WatchedAnswer>(std::move(answer)));
  if (kept_.size() > kKept) kept_.pop_back();
}

nlohmann::ordered_json SelectionStore::Find(const std::string& id,
                                            const Tokenizer& tokenizer) const {
  using Json = nlohmann::ordered_json;
  std::shared_ptr<const WatchedAnswer> answer;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [name, kept] : kept_) {
      if (name == id) answer = kept;
    }
  }
  if (!answer) return nullptr;
  Json pieces = Json::array();
  for (int32_t token : answer->tokens) pieces.push_back(tokenizer.TokenBytes(token));
  std::map<int64_t, Json> steps;
  for (const TokenSelection& step : answer->steps) {
    for (const TokenSelection::Layer& layer : step.layers) {
      Json& list = steps.try_emplace(layer.layer, Json::array()).first->second;
      list.push_back({{"position", step.position}, {"ids", layer.ids}});
    }
  }
  Json layers = Json::array();
  for (auto& [layer, list] : steps)
    layers.push_back({{"layer", layer}, {"steps", std::move(list)}});
  return {{"id", id},
          {"prompt_tokens", answer->prompt_tokens},
          {"pieces", std::move(pieces)},
          {"layers", std::move(layers)}};
}

}  // namespace strata
