// The message encoding that DeepSeek-V3.2 uses instead of a chat template (its
// encoding/encoding_dsv32.py).
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

namespace strata {

// Covered: system, user and assistant turns, thinking on or off, reasoning of earlier turns
// dropped. Each user turn is followed by the assistant mark and <think> (thinking, last user turn)
// or </think>. Tool definitions, tool calls and tool results are refused: Fail(kUsage) names the
// message.
std::string EncodeDeepseekV32(const nlohmann::ordered_json& messages, bool has_tools, bool thinking,
                              bool add_generation_prompt);

}  // namespace strata
