// Places inside one JSON document, by reference.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace strata {

// Finds what references such as "#/$defs/name" (RFC 6901, as the fragment of a URI) name. The
// names of an object are sorted once, so that many references into a wide one need not search it
// each anew. The document must stay as it is.
class JsonPlaces {
 public:
  explicit JsonPlaces(const nlohmann::ordered_json& root) : root_(root) {}

  // "#", or "#/" and more: others lead out of the document or name no place.
  static bool IsReference(std::string_view text);
  // Null: there is nothing. `names` gets those on the way.
  const nlohmann::ordered_json* Find(std::string_view reference, std::vector<std::string>& names);

 private:
  using Members = std::vector<std::pair<std::string_view, const nlohmann::ordered_json*>>;

  const nlohmann::ordered_json* Below(const nlohmann::ordered_json& place, const std::string& name);

  const nlohmann::ordered_json& root_;
  std::unordered_map<const nlohmann::ordered_json*, Members> members_;  // of objects, by name
};

}  // namespace strata
