#include "models/output_parser.h"

#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "models/json.h"
#include "models/tool_arguments.h"

namespace strata {

std::ostream& operator<<(std::ostream& out, const ParsedOutput& output) {
  out << "reasoning \"" << output.reasoning << "\" content \"" << output.content << '"';
  for (const auto& call : output.calls) out << "\n  " << call.name << ' ' << call.arguments;
  return out;
}

namespace {

using nlohmann::ordered_json;
using Kind = OutputDelta::Kind;
using Call = ParsedOutput::Call;

const ordered_json kTools = ordered_json::parse(R"([
  {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}},
  {"type": "function", "function": {"name": "get_time"}},
  {"type": "function", "function": {"name": "write", "parameters": {"type": "object",
    "properties": {"path": {"type": "string"}, "text": {"type": "string"},
                   "options": {"type": "object"}, "mode": {"$ref": "#/$defs/Mode"},
                   "after": {"type": ["string", "null"]}, "line": {"anyOf": [{"type": "string"}, {"type": "integer"}]}},
    "$defs": {"Mode": {"enum": ["1", "2"]}}}}}])");

OutputOptions Options(bool in_reasoning = false, const ordered_json& tools = kTools) {
  return {.in_reasoning = in_reasoning, .tools = tools};
}

std::vector<std::string> Characters(const std::string& text) {
  std::vector<std::string> characters;
  for (const char c : text) {
    if ((c & 0xC0) == 0x80 && !characters.empty()) {
      characters.back() += c;
    } else {
      characters.emplace_back(1, c);
    }
  }
  return characters;
}

// The deltas of a text given in pieces of `sizes` characters, in turn, neighbours of a kind joined.
std::vector<OutputDelta> Stream(OutputFormat format, const OutputOptions& options,
                                const std::string& text, bool at_limit,
                                const std::vector<size_t>& sizes) {
  OutputParser parser(format, options);
  std::vector<OutputDelta> joined;
  const auto add = [&](const std::vector<OutputDelta>& deltas) {
    for (const OutputDelta& delta : deltas) {
      EXPECT_FALSE(delta.text.empty());
      if (delta.kind != Kind::kCall && !joined.empty() && joined.back().kind == delta.kind &&
          joined.back().call == delta.call) {
        joined.back().text += delta.text;
      } else {
        joined.push_back(delta);
      }
    }
  };
  const std::vector<std::string> characters = Characters(text);
  size_t at = 0;
  for (size_t turn = 0; at < characters.size(); ++turn) {
    std::string piece;
    for (size_t i = 0; i < sizes[turn % sizes.size()] && at < characters.size(); ++i)
      piece += characters[at++];
    add(parser.Push(piece));
  }
  add(parser.Finish(at_limit));
  return joined;
}

// Parses the whole, and checks that every cut gives the same deltas.
ParsedOutput Parse(OutputFormat format, const OutputOptions& options, const std::string& text,
                   bool at_limit = false) {
  const ParsedOutput whole = ParseOutput(format, options, text, at_limit);
  const auto deltas = Stream(format, options, text, at_limit, {text.size() + 1});
  for (const std::vector<size_t>& sizes :
       {std::vector<size_t>{1}, {2}, {3}, {5}, {7}, {1, 0, 4}, {13}})
    EXPECT_EQ(Stream(format, options, text, at_limit, sizes), deltas) << text;
  for (size_t first = 1; first < text.size() && text.size() < 400; ++first)
    EXPECT_EQ(Stream(format, options, text, at_limit, {first, text.size()}), deltas) << text;
  for (const Call& call : whole.calls) {
    EXPECT_FALSE(call.name.empty());
    EXPECT_TRUE(ParseJson(call.arguments, "arguments", kMessageDepth).is_object());
  }
  return whole;
}

