// The messages and tools of a chat request, checked and in the form that chat templates take.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "server/fields.h"

namespace strata {

struct Conversation {
  // {"role": system | user | assistant | tool, "content": text, "reasoning_content"?,
  //  "tool_calls"? (arguments as objects), "tool_call_id"?, "name"?}
  nlohmann::ordered_json messages;
  nlohmann::ordered_json tools;  // OpenAI's list, or null: none are to be called
  // Of these, the ones that the answer must call (tool_choice); null: it is free to.
  nlohmann::ordered_json forced_tools;
  bool several_calls = true;  // where it must, it may call more than once
};

// OpenAI's `messages`, `tools`, `tool_choice` and `parallel_tool_calls`. Contents may be lists of
// text parts. ApiError(400) names the field: other roles and parts, calls without names, tools that
// are no functions, a tool_choice of a tool that is not there.
Conversation ReadConversation(const Fields& fields);

// Anthropic's `system`, `messages`, `tools` and `tool_choice`, turned into the same form.
Conversation ReadAnthropicConversation(const Fields& fields);

}  // namespace strata
