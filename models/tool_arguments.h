// From the text of a tool call's argument to JSON, by the tool's schema.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>

#include <nlohmann/json.hpp>

#include "models/json_places.h"

namespace strata {

// The kinds of JSON value a schema allows, as bits.
enum JsonKind : uint8_t {
  kJsonString = 1,
  kJsonInteger = 2,
  kJsonNumber = 4,
  kJsonBoolean = 8,
  kJsonNull = 16,
  kJsonObject = 32,
  kJsonArray = 64,
};

// The kinds that the schemas of one document allow. What many of them refer to is looked at once.
class SchemaKinds {
 public:
  explicit SchemaKinds(const nlohmann::ordered_json& root) : places_(root) {}

  // 0 where the schema does not say.
  uint8_t Of(const nlohmann::ordered_json& schema);

 private:
  uint8_t Of(const nlohmann::ordered_json& schema, int depth, int& steps);
  uint8_t OfReference(const nlohmann::ordered_json& reference, int depth, int& steps);

  JsonPlaces places_;
  std::unordered_map<const nlohmann::ordered_json*, uint8_t> known_;  // what references lead to
};

// The tools of one request: their names and what their parameters may be.
class ToolArguments {
 public:
  // `tools`: OpenAI's list ([{"type": "function", "function": {"name", "parameters"}}]) or null.
  // Entries of other shapes are passed over: checking a request is its reader's work.
  explicit ToolArguments(const nlohmann::ordered_json& tools);

  bool empty() const { return tools_.empty(); }
  bool Has(const std::string& tool) const { return tools_.contains(tool); }

  // The value as JSON text. A parameter that can only be a string is `text` as it stands. Others
  // are `text` when it is JSON as ParseJson reads it (of an allowed kind, where a string is allowed
  // too), else the string.
  std::string Json(const std::string& tool, const std::string& parameter,
                   std::string_view text) const;

 private:
  using Kinds = std::map<std::string, uint8_t>;  // by parameter; absent: nothing is known
  std::map<std::string, Kinds> tools_;
};

// The text as a JSON string.
std::string JsonString(std::string_view text);
// The text itself, without the white space around it, when it is JSON as ParseJson reads it; else
// the text as a string.
std::string JsonOrString(std::string_view text);

}  // namespace strata
