// The keywords of a JSON schema at one place, with those that $ref and allOf add.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "models/json_places.h"

namespace strata {

enum JsonType : uint32_t {
  kJsonNull = 1,
  kJsonBoolean = 2,
  kJsonObject = 4,
  kJsonArray = 8,
  kJsonString = 16,
  kJsonInteger = 32,
  kJsonFraction = 64,  // numbers that are no integers
  kJsonNumber = kJsonInteger | kJsonFraction,
  kJsonAnyType = 127,
};

struct JsonKeyword {
  const nlohmann::ordered_json* value = nullptr;  // in the caller's schema
  std::string path;                               // of the schema that holds it
  int source = 0;                                 // which schema that is
};

struct JsonKeywords {
  bool never = false;  // the schema `false`
  bool typed = false;  // `type` stands
  uint32_t types = kJsonAnyType;
  std::vector<JsonKeyword> properties, required;  // may come from several schemas
  std::map<std::string, JsonKeyword> others;      // only keywords that constrain

  bool Constrains() const;
  // Both must hold. Fail(kUsage) where this cannot be said in keywords.
  void And(const JsonKeywords& more);
};

// "path.name", or "path["odd name"]"; on one line and short.
std::string JsonPath(const std::string& path, const std::string& name);
// "PATH: 'KEYWORD' WHY"
[[noreturn]] void RefuseKeyword(const std::string& path, const std::string& keyword,
                                const std::string& why);

// Reads schemas of one document. Remembers which it is inside of, so that a schema that leads to
// itself is refused, as is one that takes more than 64 steps.
class JsonKeywordReader {
 public:
  explicit JsonKeywordReader(const nlohmann::ordered_json& root, std::string path)
      : root_(root), root_path_(std::move(path)), places_(root) {}

  class Inside {
   public:
    Inside(JsonKeywordReader& reader, const nlohmann::ordered_json& schema,
           const std::string& path);
    ~Inside() { reader_.inside_.pop_back(); }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    JsonKeywordReader& reader_;
  };

  // The keywords of a schema that the caller is inside of.
  JsonKeywords Read(const nlohmann::ordered_json& schema, const std::string& path);
  struct Place {
    const nlohmann::ordered_json* schema = nullptr;
    std::string path;
  };
  // Where a schema leads that says nothing but $ref or allOf of one; null for any other.
  Place Alias(const nlohmann::ordered_json& schema, const std::string& path);

 private:
  Place Follow(const nlohmann::ordered_json& reference, const std::string& path);
  Place OnlyEntry(const nlohmann::ordered_json& all_of, const std::string& path) const;

  const nlohmann::ordered_json& root_;
  std::string root_path_;
  JsonPlaces places_;
  std::vector<const nlohmann::ordered_json*> inside_;
  int sources_ = 0;
};

}  // namespace strata
