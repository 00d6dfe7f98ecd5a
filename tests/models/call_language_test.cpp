#include "models/call_language.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "kernels/status.h"
#include "models/json.h"
#include "models/output_parser.h"

namespace strata {
namespace {

using nlohmann::ordered_json;

const ordered_json kTools = ordered_json::parse(R"([
  {"type": "function", "function": {"name": "get", "parameters": {"type": "object", "properties": {
    "city": {"type": "string"}, "unit": {"type": "string", "enum": ["c", "cold < hot"]}},
    "required": ["city"]}}},
  {"type": "function", "function": {"name": "get_all"}},
  {"type": "function", "function": {"name": "put", "parameters": {"type": "object", "properties": {
    "count": {"type": "integer", "minimum": 1, "maximum": 40},
    "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
    "point": {"$ref": "#/$defs/point"},
    "any": {}, "loose": {"type": ["string", "null"]}, "odd": {"type": "integer", "multipleOf": 7}},
    "required": ["count", "unlisted"],
    "$defs": {"point": {"type": "object", "properties": {"x": {"type": "boolean"}},
                        "required": ["x"]}}}}}])");

// All bytes, parts of tags, tags, tokens that go over the ends of tags, two end tokens.
std::vector<std::string> ToyTokens() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.push_back(std::string(1, static_cast<char>(byte)));
  for (const char* token : {"<tool_call>",
                            "</tool_call>",
                            "<arg_key>",
                            "</arg_key>",
                            "<arg_value>",
                            "</arg_value>",
                            "</",
                            "_value>",
                            "tool",
                            "get",
                            "get_",
                            "city",
                            "</arg_value>\n<arg_key>",
                            "\n<tool_call>",
                            "</arg_value></tool_call>",
                            "1</",
                            "\"]</arg",
                            "c</arg_value>",
                            "｜DSML｜",
                            "<｜DSML｜",
                            "</｜DSML｜",
                            "</｜DSML｜parameter>",
                            "parameter",
                            " name=\"",
                            "\" string=\"",
                            "true\">",
                            "false\">",
                            "invoke",
                            "function_calls>",
                            ">\n<｜",
                            "</think>",
                            "ink>\n\n",
                            "\n\n"})
    tokens.push_back(token);
  tokens.insert(tokens.end(), 2, "");
  return tokens;
}

const std::shared_ptr<const JsonVocabulary>& Toy() {
  static const auto vocabulary = [] {
    const std::vector<std::string> tokens = ToyTokens();
    const int32_t end = static_cast<int32_t>(tokens.size()) - 1;
    return std::make_shared<const JsonVocabulary>(tokens, std::vector<int32_t>{end - 1, end});
  }();
  return vocabulary;
}

bool Bit(const std::vector<uint32_t>& mask, int32_t token) {
  return (mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1) != 0;
}

bool Takes(const CallRules& rules, OutputFormat format, const std::string& text) {
  const CallLanguage language(*CallSyntaxOf(format), rules);
  CallState state = language.Start(), next;
  for (const char c : text) {
    if (!language.Step(state, static_cast<uint8_t>(c), next)) return false;
    std::swap(state, next);
  }
  return language.MayEnd(state);
}

ordered_json Named(const std::string& name) {
  ordered_json list = ordered_json::array();
  for (const ordered_json& tool : kTools) {
    if (tool["function"]["name"] == name) list.push_back(tool);
  }
  return list;
}

