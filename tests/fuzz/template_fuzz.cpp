// Any bytes as a chat template: it is refused or renders inside small bounds. Only strata::Error
// may come out.
#include <cstddef>
#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

#include "kernels/status.h"
#include "models/chat_template.h"

namespace {

const nlohmann::ordered_json& Messages() {
  static const auto messages = nlohmann::ordered_json::parse(R"([
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": [{"type": "text", "text": "caf\u00e9 <b>"}]},
    {"role": "assistant", "content": null, "reasoning_content": "r",
     "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {"a": 1, "b": [1.5, "x"]}}}]},
    {"role": "tool", "content": "42", "tool_call_id": "1"}
  ])");
  return messages;
}

const nlohmann::ordered_json& Tools() {
  static const auto tools = nlohmann::ordered_json::parse(
      R"([{"type": "function", "function": {"name": "f", "parameters": {"a": {"type": "integer"}}}}])");
  return tools;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  strata::TemplateLimits limits;
  limits.output_bytes = 1 << 16;
  limits.steps = 50'000;
  try {
    strata::ChatTemplate chat = strata::ChatTemplate::FromSource(
        std::string(reinterpret_cast<const char*>(data), size), "fuzz");
    chat.SetVariable("bos_token", "<s>");
    strata::RenderOptions options;
    options.enable_thinking = true;
    chat.Render(Messages(), Tools(), options, limits);
  } catch (const strata::Error&) {
  }
  return 0;
}