ParsedOutput Glm(const std::string& text, bool in_reasoning = false, bool at_limit = false) {
  return Parse(OutputFormat::kGlm, Options(in_reasoning), text, at_limit);
}
ParsedOutput Deepseek(const std::string& text, bool in_reasoning = false, bool at_limit = false) {
  return Parse(OutputFormat::kDeepseekV32, Options(in_reasoning), text, at_limit);
}

// Writes DSML with a plain mark, for legible tests.
std::string Dsml(std::string text) {
  for (size_t at = 0; (at = text.find('|', at)) != std::string::npos;)
    text.replace(at, 1, "｜DSML｜");
  return text;
}

TEST(OutputParser, PlainTextStaysAsItIs) {
  const std::string text = " \n<think>a</think>\n<tool_call>get_time</tool_call> ";
  EXPECT_EQ(Parse(OutputFormat::kPlain, Options(true), text), (ParsedOutput{"", text, {}}));
}

TEST(OutputParser, ReasoningIsSplitOff) {
  for (const OutputFormat format :
       {OutputFormat::kReasoning, OutputFormat::kGlm, OutputFormat::kDeepseekV32}) {
    const auto parse = [&](const std::string& text, bool in_reasoning) {
      return Parse(format, Options(in_reasoning), text);
    };
    EXPECT_EQ(parse("\n<think>\nwhy\n</think>\n\nSo.\n", false),
              (ParsedOutput{"\nwhy\n", "So.\n", {}}));
    EXPECT_EQ(parse("why</think>So.", true), (ParsedOutput{"why", "So.", {}}));
    EXPECT_EQ(parse("<think>why</think>So.", true), (ParsedOutput{"why", "So.", {}}));
    EXPECT_EQ(parse("why not", true), (ParsedOutput{"why not", "", {}}));
    EXPECT_EQ(parse("So.", false), (ParsedOutput{"", "So.", {}}));
    EXPECT_EQ(parse("\n", true), ParsedOutput{});
    // Empty blocks and a repeated end leave nothing.
    EXPECT_EQ(parse("<think>\n\n</think>\n\nSo.", false), (ParsedOutput{"", "So.", {}}));
    EXPECT_EQ(parse("</think></think>So.", true), (ParsedOutput{"", "So.", {}}));
    EXPECT_EQ(parse("<think>a</think>\n<think>\nb</think>c", false),
              (ParsedOutput{"a\nb", "c", {}}));
    // In the answer the tags are text; so is what only looks like them.
    EXPECT_EQ(parse("Use <think> and </think>. <thin <th", false),
              (ParsedOutput{"", "Use <think> and </think>. <thin <th", {}}));
    // The indentation of the first line is the answer's own.
    EXPECT_EQ(parse("x</think>\n \n    return 1;", true), (ParsedOutput{"x", "    return 1;", {}}));
  }
}

TEST(OutputParser, GlmCallsOfBothLayouts) {
  EXPECT_EQ(
      Glm("Checking.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>São "
          "Paulo</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n"
          "</tool_call>\n<tool_call>get_time\n</tool_call>\n"),
      (ParsedOutput{"",
                    "Checking.",
                    {{"get_weather", R"({"city":"São Paulo","days":3})"}, {"get_time", "{}"}}}));
  EXPECT_EQ(
      Glm("why</think><tool_call>get_weather<arg_key>city</arg_key><arg_value>Rome"
          "</arg_value></tool_call><tool_call>get_time</tool_call>Done.",
          true),
      (ParsedOutput{"why", "Done.", {{"get_weather", R"({"city":"Rome"})"}, {"get_time", "{}"}}}));
  EXPECT_EQ(Glm("a <tool_call>get_time</tool_call> b <tool_call>get_time</tool_call>").content,
            "a\n b");
}

