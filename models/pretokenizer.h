// Cutting text into the pieces that byte-pair merging works inside: the pre_tokenizer section of
// tokenizer.json.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace strata {

// Thread-safe after construction.
class PreTokenizer {
 public:
  // Split (regex or string; all behaviours; invert), Digits, ByteLevel and Sequence are known;
  // others: Fail(kModelFile) by name. Null cuts nothing.
  PreTokenizer(const nlohmann::ordered_json* section, const std::string& file_name);
  PreTokenizer(PreTokenizer&&) noexcept;
  ~PreTokenizer();

  // The pieces in order. Bytes that are not UTF-8 match no pattern and come out as pieces of their
  // own.
  std::vector<std::string> Split(std::string_view text) const;

 private:
  class Step;
  void Add(const nlohmann::ordered_json& section, const std::string& file_name, int depth);
  std::vector<std::unique_ptr<Step>> steps_;
};

}  // namespace strata
