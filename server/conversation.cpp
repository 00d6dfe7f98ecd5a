#include "server/conversation.h"

#include <fmt/format.h>

#include "models/json.h"
#include "server/api_error.h"

namespace strata {

namespace {

using Json = nlohmann::ordered_json;

// The text of a content: a string, null, or a list of parts of type "text".
std::string TextOf(const Fields& message) {
  const Json* content = message.Find("content");
  if (content == nullptr) return "";
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) message.Refuse("content", "a string or a list of parts is wanted");
  std::string text;
  for (size_t i = 0; i < content->size(); ++i) {
    const std::string path = fmt::format("{}[{}].", message.Path("content"), i);
    if (!(*content)[i].is_object()) message.Refuse("content", "parts are objects");
    const Fields part((*content)[i], path);
    if (part.String("type").value_or("text") != "text")
      part.Refuse("type", "this model takes \"text\" only");
    const auto piece = part.String("text");
    if (!piece) part.Refuse("text", "a string is wanted");
    text += *piece;
  }
  return text;
}

// Arguments come as JSON text; templates walk through them as an object.
Json CallOf(const Fields& call) {
  const Json* function = call.Object("function");
  if (function == nullptr) call.Refuse("function", "an object is wanted");
  const Fields fields(*function, call.Path("function."));
  const auto name = fields.String("name");
  if (!name || name->empty()) fields.Refuse("name", "a function's name is wanted");
  Json arguments = Json::object();
  if (const Json* given = fields.Find("arguments")) {
    if (given->is_object()) {
      arguments = *given;
    } else if (given->is_string()) {
      const std::string text = given->get<std::string>();
      try {
        if (!text.empty()) arguments = ParseJson(text, fields.Path("arguments"), kMessageDepth);
      } catch (const Error& error) {
        throw ApiError(400, error.what(), fields.Path("arguments"));
      }
    }
    if (!arguments.is_object() || (!given->is_object() && !given->is_string()))
      fields.Refuse("arguments", "the JSON text of an object is wanted");
  }
  return {{"id", call.String("id").value_or("")},
          {"type", "function"},
          {"function", {{"name", *name}, {"arguments", std::move(arguments)}}}};
}

Json MessageOf(const Json& given, const std::string& path) {
  if (!given.is_object()) throw ApiError(400, fmt::format("{} is not an object", path), path);
  const Fields fields(given, path + ".");
  std::string role = fields.String("role").value_or("");
  if (role == "developer") role = "system";
  if (role != "system" && role != "user" && role != "assistant" && role != "tool")
    fields.Refuse("role", "\"system\", \"user\", \"assistant\" or \"tool\" is wanted");
  const Json* calls = fields.Array("tool_calls");
  if (fields.Find("content") == nullptr && !(role == "assistant"))
    fields.Refuse("content", "a string or a list of text parts is wanted");
  Json message = {{"role", role}, {"content", TextOf(fields)}};
  for (const char* name : {"reasoning_content", "tool_call_id", "name"}) {
    if (const auto text = fields.String(name)) message[name] = *text;
  }
  if (calls != nullptr && !calls->empty()) {
    if (role != "assistant") fields.Refuse("tool_calls", "only an assistant calls tools");
    Json list = Json::array();
    for (size_t i = 0; i < calls->size(); ++i) {
      const std::string place = fmt::format("{}[{}].", fields.Path("tool_calls"), i);
      if (!(*calls)[i].is_object()) fields.Refuse("tool_calls", "calls are objects");
      list.push_back(CallOf(Fields((*calls)[i], place)));
    }
    message["tool_calls"] = std::move(list);
  }
  return message;
}

Json ToolsOf(const Fields& fields) {
  const Json* tools = fields.Array("tools");
  if (tools == nullptr || tools->empty()) return nullptr;
  for (size_t i = 0; i < tools->size(); ++i) {
    if (!(*tools)[i].is_object()) fields.Refuse("tools", "tools are objects");
    const Fields tool((*tools)[i], fmt::format("tools[{}].", i));
    if (tool.String("type").value_or("") != "function")
      tool.Refuse("type", "\"function\" is wanted");
    const Json* function = tool.Object("function");
    if (function == nullptr) tool.Refuse("function", "an object is wanted");
    const Fields inner(*function, tool.Path("function."));
    if (inner.String("name").value_or("").empty()) inner.Refuse("name", "a name is wanted");
    inner.String("description");
    inner.Object("parameters");
  }
  return *tools;
}

// The answer must call at least one of the tools.
void ForceTools(const Fields& fields, const char* field, Conversation& conversation) {
  if (conversation.tools.is_null()) fields.Refuse(field, "which needs tools");
  conversation.forced_tools = conversation.tools;
}

// The answer must be one call of the tool that `choice` names.
void ForceTool(const Fields& choice, Conversation& conversation) {
  const std::string name = choice.String("name").value_or("");
  conversation.forced_tools = Json::array();
  for (const Json& tool : conversation.tools) {
    if (tool["function"]["name"] == name) conversation.forced_tools.push_back(tool);
  }
  if (conversation.forced_tools.empty()) choice.Refuse("name", "the name of one of the tools");
  conversation.several_calls = false;
}

}  // namespace

