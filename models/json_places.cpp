#include "models/json_places.h"

#include <algorithm>
#include <charconv>

namespace strata {

using nlohmann::ordered_json;

namespace {

std::string WithoutPercents(std::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    const char* digits = text.data() + i + 1;
    unsigned value = 0;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(digits, digits + 2, value, 16).ptr == digits + 2) {
      plain += static_cast<char>(value);
      i += 2;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

}  // namespace

bool JsonPlaces::IsReference(std::string_view text) {
  return !text.empty() && text[0] == '#' && (text.size() == 1 || text[1] == '/');
}

const ordered_json* JsonPlaces::Below(const ordered_json& place, const std::string& name) {
  if (place.is_object()) {
    Members& members = members_[&place];
    if (members.empty()) {
      for (const auto& [key, value] : place.get_ref<const ordered_json::object_t&>())
        members.emplace_back(key, &value);
      std::sort(members.begin(), members.end());
    }
    const auto found = std::lower_bound(
        members.begin(), members.end(), name,
        [](const auto& member, const std::string& wanted) { return member.first < wanted; });
    return found == members.end() || found->first != name ? nullptr : found->second;
  }
  const bool number =
      !name.empty() && name.size() < 8 &&
      std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (!place.is_array() || !number) return nullptr;
  const size_t index = std::stoul(name);
  return index < place.size() ? &place[index] : nullptr;
}

const ordered_json* JsonPlaces::Find(std::string_view reference, std::vector<std::string>& names) {
  const std::string pointer = WithoutPercents(reference.substr(1));
  const ordered_json* place = &root_;
  for (size_t begin = 1; begin <= pointer.size() && !pointer.empty() && place != nullptr;) {
    const size_t end = std::min(pointer.find('/', begin), pointer.size());
    std::string name;
    for (size_t i = begin; i < end; ++i) {
      const bool escaped = pointer[i] == '~' && i + 1 < end;
      name += !escaped ? pointer[i] : pointer[i + 1] == '1' ? '/' : '~';
      i += escaped;
    }
    place = Below(*place, name);
    names.push_back(std::move(name));
    begin = end + 1;
  }
  return place;
}

}  // namespace strata
