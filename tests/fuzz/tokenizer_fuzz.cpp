// Any text as tokenizer.json: it loads and then encodes and decodes without loss, or it is refused
// with an Error.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "kernels/status.h"
#include "models/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const strata::Tokenizer tokenizer = strata::Tokenizer::FromJson(text, "", "fuzz");
    tokenizer.Decode(tokenizer.Encode("It's 42 \xF0\x9F\x98\x80 <|user|>\n\xFF"));
  } catch (const strata::Error&) {
  }
  // The same bytes as a text to encode with the shipped tokenizer.
  static const strata::Tokenizer shipped =
      strata::Tokenizer::Load(std::string(STRATA_SOURCE_DIR) + "/models/tiny-glm-dsa");
  const auto ids = shipped.Encode(text, strata::SpecialTokens::kAsText);
  if (shipped.Decode(ids) != text) std::abort();
  return 0;
}
