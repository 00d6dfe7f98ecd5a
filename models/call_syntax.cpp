#include "models/call_syntax.h"

namespace strata {

const CallSyntax& GlmCalls() {
  static const CallSyntax syntax = {
      .block_open = "",
      .block_close = "",
      .call_open = "<tool_call>",
      .name_close = "",
      .key_open = "<arg_key>",
      .key_close = "</arg_key>",
      .gaps = {"", "\n"},
      .value_open = {{"<arg_value>", ValueRule::kSchema}},
      .value_close = "</arg_value>",
      .call_close = "</tool_call>",
      .mark = "<tool_call",
  };
  return syntax;
}

const CallSyntax& DeepseekV32Calls() {
  static const CallSyntax syntax = {
      .block_open = "<｜DSML｜function_calls>",
      .block_close = "</｜DSML｜function_calls>",
      .call_open = "<｜DSML｜invoke name=\"",
      .name_close = "\">",
      .key_open = "<｜DSML｜parameter name=\"",
      .key_close = "\"",
      .gaps = {" "},
      .value_open = {{"string=\"true\">", ValueRule::kString},
                     {"string=\"false\">", ValueRule::kJson},
                     {">", ValueRule::kSchema}},
      .value_close = "</｜DSML｜parameter>",
      .call_close = "</｜DSML｜invoke>",
      .mark = "｜DSML｜",
  };
  return syntax;
}

}  // namespace strata