TEST(OutputParser, DeepseekCallsInsideAndOutsideABlock) {
  const ParsedOutput expected = {
      "why",
      "Checking.",
      {{"get_weather", R"({"city":"San \"F\"","days":3})"}, {"get_time", "{}"}}};
  const std::string calls =
      "<|invoke name=\"get_weather\">\n<|parameter name=\"city\" string=\"true\">San "
      "\"F\"</|parameter>\n<|parameter name=\"days\" string=\"false\">3</|parameter>\n</|invoke>\n"
      "<|invoke name=\"get_time\">\n\n</|invoke>\n";
  EXPECT_EQ(
      Deepseek(Dsml("why</think>Checking.\n\n<|function_calls>\n" + calls + "</|function_calls>"),
               true),
      expected);
  EXPECT_EQ(Deepseek(Dsml("why</think>Checking.\n\n" + calls), true), expected);
  // The attribute decides; without it the schema does.
  EXPECT_EQ(Deepseek(Dsml("<|invoke name=\"get_weather\"><|parameter name=\"days\" "
                          "string=\"true\">3</|parameter><|parameter "
                          "name=\"city\">4</|parameter><|parameter name=\"x\" string=\"false\">yes"
                          "</|parameter></|invoke>"))
                .calls,
            (std::vector<Call>{{"get_weather", R"({"days":"3","city":"4","x":"yes"})"}}));
}

TEST(OutputParser, ValuesFollowTheSchema) {
  const auto value = [](const std::string& tool, const std::string& key, const std::string& text) {
    const auto calls = Glm("<tool_call>" + tool + "<arg_key>" + key + "</arg_key><arg_value>" +
                           text + "</arg_value></tool_call>")
                           .calls;
    return calls.size() == 1 ? calls[0].arguments.substr(key.size() + 4) : "no call";
  };
  EXPECT_EQ(value("write", "text", "12"), "\"12\"}");
  EXPECT_EQ(value("write", "text", "\"a\"\n"), "\"\\\"a\\\"\\n\"}");
  EXPECT_EQ(value("write", "text", ""), "\"\"}");
  EXPECT_EQ(value("write", "options", " {\"a\": [1, null]}\n"), "{\"a\": [1, null]}}");
  EXPECT_EQ(value("write", "options", "{'a': 1}"), "\"{'a': 1}\"}");
  EXPECT_EQ(value("write", "mode", "1"), "\"1\"}");  // an enumeration of strings, by reference
  EXPECT_EQ(value("write", "after", "null"), "null}");
  EXPECT_EQ(value("write", "after", "7"), "\"7\"}");
  EXPECT_EQ(value("write", "line", "7"), "7}");
  EXPECT_EQ(value("write", "line", "7.5"), "\"7.5\"}");
  EXPECT_EQ(value("get_weather", "days", "three"), "\"three\"}");
  EXPECT_EQ(value("get_weather", "days", "1e999"), "\"1e999\"}");
  EXPECT_EQ(value("get_weather", "days", "NaN"), "\"NaN\"}");
  EXPECT_EQ(value("get_weather", "days", "12345678901234567890123"), "12345678901234567890123}");
  EXPECT_EQ(value("get_weather", "days",
                  "\xEF\xBB\xBF"
                  "5"),
            "\"\xEF\xBB\xBF"
            "5\"}");
  // A zero byte ends no JSON; what no client could send back in the conversation is none either.
  EXPECT_EQ(value("get_weather", "days", std::string("5\0,\"x\":6", 8)),
            "\"5\\u0000,\\\"x\\\":6\"}");
  EXPECT_EQ(value("write", "options", std::string("{}\0", 3)), "\"{}\\u0000\"}");
  EXPECT_EQ(value("write", "options", R"({"a":1,"a":2})"), R"("{\"a\":1,\"a\":2}"})");
  const auto nested = [](size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_EQ(value("write", "options", nested(kJsonDepth)), nested(kJsonDepth) + "}");
  EXPECT_EQ(value("write", "options", nested(100'000)), '"' + nested(100'000) + "\"}");
  // Nothing known: JSON where it is JSON.
  EXPECT_EQ(value("get_weather", "other", "true"), "true}");
  EXPECT_EQ(value("unknown.tool", "x", "[1]"), "[1]}");
  EXPECT_EQ(value("unknown.tool", "x", "a b"), "\"a b\"}");
}

TEST(OutputParser, AValueMayContainItsClosingTagAndQuotes) {
  const std::string text =
      "say \"</arg_value>\" and '</arg_value>'\n</tool_call> \\ <arg_key>x</arg_key> <tool_call>";
  const ParsedOutput glm = Glm("<tool_call>write\n<arg_key>text</arg_key>\n<arg_value>" + text +
                               "</arg_value>\n<arg_key>path</arg_key>\n<arg_value>a\"b"
                               "</arg_value>\n</tool_call>");
  ASSERT_EQ(glm.calls.size(), 1u);
  EXPECT_EQ(ordered_json::parse(glm.calls[0].arguments),
            ordered_json({{"text", text}, {"path", "a\"b"}}));
  EXPECT_EQ(glm.content, "");

  const std::string dsml = Dsml("\"</|parameter>\" </|invoke> <|parameter name=\"x\"> </|param");
  const ParsedOutput deepseek =
      Deepseek(Dsml("<|function_calls>\n<|invoke name=\"write\">\n<|parameter name=\"text\" "
                    "string=\"true\">") +
               dsml + Dsml("</|parameter>\n</|invoke>\n</|function_calls>"));
  ASSERT_EQ(deepseek.calls.size(), 1u);
  EXPECT_EQ(ordered_json::parse(deepseek.calls[0].arguments), ordered_json({{"text", dsml}}));
  EXPECT_EQ(deepseek.content, "");
}

TEST(OutputParser, AWholeAnswerOfEachFormat) {
  const std::string script = "echo \"</arg_value>\" > 'a b'\n";
  const std::string dsml = Dsml("echo \"</|parameter>\" > 'a b'\n");
  const auto expected = [](const std::string& text) {
    return ParsedOutput{
        "I look, then write.",
        "One moment.",
        {{"get_time", "{}"}, {"write", ordered_json({{"path", "x"}, {"text", text}}).dump()}}};
  };
  EXPECT_EQ(Glm("<think>I look, then write.</think>\nOne moment.\n<tool_call>get_time</tool_call>\n"
                "<tool_call>write\n<arg_key>path</arg_key>\n<arg_value>x</arg_value>\n"
                "<arg_key>text</arg_key>\n<arg_value>" +
                script + "</arg_value>\n</tool_call>"),
            expected(script));
  EXPECT_EQ(Deepseek(Dsml("I look, then write.</think>One moment.\n\n<|function_calls>\n"
                          "<|invoke name=\"get_time\">\n\n</|invoke>\n<|invoke name=\"write\">\n"
                          "<|parameter name=\"path\" string=\"true\">x</|parameter>\n"
                          "<|parameter name=\"text\" string=\"true\">") +
                         dsml + Dsml("</|parameter>\n</|invoke>\n</|function_calls>"),
                     true),
            expected(dsml));
}

TEST(OutputParser, ACallInsideTheReasoningIsACall) {
  EXPECT_EQ(Glm("I need it.\n<tool_call>get_time</tool_call>", true),
            (ParsedOutput{"I need it.", "", {{"get_time", "{}"}}}));
  EXPECT_EQ(Glm("<think>First <tool_call>get_time</tool_call>\nthen.</think>Done."),
            (ParsedOutput{"First\nthen.", "Done.", {{"get_time", "{}"}}}));
  EXPECT_EQ(Deepseek(Dsml("Look.\n\n<|function_calls>\n<|invoke name=\"get_time\">\n</|invoke>\n"
                          "</|function_calls></think>Done."),
                     true),
            (ParsedOutput{"Look.", "Done.", {{"get_time", "{}"}}}));
  // Tags that make no call do not stay either, not even put together from pieces.
  EXPECT_EQ(Glm("the <tool_call> tag, </arg_value>, <tool_call>{\"name\": 1}</tool_call>", true)
                .reasoning,
            "the\n tag,\n,\n{\"name\": 1}");
  EXPECT_EQ(Glm("<tool_<tool_call>get_time</tool_call>call>x", true),
            (ParsedOutput{"<tool_\ncall>x", "", {{"get_time", "{}"}}}));
}

TEST(OutputParser, WhatIsNoCallIsContent) {
  for (const std::string text :
       {"Write <tool_call> first.", "<tool_call>", "<tool_call></tool_call>",
        "<tool_call>{\"name\": \"get_time\"}</tool_call>", "<tool_call>get_time",
        "<tool_call>get time</tool_call>", "<tool_call>get_time <b>", "</tool_call>",
        "a <arg_key>k</arg_key> b", "<tool_ca b <tool_call", "<tool_call>get_time</arg_key>"}) {
    EXPECT_EQ(Glm(text), (ParsedOutput{"", text, {}}));
  }
  const std::string longer = "<tool_call>" + std::string(300, 'a') + "</tool_call>";
  EXPECT_EQ(Glm(longer), (ParsedOutput{"", longer, {}}));
  EXPECT_EQ(Glm("<tool_call>a b<tool_call>get_time</tool_call>"),
            (ParsedOutput{"", "<tool_call>a b", {{"get_time", "{}"}}}));
  for (const std::string text :
       {"<|function_calls>", "<|function_calls> is a tag", "</|function_calls>",
        "<|function_calls>\n<|invoke name=\"a b\">\n</|invoke>", "<|invoke name=\"get_time\"> x",
        "<|invoke name=\"get_time\" x>", "<|invoke", "｜DSML｜"}) {
    EXPECT_EQ(Deepseek(Dsml(text)), (ParsedOutput{"", Dsml(text), {}}));
  }
}

TEST(OutputParser, DamageInsideACallCostsNoMoreThanItsParameter) {
  const auto glm = [](const std::string& rest) {
    const auto calls = Glm("<tool_call>get_weather" + rest + "</tool_call>").calls;
    return calls.size() == 1 ? calls[0].arguments : "no call";
  };
  const std::string city = "<arg_key>city</arg_key><arg_value>Rome</arg_value>";
  EXPECT_EQ(glm("<arg_key>days</arg_key>" + city), R"({"city":"Rome"})");
  EXPECT_EQ(glm("<arg_key>days<arg_value>3</arg_value>" + city), R"({"city":"Rome"})");
  EXPECT_EQ(glm(city + "<arg_key>days</arg_key>"), R"({"city":"Rome"})");
  EXPECT_EQ(glm("<arg_key>days</arg_key>?<arg_value>3</arg_value>"), "{}");
  EXPECT_EQ(glm("<arg_key>" + std::string(2000, 'k') + "</arg_key>" + city), R"({"city":"Rome"})");
  EXPECT_EQ(glm(city + "<arg_key>city</arg_key><arg_value>Oslo</arg_value>"),
            R"({"city":"Rome"})");  // the first counts
  EXPECT_EQ(glm("<arg_key> city </arg_key> <arg_value>Rome</arg_value>"), R"({"city":"Rome"})");
  // The next call ends one whose end is missing.
  EXPECT_EQ(Glm("<tool_call>get_weather" + city + "\n<tool_call>get_time</tool_call>").calls,
            (std::vector<Call>{{"get_weather", R"({"city":"Rome"})"}, {"get_time", "{}"}}));
}

TEST(OutputParser, ACallThatWasCutIsNone) {
  const std::string text =
      "Go.<tool_call>get_time</tool_call><tool_call>get_weather<arg_key>city</arg_key><arg_value>"
      "Rome</arg_value></tool_call>";
  const auto cut = [](OutputFormat format, const std::string& part, bool in_reasoning) {
    const ParsedOutput whole = ParseOutput(format, Options(in_reasoning), part, true);
    EXPECT_EQ(Stream(format, Options(in_reasoning), part, true, {1}),
              Stream(format, Options(in_reasoning), part, true, {part.size()}));
    return whole;
  };
  // From the whole second tag on; GLM's tags are single tokens.
  for (size_t bytes = text.rfind("get_weather"); bytes < text.size(); ++bytes) {
    EXPECT_EQ(cut(OutputFormat::kGlm, text.substr(0, bytes), false),
              (ParsedOutput{"", "Go.", {{"get_time", "{}"}}}));
  }
  EXPECT_EQ(Glm(text, false, true).calls.size(), 2u);

  const std::string dsml = Dsml(
      "Go.\n\n<|function_calls>\n<|invoke name=\"get_weather\">\n<|parameter name=\"city\" "
      "string=\"true\">Rome</|parameter>\n</|invoke>");
  // From inside the block's tag on: DSML's tags are several tokens.
  for (size_t bytes = dsml.find("function_calls"); bytes < dsml.size(); ++bytes) {
    if ((dsml[bytes] & 0xC0) == 0x80) continue;
    const std::string part = dsml.substr(0, bytes);
    EXPECT_EQ(cut(OutputFormat::kDeepseekV32, part, false), (ParsedOutput{"", "Go.", {}}));
    EXPECT_EQ(cut(OutputFormat::kDeepseekV32, part, true), (ParsedOutput{"Go.", "", {}}));
  }
  // A model that ends by itself behind a value has made its call, inside a value it has not.
  EXPECT_EQ(Deepseek(dsml.substr(0, dsml.rfind("</"))).calls,
            (std::vector<Call>{{"get_weather", R"({"city":"Rome"})"}}));
  EXPECT_TRUE(Deepseek(dsml.substr(0, dsml.find("me</"))).calls.empty());
  EXPECT_TRUE(Glm("<tool_call>get_weather<arg_key>city</arg_key><arg_value>Ro").calls.empty());
}

TEST(OutputParser, WithoutToolsTheMarkupOfCallsIsText) {
  const std::string text = "<tool_call>get_time</tool_call>";
  for (const ordered_json& none : {ordered_json(nullptr), ordered_json::array()}) {
    EXPECT_EQ(Parse(OutputFormat::kGlm, Options(false, none), "<think>" + text + "</think>" + text),
              (ParsedOutput{text, text, {}}));
  }
  EXPECT_EQ(Parse(OutputFormat::kReasoning, Options(), text), (ParsedOutput{"", text, {}}));
}

TEST(OutputParser, PartsComeAsSoonAsTheyAreCertain) {
  OutputParser parser(OutputFormat::kGlm, Options(true));
  const auto push = [&](const std::string& text) { return parser.Push(text); };
  const auto one = [](Kind kind, const std::string& text, int call = -1) {
    return std::vector<OutputDelta>{{kind, text, call}};
  };
  EXPECT_EQ(push("Hm"), one(Kind::kReasoning, "Hm"));
  EXPECT_EQ(push(", a < b "), one(Kind::kReasoning, ", a < b"));
  EXPECT_EQ(push("is <"), one(Kind::kReasoning, " is"));
  EXPECT_EQ(push("/th"), std::vector<OutputDelta>{});
  EXPECT_EQ(push("ink>Ok"),
            (std::vector<OutputDelta>{{Kind::kReasoning, " ", -1}, {Kind::kContent, "Ok", -1}}));
  EXPECT_EQ(push("\n<tool_call>get_weather\n"), std::vector<OutputDelta>{});
  EXPECT_EQ(push("<arg_key>"), one(Kind::kCall, "get_weather", 0));
  EXPECT_EQ(push("city</arg_key><arg_value>Rome</arg_value>"), std::vector<OutputDelta>{});
  EXPECT_EQ(push("<arg_key>"), one(Kind::kArguments, R"({"city":"Rome")", 0));
  EXPECT_EQ(parser.finished_calls(), 0);
  EXPECT_EQ(push("days</arg_key><arg_value>3</arg_value></tool_call>"),
            one(Kind::kArguments, R"(,"days":3})", 0));
  EXPECT_EQ(parser.finished_calls(), 1);
  EXPECT_EQ(push("<tool_call>get_time</tool_call>"),
            (std::vector<OutputDelta>{{Kind::kCall, "get_time", 1}, {Kind::kArguments, "{}", 1}}));
  EXPECT_EQ(parser.finished_calls(), 2);
  EXPECT_TRUE(parser.Finish(false).empty());
}

TEST(OutputParser, TheFormatIsTheOneTheTemplateSpeaks) {
  const std::string glm = "{{ '<think>' }}<tool_call>{n}<arg_key>{k}</arg_key>";
  EXPECT_EQ(OutputFormatOf("glm_moe_dsa", glm), OutputFormat::kGlm);
  EXPECT_EQ(OutputFormatOf("glm_moe_dsa", "<|assistant|>"), OutputFormat::kPlain);
  EXPECT_EQ(OutputFormatOf("glm_moe_dsa", "<|assistant|><think>"), OutputFormat::kReasoning);
  EXPECT_EQ(OutputFormatOf("glm_moe_dsa", "<tool_call>{\"name\":"), OutputFormat::kPlain);
  EXPECT_EQ(OutputFormatOf("glm_moe_dsa", ""), OutputFormat::kPlain);
  EXPECT_EQ(OutputFormatOf("deepseek_v32", ""), OutputFormat::kDeepseekV32);
  EXPECT_EQ(OutputFormatOf("deepseek_v32", "<｜DSML｜function_calls>"), OutputFormat::kDeepseekV32);
  EXPECT_EQ(OutputFormatOf("deepseek_v32", "{{ x }}</think>"), OutputFormat::kReasoning);
}

// Random sentences of tags and text: whatever the model writes, every cut gives the same parts,
// finished calls are JSON objects, and no tag of the format stays in the reasoning.
TEST(OutputParser, AnyTextKeepsTheRules) {
  const std::vector<std::string> glm = {"<think>",     "</think>",   "<tool_call>", "</tool_call>",
                                        "<arg_key>",   "</arg_key>", "<arg_value>", "</arg_value>",
                                        "get_weather", "city",       "days",        " ",
                                        "\n",          "x",          "3",           "{\"a\": 1}",
                                        "\"",          "<",          "</",          "é",
                                        "</arg_",      "tool_call>", "\\",          "get_time"};
  std::vector<std::string> deepseek = {"<think>",
                                       "</think>",
                                       "<|function_calls>",
                                       "</|function_calls>",
                                       "<|invoke name=\"",
                                       "\">",
                                       "</|invoke>",
                                       "<|parameter name=\"",
                                       "\" string=\"true\">",
                                       "\" string=\"false\">",
                                       "</|parameter>",
                                       "get_weather",
                                       "city",
                                       " ",
                                       "\n",
                                       "x",
                                       "[1, 2]",
                                       "\"",
                                       "<",
                                       "</|",
                                       "é",
                                       "<|invoke name=\"get_time\">"};
  for (std::string& word : deepseek) word = Dsml(word);
  std::mt19937 random(11);
  int calls = 0, reasoned = 0;
  for (int round = 0; round < 12000; ++round) {
    const bool is_glm = round % 2 == 0;
    const std::vector<std::string>& words = is_glm ? glm : deepseek;
    const OutputFormat format = is_glm ? OutputFormat::kGlm : OutputFormat::kDeepseekV32;
    std::string text;
    // Every third text starts as a call does, so that arguments are reached.
    if (round % 3 == 0)
      text = is_glm ? "<tool_call>get_weather<arg_key>city</arg_key><arg_value>"
                    : Dsml(
                          "<|invoke name=\"get_weather\"><|parameter name=\"city\" "
                          "string=\"false\">");
    for (size_t n = random() % 14; n > 0; --n) text += words[random() % words.size()];
    const OutputOptions options = Options(random() % 2 == 0);
    const bool at_limit = random() % 2 == 0;
    const auto whole = Stream(format, options, text, at_limit, {text.size() + 1});
    const auto cut = Stream(format, options, text, at_limit, {1 + random() % 3, 1 + random() % 5});
    ASSERT_EQ(cut, whole) << text;
    ASSERT_EQ(Stream(format, options, text, at_limit, {1}), whole) << text;
    const ParsedOutput output = ParseOutput(format, options, text, at_limit);
    for (const Call& call : output.calls) {
      ASSERT_TRUE(ParseJson(call.arguments, "arguments").is_object()) << text;
      ASSERT_EQ(call.name.find_first_of(" <>\"\n"), std::string::npos) << text;
    }
    for (const std::string& word : words) {
      const bool tag = word[0] == '<' && (word.back() == '>' || word.back() == '"');
      if (tag && word.find("think") == std::string::npos) {
        ASSERT_EQ(output.reasoning.find(word), std::string::npos) << text;
      }
    }
    calls += static_cast<int>(output.calls.size());
    reasoned += !output.reasoning.empty();
    // Without tools nothing but <think> is read.
    const ParsedOutput toolless =
        ParseOutput(format, Options(false, nullptr), "." + text, at_limit);
    ASSERT_EQ(toolless, (ParsedOutput{"", "." + text, {}}));
  }
  EXPECT_GT(calls, 200);
  EXPECT_GT(reasoned, 2000);
}

// Each parameter refers to a definition of its own, and each to one long list.
TEST(OutputParser, WideSchemasCostTimeInProportion) {
  constexpr int kCount = 40'000;
  ordered_json::object_t properties, definitions;
  for (int i = 0; i < kCount; ++i) {
    const std::string number = std::to_string(i);
    properties.emplace_back("p" + number, ordered_json{{"$ref", "#/$defs/d" + number}});
    properties.emplace_back("q" + number, ordered_json{{"$ref", "#/$defs/long"}});
    definitions.emplace_back("d" + number, ordered_json{{"type", "string"}});
  }
  ordered_json values = ordered_json::array();
  for (int i = 0; i < kCount; ++i) values.push_back("v" + std::to_string(i));
  definitions.emplace_back("long", ordered_json{{"enum", values}});
  const ordered_json parameters = {{"properties", std::move(properties)},
                                   {"$defs", std::move(definitions)}};
  const ordered_json function = {{"name", "f"}, {"parameters", parameters}};
  const auto start = std::chrono::steady_clock::now();
  const ToolArguments arguments(
      ordered_json::array({{{"type", "function"}, {"function", function}}}));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
  EXPECT_EQ(arguments.Json("f", "p39999", "7"), "\"7\"");
  EXPECT_EQ(arguments.Json("f", "q39999", "7"), "\"7\"");
  EXPECT_EQ(arguments.Json("f", "r", "7"), "7");
}

TEST(OutputParser, LongTextsCostTimeInProportion) {
  const std::string call = "<tool_call>write<arg_key>text</arg_key><arg_value>";
  // 100,000 pieces, several megabytes: looking at all of it for every piece would take minutes.
  const auto start = std::chrono::steady_clock::now();
  for (const auto& [head, unit] : std::vector<std::pair<std::string, std::string>>{
           {"", " "},
           {"", "\n<"},
           {"", "<tool_call>"},
           {"<tool_call>", "a"},
           {"<tool_call>get_time", " "},
           {call, "x"},
           {call, "</arg_value> "},
           {call + "</arg_value>", " "},
           {call + "</arg_value><arg_key>", "k"},
           {call + "</arg_value><arg_key>k</arg_key>x", "<arg_"}}) {
    OutputParser parser(OutputFormat::kGlm, Options());
    parser.Push(head);
    std::string piece;
    while (piece.size() < 48) piece += unit;
    for (int i = 0; i < 100000; ++i) parser.Push(piece);
    parser.Finish(false);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(15));
}

}  // namespace
}  // namespace strata