Conversation ReadConversation(const Fields& fields) {
  const Json* messages = fields.Array("messages");
  if (messages == nullptr || messages->empty())
    fields.Refuse("messages", "a list of at least one message is wanted");
  Conversation conversation;
  conversation.messages = Json::array();
  for (size_t i = 0; i < messages->size(); ++i)
    conversation.messages.push_back(MessageOf((*messages)[i], fmt::format("messages[{}]", i)));
  conversation.tools = ToolsOf(fields);
  if (const Json* choice = fields.Find("tool_choice")) {
    if (*choice == "none") {
      conversation.tools = nullptr;
    } else if (*choice == "required") {
      ForceTools(fields, "tool_choice", conversation);
    } else if (choice->is_object()) {
      const Fields named(*choice, "tool_choice.");
      if (named.String("type").value_or("") != "function")
        named.Refuse("type", "\"function\" is wanted");
      const Json* function = named.Object("function");
      if (function == nullptr) named.Refuse("function", "an object is wanted");
      ForceTool(Fields(*function, "tool_choice.function."), conversation);
    } else if (*choice != "auto") {
      fields.Refuse("tool_choice", "\"auto\", \"none\", \"required\" or a function is wanted");
    }
  }
  if (!fields.Boolean("parallel_tool_calls").value_or(true)) conversation.several_calls = false;
  return conversation;
}

namespace {

// The text parts of an Anthropic content joined; tool uses and results are handed out apart.
struct Blocks {
  std::string text, reasoning;
  Json calls = Json::array();
  std::vector<Json> results;
};

Blocks BlocksOf(const Fields& message) {
  Blocks blocks;
  const Json* content = message.Find("content");
  if (content == nullptr) message.Refuse("content", "a string or a list of blocks is wanted");
  if (content->is_string()) {
    blocks.text = content->get<std::string>();
    return blocks;
  }
  if (!content->is_array()) message.Refuse("content", "a string or a list of blocks is wanted");
  for (size_t i = 0; i < content->size(); ++i) {
    if (!(*content)[i].is_object()) message.Refuse("content", "blocks are objects");
    const Fields block((*content)[i], fmt::format("{}[{}].", message.Path("content"), i));
    const std::string type = block.String("type").value_or("");
    if (type == "text") {
      const auto text = block.String("text");
      if (!text) block.Refuse("text", "a string is wanted");
      blocks.text += *text;
    } else if (type == "thinking") {
      blocks.reasoning += block.String("thinking").value_or("");
    } else if (type == "tool_use") {
      const auto name = block.String("name");
      if (!name || name->empty()) block.Refuse("name", "a tool's name is wanted");
      const Json* input = block.Object("input");
      blocks.calls.push_back(
          {{"id", block.String("id").value_or("")},
           {"type", "function"},
           {"function",
            {{"name", *name}, {"arguments", input == nullptr ? Json::object() : *input}}}});
    } else if (type == "tool_result") {
      blocks.results.push_back({{"role", "tool"},
                                {"content", TextOf(block)},
                                {"tool_call_id", block.String("tool_use_id").value_or("")}});
    } else {
      block.Refuse("type",
                   "this model takes \"text\", \"thinking\", \"tool_use\" and \"tool_result\"");
    }
  }
  return blocks;
}

}  // namespace

Conversation ReadAnthropicConversation(const Fields& fields) {
  Conversation conversation;
  conversation.messages = Json::array();
  if (fields.Find("system") != nullptr) {
    const Json system = {{"content", *fields.Find("system")}};
    conversation.messages.push_back(
        {{"role", "system"}, {"content", TextOf(Fields(system, "system."))}});
  }
  const Json* messages = fields.Array("messages");
  if (messages == nullptr || messages->empty())
    fields.Refuse("messages", "a list of at least one message is wanted");
  for (size_t i = 0; i < messages->size(); ++i) {
    const std::string path = fmt::format("messages[{}]", i);
    if (!(*messages)[i].is_object())
      throw ApiError(400, fmt::format("{} is not an object", path), path);
    const Fields message((*messages)[i], path + ".");
    const std::string role = message.String("role").value_or("");
    if (role != "user" && role != "assistant")
      message.Refuse("role", "\"user\" or \"assistant\" is wanted");
    Blocks blocks = BlocksOf(message);
    for (Json& result : blocks.results) conversation.messages.push_back(std::move(result));
    if (role == "assistant") {
      Json turn = {{"role", role}, {"content", blocks.text}};
      if (!blocks.reasoning.empty()) turn["reasoning_content"] = blocks.reasoning;
      if (!blocks.calls.empty()) turn["tool_calls"] = std::move(blocks.calls);
      conversation.messages.push_back(std::move(turn));
    } else if (!blocks.text.empty() || blocks.results.empty()) {
      conversation.messages.push_back({{"role", role}, {"content", blocks.text}});
    }
  }
  conversation.tools = nullptr;
  if (const Json* tools = fields.Array("tools"); tools != nullptr && !tools->empty()) {
    conversation.tools = Json::array();
    for (size_t i = 0; i < tools->size(); ++i) {
      if (!(*tools)[i].is_object()) fields.Refuse("tools", "tools are objects");
      const Fields tool((*tools)[i], fmt::format("tools[{}].", i));
      const auto name = tool.String("name");
      if (!name || name->empty()) tool.Refuse("name", "a name is wanted");
      const Json* schema = tool.Object("input_schema");
      Json function = {{"name", *name}, {"description", tool.String("description").value_or("")}};
      if (schema != nullptr) function["parameters"] = *schema;
      conversation.tools.push_back({{"type", "function"}, {"function", std::move(function)}});
    }
  }
  if (const Json* choice = fields.Object("tool_choice")) {
    const Fields kind(*choice, "tool_choice.");
    const std::string type = kind.String("type").value_or("");
    if (type == "none") {
      conversation.tools = nullptr;
    } else if (type == "any") {
      ForceTools(kind, "type", conversation);
    } else if (type == "tool") {
      ForceTool(kind, conversation);
    } else if (type != "auto") {
      kind.Refuse("type", "\"auto\", \"none\", \"any\" or \"tool\" is wanted");
    }
    if (kind.Boolean("disable_parallel_tool_use").value_or(false))
      conversation.several_calls = false;
  }
  return conversation;
}

}  // namespace strata
