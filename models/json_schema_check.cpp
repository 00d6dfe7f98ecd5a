// What is decided about a compiled schema as a whole: that values of it exist and how deep they
// nest, that the alternatives of each oneOf exclude each other, how many run side by side.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "kernels/status.h"
#include "models/json_schema_compiler.h"

namespace strata {

namespace {

constexpr int kEndless = kMaxJsonNesting + 1;  // deeper than any accepted text
constexpr size_t kMaxComparisons = 1000000;
constexpr size_t kMaxCombinations = 20000;
constexpr int kExcludesDepth = 8;

class Nesting {
 public:
  explicit Nesting(const std::vector<JsonUnion>& unions) : unions_(unions) {}

  int operator()(const JsonLiterals&) const { return 0; }
  int operator()(const JsonString& text) const {
    return text.min_length <= text.max_length ? 0 : kEndless;
  }
  int operator()(const JsonNumberRange& range) const { return HasNumbers(range) ? 0 : kEndless; }
  int operator()(const JsonObject& object) const {
    int deepest = 0;
    for (const JsonObject::Property& property : object.properties) {
      if (property.required) deepest = std::max(deepest, unions_[property.value].nesting);
    }
    return std::min(kEndless, deepest + 1);
  }
  int operator()(const JsonArray& array) const {
    if (array.min_items > array.max_items) return kEndless;
    int deepest = 0;
    const int64_t prefix = static_cast<int64_t>(array.prefix.size());
    for (int64_t i = 0; i < std::min(array.min_items, prefix); ++i)
      deepest = std::max(deepest, unions_[array.Item(i)].nesting);
    if (array.min_items > prefix) deepest = std::max(deepest, unions_[array.items].nesting);
    return std::min(kEndless, deepest + 1);
  }

