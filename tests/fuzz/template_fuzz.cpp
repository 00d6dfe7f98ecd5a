// Any bytes as a chat template over a small conversation: the result is text or an Error, in
// bounded time and memory.
#include <cstddef>
#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

#include "kernels/status.h"
#include "models/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto messages = nlohmann::ordered_json::parse(R"([
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "héllo"}]},
    {"role": "assistant", "content": null, "reasoning_content": "think",
     "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"a": 1, "b": [1.5, true]}}}]},
    {"role": "tool", "content": "{\"ok\": 1}"}, {"role": "user", "content": " and? \n"}])");
  static const auto tools = nlohmann::ordered_json::parse(
      R"([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}])");
  strata::TemplateLimits limits;
  limits.output_bytes = 1 << 16;
  limits.steps = 20'000;
  try {
    const auto chat = strata::ChatTemplate::FromSource(
        std::string(reinterpret_cast<const char*>(data), size), "fuzz.jinja");
    chat.Render(messages, tools, {}, limits);
  } catch (const strata::Error&) {
  }
  return 0;
}