class CallLanguageTest : public ::testing::TestWithParam<OutputFormat> {
 protected:
  // What ends a text soonest comes first; `close` ends what the text is in the middle of.
  static int Eagerness(int32_t token, std::string_view close) {
    const std::string& bytes = Toy()->bytes(token);
    if (Toy()->IsEnd(token)) return -1;
    if (bytes == close) return 0;
    if (bytes.starts_with("</")) return 100 - static_cast<int>(bytes.size());
    const size_t at = std::string("\"]}<").find(bytes[0]);
    return at == std::string::npos ? 200 : 101 + static_cast<int>(at);
  }
  // A random text of the language, which after a while ends as soon as it can; empty: it got stuck.
  static std::string Walk(const CallConstraint& start, unsigned seed) {
    std::mt19937 random(seed);
    const auto constraint = start.Clone();
    std::string text;
    std::vector<uint32_t> mask;
    const std::string_view closes[] = {"</think>", "\"", CallSyntaxOf(GetParam())->value_close};
    for (int step = 0; step < 5000; ++step) {
      constraint->Allowed(mask);
      std::vector<int32_t> tokens;
      for (int32_t token = 0; token < Toy()->size(); ++token) {
        if (Bit(mask, token)) tokens.push_back(token);
      }
      if (tokens.empty()) return "";
      std::shuffle(tokens.begin(), tokens.end(), random);
      // Most of the time one of the best eighth, so that values have an end.
      if (random() % 4 != 0 || step > 500) {
        const size_t best = step > 500 ? 1 : (tokens.size() + 7) / 8;
        std::partial_sort(tokens.begin(), tokens.begin() + static_cast<long>(best), tokens.end(),
                          [close = closes[random() % 3]](int32_t a, int32_t b) {
                            return Eagerness(a, close) < Eagerness(b, close);
                          });
        tokens.resize(best);
      }
      const int32_t token = tokens[random() % tokens.size()];
      constraint->Accept(token);
      if (Toy()->IsEnd(token)) return text;
      text += Toy()->bytes(token);
    }
    return "";
  }
};
INSTANTIATE_TEST_SUITE_P(Formats, CallLanguageTest,
                         ::testing::Values(OutputFormat::kGlm, OutputFormat::kDeepseekV32),
                         [](const auto& info) {
                           return info.param == OutputFormat::kGlm ? "Glm" : "DeepseekV32";
                         });

TEST_P(CallLanguageTest, EveryWalkIsReadAsCallsAndNothingElse) {
  std::set<std::string> seen;
  for (const bool reasoning : {false, true}) {
    const CallRules rules{.tools = kTools, .several = true, .in_reasoning = reasoning};
    const CallConstraint start(Toy(), *CallSyntaxOf(GetParam()), rules);
    for (unsigned seed = 0; seed < 150; ++seed) {
      const std::string text = Walk(start, seed);
      ASSERT_FALSE(text.empty()) << seed;
      SCOPED_TRACE(text);
      const ParsedOutput parsed = ParseOutput(
          GetParam(), OutputOptions{.in_reasoning = reasoning, .tools = kTools}, text, false);
      EXPECT_EQ(parsed.content, "");
      ASSERT_FALSE(parsed.calls.empty());
      for (const ParsedOutput::Call& call : parsed.calls) {
        seen.insert(call.name);
        const ordered_json arguments = ordered_json::parse(call.arguments);
        if (call.name == "get_all") {
          EXPECT_TRUE(arguments.empty());
        }
        if (call.name == "get") {
          EXPECT_TRUE(arguments.at("city").is_string());
          const ordered_json unit = arguments.value("unit", ordered_json("c"));
          EXPECT_TRUE(unit == "c" || unit == "cold < hot") << unit;
        }
        if (call.name != "put") continue;
        EXPECT_TRUE(arguments.contains("unlisted"));
        EXPECT_GE(arguments.at("count"), 1);
        EXPECT_LE(arguments.at("count"), 40);
        if (arguments.contains("tags")) {
          EXPECT_LE(arguments["tags"].size(), 2u);
        }
        if (arguments.contains("point")) {
          EXPECT_TRUE(arguments["point"]["x"].is_boolean());
        }
        if (arguments.contains("odd")) {
          EXPECT_TRUE(arguments["odd"].is_number_integer());
        }
        if (arguments.contains("loose")) {
          EXPECT_TRUE(arguments["loose"].is_string() || arguments["loose"].is_null());
        }
      }
    }
  }
  EXPECT_EQ(seen.size(), 3u);
}

