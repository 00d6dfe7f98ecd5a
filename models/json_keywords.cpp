#include "models/json_keywords.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "kernels/status.h"
#include "models/json.h"

namespace strata {

using nlohmann::ordered_json;

namespace {

constexpr size_t kMaxSteps = 64;

bool Among(const std::string& name, const auto& list) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

constexpr auto kConstraints = std::to_array<std::string_view>(
    {"additionalProperties", "enum", "const", "items", "prefixItems", "minItems", "maxItems",
     "minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
     "anyOf", "oneOf"});

// What JSON Schema (or OpenAPI) defines as a remark, and what only holds definitions.
constexpr auto kAnnotations = std::to_array<std::string_view>(
    {"title", "description", "default", "example", "examples", "$schema", "$comment", "format",
     "deprecated", "readOnly", "writeOnly", "contentEncoding", "contentMediaType", "discriminator",
     "$defs", "definitions"});

// Known keywords that constrain and are not enforced.
constexpr auto kNotEnforced = std::to_array<std::string_view>({"pattern",
                                                               "patternProperties",
                                                               "propertyNames",
                                                               "minProperties",
                                                               "maxProperties",
                                                               "uniqueItems",
                                                               "contains",
                                                               "minContains",
                                                               "maxContains",
                                                               "multipleOf",
                                                               "not",
                                                               "if",
                                                               "then",
                                                               "else",
                                                               "dependentRequired",
                                                               "dependentSchemas",
                                                               "dependencies",
                                                               "additionalItems",
                                                               "unevaluatedItems",
                                                               "unevaluatedProperties",
                                                               "contentSchema",
                                                               "$anchor",
                                                               "$dynamicAnchor",
                                                               "$dynamicRef",
                                                               "$recursiveRef",
                                                               "$recursiveAnchor",
                                                               "$vocabulary"});

// Says nothing about a value.
bool IsAnnotation(const std::string& name, const ordered_json& value) {
  if (Among(name, kAnnotations) || name.starts_with("x-")) return true;
  return (name == "uniqueItems" || name == "nullable") && value == false;
}

uint32_t TypeOf(const ordered_json& name, const std::string& path) {
  static const std::map<std::string, uint32_t> types = {
      {"null", kJsonNull},     {"boolean", kJsonBoolean}, {"object", kJsonObject},
      {"array", kJsonArray},   {"string", kJsonString},   {"integer", kJsonInteger},
      {"number", kJsonNumber},
  };
  const auto found = name.is_string() ? types.find(name.get<std::string>()) : types.end();
  if (found == types.end()) {
    RefuseKeyword(path, "type",
                  fmt::format("is {}; null, boolean, object, array, string, integer and number "
                              "are the types",
                              ShortJson(name)));
  }
  return found->second;
}

uint32_t ReadTypes(const ordered_json& value, const std::string& path) {
  if (!value.is_array()) return TypeOf(value, path);
  uint32_t types = 0;
  for (const ordered_json& name : value) types |= TypeOf(name, path);
  if (types == 0) RefuseKeyword(path, "type", "is an empty list");
  return types;
}

}  // namespace

std::string JsonPath(const std::string& path, const std::string& name) {
  const bool plain =
      !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), [](char c) {
        return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
               c == '_' || c == '-' || c == '$';
      });
  return plain ? path + "." + name : fmt::format("{}[{}]", path, ShortJson(name));
}

void RefuseKeyword(const std::string& path, const std::string& keyword, const std::string& why) {
  Fail(ErrorCode::kUsage, fmt::format("{}: '{}' {}", path, keyword, why));
}

bool JsonKeywords::Constrains() const {
  return never || typed || !properties.empty() || !required.empty() || !others.empty();
}

void JsonKeywords::And(const JsonKeywords& more) {
  never = never || more.never;
  typed = typed || more.typed;
  types &= more.types;
  properties.insert(properties.end(), more.properties.begin(), more.properties.end());
  required.insert(required.end(), more.required.begin(), more.required.end());
  for (const auto& [name, keyword] : more.others) {
    const auto [place, fresh] = others.emplace(name, keyword);
    if (!fresh) {
      RefuseKeyword(
          keyword.path, name,
          fmt::format("cannot be combined with that of {}, which also applies here",
                      place->second.path == keyword.path ? "the same schema" : place->second.path));
    }
  }
  // These speak about what their own neighbours leave over, not about the union of all.
  const auto additional = others.find("additionalProperties");
  if (additional != others.end() && *additional->second.value != true) {
    for (const JsonKeyword& listed : properties) {
      if (listed.source != additional->second.source) {
        RefuseKeyword(
            additional->second.path, "additionalProperties",
            fmt::format("cannot be combined with the properties of {}, which also apply here",
                        listed.path));
      }
    }
  }
  const auto items = others.find("items"), prefix = others.find("prefixItems");
  if (items != others.end() && prefix != others.end() &&
      items->second.source != prefix->second.source) {
    RefuseKeyword(items->second.path, "items",
                  fmt::format("cannot be combined with the prefixItems of {}, which also apply "
                              "here",
                              prefix->second.path));
  }
}

