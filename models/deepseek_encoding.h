// The message encoding that DeepSeek-V3.2 uses instead of a chat template (its
// encoding/encoding_dsv32.py).
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

namespace strata {

// Covered: system, developer, user, assistant and tool turns, thinking on or off, tools.
// - A user turn is followed by the assistant mark and <think> (thinking, last user turn) or
//   </think>. A developer turn is a user turn with a heading of its own.
// - Reasoning is kept behind the last user turn only, across tool calls.
// - `tools` (OpenAI's list, or null) and behind them `response_schema` (the JSON schema of the
//   answer, or null) stand at the end of a first system turn, in a first developer turn, or else in
//   front of all turns.
// - An assistant's tool_calls, whose arguments are objects, become a DSML block. The tool turns
// behind
//   it must answer all calls, and stand in the prompt in the order of the calls when ids name them.
// Content is a string, null or a list of text parts, which are joined by line breaks. Anything
// else: Fail(kUsage) names the message.
std::string EncodeDeepseekV32(const nlohmann::ordered_json& messages,
                              const nlohmann::ordered_json& tools,
                              const nlohmann::ordered_json& response_schema, bool thinking,
                              bool add_generation_prompt);

}  // namespace strata
