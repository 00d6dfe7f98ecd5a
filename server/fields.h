// Typed access to the fields of a request body: wrong types and ranges are refused by name, unknown
// fields are let be, null counts as absent.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/json.h"

namespace strata {

constexpr int kBodyDepth = kMessageDepth;  // nesting of a request body

// ApiError(400) when the text is no JSON object, is nested too deeply or repeats a key.
nlohmann::ordered_json ParseBody(std::string_view body);

class Fields {
 public:
  using Json = nlohmann::ordered_json;

  // `path` stands before a field's name in errors: "" or "messages[2]."
  explicit Fields(const Json& object, std::string path = "")
      : object_(&object), path_(std::move(path)) {}

  const Json* Find(const char* name) const;  // null when absent or null
  std::string Path(const char* name) const { return path_ + name; }

  std::optional<bool> Boolean(const char* name) const;
  std::optional<int64_t> Integer(const char* name, int64_t low, int64_t high) const;
  std::optional<double> Number(const char* name, double low, double high) const;
  std::optional<std::string> String(const char* name) const;
  const Json* Object(const char* name) const;
  const Json* Array(const char* name) const;
  // One string or a list of them.
  std::vector<std::string> Strings(const char* name, size_t most) const;

  // ApiError(400): "NAME is VALUE, WANTED"
  [[noreturn]] void Refuse(const char* name, const std::string& wanted) const;

 private:
  const Json* object_;
  std::string path_;
};

}  // namespace strata