JsonKeywordReader::Inside::Inside(JsonKeywordReader& reader, const ordered_json& schema,
                                  const std::string& path)
    : reader_(reader) {
  std::vector<const ordered_json*>& inside = reader.inside_;
  if (std::find(inside.begin(), inside.end(), &schema) != inside.end()) {
    Fail(ErrorCode::kUsage,
         fmt::format("{}: the schema leads to itself without a value in between", path));
  }
  if (inside.size() >= kMaxSteps) {
    Fail(ErrorCode::kUsage,
         fmt::format("{}: more than {} references and alternatives lead here", path, kMaxSteps));
  }
  inside.push_back(&schema);
}

JsonKeywordReader::Place JsonKeywordReader::Follow(const ordered_json& reference,
                                                   const std::string& path) {
  const std::string text = reference.is_string() ? reference.get<std::string>() : "";
  if (!JsonPlaces::IsReference(text)) {
    RefuseKeyword(path, "$ref",
                  fmt::format("is {}; only references into this schema, such as \"#/$defs/name\", "
                              "can be followed",
                              ShortJson(reference)));
  }
  std::vector<std::string> names;
  Place place{places_.Find(text, names), root_path_};
  if (place.schema == nullptr) {
    RefuseKeyword(path, "$ref",
                  fmt::format("is {}, which is not in the schema", ShortJson(reference)));
  }
  for (const std::string& name : names) place.path = JsonPath(place.path, name);
  return place;
}

JsonKeywordReader::Place JsonKeywordReader::OnlyEntry(const ordered_json& all_of,
                                                      const std::string& path) const {
  if (!all_of.is_array() || all_of.size() != 1)
    RefuseKeyword(path, "allOf", "cannot be enforced unless it is a list of one schema");
  return {&all_of[0], path + ".allOf[0]"};
}

JsonKeywordReader::Place JsonKeywordReader::Alias(const ordered_json& schema,
                                                  const std::string& path) {
  Place place;
  if (!schema.is_object()) return place;
  for (const auto& [name, value] : schema.items()) {
    if (name == "$ref" || name == "allOf") {
      if (place.schema != nullptr) return {};
      place = name == "$ref" ? Follow(value, path) : OnlyEntry(value, path);
    } else if (!IsAnnotation(name, value)) {
      return {};
    }
  }
  return place;
}

JsonKeywords JsonKeywordReader::Read(const ordered_json& schema, const std::string& path) {
  JsonKeywords keywords;
  if (schema.is_boolean()) {
    keywords.never = schema == false;
    return keywords;
  }
  if (!schema.is_object()) {
    Fail(ErrorCode::kUsage,
         fmt::format("{} is {}; a schema is an object, true or false", path, ShortJson(schema)));
  }
  const int source = ++sources_;
  std::vector<Place> more;
  for (const auto& [name, value] : schema.items()) {
    const JsonKeyword keyword{&value, path, source};
    if (IsAnnotation(name, value)) continue;
    if (name == "type") {
      keywords.typed = true;
      keywords.types = ReadTypes(value, path);
    } else if (name == "properties") {
      keywords.properties.push_back(keyword);
    } else if (name == "required") {
      keywords.required.push_back(keyword);
    } else if (name == "$ref") {
      more.push_back(Follow(value, path));
    } else if (name == "allOf") {
      more.push_back(OnlyEntry(value, path));
    } else if (name == "nullable") {
      if (value != true) RefuseKeyword(path, name, "is neither true nor false");
      if (!schema.contains("type"))
        RefuseKeyword(path, name, "only has a meaning beside 'type'; use anyOf with null");
    } else if (name == "$id" || name == "id") {
      if (&schema != &root_)
        RefuseKeyword(path, name, "cannot be enforced below the top of the schema");
    } else if (Among(name, kConstraints)) {
      keywords.others.emplace(name, keyword);
    } else if (Among(name, kNotEnforced)) {
      RefuseKeyword(path, name, "cannot be enforced");
    } else {
      RefuseKeyword(path, ShortJson(name),
                    "is not a keyword of JSON Schema; remarks begin with x-");
    }
  }
  if (keywords.typed && schema.contains("nullable") && schema["nullable"] == true)
    keywords.types |= kJsonNull;
  for (const Place& place : more) {
    const Inside inside(*this, *place.schema, place.path);
    keywords.And(Read(*place.schema, place.path));
  }
  return keywords;
}

}  // namespace strata