TEST_P(CallLanguageTest, MasksEqualTryingEveryToken) {
  const CallRules rules{.tools = kTools, .several = true, .in_reasoning = true};
  const CallLanguage language(*CallSyntaxOf(GetParam()), rules);
  const CallConstraint start(Toy(), *CallSyntaxOf(GetParam()), rules);
  for (unsigned seed = 0; seed < 6; ++seed) {
    const std::string text = Walk(start, seed);
    const auto constraint = start.Clone();
    CallState state = language.Start();
    std::vector<uint32_t> mask;
    for (size_t at = 0; at < std::min<size_t>(text.size(), 400); ++at) {
      constraint->Allowed(mask);
      for (int32_t token = 0; token < Toy()->size(); ++token) {
        CallState tried = state, next;
        bool taken = !Toy()->bytes(token).empty();
        for (const char c : Toy()->bytes(token)) {
          taken = taken && language.Step(tried, static_cast<uint8_t>(c), next);
          std::swap(tried, next);
        }
        if (Toy()->IsEnd(token)) taken = language.MayEnd(state);
        ASSERT_EQ(Bit(mask, token), taken) << at << " " << Toy()->bytes(token) << "\n" << text;
      }
      CallState next;
      ASSERT_TRUE(language.Step(state, static_cast<uint8_t>(text[at]), next));
      std::swap(state, next);
      constraint->Accept(static_cast<uint8_t>(text[at]));
    }
  }
}

TEST(CallLanguage, WhatModelsWriteIsTaken) {
  const CallRules any{.tools = kTools};
  const std::string glm =
      "<tool_call>get<arg_key>city</arg_key><arg_value>a < b \"</arg_</arg_value></tool_call>";
  EXPECT_TRUE(Takes(any, OutputFormat::kGlm, glm));
  EXPECT_TRUE(Takes(any, OutputFormat::kGlm, "\n" + glm + "\n" + glm));
  EXPECT_TRUE(Takes(any, OutputFormat::kGlm,
                    "<tool_call>put\n<arg_key>unlisted</arg_key>\n<arg_value>x</arg_value>\n"
                    "<arg_key>count</arg_key>\n<arg_value>40</arg_value>\n</tool_call>"));
  EXPECT_TRUE(Takes(any, OutputFormat::kGlm, "<tool_call>get_all</tool_call>"));
  const std::string deepseek =
      "\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"get\">\n<｜DSML｜parameter "
      "name=\"city\" string=\"true\">Rome</｜DSML｜parameter>\n</｜DSML｜invoke>\n"
      "<｜DSML｜invoke name=\"get_all\">\n\n</｜DSML｜invoke>\n</｜DSML｜function_calls>";
  EXPECT_TRUE(Takes(any, OutputFormat::kDeepseekV32, deepseek));
  const CallRules reasoned{.tools = kTools, .in_reasoning = true};
  EXPECT_TRUE(
      Takes(reasoned, OutputFormat::kDeepseekV32, "so: <｜DSML｜</thin</think>" + deepseek));
  // Reasoning that calls would be read as calling.
  EXPECT_FALSE(
      Takes(reasoned, OutputFormat::kDeepseekV32, "so: " + deepseek + "</think>" + deepseek));
  EXPECT_FALSE(Takes(reasoned, OutputFormat::kGlm, "<tool_call>any</think>" + glm));
}

TEST(CallLanguage, WhatIsNoCallOfTheseToolsIsNot) {
  const CallRules any{.tools = kTools};
  const auto get = [](const std::string& parts) {
    return "<tool_call>get" + parts + "</tool_call>";
  };
  const std::string city = "<arg_key>city</arg_key><arg_value>a</arg_value>";
  EXPECT_TRUE(Takes(any, OutputFormat::kGlm, get(city)));
  for (const std::string& text :
       {std::string(), std::string("Rome"), " " + get(city), get(city) + "\n", get(""),
        get(city + city), get(city + "<arg_key>other</arg_key><arg_value>a</arg_value>"),
        get(city + "<arg_key>unit</arg_key><arg_value>kelvin</arg_value>"),
        std::string("<tool_call>gone</tool_call>"), std::string("<tool_call>get_all"),
        std::string("<tool_call>put<arg_key>unlisted</arg_key><arg_value>x</arg_value>"
                    "<arg_key>count</arg_key><arg_value>41</arg_value></tool_call>")})
    EXPECT_FALSE(Takes(any, OutputFormat::kGlm, text)) << text;
  const CallRules one{.tools = Named("get_all"), .several = false};
  const std::string all = "<tool_call>get_all</tool_call>";
  EXPECT_TRUE(Takes(one, OutputFormat::kGlm, all));
  EXPECT_FALSE(Takes(one, OutputFormat::kGlm, all + all));
  EXPECT_FALSE(Takes(one, OutputFormat::kGlm, get(city)));
}

