#include "models/deepseek_encoding.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "kernels/status.h"

namespace strata {

namespace {

constexpr const char* kBegin = "<｜begin▁of▁sentence｜>";
constexpr const char* kEnd = "<｜end▁of▁sentence｜>";
constexpr const char* kUser = "<｜User｜>";
constexpr const char* kAssistant = "<｜Assistant｜>";

std::string Field(const nlohmann::ordered_json& message, const char* name) {
  const auto found = message.find(name);
  if (found == message.end() || found->is_null()) return "";
  if (!found->is_string())
    Fail(ErrorCode::kUsage, fmt::format("the field '{}' of a message is not a string", name));
  return found->get<std::string>();
}

}  // namespace

std::string EncodeDeepseekV32(const nlohmann::ordered_json& messages, bool has_tools, bool thinking,
                              bool add_generation_prompt) {
  if (has_tools)
    Fail(ErrorCode::kUsage,
         "tools are not covered by the built-in DeepSeek-V3.2 encoding; give the checkpoint a "
         "chat_template.jinja");
  size_t last_user = messages.size();
  for (size_t i = 0; i < messages.size(); ++i) {
    if (Field(messages[i], "role") == "user") last_user = i;
  }
  std::string text = kBegin;
  for (size_t i = 0; i < messages.size(); ++i) {
    const auto& message = messages[i];
    const std::string role = Field(message, "role");
    if (message.contains("tool_calls") && !message["tool_calls"].empty()) {
      Fail(
          ErrorCode::kUsage,
          fmt::format(
              "message {} has tool_calls, which the built-in DeepSeek-V3.2 encoding does not cover",
              i));
    }
    if (role == "system") {
      text += Field(message, "content");
    } else if (role == "user") {
      text += kUser + Field(message, "content");
      const bool answered = i + 1 < messages.size();
      if (answered || add_generation_prompt)
        text += std::string(kAssistant) + (thinking && i == last_user ? "<think>" : "</think>");
    } else if (role == "assistant") {
      // Reasoning is kept only for the turn being answered.
      if (thinking && last_user < i) text += Field(message, "reasoning_content") + "</think>";
      text += Field(message, "content") + kEnd;
    } else {
      Fail(ErrorCode::kUsage,
           fmt::format("message {} has the role '{}'; the built-in DeepSeek-V3.2 encoding covers "
                       "system, user and assistant",
                       i, role));
    }
  }
  return text;
}

}  // namespace strata
