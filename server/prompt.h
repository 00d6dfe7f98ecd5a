// From a chat request to the tokens the model reads, and to what its answer may say.
#pragma once

#include <memory>
#include <vector>

#include "models/output_parser.h"
#include "server/conversation.h"
#include "server/generation_call.h"
#include "server/service.h"

namespace strata {

struct ChatPrompt {
  std::string text;
  std::vector<int32_t> tokens;
  OutputOptions output;  // how the answer is to be read
};

// Renders the conversation with the model's template. `chat_template_kwargs`, `reasoning_effort`
// and `add_generation_prompt` reach the template. ApiError(400) when the model has no template or
// the template refuses.
ChatPrompt ReadChatPrompt(const Fields& fields, Conversation conversation, const Service& service);

// `response_format`: text, json_object or json_schema; null for text. ApiError(400) names what
// cannot be enforced.
std::shared_ptr<const TokenConstraint> ReadResponseFormat(const Fields& fields,
                                                          const ChatPrompt& prompt,
                                                          const GenerationCall& call,
                                                          const Service& service);

}  // namespace strata
