#include "models/json_schema_compiler.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "kernels/status.h"

namespace strata {

using nlohmann::ordered_json;

namespace {

constexpr size_t kMaxElements = 50000;         // shapes, properties and literals
constexpr size_t kMaxBytes = size_t{1} << 18;  // of names and literals
constexpr int64_t kMaxCount = int64_t{1} << 53;

const ordered_json* Find(const JsonKeywords& keywords, const char* name) {
  const auto found = keywords.others.find(name);
  return found == keywords.others.end() ? nullptr : found->second.value;
}

int64_t CountOr(const JsonKeywords& keywords, const char* name, int64_t fallback) {
  const auto found = keywords.others.find(name);
  if (found == keywords.others.end()) return fallback;
  const ordered_json& value = *found->second.value;
  const double number = value.is_number() ? value.get<double>() : -1.0;
  const int64_t count =
      number >= 0 && number <= static_cast<double>(kMaxCount) ? static_cast<int64_t>(number) : -1;
  if (count < 0 || static_cast<double>(count) != number) {
    RefuseKeyword(found->second.path, name,
                  fmt::format("is {}, a whole number from 0 to 2^53 is needed", ShortJson(value)));
  }
  return count;
}

// A bound in units of 10^-15. `whole`: of integers.
JsonDecimal Bound(const JsonKeyword& keyword, const std::string& name, bool whole) {
  const ordered_json& value = *keyword.value;
  if (!value.is_number())
    RefuseKeyword(keyword.path, name, fmt::format("is {}, a number is needed", ShortJson(value)));
  bool exact = true;
  JsonDecimal units = 0;
  if (value.is_number_unsigned()) {
    units = JsonDecimal{value.get<uint64_t>()} * kJsonDecimalOne;
  } else if (value.is_number_integer()) {
    units = JsonDecimal{value.get<int64_t>()} * kJsonDecimalOne;
  } else {
    // The shortest decimal that reads as this double is what the schema's author wrote.
    const std::string text = value.dump();
    const size_t exponent_at = std::min(text.find('e'), text.size());
    int places = exponent_at < text.size() ? std::stoi(text.substr(exponent_at + 1)) : 0;
    places += kJsonDecimalPlaces;
    bool point = false;
    for (const char c : text.substr(0, exponent_at)) {
      if (c == '.') point = true;
      if (c < '0' || c > '9') continue;
      units = units * 10 + (c - '0');
      places -= point;
    }
    for (; places > 0 && units != 0 && units < kJsonDecimalInfinity; --places) units *= 10;
    for (; places < 0 && units != 0; ++places) {
      exact = exact && units % 10 == 0;
      units /= 10;
    }
    if (text[0] == '-') units = -units;
  }
  const JsonDecimal limit = kJsonDecimalOne * (whole ? JsonDecimal{UINT64_MAX} : kJsonDecimalOne);
  if (!exact || units > limit || units < -limit) {
    RefuseKeyword(keyword.path, name,
                  fmt::format("is {}, which cannot be enforced exactly; bounds have at most 15 "
                              "digits on each side of the point",
                              ShortJson(value)));
  }
  return units;
}

JsonNumberRange RangeOf(const JsonKeywords& keywords, bool integer) {
  JsonNumberRange range{.integer = integer};
  for (const auto& [name, keyword] : keywords.others) {
    if (name == "minimum") range.low = std::max(range.low, Bound(keyword, name, integer));
    if (name == "maximum") range.high = std::min(range.high, Bound(keyword, name, integer));
    if (name == "exclusiveMinimum")
      range.low = std::max(range.low, Bound(keyword, name, integer) + 1);
    if (name == "exclusiveMaximum")
      range.high = std::min(range.high, Bound(keyword, name, integer) - 1);
  }
  return range;
}

void CheckCount(size_t alternatives, const std::string& path) {
  if (alternatives > kMaxJsonAlternatives) {
    Fail(ErrorCode::kUsage, fmt::format("{}: more than {} alternatives for one value cannot be "
                                        "served (strings and numbers of an enum count as one)",
                                        path, kMaxJsonAlternatives));
  }
}

uint32_t ImpliedTypes(const JsonKeywords& keywords) {
  uint32_t types = 0;
  if (!keywords.properties.empty() || !keywords.required.empty()) types |= kJsonObject;
  for (const auto& [name, keyword] : keywords.others) {
    if (name == "additionalProperties") types |= kJsonObject;
    if (name == "items" || name == "prefixItems" || name == "minItems" || name == "maxItems")
      types |= kJsonArray;
    if (name == "minLength" || name == "maxLength") types |= kJsonString;
    if (name == "minimum" || name == "maximum" || name == "exclusiveMinimum" ||
        name == "exclusiveMaximum")
      types |= kJsonNumber;
  }
  return types;
}

uint32_t TypeOfValue(const ordered_json& value) {
  if (value.is_null()) return kJsonNull;
  if (value.is_boolean()) return kJsonBoolean;
  if (value.is_object()) return kJsonObject;
  if (value.is_array()) return kJsonArray;
  if (value.is_string()) return kJsonString;
  if (value.is_number_integer()) return kJsonInteger;
  const double number = value.get<double>();
  return number == static_cast<double>(static_cast<int64_t>(std::clamp(number, -9e18, 9e18)))
             ? kJsonInteger
             : kJsonFraction;
}

}  // namespace

void JsonSchemaCompiler::Pieces::Add(const Pieces& more) {
  shapes.insert(shapes.end(), more.shapes.begin(), more.shapes.end());
  std::sort(shapes.begin(), shapes.end());
  shapes.erase(std::unique(shapes.begin(), shapes.end()), shapes.end());
  literals.insert(literals.end(), more.literals.begin(), more.literals.end());
  implied_type = implied_type || more.implied_type;
}

JsonSchemaCompiler::JsonSchemaCompiler(const ordered_json& root, std::string path)
    : reader_(root, path), root_(root), path_(std::move(path)) {
  no_union_ = AddUnion({}, path_);
  any_union_ = static_cast<uint32_t>(schema_.unions_.size());
  schema_.unions_.emplace_back();
  JsonObject object;
  object.additional = any_union_;
  object.next_required = {0};
  any_object_ = AddShape({.what = std::move(object)});
  any_.shapes = {any_object_, AddShape({.what = JsonArray{.prefix = {}, .items = any_union_}}),
                 AddShape({.what = JsonString{}}), AddShape({.what = JsonNumberRange{}})};
  any_.literals = {"false", "null", "true"};
  schema_.unions_[any_union_] = Finish(any_, path_);
}

void JsonSchemaCompiler::Charge(size_t elements, size_t bytes, const std::string& path) {
  elements_ += elements;
  bytes_ += bytes;
  if (elements_ > kMaxElements || bytes_ > kMaxBytes) {
    Fail(ErrorCode::kUsage,
         fmt::format("{}: the schema is too large: with references followed, at most {} types, "
                     "properties and literals of {} bytes in all are accepted",
                     path, kMaxElements, kMaxBytes));
  }
}

std::string JsonSchemaCompiler::Spell(const ordered_json& value, const std::string& path) {
  try {
    std::string text = value.dump();
    Charge(1, text.size(), path);
    return text;
  } catch (const ordered_json::exception&) {
    Fail(ErrorCode::kUsage, fmt::format("{}: {} is not UTF-8", path, ShortJson(value)));
  }
}

uint32_t JsonSchemaCompiler::AddShape(JsonShape shape) {
  Charge(1, 0, path_);
  schema_.shapes_.push_back(std::move(shape));
  return static_cast<uint32_t>(schema_.shapes_.size() - 1);
}

JsonUnion JsonSchemaCompiler::Finish(const Pieces& pieces, const std::string& path) {
  JsonUnion result{.shapes = pieces.shapes, .implied_type = pieces.implied_type};
  std::vector<std::string> literals = pieces.literals;
  std::sort(literals.begin(), literals.end());
  literals.erase(std::unique(literals.begin(), literals.end()), literals.end());
  if (!literals.empty()) {
    const auto found = literal_shapes_.find(literals);
    uint32_t shape = 0;
    if (found != literal_shapes_.end()) {
      shape = found->second;
    } else {
      JsonLiterals made{.texts = {}, .list = literals};
      for (size_t i = 0; i < literals.size(); ++i) {
        Charge(1, literals[i].size(), path);
        made.texts.Add(literals[i], static_cast<uint32_t>(i));
      }
      shape = AddShape({.what = std::move(made)});
      literal_shapes_.emplace(literals, shape);
    }
    result.shapes.push_back(shape);
    std::sort(result.shapes.begin(), result.shapes.end());
  }
  CheckCount(result.shapes.size(), path);
  return result;
}

uint32_t JsonSchemaCompiler::AddUnion(const Pieces& pieces, const std::string& path) {
  schema_.unions_.push_back(Finish(pieces, path));
  return static_cast<uint32_t>(schema_.unions_.size() - 1);
}

uint32_t JsonSchemaCompiler::UnionOf(const ordered_json& schema, const std::string& path) {
  if (schema == true || (schema.is_object() && schema.empty())) return any_union_;
  if (schema == false) return no_union_;
  const auto [place, fresh] =
      unions_by_schema_.emplace(&schema, static_cast<uint32_t>(schema_.unions_.size()));
  if (fresh) {
    Charge(1, 0, path);
    schema_.unions_.emplace_back();
    waiting_.push_back({&schema, path, place->second});
  }
  return place->second;
}

JsonSchemaCompiler::Pieces JsonSchemaCompiler::Expand(const ordered_json& schema,
                                                      const std::string& path,
                                                      const JsonKeywords* also) {
  Charge(1, 0, path);
  if (also == nullptr) {
    const auto known = pieces_by_schema_.find(&schema);
    if (known != pieces_by_schema_.end()) return known->second;
  }
  const JsonKeywordReader::Inside inside(reader_, schema, path);
  if (also != nullptr) {
    JsonKeywords keywords = reader_.Read(schema, path);
    keywords.And(*also);
    return ExpandKeywords(std::move(keywords), path);
  }
  const JsonKeywordReader::Place alias = reader_.Alias(schema, path);
  Pieces pieces = alias.schema != nullptr ? Expand(*alias.schema, alias.path, nullptr)
                                          : ExpandKeywords(reader_.Read(schema, path), path);
  pieces_by_schema_.emplace(&schema, pieces);
  return pieces;
}

JsonSchemaCompiler::Pieces JsonSchemaCompiler::ExpandKeywords(JsonKeywords keywords,
                                                              const std::string& path) {
  if (keywords.never) return {};
  const bool any_of = keywords.others.contains("anyOf");
  const auto one_of = keywords.others.find("oneOf");
  if (any_of && one_of != keywords.others.end())
    RefuseKeyword(one_of->second.path, "oneOf", "cannot be enforced beside anyOf");
  if (any_of) return ExpandAlternatives(std::move(keywords), "anyOf");
  if (one_of != keywords.others.end()) return ExpandAlternatives(std::move(keywords), "oneOf");
  if (keywords.others.contains("enum") || keywords.others.contains("const"))
    return ExpandValues(keywords, path);
  return ExpandTypes(keywords, path);
}

JsonSchemaCompiler::Pieces JsonSchemaCompiler::ExpandAlternatives(JsonKeywords keywords,
                                                                  const std::string& keyword) {
  const JsonKeyword list = keywords.others.at(keyword);
  keywords.others.erase(keyword);
  if (!list.value->is_array() || list.value->empty())
    RefuseKeyword(list.path, keyword, "needs a list of one schema or more");
  Pieces pieces;
  Exclusive exclusive{.path = list.path, .unions = {}};
  if (keyword == "oneOf" && list.value->size() > kMaxJsonAlternatives) {
    RefuseKeyword(list.path, keyword,
                  fmt::format("has {} alternatives, at most {} are served", list.value->size(),
                              kMaxJsonAlternatives));
  }
  for (size_t i = 0; i < list.value->size(); ++i) {
    const std::string place = fmt::format("{}.{}[{}]", list.path, keyword, i);
    const Pieces more =
        Expand((*list.value)[i], place, keywords.Constrains() ? &keywords : nullptr);
    pieces.Add(more);
    Charge(more.shapes.size() + more.literals.size(), 0, list.path);
    CheckCount(pieces.shapes.size(), list.path);
    if (keyword == "oneOf") exclusive.unions.push_back(AddUnion(more, place));
  }
  if (exclusive.unions.size() > 1) exclusive_.push_back(std::move(exclusive));
  return pieces;
}

JsonSchemaCompiler::Pieces JsonSchemaCompiler::ExpandValues(const JsonKeywords& keywords,
                                                            const std::string& path) {
  const bool is_enum = keywords.others.contains("enum");
  const char* name = is_enum ? "enum" : "const";
  std::string neighbour;
  if (!keywords.properties.empty()) neighbour = "properties";
  if (!keywords.required.empty()) neighbour = "required";
  for (const auto& [other, keyword] : keywords.others) {
    if (other != name) neighbour = other;
  }
  if (!neighbour.empty())
    RefuseKeyword(path, neighbour, fmt::format("beside '{}' cannot be enforced", name));
  const ordered_json& value = *keywords.others.at(name).value;
  if (is_enum && !value.is_array())
    RefuseKeyword(path, name, fmt::format("is {}, a list is needed", ShortJson(value)));
  Pieces pieces;
  const size_t count = is_enum ? value.size() : 1;
  for (size_t i = 0; i < count; ++i) {
    const ordered_json& one = is_enum ? value[i] : value;
    if ((TypeOfValue(one) & keywords.types) != 0) pieces.Add(PieceOf(one, path + "." + name, 0));
    CheckCount(pieces.shapes.size(), path);
  }
  return pieces;
}

// The shape of exactly this value.
JsonSchemaCompiler::Pieces JsonSchemaCompiler::PieceOf(const ordered_json& value,
                                                       const std::string& path, int depth) {
  Pieces pieces;
  if (depth > kMaxJsonNesting)
    Fail(ErrorCode::kUsage, fmt::format("{} is nested deeper than {}", path, kMaxJsonNesting));
  if (value.is_object()) {
    JsonObject object;
    object.additional = no_union_;
    for (const auto& [name, member] : value.items())
      ListProperty(object, name, AddUnion(PieceOf(member, path, depth + 1), path), true, path);
    object.next_required.resize(object.properties.size() + 1);
    for (size_t i = 0; i <= object.properties.size(); ++i)
      object.next_required[i] = static_cast<uint32_t>(i);
    pieces.shapes.push_back(AddShape({.what = std::move(object)}));
  } else if (value.is_array()) {
    JsonArray array{.prefix = {}, .items = no_union_};
    for (const ordered_json& item : value)
      array.prefix.push_back(AddUnion(PieceOf(item, path, depth + 1), path));
    array.min_items = array.max_items = static_cast<int64_t>(value.size());
    pieces.shapes.push_back(AddShape({.what = std::move(array)}));
  } else {
    pieces.literals.push_back(Spell(value, path));
  }
  return pieces;
}

JsonSchemaCompiler::Pieces JsonSchemaCompiler::ExpandTypes(const JsonKeywords& keywords,
                                                           const std::string& path) {
  uint32_t types = keywords.types;
  Pieces pieces;
  if (!keywords.typed) {
    const uint32_t implied = ImpliedTypes(keywords);
    if (implied == 0) return any_;
    types &= implied;
    pieces.implied_type = true;
  }
  if ((types & kJsonNull) != 0) pieces.literals.push_back("null");
  if ((types & kJsonBoolean) != 0) pieces.literals.insert(pieces.literals.end(), {"false", "true"});
  if ((types & kJsonObject) != 0) {
    const bool plain = keywords.properties.empty() && keywords.required.empty() &&
                       Find(keywords, "additionalProperties") == nullptr;
    pieces.shapes.push_back(plain ? any_.shapes[0] : AddShape({.what = ObjectOf(keywords, path)}));
  }
  if ((types & kJsonArray) != 0) {
    JsonArray array = ArrayOf(keywords, path);
    const bool plain = array.prefix.empty() && array.items == any_union_ && array.min_items == 0 &&
                       array.max_items == kJsonUnlimited;
    pieces.shapes.push_back(plain ? any_.shapes[1] : AddShape({.what = std::move(array)}));
  }
  if ((types & kJsonString) != 0) {
    const JsonString text{.min_length = CountOr(keywords, "minLength", 0),
                          .max_length = CountOr(keywords, "maxLength", kJsonUnlimited)};
    const bool plain = text.min_length == 0 && text.max_length == kJsonUnlimited;
    pieces.shapes.push_back(plain ? any_.shapes[2] : AddShape({.what = text}));
  }
  if ((types & kJsonInteger) != 0) {
    const JsonNumberRange range = RangeOf(keywords, (types & kJsonFraction) == 0);
    const bool plain = !range.integer && !range.bounded();
    pieces.shapes.push_back(plain ? any_.shapes[3] : AddShape({.what = range}));
  }
  std::sort(pieces.shapes.begin(), pieces.shapes.end());
  return pieces;
}

void JsonSchemaCompiler::ListProperty(JsonObject& object, const std::string& name, uint32_t value,
                                      bool required, const std::string& path) {
  const std::string quoted = Spell(name, path);
  object.properties.push_back({quoted.substr(1, quoted.size() - 2), value, required});
  object.names.Add(object.properties.back().name,
                   static_cast<uint32_t>(object.properties.size() - 1));
}

JsonObject JsonSchemaCompiler::ObjectOf(const JsonKeywords& keywords, const std::string& path) {
  JsonObject object;
  const ordered_json* additional = Find(keywords, "additionalProperties");
  object.unstated = additional == nullptr;
  uint32_t others = any_union_;  // what the schema says about unlisted properties
  if (additional != nullptr) {
    others = UnionOf(*additional,
                     keywords.others.at("additionalProperties").path + ".additionalProperties");
  }
  object.additional = object.unstated && !keywords.properties.empty() ? no_union_ : others;

  std::vector<std::string> required;
  std::set<std::string> required_set, listed;
  for (const JsonKeyword& keyword : keywords.required) {
    if (!keyword.value->is_array())
      RefuseKeyword(keyword.path, "required", "needs a list of names");
    for (const ordered_json& name : *keyword.value) {
      if (!name.is_string()) RefuseKeyword(keyword.path, "required", "needs a list of names");
      if (required_set.insert(name.get<std::string>()).second)
        required.push_back(name.get<std::string>());
    }
  }
  for (const JsonKeyword& keyword : keywords.properties) {
    if (!keyword.value->is_object())
      RefuseKeyword(keyword.path, "properties", "needs an object of schemas");
    for (const auto& [name, schema] : keyword.value->items()) {
      const std::string place = JsonPath(keyword.path + ".properties", name);
      if (!listed.insert(name).second) {
        Fail(ErrorCode::kUsage, fmt::format("{}: the property stands in two schemas that both "
                                            "apply; they cannot be combined",
                                            place));
      }
      ListProperty(object, name, UnionOf(schema, place), required_set.contains(name), place);
    }
  }
  for (const std::string& name : required) {
    if (!listed.contains(name)) ListProperty(object, name, others, true, path);
  }
  const size_t count = object.properties.size();
  object.next_required.assign(count + 1, static_cast<uint32_t>(count));
  for (size_t i = count; i-- > 0;) {
    object.next_required[i] =
        object.properties[i].required ? static_cast<uint32_t>(i) : object.next_required[i + 1];
  }
  return object;
}

JsonArray JsonSchemaCompiler::ArrayOf(const JsonKeywords& keywords, const std::string& path) {
  JsonArray array{.prefix = {},
                  .items = any_union_,
                  .min_items = CountOr(keywords, "minItems", 0),
                  .max_items = CountOr(keywords, "maxItems", kJsonUnlimited)};
  if (const ordered_json* prefix = Find(keywords, "prefixItems")) {
    const std::string& place = keywords.others.at("prefixItems").path;
    if (!prefix->is_array()) RefuseKeyword(place, "prefixItems", "needs a list of schemas");
    Charge(prefix->size(), 0, path);
    for (size_t i = 0; i < prefix->size(); ++i)
      array.prefix.push_back(UnionOf((*prefix)[i], fmt::format("{}.prefixItems[{}]", place, i)));
  }
  if (const ordered_json* items = Find(keywords, "items")) {
    const std::string& place = keywords.others.at("items").path;
    if (items->is_array()) RefuseKeyword(place, "items", "is a list; write it as prefixItems");
    array.items = UnionOf(*items, place + ".items");
  }
  return array;
}

JsonSchema JsonSchemaCompiler::Compile() {
  schema_.root_ = UnionOf(root_, path_);
  while (!waiting_.empty()) {
    const Waiting next = std::move(waiting_.front());
    waiting_.pop_front();
    JsonUnion made = Finish(Expand(*next.schema, next.path, nullptr), next.path);
    schema_.unions_[next.index] = std::move(made);
  }
  FindNesting();
  CheckExclusive();
  CheckAlternatives();
  return std::move(schema_);
}

JsonSchema JsonSchemaCompiler::AnyObject() {
  schema_.root_ = AddUnion({.shapes = {any_object_}, .literals = {}}, path_);
  FindNesting();
  return std::move(schema_);
}

JsonSchema JsonSchema::Compile(const ordered_json& schema, const std::string& path) {
  return JsonSchemaCompiler(schema, path).Compile();
}

JsonSchema JsonSchema::AnyObject() {
  const ordered_json any = true;
  return JsonSchemaCompiler(any, "").AnyObject();
}

}  // namespace strata
