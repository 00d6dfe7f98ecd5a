// The first byte chooses: text through the shipped tokenizer, which must come back unchanged,
// whole and streamed; bytes as a tokenizer.json; or a pre_tokenizer section and, behind a zero
// byte, a text to cut with it.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/status.h"
#include "models/json.h"
#include "models/pretokenizer.h"
#include "models/tokenizer.h"
#include "models/utf8.h"

namespace {

using strata::SpecialTokens;
using strata::Tokenizer;

void Require(bool holds) {
  if (!holds) std::abort();
}

void RoundTrip(const std::string& text) {
  static const Tokenizer tokenizer =
      Tokenizer::Load(std::string(STRATA_SOURCE_DIR) + "/models/tiny-glm-dsa");
  for (SpecialTokens mode : {SpecialTokens::kParse, SpecialTokens::kAsText}) {
    const std::vector<int32_t> ids = tokenizer.Encode(text, mode);
    Require(tokenizer.Decode(ids) == text);
    Tokenizer::Stream stream(tokenizer, false);
    std::string joined;
    for (int32_t id : ids) joined += stream.Push(id);
    joined += stream.Finish();
    Require(joined == strata::ReplaceInvalidUtf8(text));
  }
}

void LoadFile(const std::string& json) {
  const Tokenizer tokenizer = Tokenizer::FromJson(json, "", "fuzz");
  const std::string text = "a b\xFF\n12 \xC3\xA9";
  tokenizer.Decode(tokenizer.Encode(text));
}

void Cut(const std::string& input) {
  const size_t zero = input.find('\0');
  if (zero == std::string::npos) return;
  const nlohmann::ordered_json section =
      strata::ParseJson(std::string_view(input).substr(0, zero), "fuzz");
  strata::PreTokenizer(&section, "fuzz").Split(std::string_view(input).substr(zero + 1));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    switch (data[0] % 4) {
      case 0:
      case 1:
        RoundTrip(rest);
        break;
      case 2:
        LoadFile(rest);
        break;
      default:
        Cut(rest);
    }
  } catch (const strata::Error&) {
    Require(data[0] % 4 > 1);
  }
  return 0;
}
