// From a chat request to the tokens the model reads, and to what its answer may say.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/output_parser.h"
#include "server/conversation.h"
#include "server/generation_call.h"
#include "server/service.h"

namespace strata {

struct ChatPrompt {
  std::string text;
  std::vector<int32_t> tokens;
  OutputOptions output;            // how the answer is to be read
  std::optional<CallRules> calls;  // that the answer must make
};

// Renders the conversation with the model's template. `chat_template_kwargs`, `reasoning_effort`
// and `add_generation_prompt` reach the template. ApiError(400) when the model has no template or
// the template refuses.
ChatPrompt ReadChatPrompt(const Fields& fields, Conversation conversation, const Service& service);

// `prompt` of a completion: a string, a list of token ids, or a list of up to 64 of these.
std::vector<std::vector<int32_t>> ReadPrompts(const Fields& fields, const Tokenizer& tokenizer);

// What the answer is held to: the calls that tool_choice demands, or `response_format` (json_object
// or json_schema); null: nothing. ApiError(400) names what cannot be enforced.
std::shared_ptr<const TokenConstraint> ReadConstraint(const Fields& fields,
                                                      const ChatPrompt& prompt,
                                                      const GenerationCall& call,
                                                      const Service& service);

}  // namespace strata
