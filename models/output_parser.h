// From the text a model writes to an answer's parts: reasoning, content and tool calls.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "models/call_syntax.h"

namespace strata {

enum class OutputFormat {
  kPlain,        // everything is content, byte for byte
  kReasoning,    // <think>...</think>, then content
  kGlm,          // the same, and GLM's <tool_call>
  kDeepseekV32,  // the same, and DeepSeek-V3.2's DSML calls
};

// The format that a chat template teaches; an empty `template_source` is the encoding built in for
// `model_type`. Only what the template really speaks counts: a model of a known type with a simpler
// template is kPlain.
OutputFormat OutputFormatOf(const std::string& model_type, std::string_view template_source);

// How the format writes calls; null: it has none.
const CallSyntax* CallSyntaxOf(OutputFormat format);

struct OutputOptions {
  // The prompt ends inside an open <think> (EndsInsideThink): the text starts as reasoning.
  bool in_reasoning = false;
  // OpenAI's list, or null. Without tools, the markup of calls is text like any other.
  nlohmann::ordered_json tools = nullptr;
};

struct OutputDelta {
  enum class Kind { kReasoning, kContent, kCall, kArguments };
  Kind kind;
  std::string text;  // kCall: the call's whole name; kArguments: the next part of its JSON
  int call = -1;     // kCall and kArguments: counts from 0
  bool operator==(const OutputDelta&) const = default;
};

// Takes the answer's text in pieces of any size (whole UTF-8 characters, decoded with the special
// tokens of the markup kept, without the end token, behind StopStrings) and gives out each part as
// soon as it is certain. The deltas of one kind, put together, are the same for every cut.
//
// Reasoning: up to the first </think>, byte for byte. <think> and </think> count in front of the
// answer only; later they are content.
// Calls: a call's name comes when its first argument or its end is seen, each argument when its
// value is complete; put together they are one JSON object. A parameter given twice counts once.
// What starts like a call but is none (no name, or none of the format's parts behind it) is
// content. A call inside the reasoning is a call, and the reasoning goes on behind it; no tag of
// the format stays in the reasoning, whether it made a call or not. White space around calls and
// line breaks behind </think> belong to the markup; text that goes on behind a call or an earlier
// <think> block is set off by a line break. A value may contain its closing tag, quotes and any
// other text: it ends only where the closing tag is followed by the next parameter or the end of
// the call. Text with just that sequence inside cannot be told from markup.
//
// Time is linear in the text, memory in the longest value.
class OutputParser {
 public:
  OutputParser(OutputFormat format, const OutputOptions& options);
  OutputParser(OutputParser&&) noexcept;
  OutputParser& operator=(OutputParser&&) noexcept;
  ~OutputParser();

  std::vector<OutputDelta> Push(std::string_view text);
  // What was held back. `at_limit`: the text was cut (a token limit, a stop string), not ended by
  // the model. Cut inside a call, the call is none: its name and arguments may have been given out,
  // but it does not count as finished, and what was held back of it is dropped. A model that ends
  // by itself behind a complete argument has finished the call.
  std::vector<OutputDelta> Finish(bool at_limit);

  // Calls whose arguments are complete JSON: the first ones of those begun. An answer with any is
  // one of tool calls, unless it was cut.
  int finished_calls() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// A whole answer; only finished calls.
struct ParsedOutput {
  struct Call {
    std::string name;
    std::string arguments;  // a JSON object
    bool operator==(const Call&) const = default;
  };
  std::string reasoning;
  std::string content;
  std::vector<Call> calls;
  bool operator==(const ParsedOutput&) const = default;
};

ParsedOutput ParseOutput(OutputFormat format, const OutputOptions& options, std::string_view text,
                         bool at_limit);

}  // namespace strata