TEST(CallLanguage, NamesThatTheFormatCannotWriteAreRefused) {
  const auto refused = [](const std::string& tool, const std::string& parameter) {
    const ordered_json tools = ordered_json::array(
        {{{"type", "function"},
          {"function",
           {{"name", tool},
            {"parameters", {{"properties", {{parameter, {{"type", "string"}}}}}}}}}}});
    try {
      const CallLanguage language(GlmCalls(), {.tools = tools});
      return std::string();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUsage);
      return std::string(error.what());
    }
  };
  EXPECT_EQ(refused("ok", "also ok"), "");
  EXPECT_NE(refused("a<b", "x").find("a<b"), std::string::npos);
  EXPECT_NE(refused("ok", "a\"b").find("a\"b"), std::string::npos);
  EXPECT_NE(refused("ok", " a").find(" a"), std::string::npos);
  EXPECT_NE(refused("", "a"), "");
  EXPECT_NE(refused(std::string(300, 'a'), "a"), "");
  ordered_json many = ordered_json::object();
  for (int i = 0; i < 65; ++i) many["p" + std::to_string(i)] = ordered_json::object();
  const ordered_json tools = ordered_json::array(
      {{{"type", "function"},
        {"function", {{"name", "wide"}, {"parameters", {{"properties", many}}}}}}});
  EXPECT_THROW(CallLanguage(GlmCalls(), {.tools = tools}), Error);
}

TEST(CallLanguage, WhatARequestCanHaveCompiledIsBounded) {
  const auto error = [](const ordered_json& tools) {
    try {
      const CallLanguage language(GlmCalls(), {.tools = tools});
      return std::string();
    } catch (const Error& error) {
      return std::string(error.what());
    }
  };
  const auto tool = [](const std::string& name, const ordered_json& parameters) -> ordered_json {
    return {{"type", "function"}, {"function", {{"name", name}, {"parameters", parameters}}}};
  };
  ordered_json list = ordered_json::array();
  for (int i = 0; i < 128; ++i)
    list.push_back(tool("t" + std::to_string(i), ordered_json::object()));
  EXPECT_EQ(error(list), "");
  list.push_back(tool("more", nullptr));
  EXPECT_NE(error(list).find("129 tools"), std::string::npos);

  // Checked before they are gone through one by one.
  ordered_json needed = ordered_json::array();
  for (int i = 0; i < 200'000; ++i) needed.push_back("p" + std::to_string(i));
  EXPECT_NE(error(ordered_json::array({tool("t", {{"required", needed}})})).find("more than 64"),
            std::string::npos);

  const ordered_json listed = {{"properties", {{"p", {{"enum", {std::string(70'000, 'a')}}}}}}};
  EXPECT_NE(error(ordered_json::array({tool("t", listed)})).find("listed values"),
            std::string::npos);

  // Definitions that every parameter refers to are compiled for each.
  ordered_json shared = {
      {"$defs", {{"d", {{"type", "integer"}, {"title", std::string(30'000, 'a')}}}}}};
  for (int i = 0; i < 60; ++i)
    shared["properties"]["p" + std::to_string(i)] = {{"$ref", "#/$defs/d"}};
  EXPECT_NE(error(ordered_json::array({tool("t", shared)})).find("schemas"), std::string::npos);
}

}  // namespace
}  // namespace strata
