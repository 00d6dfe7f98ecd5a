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
constexpr size_t kMaxVariables = 64;  // of a request; each is looked up by name

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
    if (entry.is_object() && entry.value("name", ordered_json()) == "default" &&
        entry.contains("template") && entry["template"].is_string()) {
      return entry["template"].get<std::string>();
    }
  }
  return "";
}

// What Render sets itself, for every template.
constexpr const char* kOwnVariables[] = {"messages", "tools", "documents", "add_generation_prompt"};

void CheckVariables(const ordered_json& variables) {
  if (variables.is_null()) return;
  if (!variables.is_object())
    Fail(ErrorCode::kUsage,
         fmt::format("template variables are {}, not an object", ShortJson(variables)));
  if (variables.size() > kMaxVariables)
    Fail(ErrorCode::kUsage, fmt::format("there are {} template variables, at most {} are taken",
                                        variables.size(), kMaxVariables));
  for (const char* name : kOwnVariables) {
    if (variables.contains(name))
      Fail(ErrorCode::kUsage, fmt::format("the template variable '{}' cannot be set", name));
  }
}

// For the built-in encoding.
bool Thinking(const RenderOptions& options) {
  for (const char* name : {"thinking", "enable_thinking"}) {
    const auto found = options.variables.find(name);
    if (found == options.variables.end() || found->is_null()) continue;
    if (!found->is_boolean())
      Fail(ErrorCode::kUsage, fmt::format("the template variable '{}' is {}, not true or false",
                                          name, ShortJson(*found)));
    return found->get<bool>();
  }
  return options.enable_thinking.value_or(false);
}

// Bytes of all strings in it.
size_t TextBytes(const ordered_json& value) {
  if (value.is_string()) return value.get_ref<const std::string&>().size();
  size_t bytes = 0;
  if (value.is_structured())
    for (const ordered_json& member : value) bytes += TextBytes(member);
  return bytes;
}

// The text of a call's arguments as an object; `place` is named when it is none.
ordered_json ArgumentsOf(const std::string& text, const std::string& place) {
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) return ordered_json::object();
  ordered_json arguments;
  try {
    arguments = ParseJson(text, place, kMessageDepth);
  } catch (const Error& error) {
    Fail(ErrorCode::kUsage, error.what());
  }
  if (!arguments.is_object())
    Fail(ErrorCode::kUsage, fmt::format("{} is {}, not an object", place, ShortJson(arguments)));
  return arguments;
}

bool HasToolCalls(const ordered_json& messages) {
  for (const ordered_json& message : messages) {
    if (message.is_object() && message.contains("tool_calls")) return true;
  }
  return false;
}

ordered_json WithArgumentObjects(ordered_json messages) {
  for (size_t i = 0; i < messages.size(); ++i) {
    if (!messages[i].is_object()) continue;
    const auto calls = messages[i].find("tool_calls");
    if (calls == messages[i].end() || !calls->is_array()) continue;
    for (size_t j = 0; j < calls->size(); ++j) {
      ordered_json& call = (*calls)[j];
      if (!call.is_object() || !call.contains("function") || !call["function"].is_object())
        continue;
      const auto arguments = call["function"].find("arguments");
      if (arguments == call["function"].end() || !arguments->is_string()) continue;
      *arguments = ArgumentsOf(arguments->get<std::string>(),
                               fmt::format("messages[{}].tool_calls[{}].function.arguments", i, j));
    }
  }
  return messages;
}

}  // namespace

bool EndsInsideThink(std::string_view prompt) {
  const size_t last = prompt.find_last_not_of(" \t\r\n");
  return last != std::string_view::npos && prompt.substr(0, last + 1).ends_with("<think>");
}

struct ChatTemplate::Impl {
  std::string file_name;
  std::string source;
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
  impl->source = jinja;
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

const std::string& ChatTemplate::source() const { return impl_->source; }

void ChatTemplate::SetVariable(const std::string& name, const std::string& value) {
  impl_->variables.emplace_back(name, value);
}

std::string ChatTemplate::Render(const ordered_json& messages, const ordered_json& tools,
                                 const RenderOptions& options, const TemplateLimits& limits) const {
  if (!messages.is_array() && !messages.is_null())
    Fail(ErrorCode::kUsage, fmt::format("messages are {}, not a list", ShortJson(messages)));
  CheckVariables(options.variables);
  ordered_json changed;
  if (HasToolCalls(messages)) changed = WithArgumentObjects(messages);
  const ordered_json& turns = changed.is_null() ? messages : changed;
  if (impl_->program == nullptr)
    return EncodeDeepseekV32(turns, tools, options.response_schema, Thinking(options),
                             options.add_generation_prompt);
  // More than a template can hold is the messages' fault, and told of them.
  const size_t bytes = TextBytes(turns) + TextBytes(tools);
  if (bytes > jinja::kMaxBytes)
    Fail(ErrorCode::kCapacity,
         fmt::format("the messages and tools have {} bytes of text, the chat template takes {}; "
                     "shorten them",
                     bytes, jinja::kMaxBytes));
  try {
    jinja::Dict variables = impl_->variables;
    jinja::SetEntry(variables, "messages", jinja::Value::FromJson(turns));
    // transformers always passes both, none when absent.
    jinja::SetEntry(variables, "tools", jinja::Value::FromJson(tools));
    jinja::SetEntry(variables, "documents", jinja::None{});
    jinja::SetEntry(variables, "add_generation_prompt", options.add_generation_prompt);
    if (options.enable_thinking)
      jinja::SetEntry(variables, "enable_thinking", *options.enable_thinking);
    for (const auto& [name, value] : options.variables.items())
      jinja::SetEntry(variables, name, jinja::Value::FromJson(value));
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
