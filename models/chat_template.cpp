#include "models/chat_template.h"

#include <fmt/format.h>

#include "kernels/status.h"
#include "models/deepseek_encoding.h"
#include "models/jinja_ast.h"
#include "models/jinja_runtime.h"
#include "models/json.h"

namespace strata {

namespace {

using nlohmann::ordered_json;

constexpr int kParseDepth = 100;
constexpr size_t kMaxTemplateBytes = size_t{4} << 20;

// The chat_template of tokenizer_config.json: a string, or a list of named ones of which "default"
// counts.
std::string TemplateOfConfig(const std::filesystem::path& file) {
  std::error_code error;
  if (!std::filesystem::exists(file, error)) return "";
  const ordered_json config = ParseJson(ReadTextFile(file), file.string());
  if (!config.is_object() || !config.contains("chat_template")) return "";
  const ordered_json& section = config["chat_template"];
  if (section.is_string()) return section.get<std::string>();
  if (!section.is_array()) return "";
  for (const ordered_json& entry : section) {
    if (entry.is_object() && entry.value("name", "") == "default" && entry.contains("template") &&
        entry["template"].is_string()) {
      return entry["template"].get<std::string>();
    }
  }
  return "";
}

}  // namespace

struct ChatTemplate::Impl {
  std::string file_name;
  std::shared_ptr<const jinja::Program> program;  // null: the built-in DeepSeek-V3.2 encoding
  jinja::Dict variables;
};

ChatTemplate::ChatTemplate(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

ChatTemplate ChatTemplate::FromSource(const std::string& jinja, const std::string& file_name) {
  auto impl = std::make_unique<Impl>();
  impl->file_name = file_name;
  impl->program = jinja::Parse(jinja, file_name, kParseDepth);
  return ChatTemplate(std::move(impl));
}

ChatTemplate ChatTemplate::DeepseekV32() {
  auto impl = std::make_unique<Impl>();
  impl->file_name = "built-in DeepSeek-V3.2 encoding";
  return ChatTemplate(std::move(impl));
}

bool ChatTemplate::Exists(const std::filesystem::path& directory, const std::string& model_type) {
  std::error_code error;
  return std::filesystem::exists(directory / "chat_template.jinja", error) ||
         model_type == "deepseek_v32" ||
         !TemplateOfConfig(directory / "tokenizer_config.json").empty();
}

ChatTemplate ChatTemplate::Load(const std::filesystem::path& directory,
                                const std::string& model_type) {
  const std::filesystem::path file = directory / "chat_template.jinja";
  std::error_code error;
  if (std::filesystem::exists(file, error))
    return FromSource(ReadTextFile(file, kMaxTemplateBytes), file.string());
  const std::filesystem::path config = directory / "tokenizer_config.json";
  const std::string source = TemplateOfConfig(config);
  if (!source.empty()) return FromSource(source, config.string() + " (chat_template)");
  if (model_type == "deepseek_v32") return DeepseekV32();
  Fail(ErrorCode::kModelFile,
       fmt::format("{} has no chat template (chat_template.jinja, or chat_template in "
                   "tokenizer_config.json); use --raw",
                   directory.string()));
}

void ChatTemplate::SetVariable(const std::string& name, const std::string& value) {
  impl_->variables.emplace_back(name, value);
}

std::string ChatTemplate::Render(const ordered_json& messages, const ordered_json& tools,
                                 const RenderOptions& options, const TemplateLimits& limits) const {
  if (impl_->program == nullptr) {
    return EncodeDeepseekV32(messages, !tools.is_null() && !tools.empty(),
                             options.enable_thinking.value_or(false),
                             options.add_generation_prompt);
  }
  try {
    jinja::Dict variables = impl_->variables;
    variables.emplace_back("messages", jinja::Value::FromJson(messages));
    // transformers always passes both, none when absent.
    variables.emplace_back("tools", jinja::Value::FromJson(tools));
    variables.emplace_back("documents", jinja::None{});
    variables.emplace_back("add_generation_prompt", options.add_generation_prompt);
    if (options.enable_thinking)
      variables.emplace_back("enable_thinking", *options.enable_thinking);
    return jinja::Render(*impl_->program, jinja::Value::MakeDict(std::move(variables)), limits);
  } catch (const jinja::TemplateError& error) {
    Fail(ErrorCode::kUsage, fmt::format("{}: {}", impl_->file_name, error.message));
  }
}

std::string ChatTemplate::Render(const std::string& user_message,
                                 const std::string& system_message) const {
  ordered_json messages = ordered_json::array();
  if (!system_message.empty())
    messages.push_back({{"role", "system"}, {"content", system_message}});
  messages.push_back({{"role", "user"}, {"content", user_message}});
  return Render(messages, nullptr, RenderOptions{});
}

}  // namespace strata
