// JSON schemas, compiled to what a model may write.
//
// Every text that the compiled form lets through is valid under the schema; a schema that cannot be
// enforced exactly is refused. Where JSON Schema leaves a choice of writing, one is taken:
// - properties come in the order in which `properties` lists them, then names of `required` that it
//   lacks, then additional ones. No name comes twice. An additional name is none of the listed
//   ones; while it could still become one, it has neither \u nor \/ in it;
// - an object with `properties` and no `additionalProperties` gets no additional ones;
// - constraints without `type` imply their type: {"minLength": 1} is a string;
// - values of `enum` and `const` are written without needless escapes, numbers as they print;
//   integers have no point and no exponent; numbers are bounded as json_scalars.h says;
// - nesting ends at kMaxJsonNesting.
//
// Enforced: type (also lists), enum, const, properties, required, additionalProperties, items,
// prefixItems, minItems, maxItems, minLength and maxLength (code points), minimum, maximum,
// exclusiveMinimum, exclusiveMaximum, anyOf, oneOf whose alternatives exclude each other, $ref
// inside the schema (also recursive), allOf of one entry, nullable beside type, true and false.
// Annotations, `format` among them as JSON Schema has it, ask nothing. Any other keyword is refused
// by name.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

#include "models/json.h"
#include "models/json_scalars.h"
#include "models/json_trie.h"

namespace strata {

constexpr int kMaxJsonNesting = kJsonDepth;
constexpr int kMaxJsonAlternatives = 64;  // shapes that one value may have at once
constexpr int64_t kJsonUnlimited = INT64_MAX;

// A value's alternatives are a union of shapes. Indices below name shapes or unions of one
// JsonSchema.
struct JsonLiterals {  // scalars, each as its JSON text
  JsonTrie texts;
  std::vector<std::string> list;
};
struct JsonString {
  int64_t min_length = 0, max_length = kJsonUnlimited;  // code points
};
struct JsonObject {
  struct Property {
    std::string name;  // as it stands between the quotes
    uint32_t value = 0;
    bool required = false;
  };
  std::vector<Property> properties;     // in the order in which they are written
  JsonTrie names;                       // name -> index of `properties`
  std::vector<uint32_t> next_required;  // [properties + 1]: the first required one from here on
  uint32_t additional = 0;              // the union of all other properties; empty: none may come
  bool unstated = false;                // the schema does not say whether others may come
};
struct JsonArray {
  std::vector<uint32_t> prefix;  // the union of each of the first items
  uint32_t items = 0;            // of all others
  int64_t min_items = 0, max_items = kJsonUnlimited;

  uint32_t Item(int64_t index) const {
    return index < static_cast<int64_t>(prefix.size()) ? prefix[static_cast<size_t>(index)] : items;
  }
};
struct JsonShape {
  std::variant<JsonLiterals, JsonString, JsonNumberRange, JsonObject, JsonArray> what;
  int nesting = 0;  // objects and lists that its flattest value nests; 0 for scalars
};
struct JsonUnion {
  std::vector<uint32_t> shapes;  // ascending; empty: no value is valid
  int nesting = 0;               // the least of its shapes'
  bool implied_type = false;     // the schema names no type, so it allows more than is written
};

// Immutable and thread-safe.
class JsonSchema {
 public:
  // `path` names the schema in messages: "response_format.json_schema.schema". Fail(kUsage) names
  // the place and the keyword: what cannot be enforced, what is malformed, what no finite value
  // satisfies, what is too large (names, literals and shapes; alternatives at one place).
  static JsonSchema Compile(const nlohmann::ordered_json& schema, const std::string& path);
  // response_format json_object.
  static JsonSchema AnyObject();

  const JsonShape& shape(uint32_t index) const { return shapes_[index]; }
  const JsonUnion& alternatives(uint32_t index) const { return unions_[index]; }
  uint32_t root() const { return root_; }

 private:
  friend class JsonSchemaCompiler;
  std::vector<JsonShape> shapes_;
  std::vector<JsonUnion> unions_;
  uint32_t root_ = 0;
};

}  // namespace strata
