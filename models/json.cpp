#include "models/json.h"

#include <fmt/format.h>

#include <cmath>
#include <fstream>

namespace strata {

using nlohmann::ordered_json;

std::string ReadTextFile(const std::filesystem::path& file, size_t limit) {
  std::error_code error;
  if (!std::filesystem::exists(file, error)) {
    Fail(ErrorCode::kModelFile, fmt::format("{} does not exist", file.string()));
  }
  if (!std::filesystem::is_regular_file(file, error)) {
    Fail(ErrorCode::kModelFile, fmt::format("{} is not a regular file", file.string()));
  }
  const uintmax_t bytes = std::filesystem::file_size(file, error);
  if (error || bytes > limit) {
    Fail(ErrorCode::kModelFile,
         fmt::format("{} has {} bytes, at most {} are read", file.string(), bytes, limit));
  }
  std::ifstream stream(file, std::ios::binary);
  std::string text(static_cast<size_t>(bytes), '\0');
  if (!stream || !stream.read(text.data(), static_cast<std::streamsize>(bytes))) {
    Fail(ErrorCode::kModelFile, fmt::format("{} cannot be read", file.string()));
  }
  return text;
}

ordered_json ParseJson(std::string_view text, const std::string& file_name, int max_depth) {
  // nlohmann's parser is iterative, but destroying or printing a deep value recurses: refuse depth
  // while parsing.
  const auto callback = [&](int depth, ordered_json::parse_event_t, ordered_json&) {
    if (depth > max_depth) {
      Fail(ErrorCode::kModelFile,
           fmt::format("{}: JSON is nested deeper than {}", file_name, max_depth));
    }
    return true;
  };
  try {
    return ordered_json::parse(text.begin(), text.end(), callback);
  } catch (const ordered_json::parse_error& error) {
    Fail(ErrorCode::kModelFile,
         fmt::format("{}: not valid JSON near byte {}", file_name, error.byte));
  } catch (const ordered_json::exception&) {
    Fail(ErrorCode::kModelFile, fmt::format("{}: not valid JSON", file_name));
  }
}

std::string ShortJson(const ordered_json& value) {
  if (value.is_object()) return fmt::format("an object of {} fields", value.size());
  if (value.is_array() && value.size() > 8) return fmt::format("a list of {} values", value.size());
  std::string text = value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return text;
}

JsonFields::JsonFields(const ordered_json& object, std::string file_name, ErrorCode code)
    : object_(&object), file_name_(std::move(file_name)), code_(code) {
  if (!object.is_object())
    Fail(code, fmt::format("{} holds {}, an object is needed", file_name_, ShortJson(object)));
}

const ordered_json* JsonFields::Find(const char* name) const {
  const auto found = object_->find(name);
  return found == object_->end() || found->is_null() ? nullptr : &*found;
}

void JsonFields::Refuse(const char* name, const std::string& wanted) const {
  const ordered_json* value = Find(name);
  Fail(code_,
       value == nullptr
           ? fmt::format("{}: field {} is missing, {}", file_name_, name, wanted)
           : fmt::format("{}: field {} is {}, {}", file_name_, name, ShortJson(*value), wanted));
}

std::optional<int64_t> JsonFields::Integer(const char* name) const {
  const ordered_json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
    Refuse(name, "a whole number below 2^63 is needed");
  }
  if (value->is_number_integer()) return value->get<int64_t>();
  if (value->is_number_float()) {
    const double number = value->get<double>();
    if (std::nearbyint(number) == number && std::fabs(number) < 9e15)
      return static_cast<int64_t>(number);
  }
  Refuse(name, "a whole number is needed");
}

std::optional<double> JsonFields::Number(const char* name) const {
  const ordered_json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) Refuse(name, "a number is needed");
  return value->get<double>();
}

std::optional<bool> JsonFields::Boolean(const char* name) const {
  const ordered_json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) Refuse(name, "true or false is needed");
  return value->get<bool>();
}

std::optional<std::string> JsonFields::String(const char* name) const {
  const ordered_json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) Refuse(name, "a string is needed");
  return value->get<std::string>();
}

int64_t JsonFields::NeedInteger(const char* name, int64_t low, int64_t high) const {
  const std::optional<int64_t> value = Integer(name);
  if (!value || *value < low || *value > high)
    Refuse(name, fmt::format("{} to {} is accepted", low, high));
  return *value;
}

int64_t JsonFields::IntegerOr(const char* name, int64_t fallback, int64_t low, int64_t high) const {
  return Has(name) ? NeedInteger(name, low, high) : fallback;
}

}  // namespace strata
