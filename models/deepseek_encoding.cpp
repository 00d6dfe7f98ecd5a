#include "models/deepseek_encoding.h"

#include <fmt/format.h>

#include <map>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "kernels/status.h"
#include "models/jinja_value.h"
#include "models/json.h"

namespace strata {

namespace {

using nlohmann::ordered_json;

constexpr const char* kBegin = "<｜begin▁of▁sentence｜>";
constexpr const char* kEnd = "<｜end▁of▁sentence｜>";
constexpr const char* kUser = "<｜User｜>";
constexpr const char* kAssistant = "<｜Assistant｜>";
constexpr const char* kThink = "<think>";
constexpr const char* kEndThink = "</think>";

// What the model was trained on, to the letter; {} takes one tool's JSON a line.
constexpr const char* kTools = R"(

## Tools

You have access to a set of tools you can use to answer the user's question.
You can invoke functions by writing a "<｜DSML｜function_calls>" block like the following as part of your reply to the user:
<｜DSML｜function_calls>
<｜DSML｜invoke name="$FUNCTION_NAME">
<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>
...
</｜DSML｜invoke>
<｜DSML｜invoke name="$FUNCTION_NAME2">
...
</｜DSML｜invoke>
</｜DSML｜function_calls>

String and scalar parameters should be specified as is without any escaping or quotes, while lists and objects should use JSON format. The "string" attribute should be set to "true" for string type parameters and "false" for other types (numbers, booleans, arrays, objects).

If the thinking_mode is enabled, then after function results you should strongly consider outputting a thinking block. Here is an example:

<｜DSML｜function_calls>
...
</｜DSML｜function_calls>

<function_results>
...
</function_results>

<think>...thinking about results</think>

Here are the functions available in JSONSchema format:
<functions>
{}
</functions>
)";

constexpr const char* kResponseFormat =
    "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n";

[[noreturn]] void Refuse(size_t message, const std::string& why) {
  Fail(ErrorCode::kUsage, fmt::format("message {} {}", message, why));
}

// As json.dumps writes it, which the model was trained on.
std::string Json(const ordered_json& value) {
  try {
    return jinja::ToJson(jinja::Value::FromJson(value), {});
  } catch (const jinja::TemplateError& error) {
    Fail(ErrorCode::kUsage, fmt::format("{}: {}", ShortJson(value), error.message));
  }
}

class Encoder {
 public:
  Encoder(const ordered_json& messages, bool thinking, bool add_generation_prompt)
      : messages_(messages), thinking_(thinking), add_generation_prompt_(add_generation_prompt) {
    for (size_t i = 0; i < messages.size(); ++i) {
      const std::string role = Role(i);
      if (role == "user" || role == "developer") last_user_ = static_cast<int64_t>(i);
    }
  }

  std::string Encode(const ordered_json& tools, const ordered_json& response_schema) {
    std::string head = Tools(tools);
    if (!response_schema.is_null()) head += kResponseFormat + Json(response_schema);
    text_ = kBegin;
    for (size_t i = 0; i < messages_.size();) {
      const std::string role = Role(i);
      if (i == 0 && role != "system" && role != "developer") text_ += std::exchange(head, "");
      if (role == "system") {
        text_ += Content(i) + std::exchange(head, "");
      } else if (role == "user") {
        text_ += kUser + Content(i);
        if (Continues(i)) text_ += kAssistant + Thought(Index(i) == last_user_);
      } else if (role == "developer") {
        text_ += kUser + std::exchange(head, "");
        text_ += "\n\n# The user's message is: " + Content(i);
        if (Continues(i)) text_ += kAssistant + Thought(Index(i) == last_user_);
      } else if (role == "assistant") {
        i = Assistant(i);
        continue;
      } else if (role == "tool") {
        Refuse(i, "is a tool's result, but no assistant message with tool_calls stands before it");
      } else {
        Refuse(i, fmt::format("has the role '{}'; the built-in DeepSeek-V3.2 encoding covers "
                              "system, developer, user, assistant and tool",
                              role));
      }
      ++i;
    }
    return std::move(text_);
  }

 private:
  static int64_t Index(size_t message) { return static_cast<int64_t>(message); }

  // Whether something is to stand behind the message.
  bool Continues(size_t message) const {
    return add_generation_prompt_ || message + 1 < messages_.size();
  }

  std::string Thought(bool wanted) const { return thinking_ && wanted ? kThink : kEndThink; }

  static std::string Tools(const ordered_json& tools) {
    std::string list;
    if (!tools.is_null() && !tools.is_array())
      Fail(ErrorCode::kUsage, fmt::format("tools are {}, not a list", ShortJson(tools)));
    for (const ordered_json& tool : tools) {
      const bool wrapped = tool.is_object() && tool.contains("function");
      list += (list.empty() ? "" : "\n") + Json(wrapped ? tool["function"] : tool);
    }
    return list.empty() ? "" : fmt::format(fmt::runtime(kTools), list);
  }