 private:
  const std::vector<JsonUnion>& unions_;
};

// The type of value that a literal's text begins: '"', '0' for numbers, else its first letter.
char KindOf(const std::string& literal) {
  return literal[0] == '-' || (literal[0] >= '0' && literal[0] <= '9') ? '0' : literal[0];
}

bool SameValue(const std::string& a, const std::string& b) {
  if (KindOf(a) != '0' || KindOf(b) != '0') return a == b;
  double left = 0, right = 0;
  std::from_chars(a.data(), a.data() + a.size(), left);
  std::from_chars(b.data(), b.data() + b.size(), right);
  return left == right;
}

bool HasKind(const JsonLiterals& literals, char kind) {
  return std::any_of(literals.list.begin(), literals.list.end(),
                     [&](const std::string& text) { return KindOf(text) == kind; });
}

bool HasKindOf(const JsonLiterals& literals, const JsonShape& shape) {
  return (std::holds_alternative<JsonString>(shape.what) && HasKind(literals, '"')) ||
         (std::holds_alternative<JsonNumberRange>(shape.what) && HasKind(literals, '0'));
}

uint32_t ValueOf(const JsonObject& object, const std::string& name) {
  const uint32_t index = object.names.Find(name);
  return index == JsonTrie::kNone ? object.additional : object.properties[index].value;
}

}  // namespace

void JsonSchemaCompiler::FindNesting() {
  for (JsonShape& shape : schema_.shapes_) shape.nesting = kEndless;
  for (JsonUnion& alternatives : schema_.unions_) alternatives.nesting = kEndless;
  // After round n everything is final whose flattest value nests fewer than n.
  bool first = true;
  for (bool changed = true; changed; first = false) {
    changed = false;
    for (JsonShape& shape : schema_.shapes_) {
      const bool nests = std::holds_alternative<JsonObject>(shape.what) ||
                         std::holds_alternative<JsonArray>(shape.what);
      if (first || nests) shape.nesting = std::visit(Nesting(schema_.unions_), shape.what);
    }
    for (JsonUnion& alternatives : schema_.unions_) {
      int least = kEndless;
      for (const uint32_t shape : alternatives.shapes)
        least = std::min(least, schema_.shapes_[shape].nesting);
      changed = changed || least != alternatives.nesting;
      alternatives.nesting = least;
    }
  }
  for (JsonUnion& alternatives : schema_.unions_) {
    std::erase_if(alternatives.shapes,
                  [&](uint32_t shape) { return schema_.shapes_[shape].nesting == kEndless; });
  }
  if (schema_.unions_[schema_.root_].shapes.empty()) {
    Fail(ErrorCode::kUsage,
         fmt::format("{}: no value that nests at most {} deep satisfies the schema", path_,
                     kMaxJsonNesting));
  }
}

void JsonSchemaCompiler::CheckExclusive() {
  for (const Exclusive& one_of : exclusive_) {
    for (size_t i = 0; i < one_of.unions.size(); ++i) {
      for (size_t j = 0; j < one_of.unions.size(); ++j) {
        if (i == j) continue;
        if (!Excludes(schema_.unions_[one_of.unions[i]], schema_.unions_[one_of.unions[j]], 0)) {
          RefuseKeyword(one_of.path, "oneOf",
                        fmt::format("cannot be enforced: a value of alternative {} might satisfy "
                                    "alternative {} too; anyOf allows that",
                                    i, j));
        }
      }
    }
  }
}

// Whether no value that is written for the one is valid under the other. May say no without need.
bool JsonSchemaCompiler::Excludes(const JsonUnion& written, const JsonUnion& valid, int depth) {
  if (written.shapes.empty()) return true;
  if (valid.implied_type || depth > kExcludesDepth) return false;
  for (const uint32_t a : written.shapes) {
    for (const uint32_t b : valid.shapes) {
      if (++comparisons_ > kMaxComparisons) return false;
      if (!Excludes(schema_.shapes_[a], schema_.shapes_[b], depth)) return false;
    }
  }
  return true;
}

bool JsonSchemaCompiler::Excludes(const JsonShape& written, const JsonShape& valid, int depth) {
  const auto* a_literals = std::get_if<JsonLiterals>(&written.what);
  const auto* b_literals = std::get_if<JsonLiterals>(&valid.what);
  if (a_literals != nullptr && b_literals != nullptr) {
    comparisons_ += a_literals->list.size() * b_literals->list.size();
    if (comparisons_ > kMaxComparisons) return false;
    for (const std::string& a : a_literals->list) {
      for (const std::string& b : b_literals->list) {
        if (SameValue(a, b)) return false;
      }
    }
    return true;
  }
  if (a_literals != nullptr) return !HasKindOf(*a_literals, valid);
  if (b_literals != nullptr) return !HasKindOf(*b_literals, written);
  if (written.what.index() != valid.what.index()) return true;
  if (const auto* a = std::get_if<JsonString>(&written.what)) {
    const auto& b = std::get<JsonString>(valid.what);
    return a->max_length < b.min_length || b.max_length < a->min_length;
  }
  if (const auto* a = std::get_if<JsonNumberRange>(&written.what)) {
    const auto& b = std::get<JsonNumberRange>(valid.what);
    return a->high < b.low || b.high < a->low;
  }
  if (const auto* a = std::get_if<JsonArray>(&written.what)) {
    const auto& b = std::get<JsonArray>(valid.what);
    return a->max_items < b.min_items || b.max_items < a->min_items;
  }
  return ExcludesObject(std::get<JsonObject>(written.what), std::get<JsonObject>(valid.what),
                        depth);
}

bool JsonSchemaCompiler::ExcludesObject(const JsonObject& written, const JsonObject& valid,
                                        int depth) {
  // One property tells them apart when one side needs it and the other's value of it cannot be the
  // same, or cannot be at all.
  const auto tells = [&](const std::string& name) {
    ++comparisons_;
    const JsonUnion& here = schema_.unions_[ValueOf(written, name)];
    const bool listed = valid.names.Find(name) != JsonTrie::kNone;
    const JsonUnion& there =
        schema_.unions_[listed || !valid.unstated ? ValueOf(valid, name) : any_union_];
    return Excludes(here, there, depth + 1);
  };
  for (const JsonObject::Property& property : written.properties) {
    if (property.required && tells(property.name)) return true;
  }
  for (const JsonObject::Property& property : valid.properties) {
    if (property.required && tells(property.name)) return true;
  }
  return false;
}

// Follows all alternatives that one text may be inside of at once. What is followed at run time is
// always a part of what is followed here.
void JsonSchemaCompiler::CheckAlternatives() {
  std::set<std::vector<uint32_t>> seen;
  std::vector<std::vector<uint32_t>> open;
  size_t work = 0;
  const auto fail = [&](const std::string& what) {
    Fail(ErrorCode::kUsage,
         fmt::format("{}: {} cannot be served; let anyOf differ earlier", path_, what));
  };
  const auto visit = [&](std::vector<uint32_t> unions) {
    std::sort(unions.begin(), unions.end());
    unions.erase(std::unique(unions.begin(), unions.end()), unions.end());
    std::vector<uint32_t> shapes;
    for (const uint32_t index : unions) {
      const JsonUnion& alternatives = schema_.unions_[index];
      shapes.insert(shapes.end(), alternatives.shapes.begin(), alternatives.shapes.end());
    }
    std::sort(shapes.begin(), shapes.end());
    shapes.erase(std::unique(shapes.begin(), shapes.end()), shapes.end());
    work += shapes.size() + 1;
    if (shapes.size() > kMaxJsonAlternatives)
      fail(fmt::format("more than {} alternatives side by side", kMaxJsonAlternatives));
    if (seen.insert(shapes).second) open.push_back(std::move(shapes));
    if (seen.size() > kMaxCombinations || work > kMaxComparisons)
      fail("so many combinations of alternatives");
  };
  visit({schema_.root_});
  while (!open.empty()) {
    const std::vector<uint32_t> shapes = std::move(open.back());
    open.pop_back();
    std::vector<const JsonObject*> objects;
    std::vector<const JsonArray*> arrays;
    for (const uint32_t shape : shapes) {
      if (const auto* object = std::get_if<JsonObject>(&schema_.shapes_[shape].what))
        objects.push_back(object);
      if (const auto* array = std::get_if<JsonArray>(&schema_.shapes_[shape].what))
        arrays.push_back(array);
    }
    std::vector<uint32_t> unions;
    for (const JsonObject* object : objects) unions.push_back(object->additional);
    visit(unions);
    for (const JsonObject* named : objects) {
      for (const JsonObject::Property& property : named->properties) {
        unions.clear();
        for (const JsonObject* object : objects) unions.push_back(ValueOf(*object, property.name));
        work += objects.size();
        visit(unions);
      }
    }
    size_t longest = 0;
    for (const JsonArray* array : arrays) longest = std::max(longest, array->prefix.size());
    for (size_t i = 0; i <= longest && !arrays.empty(); ++i) {
      unions.clear();
      for (const JsonArray* array : arrays) unions.push_back(array->Item(static_cast<int64_t>(i)));
      work += arrays.size();
      visit(unions);
    }
  }
}

}  // namespace strata
