#include "models/json.h"

#include <fmt/format.h>

#include <algorithm>
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

namespace {

// Builds the tree from the parser's events. nlohmann's own builder searches the whole object at
// every key, which takes minutes for a vocabulary; this one appends and looks for repeated keys
// once, when the object closes.
class TreeBuilder {
 public:
  TreeBuilder(const std::string& file_name, int max_depth)
      : file_name_(file_name), max_depth_(max_depth) {}

  bool null() { return Add(nullptr); }
  bool boolean(bool value) { return Add(value); }
  bool number_integer(int64_t value) { return Add(value); }
  bool number_unsigned(uint64_t value) { return Add(value); }
  bool number_float(double value, const std::string&) { return Add(value); }
  bool string(std::string& value) { return Add(std::move(value)); }
  bool binary(ordered_json::binary_t&) { return false; }
  bool start_object(size_t) { return Open(ordered_json::object()); }
  bool start_array(size_t) { return Open(ordered_json::array()); }
  bool end_array() {
    open_.pop_back();
    return true;
  }
  bool key(std::string& name) {
    auto& object = *open_.back()->get_ptr<ordered_json::object_t*>();
    object.emplace_back(std::move(name), nullptr);
    member_ = &object.back().second;
    return true;
  }
  bool end_object() {
    std::vector<const std::string*> keys;
    for (const auto& [name, value] : *open_.back()->get_ptr<ordered_json::object_t*>())
      keys.push_back(&name);
    std::sort(keys.begin(), keys.end(),
              [](const std::string* a, const std::string* b) { return *a < *b; });
    for (size_t i = 1; i < keys.size(); ++i) {
      if (*keys[i] == *keys[i - 1]) {
        Fail(ErrorCode::kModelFile, fmt::format("{}: the key {} stands twice in one object",
                                                file_name_, ShortJson(*keys[i])));
      }
    }
    open_.pop_back();
    return true;
  }
  bool parse_error(size_t position, const std::string&, const ordered_json::exception&) {
    Fail(ErrorCode::kModelFile,
         fmt::format("{}: not valid JSON near byte {}", file_name_, position));
  }

  ordered_json Take() { return std::move(root_); }

 private:
  ordered_json* Place(ordered_json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (open_.back()->is_array()) {
      open_.back()->push_back(std::move(value));
      return &open_.back()->back();
    }
    *member_ = std::move(value);
    return member_;
  }
  bool Add(ordered_json value) {
    Place(std::move(value));
    return true;
  }
  // Destroying or printing a deep value recurses, so depth is refused here.
  bool Open(ordered_json value) {
    if (static_cast<int>(open_.size()) >= max_depth_) {
      Fail(ErrorCode::kModelFile,
           fmt::format("{}: JSON is nested deeper than {}", file_name_, max_depth_));
    }
    open_.push_back(Place(std::move(value)));
    return true;
  }

  const std::string& file_name_;
  int max_depth_;
  ordered_json root_;
  std::vector<ordered_json*> open_;  // stays valid: an open value's parent does not grow
  ordered_json* member_ = nullptr;   // of the innermost object, for the value that follows its key
};

}  // namespace

ordered_json ParseJson(std::string_view text, const std::string& file_name, int max_depth) {
  // The parser takes a zero byte, which no JSON holds, for the end of the text.
  if (const size_t zero = text.find('\0'); zero != text.npos) {
    Fail(ErrorCode::kModelFile, fmt::format("{}: not valid JSON near byte {}", file_name, zero));
  }
  TreeBuilder builder(file_name, max_depth);
  ordered_json::sax_parse(text.begin(), text.end(), &builder);
  return builder.Take();
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

double JsonFields::NeedNumber(const char* name, double low, double high) const {
  const std::optional<double> value = Number(name);
  if (!value || !(*value >= low && *value <= high))
    Refuse(name, fmt::format("{} to {} is accepted", low, high));
  return *value;
}

int64_t JsonFields::IntegerOr(const char* name, int64_t fallback, int64_t low, int64_t high) const {
  return Has(name) ? NeedInteger(name, low, high) : fallback;
}

double JsonFields::NumberOr(const char* name, double fallback, double low, double high) const {
  return Has(name) ? NeedNumber(name, low, high) : fallback;
}

}  // namespace strata