  const ordered_json* Field(size_t message, const char* name) const {
    const ordered_json& object = messages_[message];
    if (!object.is_object()) Refuse(message, "is not an object");
    const auto found = object.find(name);
    return found == object.end() || found->is_null() ? nullptr : &*found;
  }

  std::string Text(size_t message, const char* name) const {
    const ordered_json* field = Field(message, name);
    if (field == nullptr) return "";
    if (!field->is_string()) Refuse(message, fmt::format("has a '{}' that is not a string", name));
    return field->get<std::string>();
  }

  std::string Role(size_t message) const { return Text(message, "role"); }

  std::string Content(size_t message) const {
    const ordered_json* content = Field(message, "content");
    if (content == nullptr || !content->is_array()) return Text(message, "content");
    std::string text;
    for (size_t i = 0; i < content->size(); ++i) {
      const ordered_json& part = (*content)[i];
      const auto found = part.is_object() ? part.find("text") : part.end();
      if (found == part.end() || !found->is_string())
        Refuse(message, fmt::format("has a content part that is not text: {}", ShortJson(part)));
      text += (i == 0 ? "" : "\n") + found->get<std::string>();
    }
    return text;
  }

  // The turn and the results of its calls; the index of the message behind them.
  size_t Assistant(size_t message) {
    if (thinking_ && Index(message) > last_user_)
      text_ += Text(message, "reasoning_content") + kEndThink;
    text_ += Content(message);
    const ordered_json* calls = Field(message, "tool_calls");
    if (calls == nullptr || calls->empty()) {
      text_ += kEnd;
      return message + 1;
    }
    if (!calls->is_array()) Refuse(message, "has tool_calls that are not a list");
    text_ += "\n\n<｜DSML｜function_calls>\n";
    for (const ordered_json& call : *calls) text_ += Call(message, call);
    text_ += std::string("</｜DSML｜function_calls>") + kEnd;
    if (message + 1 == messages_.size()) return message + 1;

    text_ += "\n\n<function_results>";
    for (const size_t result : Results(message, *calls))
      text_ += "\n<result>" + Content(result) + "</result>";
    text_ += "\n</function_results>";
    const size_t last = message + calls->size();
    if (Continues(last)) text_ += "\n\n" + Thought(Index(last) >= last_user_);
    return last + 1;
  }

  static std::string Call(size_t message, const ordered_json& call) {
    const auto function = call.is_object() ? call.find("function") : call.end();
    const bool whole = function != call.end() && function->is_object() &&
                       function->contains("name") && (*function)["name"].is_string();
    const auto arguments = whole ? function->find("arguments") : call.end();
    if (!whole || arguments == function->end() || !arguments->is_object())
      Refuse(message, "has a tool call without a function's name and an object of arguments");
    std::string text;
    for (const auto& [key, value] : arguments->items()) {
      text += fmt::format("{}<｜DSML｜parameter name=\"{}\" string=\"{}\">{}</｜DSML｜parameter>",
                          text.empty() ? "" : "\n", key, value.is_string(),
                          value.is_string() ? value.get<std::string>() : Json(value));
    }
    return fmt::format("<｜DSML｜invoke name=\"{}\">\n{}\n</｜DSML｜invoke>\n",
                       (*function)["name"].get<std::string>(), text);
  }

  // The messages that answer the calls, in the calls' order. The prompt shows no ids, so the order
  // is all the model has.
  std::vector<size_t> Results(size_t message, const ordered_json& calls) const {
    std::vector<size_t> results;
    for (size_t i = message + 1; i < messages_.size() && Role(i) == "tool"; ++i)
      results.push_back(i);
    if (results.size() != calls.size()) {
      Refuse(message, fmt::format("has {} tool calls, but {} results follow it", calls.size(),
                                  results.size()));
    }
    std::multimap<std::string, size_t> open;  // calls without an answer, by id
    for (size_t call = 0; call < calls.size(); ++call) {
      const auto id = calls[call].find("id");
      if (id != calls[call].end() && id->is_string()) open.emplace(id->get<std::string>(), call);
    }
    std::vector<size_t> ordered(calls.size(), 0);
    for (size_t i = 0; i < results.size(); ++i) {
      size_t call = i;
      if (const std::string id = Text(results[i], "tool_call_id"); !id.empty()) {
        const auto found = open.lower_bound(id);
        if (found == open.end() || found->first != id)
          Refuse(results[i], fmt::format("answers the call '{}', which message {} has not made, or "
                                         "which has its answer",
                                         id, message));
        call = found->second;
        open.erase(found);
      }
      if (ordered[call] != 0) Refuse(results[i], "answers a call that has its answer");
      ordered[call] = results[i];
    }
    return ordered;
  }

  const ordered_json& messages_;
  bool thinking_;
  bool add_generation_prompt_;
  int64_t last_user_ = -1;
  std::string text_;
};

}  // namespace

std::string EncodeDeepseekV32(const ordered_json& messages, const ordered_json& tools,
                              const ordered_json& response_schema, bool thinking,
                              bool add_generation_prompt) {
  return Encoder(messages, thinking, add_generation_prompt).Encode(tools, response_schema);
}

}  // namespace strata
