// How a model writes tool calls: the tags of its format.
#pragma once

#include <string_view>
#include <vector>

namespace strata {

// Who decides what a value is.
enum class ValueRule {
  kString,  // the markup says it is a string
  kJson,    // the markup says it is JSON
  kSchema,  // the tool's schema
};

struct ValueOpening {
  std::string_view tag;
  ValueRule rule;
};

// One call:  call_open NAME name_close { key_open KEY key_close value_open VALUE value_close }
// call_close, white space free between the parts. Tags begin with '<'. Neither format can escape
// its tags inside a value, so a value goes on over every `value_close` behind which no other part
// of a call follows.
struct CallSyntax {
  std::string_view block_open, block_close;  // around one or more calls; empty: none
  std::string_view call_open, name_close;    // an empty name_close: the next tag ends the name
  std::string_view key_open, key_close;
  std::vector<std::string_view> gaps;  // between key_close and value_open, as models write them
  std::vector<ValueOpening> value_open;
  std::string_view value_close, call_close;
  std::string_view mark;  // what a part of a tag must contain to be surely no text
};

// <tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>...</tool_call>: GLM-4.5 to
// GLM-5 (4.5 and 4.6 with line breaks between the parts). Strings stand as they are, other values
// as JSON.
const CallSyntax& GlmCalls();
// <｜DSML｜function_calls> around <｜DSML｜invoke name="NAME">, each with
// <｜DSML｜parameter name="KEY" string="true|false">VALUE</｜DSML｜parameter>: DeepSeek-V3.2.
const CallSyntax& DeepseekV32Calls();

}  // namespace strata
