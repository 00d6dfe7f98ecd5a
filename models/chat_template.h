// From a conversation to the prompt text a model was trained on.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace strata {

// Bounds of one rendering: a template is data from the internet and runs sandboxed.
struct TemplateLimits {
  int depth = 64;  // nested calls, loops and expressions
  size_t output_bytes = 64u << 20;
  int64_t steps = 20'000'000;  // evaluated nodes: bounds time
};

struct RenderOptions {
  bool add_generation_prompt = true;
  std::optional<bool> enable_thinking;  // passed to the template as `enable_thinking` when set
  // More variables by name (a request's chat_template_kwargs, such as reasoning_effort): an object,
  // or null. They win over enable_thinking, and over SetVariable; a name that Render itself sets is
  // refused. The built-in encoding reads `thinking` or `enable_thinking` and ignores the others.
  nlohmann::ordered_json variables = nullptr;
  // The JSON schema that the answer is held to, or null. The built-in encoding has a place for it;
  // Jinja templates know no such thing.
  nlohmann::ordered_json response_schema = nullptr;
};

// Whether a prompt ends in an open <think>, white space aside: the answer starts as reasoning. What
// stands elsewhere in the prompt, a user's text for one, does not count.
bool EndsInsideThink(std::string_view prompt);

// Thread-safe after loading.
class ChatTemplate {
 public:
  // chat_template.jinja, else tokenizer_config.json's chat_template (a string, or the entry named
  // "default" of a list), else the built-in DeepSeek-V3.2 encoding when `model_type` is
  // "deepseek_v32", else Fail(kModelFile) that says how to use --raw. Unsupported syntax:
  // Fail(kModelFile) naming line and feature, never another model's format.
  static ChatTemplate Load(const std::filesystem::path& directory, const std::string& model_type);
  // Whether Load would find a template, readable or not.
  static bool Exists(const std::filesystem::path& directory, const std::string& model_type);
  static ChatTemplate FromSource(const std::string& jinja, const std::string& file_name);
  static ChatTemplate DeepseekV32();

  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // messages: [{"role", "content", "reasoning_content"?, "tool_calls"?, "tool_call_id"?}]; tools:
  // OpenAI tool list or null. Templates expect the arguments of tool_calls as objects; the JSON
  // texts that OpenAI's clients send are turned into such. Fail(kUsage) when one is no object's
  // text, when the template raises (raise_exception) or a limit is hit, naming which;
  // Fail(kCapacity) when the text is more than a template can hold.
  std::string Render(const nlohmann::ordered_json& messages, const nlohmann::ordered_json& tools,
                     const RenderOptions& options, const TemplateLimits& limits = {}) const;
  // One user turn after an optional system message, with the generation prompt.
  std::string Render(const std::string& user_message, const std::string& system_message = "") const;

  // The Jinja text; empty for the built-in encoding.
  const std::string& source() const;

  // bos_token, eos_token and the like, which templates refer to by name.
  void SetVariable(const std::string& name, const std::string& value);

 private:
  struct Impl;
  explicit ChatTemplate(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace strata
