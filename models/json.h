// Reading JSON files that may be broken or hostile: bounded depth, one-line errors that name file,
// field and types.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "kernels/status.h"

namespace strata {

constexpr int kJsonDepth = 64;
// Of messages that hold such a value: "messages", a message, its calls, one of them, "function",
// "arguments".
constexpr int kMessageDepth = kJsonDepth + 8;

// Whole file as text. Fail(kModelFile) names the file; larger than `limit` bytes is refused.
std::string ReadTextFile(const std::filesystem::path& file, size_t limit = size_t{1} << 30);

// Keeps the order of keys; linear in the text. Fail(kModelFile): "FILE: not valid JSON near byte
// N", "FILE: JSON is nested deeper than D", "FILE: the key NAME stands twice in one object".
nlohmann::ordered_json ParseJson(std::string_view text, const std::string& file_name,
                                 int max_depth = kJsonDepth);

// Typed access to an object's fields with errors of one kind. Wrong types are refused by name; null
// counts as absent.
class JsonFields {
 public:
  JsonFields(const nlohmann::ordered_json& object, std::string file_name, ErrorCode code);

  bool Has(const char* name) const { return Find(name) != nullptr; }
  const nlohmann::ordered_json* Find(const char* name) const;  // null when absent or null

  std::optional<int64_t> Integer(const char* name) const;
  std::optional<double> Number(const char* name) const;
  std::optional<bool> Boolean(const char* name) const;
  std::optional<std::string> String(const char* name) const;

  // Present and inside [low, high].
  int64_t NeedInteger(const char* name, int64_t low, int64_t high) const;
  double NeedNumber(const char* name, double low, double high) const;
  // Absent gives `fallback`.
  int64_t IntegerOr(const char* name, int64_t fallback, int64_t low, int64_t high) const;

  double NumberOr(const char* name, double fallback, double low, double high) const;

  // "FILE: field NAME is VALUE, WANTED"
  [[noreturn]] void Refuse(const char* name, const std::string& wanted) const;
  const std::string& file_name() const { return file_name_; }

 private:
  const nlohmann::ordered_json* object_;
  std::string file_name_;
  ErrorCode code_;
};

// A JSON value on one line, shortened, for messages.
std::string ShortJson(const nlohmann::ordered_json& value);

}  // namespace strata
