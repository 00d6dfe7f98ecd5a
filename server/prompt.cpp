#include "server/prompt.h"

#include <fmt/format.h>

#include "models/json_constraint.h"
#include "server/api_error.h"

namespace strata {

namespace {

using Json = nlohmann::ordered_json;

RenderOptions ReadRenderOptions(const Fields& fields) {
  RenderOptions options;
  options.add_generation_prompt = fields.Boolean("add_generation_prompt").value_or(true);
  if (const Json* variables = fields.Object("chat_template_kwargs")) {
    for (const auto& [name, value] : variables->items()) options.variables[name] = value;
    options.enable_thinking =
        Fields(*variables, "chat_template_kwargs.").Boolean("enable_thinking");
  }
  if (const auto effort = fields.String("reasoning_effort"))
    options.variables["reasoning_effort"] = *effort;
  return options;
}

}  // namespace

ChatPrompt ReadChatPrompt(const Fields& fields, Conversation conversation, const Service& service) {
  const ServedModel& model = service.model();
  if (model.chat == nullptr) {
    throw ApiError(
        400, fmt::format("this model cannot chat, use /v1/completions: {}", model.chat_missing),
        "messages", "no_chat_template");
  }
  ChatPrompt prompt;
  try {
    prompt.text =
        model.chat->Render(conversation.messages, conversation.tools, ReadRenderOptions(fields));
  } catch (const Error& error) {
    throw ApiError(400, error.what(), "messages");
  }
  prompt.tokens = model.tokenizer->Encode(prompt.text);
  prompt.output.in_reasoning = EndsInsideThink(prompt.text);
  prompt.output.tools = std::move(conversation.tools);
  return prompt;
}

std::shared_ptr<const TokenConstraint> ReadResponseFormat(const Fields& fields,
                                                          const ChatPrompt& prompt,
                                                          const GenerationCall& call,
                                                          const Service& service) {
  const Json* format = fields.Object("response_format");
  if (format == nullptr) return nullptr;
  const Fields inner(*format, "response_format.");
  const std::string type = inner.String("type").value_or("");
  if (type == "text") return nullptr;
  if (type != "json_object" && type != "json_schema")
    inner.Refuse("type", "\"text\", \"json_object\" or \"json_schema\" is wanted");
  const auto refuse = [](const std::string& message) {
    throw ApiError(400, message, "response_format");
  };
  if (!prompt.output.tools.is_null())
    refuse("response_format and tools cannot both be kept to; leave one out");
  if (prompt.output.in_reasoning) {
    refuse(
        "the answer would start with reasoning, which is no JSON; set "
        "chat_template_kwargs.enable_thinking to false");
  }
  if (call.request.stop_tokens.empty())
    refuse("response_format needs the model's end tokens; leave ignore_eos out");
  const Json* schema = nullptr;
  if (type == "json_schema") {
    const Json* named = inner.Object("json_schema");
    if (named == nullptr) inner.Refuse("json_schema", "an object is wanted");
    const Fields entry(*named, "response_format.json_schema.");
    schema = entry.Find("schema");
    if (schema == nullptr) entry.Refuse("schema", "a JSON schema is wanted");
  }
  try {
    return service.model().constraints->Get(schema, "response_format.json_schema.schema");
  } catch (const Error& error) {
    throw ApiError(400, error.what(), "response_format");
  }
}

}  // namespace strata
