#include "server/fields.h"

#include <fmt/format.h>

#include <cmath>

#include "server/api_error.h"

namespace strata {

nlohmann::ordered_json ParseBody(std::string_view body) {
  if (body.empty()) throw ApiError(400, "the body is empty; send a JSON object");
  nlohmann::ordered_json json;
  try {
    json = ParseJson(body, "body", kBodyDepth);
  } catch (const Error& error) {
    throw ApiError(400, error.what(), "", "invalid_json");
  }
  if (!json.is_object())
    throw ApiError(400, fmt::format("the body is {}, send a JSON object", ShortJson(json)));
  return json;
}

const Fields::Json* Fields::Find(const char* name) const {
  const auto found = object_->find(name);
  return found == object_->end() || found->is_null() ? nullptr : &*found;
}

void Fields::Refuse(const char* name, const std::string& wanted) const {
  const Json* value = Find(name);
  throw ApiError(400,
                 value == nullptr
                     ? fmt::format("{} is missing, {}", Path(name), wanted)
                     : fmt::format("{} is {}, {}", Path(name), ShortJson(*value), wanted),
                 Path(name));
}

std::optional<bool> Fields::Boolean(const char* name) const {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) Refuse(name, "true or false is wanted");
  return value->get<bool>();
}

std::optional<int64_t> Fields::Integer(const char* name, int64_t low, int64_t high) const {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  const std::string wanted = fmt::format("an integer from {} to {} is wanted", low, high);
  if (value->is_number_float()) {
    // 8.0 is an integer to clients whose language has one kind of number.
    const double number = value->get<double>();
    if (std::floor(number) != number || std::fabs(number) > 0x1p53) Refuse(name, wanted);
    if (number < static_cast<double>(low) || number > static_cast<double>(high))
      Refuse(name, wanted);
    return static_cast<int64_t>(number);
  }
  if (!value->is_number_integer()) Refuse(name, wanted);
  if (value->is_number_unsigned() && value->get<uint64_t>() > INT64_MAX) Refuse(name, wanted);
  const int64_t number = value->get<int64_t>();
  if (number < low || number > high) Refuse(name, wanted);
  return number;
}

std::optional<double> Fields::Number(const char* name, double low, double high) const {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  const std::string wanted = fmt::format("a number from {} to {} is wanted", low, high);
  if (!value->is_number()) Refuse(name, wanted);
  const double number = value->get<double>();
  if (!(number >= low && number <= high)) Refuse(name, wanted);
  return number;
}

std::optional<std::string> Fields::String(const char* name) const {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) Refuse(name, "a string is wanted");
  return value->get<std::string>();
}

const Fields::Json* Fields::Object(const char* name) const {
  const Json* value = Find(name);
  if (value != nullptr && !value->is_object()) Refuse(name, "an object is wanted");
  return value;
}

const Fields::Json* Fields::Array(const char* name) const {
  const Json* value = Find(name);
  if (value != nullptr && !value->is_array()) Refuse(name, "a list is wanted");
  return value;
}

std::vector<std::string> Fields::Strings(const char* name, size_t most) const {
  const Json* value = Find(name);
  if (value == nullptr) return {};
  const std::string wanted =
      fmt::format("a string or a list of at most {} strings is wanted", most);
  if (value->is_string()) return {value->get<std::string>()};
  if (!value->is_array() || value->size() > most) Refuse(name, wanted);
  std::vector<std::string> strings;
  for (const Json& entry : *value) {
    if (!entry.is_string()) Refuse(name, wanted);
    strings.push_back(entry.get<std::string>());
  }
  return strings;
}

}  // namespace strata
