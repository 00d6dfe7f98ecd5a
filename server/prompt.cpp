#include "server/prompt.h"

#include <fmt/format.h>

#include "models/json_constraint.h"
#include "server/api_error.h"

namespace strata {

namespace {

using Json = nlohmann::ordered_json;

// What a client wrote, so that none of it becomes a mark of the prompt. A template may split the
// reasoning off an assistant's content by its tags, which begin no turn.
Json Guarded(const Tokenizer& tokenizer, const Json& value, bool assistant = false) {
  if (value.is_string()) {
    const std::string& text = value.get_ref<const std::string&>();
    return assistant ? tokenizer.Guard(text, {"<think>", "</think>"}) : tokenizer.Guard(text);
  }
  if (value.is_array()) {
    Json list = Json::array();
    for (const Json& entry : value) list.push_back(Guarded(tokenizer, entry, assistant));
    return list;
  }
  if (!value.is_object()) return value;
  Json object = Json::object();
  // Distinct names stay so: nothing is looked up, which would take time for each that is there.
  Json::object_t& entries = object.get_ref<Json::object_t&>();
  const bool turn = value.value("role", Json()) == "assistant";
  for (const auto& [name, entry] : value.items())
    entries.emplace_back(tokenizer.Guard(name),
                         Guarded(tokenizer, entry, turn && name == "content"));
  return object;
}

// The schema that `response_format` holds the answer to; null when it names none. What it must be
// is ReadResponseFormat's business.
Json ResponseSchema(const Fields& fields) {
  const Json* format = fields.Object("response_format");
  if (format == nullptr) return nullptr;
  const Json type = format->value("type", Json());
  if (type == "json_object") return {{"type", "object"}};
  if (type != "json_schema") return nullptr;
  const Json named = format->value("json_schema", Json());
  return named.is_object() ? named.value("schema", Json()) : Json();
}

RenderOptions ReadRenderOptions(const Fields& fields, const Tokenizer& tokenizer) {
  RenderOptions options;
  options.add_generation_prompt = fields.Boolean("add_generation_prompt").value_or(true);
  if (const Json* variables = fields.Object("chat_template_kwargs")) {
    options.variables = Guarded(tokenizer, *variables);
    options.enable_thinking =
        Fields(*variables, "chat_template_kwargs.").Boolean("enable_thinking");
  }
  if (const auto effort = fields.String("reasoning_effort"))
    options.variables["reasoning_effort"] = tokenizer.Guard(*effort);
  options.response_schema = Guarded(tokenizer, ResponseSchema(fields));
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
  const Tokenizer& tokenizer = *model.tokenizer;
  ChatPrompt prompt;
  std::string guarded;
  try {
    guarded = model.chat->Render(Guarded(tokenizer, conversation.messages),
                                 Guarded(tokenizer, conversation.tools),
                                 ReadRenderOptions(fields, tokenizer));
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kCapacity) throw FromError(error);
    throw ApiError(400, Tokenizer::Unguard(error.what()), "messages");
  }
  prompt.text = Tokenizer::Unguard(guarded);
  prompt.tokens = tokenizer.Encode(guarded, SpecialTokens::kGuarded);
  prompt.output.in_reasoning = EndsInsideThink(guarded);
  prompt.output.tools = std::move(conversation.tools);
  if (!conversation.forced_tools.is_null()) {
    prompt.calls = CallRules{.tools = std::move(conversation.forced_tools),
                             .several = conversation.several_calls,
                             .in_reasoning = prompt.output.in_reasoning};
  }
  return prompt;
}

std::shared_ptr<const TokenConstraint> ReadConstraint(const Fields& fields,
                                                      const ChatPrompt& prompt,
                                                      const GenerationCall& call,
                                                      const Service& service) {
  AnswerConstraints& constraints = *service.model().constraints;
  if (prompt.calls) {
    if (call.request.stop_tokens.empty()) {
      throw ApiError(400, "tool_choice needs the model's end tokens; leave ignore_eos out",
                     "tool_choice");
    }
    try {
      return constraints.Calls(*prompt.calls);
    } catch (const Error& error) {
      throw ApiError(400, error.what(), "tool_choice");
    }
  }
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
    return constraints.Json(schema, "response_format.json_schema.schema");
  } catch (const Error& error) {
    throw ApiError(400, error.what(), "response_format");
  }
}

std::vector<std::vector<int32_t>> ReadPrompts(const Fields& fields, const Tokenizer& tokenizer) {
  constexpr size_t kMaxPrompts = 64;
  const Json* prompt = fields.Find("prompt");
  const char* wanted = "a string, a list of token ids, or a list of up to 64 of these is wanted";
  if (prompt == nullptr) fields.Refuse("prompt", wanted);
  const auto one = [&](const Json& value) {
    if (value.is_string()) return tokenizer.EncodePrompt(value.get<std::string>());
    if (!value.is_array()) fields.Refuse("prompt", wanted);
    std::vector<int32_t> tokens;
    for (const Json& id : value) {
      if (!id.is_number_integer() || id < 0 || id > INT32_MAX) fields.Refuse("prompt", wanted);
      tokens.push_back(id.get<int32_t>());
    }
    return tokens;
  };
  const bool several =
      prompt->is_array() && !prompt->empty() && !prompt->front().is_number_integer();
  if (!several) return {one(*prompt)};
  if (prompt->size() > kMaxPrompts) fields.Refuse("prompt", wanted);
  std::vector<std::vector<int32_t>> prompts;
  for (const Json& value : *prompt) prompts.push_back(one(value));
  return prompts;
}

}  // namespace strata
