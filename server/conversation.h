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
};

// OpenAI's `messages`, `tools` and `tool_choice`. Contents may be lists of text parts.
// ApiError(400) names the field: other roles and parts, calls without names, tools that are no
// functions, tool_choice values that cannot be enforced ("required" or a named function).
Conversation ReadConversation(const Fields& fields);

// Anthropic's `system`, `messages`, `tools` and `tool_choice`, turned into the same form.
Conversation ReadAnthropicConversation(const Fields& fields);

}  // namespace strata
