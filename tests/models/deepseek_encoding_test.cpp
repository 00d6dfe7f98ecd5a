#include "models/deepseek_encoding.h"

#include <gtest/gtest.h>

#include "kernels/status.h"
#include "models/chat_template.h"
#include "models/json.h"
#include "models/output_parser.h"

namespace strata {
namespace {

using nlohmann::ordered_json;

std::string Render(const ordered_json& messages, bool thinking = false,
                   const ordered_json& tools = nullptr, bool add_generation_prompt = true) {
  RenderOptions options;
  options.enable_thinking = thinking;
  options.add_generation_prompt = add_generation_prompt;
  return ChatTemplate::DeepseekV32().Render(messages, tools, options);
}

std::string ErrorOf(const ordered_json& messages, const ordered_json& tools = nullptr) {
  try {
    Render(messages, true, tools);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    return error.what();
  }
  return "no error";
}

const ordered_json kTools = ordered_json::parse(R"([
  {"type": "function", "function": {"name": "now", "description": "Time", "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}}}},
  {"type": "function", "function": {"name": "add", "parameters": {"x": 1.0, "y": ["é", null, true]}}}])");

// The published words, which the model was trained on.
const std::string kToolsText =
    "\n\n## Tools\n\n"
    "You have access to a set of tools you can use to answer the user's question.\n"
    "You can invoke functions by writing a \"<｜DSML｜function_calls>\" block like the following "
    "as part of your reply to the user:\n"
    "<｜DSML｜function_calls>\n"
    "<｜DSML｜invoke name=\"$FUNCTION_NAME\">\n"
    "<｜DSML｜parameter name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE"
    "</｜DSML｜parameter>\n"
    "...\n"
    "</｜DSML｜invoke>\n"
    "<｜DSML｜invoke name=\"$FUNCTION_NAME2\">\n"
    "...\n"
    "</｜DSML｜invoke>\n"
    "</｜DSML｜function_calls>\n\n"
    "String and scalar parameters should be specified as is without any escaping or quotes, while "
    "lists and objects should use JSON format. The \"string\" attribute should be set to \"true\" "
    "for string type parameters and \"false\" for other types (numbers, booleans, arrays, "
    "objects).\n\n"
    "If the thinking_mode is enabled, then after function results you should strongly consider "
    "outputting a thinking block. Here is an example:\n\n"
    "<｜DSML｜function_calls>\n...\n</｜DSML｜function_calls>\n\n"
    "<function_results>\n...\n</function_results>\n\n"
    "<think>...thinking about results</think>\n\n"
    "Here are the functions available in JSONSchema format:\n"
    "<functions>\n"
    "{\"name\": \"now\", \"description\": \"Time\", \"parameters\": {\"type\": \"object\", "
    "\"properties\": {\"zone\": {\"type\": \"string\"}}}}\n"
    "{\"name\": \"add\", \"parameters\": {\"x\": 1.0, \"y\": [\"é\", null, true]}}\n"
    "</functions>\n";

TEST(DeepseekEncoding, TurnsAndThinkingFollowThePublishedFormat) {
  const ordered_json messages = ordered_json::parse(
      R"([{"role":"system","content":"S"},{"role":"user","content":"a"},{"role":"assistant","content":"b","reasoning_content":"r"},{"role":"user","content":"c"}])");
  const std::string front =
      "<｜begin▁of▁sentence｜>S<｜User｜>a<｜Assistant｜></think>b<｜end▁of▁sentence｜><｜User｜>c";
  EXPECT_EQ(Render(messages), front + "<｜Assistant｜></think>");
  EXPECT_EQ(Render(messages, true), front + "<｜Assistant｜><think>");
  EXPECT_EQ(Render(messages, true, nullptr, false), front);
  EXPECT_EQ(Render(ordered_json::parse(R"([{"role":"user","content":"a"},
      {"role":"assistant","content":"b","reasoning_content":"r"}])"),
                   true),
            "<｜begin▁of▁sentence｜><｜User｜>a<｜Assistant｜><think>r</think>b"
            "<｜end▁of▁sentence｜>");
  EXPECT_EQ(Render(ordered_json::array()), "<｜begin▁of▁sentence｜>");
  EXPECT_EQ(Render(ordered_json::parse(
                R"([{"role":"user","content":[{"type":"text","text":"a"},{"text":"b"}]}])")),
            "<｜begin▁of▁sentence｜><｜User｜>a\nb<｜Assistant｜></think>");
}

TEST(DeepseekEncoding, AVariableSwitchesThinking) {
  const ordered_json messages = ordered_json::parse(R"([{"role":"user","content":"a"}])");
  RenderOptions options;
  options.enable_thinking = true;
  for (const char* name : {"thinking", "enable_thinking"}) {
    options.variables = {{name, false}, {"other", 1}};
    EXPECT_FALSE(EndsInsideThink(ChatTemplate::DeepseekV32().Render(messages, nullptr, options)));
    options.variables = {{name, nullptr}};
    EXPECT_TRUE(EndsInsideThink(ChatTemplate::DeepseekV32().Render(messages, nullptr, options)));
    options.variables = {{name, "yes"}};
    EXPECT_THROW(ChatTemplate::DeepseekV32().Render(messages, nullptr, options), Error);
  }
}

TEST(DeepseekEncoding, ToolsStandInTheFirstTurn) {
  const std::string begin = "<｜begin▁of▁sentence｜>";
  EXPECT_EQ(Render(ordered_json::parse(
                       R"([{"role":"system","content":"S"},{"role":"user","content":"a"}])"),
                   true, kTools),
            begin + "S" + kToolsText + "<｜User｜>a<｜Assistant｜><think>");
  EXPECT_EQ(Render(ordered_json::parse(R"([{"role":"user","content":"a"}])"), false, kTools),
            begin + kToolsText + "<｜User｜>a<｜Assistant｜></think>");
  EXPECT_EQ(
      Render(ordered_json::parse(R"([{"role":"developer","content":"a"}])"), true, kTools),
      begin + "<｜User｜>" + kToolsText + "\n\n# The user's message is: a<｜Assistant｜><think>");
  EXPECT_EQ(Render(ordered_json::parse(R"([{"role":"user","content":"a"}])"), false,
                   ordered_json::array()),
            begin + "<｜User｜>a<｜Assistant｜></think>");
}

TEST(DeepseekEncoding, TheSchemaOfTheAnswerStandsBehindTheTools) {
  const std::string begin = "<｜begin▁of▁sentence｜>";
  const std::string told =
      "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"
      "{\"type\": \"object\", \"title\": \"é\"}";
  const auto render = [](const char* messages, const ordered_json& tools) {
    RenderOptions options;
    options.response_schema = {{"type", "object"}, {"title", "é"}};
    return ChatTemplate::DeepseekV32().Render(ordered_json::parse(messages), tools, options);
  };
  EXPECT_EQ(render(R"([{"role":"system","content":"S"},{"role":"user","content":"a"}])", nullptr),
            begin + "S" + told + "<｜User｜>a<｜Assistant｜></think>");
  EXPECT_EQ(render(R"([{"role":"user","content":"a"}])", nullptr),
            begin + told + "<｜User｜>a<｜Assistant｜></think>");
  EXPECT_EQ(render(R"([{"role":"developer","content":"a"}])", kTools),
            begin + "<｜User｜>" + kToolsText + told +
                "\n\n# The user's message is: a<｜Assistant｜></think>");
}

// Two calls whose results come in the other order, then a call without arguments.
ordered_json Conversation() {
  return ordered_json::parse(R"([
    {"role": "user", "content": "q"},
    {"role": "assistant", "reasoning_content": "r1", "content": null, "tool_calls": [
      {"id": "A", "type": "function", "function": {"name": "now", "arguments": "{\"zone\": \"UTC \\\"x\\\"\"}"}},
      {"id": "B", "type": "function", "function": {"name": "add", "arguments": {"n": 1.0, "l": [1, "é"], "s": "2"}}}]},
    {"role": "tool", "tool_call_id": "B", "content": "3"},
    {"role": "tool", "tool_call_id": "A", "content": [{"type": "text", "text": "noon"}]},
    {"role": "assistant", "reasoning_content": "r2", "content": "more", "tool_calls": [
      {"id": "C", "type": "function", "function": {"name": "now", "arguments": ""}}]},
    {"role": "tool", "tool_call_id": "C", "content": "one"}])");
}

const std::string kFirstCalls =
    "\n\n<｜DSML｜function_calls>\n"
    "<｜DSML｜invoke name=\"now\">\n"
    "<｜DSML｜parameter name=\"zone\" string=\"true\">UTC \"x\"</｜DSML｜parameter>\n"
    "</｜DSML｜invoke>\n"
    "<｜DSML｜invoke name=\"add\">\n"
    "<｜DSML｜parameter name=\"n\" string=\"false\">1.0</｜DSML｜parameter>\n"
    "<｜DSML｜parameter name=\"l\" string=\"false\">[1, \"é\"]</｜DSML｜parameter>\n"
    "<｜DSML｜parameter name=\"s\" string=\"true\">2</｜DSML｜parameter>\n"
    "</｜DSML｜invoke>\n"
    "</｜DSML｜function_calls>";
const std::string kSecondCall =
    "\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"now\">\n\n</｜DSML｜invoke>\n"
    "</｜DSML｜function_calls>";

TEST(DeepseekEncoding, CallsAndResultsFollowThePublishedFormat) {
  const std::string end = "<｜end▁of▁sentence｜>";
  const std::string first_results =
      "\n\n<function_results>\n<result>noon</result>\n<result>3</result>\n</function_results>\n\n";
  const std::string second_result =
      "\n\n<function_results>\n<result>one</result>\n</function_results>";
  ordered_json messages = Conversation();
  EXPECT_EQ(Render(messages, true),
            "<｜begin▁of▁sentence｜><｜User｜>q<｜Assistant｜><think>r1</think>" + kFirstCalls +
                end + first_results + "<think>r2</think>more" + kSecondCall + end + second_result +
                "\n\n<think>");
  const std::string chat = "<｜begin▁of▁sentence｜><｜User｜>q<｜Assistant｜></think>" +
                           kFirstCalls + end + first_results + "</think>more" + kSecondCall + end +
                           second_result;
  EXPECT_EQ(Render(messages, false), chat + "\n\n</think>");
  EXPECT_EQ(Render(messages, false, nullptr, false), chat);
  // A new question ends the turn: its reasoning is gone.
  messages.push_back({{"role", "user"}, {"content", "next"}});
  EXPECT_EQ(Render(messages, true), chat + "\n\n</think><｜User｜>next<｜Assistant｜><think>");
  // Without ids the results stand in the order of the calls already.
  for (size_t i : {2, 3, 5}) messages[i].erase("tool_call_id");
  EXPECT_NE(Render(messages).find("<result>3</result>\n<result>noon</result>"), std::string::npos);
}

TEST(DeepseekEncoding, WhatIsWrittenIsReadBack) {
  for (const std::string& calls : {kFirstCalls, kSecondCall}) {
    const ParsedOutput output =
        ParseOutput(OutputFormat::kDeepseekV32, {.in_reasoning = true, .tools = kTools},
                    "r</think>text" + calls, false);
    EXPECT_EQ(output.reasoning, "r");
    EXPECT_EQ(output.content, "text");
    ordered_json list = ordered_json::array();
    for (const auto& call : output.calls)
      list.push_back({{"function", {{"name", call.name}, {"arguments", call.arguments}}}});
    const ordered_json messages = {{{"role", "user"}, {"content", "q"}},
                                   {{"role", "assistant"},
                                    {"reasoning_content", output.reasoning},
                                    {"content", output.content},
                                    {"tool_calls", list}}};
    EXPECT_EQ(Render(messages, true),
              "<｜begin▁of▁sentence｜><｜User｜>q<｜Assistant｜><think>r</think>text" + calls +
                  "<｜end▁of▁sentence｜>");
  }
}

TEST(DeepseekEncoding, WhatTheFormatCannotSayIsRefusedByName) {
  const auto error = [](const std::string& messages) {
    return ErrorOf(ordered_json::parse(messages));
  };
  const auto expect = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  const auto changed = [](size_t message, const ordered_json& patch) {
    ordered_json messages = Conversation();
    messages[message].merge_patch(patch);
    return ErrorOf(messages);
  };
  const auto without = [](size_t message) {
    ordered_json messages = Conversation();
    messages.erase(message);
    return ErrorOf(messages);
  };
  expect(error(R"([{"role":"tool","content":"x"}])"), "message 0 is a tool's result");
  expect(error(R"([{"role":"critic","content":"x"}])"), "message 0 has the role 'critic'");
  expect(error(R"([{"role":"user","content":5}])"), "message 0 has a 'content'");
  expect(error(R"([{"role":"user","content":[{"type":"image_url"}]}])"), "not text");
  expect(error(R"([5])"), "message 0 is not an object");
  expect(without(2), "message 1 has 2 tool calls, but 1 results follow it");
  expect(without(4), "message 1 has 2 tool calls, but 3 results follow it");
  expect(changed(2, {{"tool_call_id", "Z"}}), "message 2 answers the call 'Z'");
  expect(changed(2, {{"tool_call_id", "A"}}), "message 3 answers the call 'A'");
  expect(changed(2, {{"tool_call_id", nullptr}}), "message 3 answers a call that has its answer");
  expect(changed(1, {{"tool_calls", "now"}}), "not a list");
  expect(changed(1, {{"tool_calls", ordered_json::array({5})}}), "without a function's name");
  expect(changed(1, {{"tool_calls", ordered_json::array({{{"function", {{"name", "f"}}}}})}}),
         "without a function's name");
  expect(ErrorOf(Conversation(), "now"), "tools are \"now\", not a list");
}

}  // namespace
}  // namespace strata
