#include "models/json_schema.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "kernels/status.h"
#include "models/json.h"
#include "models/json_automaton.h"

namespace strata {
namespace {

using nlohmann::ordered_json;

JsonSchema Compile(const std::string& text) {
  return JsonSchema::Compile(ParseJson(text, "test"), "schema");
}

// How many bytes of the text may come; one more when it may also end there.
size_t Reach(const JsonSchema& schema, const std::string& text) {
  const JsonAutomaton automaton(schema);
  JsonState state = automaton.Start(), next;
  for (size_t i = 0; i < text.size(); ++i) {
    if (!automaton.Step(state, static_cast<uint8_t>(text[i]), next)) return i;
    std::swap(state, next);
  }
  return text.size() + automaton.MayEnd(state);
}

void ExpectTexts(const JsonSchema& schema, const std::vector<std::string>& valid,
                 const std::vector<std::string>& invalid) {
  for (const std::string& text : valid) EXPECT_EQ(Reach(schema, text), text.size() + 1) << text;
  for (const std::string& text : invalid) EXPECT_LE(Reach(schema, text), text.size()) << text;
}

std::string RefusalOf(const ordered_json& schema) {
  try {
    JsonSchema::Compile(schema, "response_format.json_schema.schema");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.what();
  }
  return "accepted";
}
std::string Refusal(const std::string& text) { return RefusalOf(ParseJson(text, "test")); }

void ExpectRefusal(const std::string& schema, const std::string& message) {
  EXPECT_NE(Refusal(schema).find(message), std::string::npos)
      << schema << " gives: " << Refusal(schema);
}

TEST(JsonSchema, AnyObjectIsRfc8259) {
  const JsonSchema any = JsonSchema::AnyObject();
  ExpectTexts(any,
              {"{}", R"({"a":1})", R"({"a":[1,-0.5,2e10,1E-3,true,false,null,"x",{},[]]})",
               R"({"":{"":{"":[[[]]]}}})", "\n{\n  \"a\": [\n    1\n  ]\n}", "{ }",
               R"({"a":"\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00"})",
               "{\"\xC3\xA9\":\"\xE4\xBD\xA0\xF0\x9F\x98\x80\x7F\"}"},
              {"",
               "[]",
               "1",
               "{",
               R"({"a")",
               R"({"a":})",
               R"({"a":1,})",
               R"({"a":01})",
               R"({"a":1.})",
               R"({"a":.5})",
               R"({"a":+1})",
               R"({"a":1e})",
               R"({"a":tru})",
               R"({"a":nul})",
               R"({"a":[1,]})",
               R"({"a":[,]})",
               R"({"a":[1})",
               R"({"a":1]})",
               R"({a:1})",
               R"({'a':1})",
               R"({"a":'x'})",
               R"({"a":1}x)",
               R"({"a":1} )",
               R"({"a":NaN})",
               R"({"a":Infinity})"});
}

TEST(JsonSchema, StringsAreWholeUtf8WithoutControlCharacters) {
  const JsonSchema text = Compile(R"({"type":"string"})");
  ExpectTexts(text,
              {"\"\xED\x9F\xBF\"", "\"\xF4\x8F\xBF\xBF\"", "\"\xE0\xA0\x80\"", R"("\ud7ff")",
               R"("\ue000")", R"("\uDBFF\uDFFF")", R"("\u0000")"},
              {std::string("\"\0\"", 3),
               "\"\n\"",
               "\"\x1F\"",
               "\"\x80\"",
               "\"\xC0\x80\"",
               "\"\xC1\xBF\"",
               "\"\xE0\x9F\xBF\"",
               "\"\xED\xA0\x80\"",
               "\"\xF0\x8F\xBF\xBF\"",
               "\"\xF4\x90\x80\x80\"",
               "\"\xF5\x80\x80\x80\"",
               "\"\xFF\"",
               "\"\xC3\"",
               "\"\xC3x\"",
               "\"\xE4\xBD\"",
               R"("\x")",
               R"("\u12")",
               R"("\u12g4")",
               R"("\ud800")",
               R"("\ud800x")",
               R"("\ud800\n")",
               R"("\ud800\u0041")",
               R"("\ud800\ud800")",
               R"("\udc00")"});
}

TEST(JsonSchema, BlanksAndDepthAreBounded) {
  const JsonSchema any = JsonSchema::AnyObject();
  EXPECT_EQ(Reach(any, "{  "), 2u);
  EXPECT_EQ(Reach(any, "{\n\n"), 2u);
  EXPECT_EQ(Reach(any, "{\n    \""), 7u);
  EXPECT_EQ(Reach(any, "{\n     "), 6u);
  EXPECT_EQ(Reach(any, "{\"a\" :"), 4u);
  std::string deep = "{\"a\":";
  for (int i = 0; i < kMaxJsonNesting; ++i) deep += '[';
  EXPECT_EQ(Reach(any, deep), deep.size() - 1);  // the object is one level
  ExpectTexts(any, {"{\"a\":" + std::string(63, '[') + std::string(63, ']') + "}"}, {});
  std::string objects;
  for (int i = 0; i < kMaxJsonNesting; ++i) objects += "{\"\":";
  EXPECT_EQ(Reach(any, objects), objects.size());
  EXPECT_EQ(Reach(any, objects + "{"), objects.size());
  // On the last level a name whose value would nest deeper is not begun.
  for (
      const char* schema :
      {R"({"properties":{"a":{"$ref":"#"}}})",
       R"({"type":"object","additionalProperties":{"anyOf":[{"$ref":"#"},{"type":"array"}]}})",
       R"({"properties":{"b":{"$ref":"#"},"a":{"$ref":"#"}},"additionalProperties":{"$ref":"#"}})"}) {
    std::string chain;
    for (int i = 1; i < kMaxJsonNesting; ++i) chain += "{\"a\":";
    EXPECT_EQ(Reach(Compile(schema), chain + "{\""), chain.size() + 1) << schema;
    ExpectTexts(Compile(schema), {chain + "{}" + std::string(kMaxJsonNesting - 1, '}')}, {});
  }
}

TEST(JsonSchema, PropertiesComeInOrderOnceAndComplete) {
  const JsonSchema schema = Compile(R"({"type":"object","properties":{
      "a":{"type":"integer"},"ab":{"type":"boolean"},"c\n\"":{"type":"null"},"d":{"type":"string"}},
      "required":["ab","d"],"additionalProperties":false})");
  ExpectTexts(
      schema,
      {R"({"ab":true,"d":""})", R"({"a":1,"ab":true,"d":""})",
       R"({"a":1,"ab":false,"c\n\"":null,"d":"x"})", R"({"ab":false,"c\n\"":null,"d":"x"})"},
      {"{}", R"({"ab":true})", R"({"d":""})", R"({"a":1,"d":""})", R"({"ab":true,"a":1,"d":""})",
       R"({"ab":true,"ab":true,"d":""})", R"({"ab":true,"d":"","e":1})", R"({"ab":1,"d":""})",
       R"({"a":1.5,"ab":true,"d":""})", R"({"a":true,"ab":true,"d":""})",
       R"({"\u0061b":true,"d":""})"});
  // Nothing is left open that cannot be completed.
  EXPECT_EQ(Reach(schema, R"({"b)"), 2u);
  EXPECT_EQ(Reach(schema, R"({"d)"), 2u);
  EXPECT_EQ(Reach(schema, R"({"ab":true,"a)"), 12u);
}

TEST(JsonSchema, AdditionalPropertiesNeverRepeatAName) {
  const JsonSchema schema = Compile(R"({"type":"object","properties":{"a":{"type":"integer"},
      "b/":{"type":"integer"}},"required":["a"],"additionalProperties":{"type":"string"}})");
  ExpectTexts(
      schema,
      {R"({"a":1})", R"({"a":1,"b/":2})", R"({"a":1,"x":"y"})", R"({"a":1,"b":"y"})",
       R"({"a":1,"aa":"y","b":"","":""})", R"({"a":1,"\n":"y"})", R"({"a":1,"\n\u0061":"y"})"},
      {R"({"x":"y"})", R"({"a":1,"x":1})", R"({"a":1,"x":"","b/":2})", R"({"a":1,"a":"y"})",
       R"({"a":1,"x":"","x":""})", R"({"a":1,"x":"","\u0078":""})", R"({"a":1,"x":"","b/":""})",
       R"({"a":1,"b\/":""})", R"({"a":1,"\u0061":""})", R"({"a":1,"\u0062/":""})"});
  // Listed names with escapes: another one may still begin as they do.
  ExpectTexts(Compile(R"({"properties":{"\"":{},"\n\u0001":{}},"additionalProperties":true})"),
              {R"({"\\":1})", R"({"\n":1,"\\\"":2})", R"({"\"":1,"\n\u0001":2,"\n\n":3})"},
              {R"({"\n\u0002":1})", R"({"\u0022":1})", R"({"x":1,"\"":2})"});
  ExpectTexts(JsonSchema::AnyObject(), {R"({"a":1,"b":{"a":1,"b":2},"c":[{"a":1},{"a":1}]})"},
              {R"({"a":1,"a":2})", R"({"a":1,"b":2,"\u0061":2})", R"({"\ud83d\ude00":1,"😀":2})",
               R"({"\/":1,"/":2})"});
  // Properties without a word about others are all there are; a bare object is open.
  ExpectTexts(Compile(R"({"properties":{"a":{}}})"), {"{}", R"({"a":[{"x":null}]})"},
              {R"({"b":1})", "1"});
  ExpectTexts(Compile(R"({"properties":{"a":{}},"additionalProperties":true})"),
              {"{}", R"({"a":1,"b":2})", R"({"b":2})"}, {R"({"b":2,"a":1})"});
  ExpectTexts(Compile(R"({"type":"object","required":["x"]})"), {R"({"x":1})", R"({"x":{},"y":2})"},
              {"{}", R"({"y":1})"});
}

TEST(JsonSchema, EnumsConstantsAndTypes) {
  ExpectTexts(
      Compile(
          R"({"enum":["red","redder","Z\u00fc\n",1,10,-1.5,1e300,true,null,[1,{"a":[]}],{"k":1,"l":"m"}]})"),
      {R"("red")", R"("redder")", R"("Zü\n")", "1", "10", "-1.5", "1e+300", "true", "null",
       R"([1,{"a":[]}])", R"({"k":1,"l":"m"})", R"({"k": 1, "l": "m"})"},
      {R"("re")", R"("redd")", R"("Z")", "2", "100", "-1", "false", "[1]", "[1,{}]", "{}",
       R"({"k":1})", R"({"l":"m","k":1})", R"("r\u0065d")", "1.0"});
  EXPECT_EQ(Reach(Compile(R"({"enum":["red","rose"]})"), "\"rx"), 2u);
  ExpectTexts(Compile(R"({"const":"x"})"), {R"("x")"}, {R"("y")", "null"});
  ExpectTexts(Compile(R"({"type":"integer","enum":["1",1,2.5,true,null]})"), {"1"},
              {R"("1")", "2.5", "true", "null"});
  ExpectTexts(Compile(R"({"type":["string","null","integer"]})"), {"\"\"", "null", "0", "-7"},
              {"1.5", "true", "[]", "{}", "-0", "1e2"});
  ExpectTexts(Compile(R"({"type":"string","nullable":true})"), {"\"\"", "null"}, {"1"});
  ExpectTexts(Compile(R"({"type":"number"})"), {"1", "-0.5", "1e5", "0", "-0.0e-0", "1e279"},
              {"\"1\"", "1e280", "00", "1e0009", "12345678901234567890"});
  ExpectTexts(Compile("true"), {"1", "[]", "{}", "\"x\"", "null"}, {"x"});
  ExpectTexts(Compile("{}"), {"1", "[1,2]", R"({"a":1})"}, {"+"});
}

TEST(JsonSchema, LengthsCountCodePoints) {
  const JsonSchema schema = Compile(R"({"type":"string","minLength":2,"maxLength":3})");
  ExpectTexts(schema,
              {R"("ab")", R"("abc")", "\"\xF0\x9F\x98\x80\xC3\xA9\"", R"("\ud83d\ude00\n")",
               R"("\u0061\\\"")"},
              {"\"\"", R"("a")", R"("abcd")", "\"\xF0\x9F\x98\x80\"", R"("\ud83d\ude00")"});
  EXPECT_EQ(Reach(schema, "\"abc\xC3"), 4u);  // no room to finish the character
  EXPECT_EQ(Reach(schema, "\"abc\\"), 4u);
  ExpectTexts(Compile(R"({"type":"string","maxLength":0})"), {"\"\""}, {R"("a")"});
}

TEST(JsonSchema, NumberRangesAreExact) {
  for (const auto& [low, high] : std::vector<std::pair<int, int>>{
           {0, 0}, {-3, 12}, {5, 5}, {10, 99}, {95, 1005}, {-120, -7}, {1, 1000}, {-1, 0}}) {
    const JsonSchema range = Compile(R"({"type":"integer","minimum":)" + std::to_string(low) +
                                     R"(,"maximum":)" + std::to_string(high) + "}");
    for (int value = -1300; value <= 1300; ++value) {
      const std::string text = std::to_string(value);
      EXPECT_EQ(Reach(range, text) == text.size() + 1, value >= low && value <= high)
          << text << " in " << low << " to " << high;
    }
  }
  ExpectTexts(Compile(R"({"type":"integer","exclusiveMinimum":5,"exclusiveMaximum":7.5})"),
              {"6", "7"}, {"5", "8", "60", "6.0", "-6"});
  ExpectTexts(Compile(R"({"type":"integer","minimum":9223372036854775806})"),
              {"9223372036854775806", "9223372036854775807", "9999999999999999999"},
              {"9223372036854775805", "1", "-9223372036854775807", "10000000000000000000"});
  ExpectTexts(Compile(R"({"type":"integer","maximum":-9223372036854775808})"),
              {"-9223372036854775808"}, {"-9223372036854775807", "0", "1"});
  ExpectTexts(Compile(R"({"type":"number","minimum":0,"maximum":1})"),
              {"0", "1", "0.5", "0.00000000000001", "1.0", "1.00000000000000", "0.99999999999999"},
              {"-0", "-0.1", "1.1", "1.00000000000001", "2", "10", "1e0", "0.999999999999999"});
  ExpectTexts(Compile(R"({"type":"number","exclusiveMinimum":-0.25,"exclusiveMaximum":0.1})"),
              {"0", "-0.2", "-0.24999999999999", "0.09999999999999", "0.0"},
              {"-0.25", "0.1", "0.10", "-0.3", "1", "-1"});
  // A prefix is only written when a number of the range begins with it.
  EXPECT_EQ(Reach(Compile(R"({"type":"integer","minimum":20,"maximum":29})"), "1"), 0u);
  EXPECT_EQ(Reach(Compile(R"({"type":"integer","minimum":20,"maximum":29})"), "-"), 0u);
  EXPECT_EQ(Reach(Compile(R"({"type":"number","minimum":0.5,"maximum":0.5})"), "0.4"), 2u);
}

TEST(JsonSchema, ArraysCountAndPlaceTheirItems) {
  ExpectTexts(Compile(R"({"type":"array","items":{"type":"integer"},"minItems":1,"maxItems":3})"),
              {"[1]", "[1,2]", "[1, 2, 3]"}, {"[]", "[1,2,3,4]", "[true]", "[1,]"});
  EXPECT_EQ(Reach(Compile(R"({"type":"array","maxItems":1})"), "[1,"), 2u);
  ExpectTexts(Compile(R"({"type":"array","prefixItems":[{"type":"string"},{"type":"null"}],
                          "items":{"type":"integer"}})"),
              {"[]", R"(["a"])", R"(["a",null])", R"(["a",null,1,2])"},
              {R"([null])", R"(["a",1])", R"(["a",null,"b"])"});
  ExpectTexts(Compile(R"({"prefixItems":[{"type":"string"},false],"items":true})"),
              {"[]", R"(["a"])"}, {R"(["a",1])", R"(["a",)"});
  ExpectTexts(Compile(R"({"type":"array","items":false})"), {"[]"}, {"[1"});
}

TEST(JsonSchema, AlternativesRunSideBySide) {
  const JsonSchema schema = Compile(R"({"anyOf":[
      {"type":"object","properties":{"k":{"const":"a"},"v":{"type":"integer"}},"required":["k","v"]},
      {"type":"object","properties":{"k":{"const":"ab"},"v":{"type":"string"}},"required":["k","v"]},
      {"type":"object","properties":{"k":{"type":"integer"},"w":{"type":"null"}},"required":["k"]},
      {"type":"array","items":{"type":"integer"},"maxItems":2},
      {"type":"array","items":{"type":"string"},"minItems":2}]})");
  ExpectTexts(schema,
              {R"({"k":"a","v":1})", R"({"k":"ab","v":"x"})", R"({"k":1})", R"({"k":1,"w":null})",
               "[]", "[1,2]", R"(["a","b","c"])"},
              {R"({"k":"a","v":"x"})", R"({"k":"ab","v":1})", R"({"k":"a"})", R"({"k":1,"v":1})",
               "[1,2,3]", R"(["a"])", R"([1,"a"])"});
  // Lists of lists whose alternatives differ only in the end: a set per level, no set of stacks.
  const JsonSchema nested = Compile(R"({"$defs":{"t":{"anyOf":[
      {"type":"array","items":{"$ref":"#/$defs/t"},"maxItems":1},
      {"type":"array","items":{"$ref":"#/$defs/t"},"minItems":2,"maxItems":2},
      {"type":"integer"}]}},"$ref":"#/$defs/t"})");
  const std::string deep = std::string(60, '[') + "1" + std::string(60, ']');
  ExpectTexts(nested, {deep, "[[1,[2]],3]"}, {"[1,2,3]", "[[1,2,3]]", std::string(65, '[')});
}

TEST(JsonSchema, ReferencesMayRecurAndCarryMore) {
  const JsonSchema tree = Compile(R"({"$defs":{"node":{"type":"object","properties":{
      "name":{"type":"string"},"children":{"type":"array","items":{"$ref":"#/$defs/node"}}},
      "required":["name"],"additionalProperties":false}},"$ref":"#/$defs/node"})");
  ExpectTexts(tree, {R"({"name":"a"})", R"({"name":"a","children":[{"name":"b","children":[]}]})"},
              {R"({"children":[]})", R"({"name":"a","children":[1]})"});
  ExpectTexts(
      Compile(R"({"type":"object","properties":{"next":{"anyOf":[{"$ref":"#"},{"type":"null"}]}},
                          "required":["next"]})"),
      {R"({"next":{"next":{"next":null}}})"}, {"{}", R"({"next":1})"});
  ExpectTexts(Compile(R"({"definitions":{"a/b~c d":{"type":"integer"}},
                          "allOf":[{"$ref":"#/definitions/a~1b~0c%20d"}],"minimum":3,"title":"t"})"),
              {"3", "40"}, {"2", "3.5", "\"\""});
  ExpectTexts(
      Compile(R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},
                          "anyOf":[{"required":["a"]},{"required":["b"]}]})"),
      {R"({"a":1})", R"({"b":1})", R"({"a":1,"b":1})"}, {"{}", R"({"c":1})"});
  ExpectTexts(Compile(R"({"allOf":[{"properties":{"a":{"type":"integer"}},"required":["a"]}],
                          "type":"object","properties":{"b":{"type":"null"}}})"),
              {R"({"b":null,"a":1})", R"({"a":1})"}, {R"({"b":null})"});
}

TEST(JsonSchema, OneOfIsServedWhereAlternativesExclude) {
  ExpectTexts(Compile(R"({"oneOf":[{"type":"string"},{"type":"null"},{"type":"integer","maximum":3},
                          {"type":"number","minimum":4}]})"),
              {"\"\"", "null", "3", "4.5"}, {"3.5", "true"});
  ExpectTexts(
      Compile(
          R"({"oneOf":[{"type":"object","properties":{"kind":{"enum":["a","b"]}},"required":["kind"]},
                                   {"type":"object","properties":{"kind":{"const":"c"}},"required":["kind"]}],
                          "discriminator":{"propertyName":"kind"}})"),
      {R"({"kind":"b"})", R"({"kind":"c"})"}, {R"({"kind":"d"})", "{}"});
  EXPECT_EQ(Refusal(R"({"oneOf":[{"type":"object","properties":{"a":{}},"required":["a"]},
                                 {"type":"object","properties":{"b":{}},"required":["b"]}]})"),
            "accepted");
  for (
      const char* both :
      {R"([{"type":"integer"},{"type":"number"}])", R"([{"type":"string"},{"const":"a"}])",
       R"([{"minLength":1},{"type":"integer"}])", R"([{"const":1},{"const":1.0}])",
       R"([{"type":"object","properties":{"a":{}},"required":["a"]},{"type":"object","properties":{"b":{}}}])",
       R"([{"type":"object","properties":{"k":{"type":"string"}}},
            {"type":"object","properties":{"k":{"type":"null"}}}])",
       R"([{"type":"array","items":{"type":"string"}},{"type":"array","items":{"type":"null"}}])",
       R"([{"type":"string","maxLength":3},{"type":"string","minLength":3}])"}) {
    ExpectRefusal(R"({"properties":{"p":{"oneOf":)" + std::string(both) + "}}}",
                  "schema.properties.p: 'oneOf' cannot be enforced");
  }
}

TEST(JsonSchema, WhatCannotBeEnforcedIsRefusedByNameAndPlace) {
  ExpectRefusal(
      R"({"type":"object","properties":{"age":{"type":"integer","multipleOf":5}}})",
      "response_format.json_schema.schema.properties.age: 'multipleOf' cannot be enforced");
  for (const char* keyword :
       {R"("pattern":"a")", R"("uniqueItems":true)", R"("not":{})", R"("if":{})", R"("then":{})",
        R"("else":{})", R"("patternProperties":{})", R"("dependentRequired":{})",
        R"("propertyNames":{})", R"("minProperties":1)", R"("contains":{})",
        R"("unevaluatedProperties":false)", R"("dependentSchemas":{})", R"("allOf":[{},{}])",
        R"("$dynamicRef":"#")", R"("additionalItems":false)"}) {
    const std::string name = std::string(keyword).substr(1, std::string(keyword).find('"', 1) - 1);
    ExpectRefusal(std::string("{\"items\":{") + keyword + "}}",
                  "schema.items: '" + name + "' cannot be enforced");
  }
  ExpectRefusal(R"({"requried":["a"]})", "schema: '\"requried\"' is not a keyword");
  EXPECT_EQ(Refusal(R"({"type":"string","format":"date","title":"t","description":"d","default":1,
                        "examples":[1],"$schema":"s","$id":"i","x-order":1,"uniqueItems":false,
                        "deprecated":true,"$comment":"c","readOnly":true,"nullable":false})"),
            "accepted");
  ExpectRefusal(R"({"type":"number","minimum":1e300})",
                "schema: 'minimum' is 1e+300, which cannot");
  ExpectRefusal(R"({"type":"number","maximum":1e-16})", "'maximum' is 1e-16, which cannot");
  ExpectRefusal(R"({"enum":["a"],"minLength":1})", "schema: 'minLength' beside 'enum'");
  ExpectRefusal(R"({"anyOf":[{}],"oneOf":[{}]})", "'oneOf' cannot be enforced beside anyOf");
  ExpectRefusal(R"({"$defs":{"a":{"minLength":1}},"$ref":"#/$defs/a","minLength":2})",
                "schema.$defs.a: 'minLength' cannot be combined with that of");
  ExpectRefusal(R"({"$defs":{"a":{"properties":{"x":{}},"additionalProperties":false}},
                    "properties":{"p":{"$ref":"#/$defs/a","properties":{"y":{}}}}})",
                "schema.$defs.a: 'additionalProperties' cannot be combined");
  ExpectRefusal(R"({"anyOf":[{"type":"string"}],"nullable":true})",
                "'nullable' only has a meaning");
  ExpectRefusal(R"({"properties":{"a\n":{"properties":{"":{"not":{}}}}}})",
                R"(schema.properties["a\n"].properties[""]: 'not')");
}

TEST(JsonSchema, MalformedAndUnsatisfiableSchemasAreRefused) {
  for (const auto& [schema, message] : std::vector<std::pair<std::string, std::string>>{
           {"1", "schema is 1; a schema is an object"},
           {R"({"properties":{"a":[]}})", "schema.properties.a is []; a schema is"},
           {R"({"type":"text"})", "'type' is \"text\""},
           {R"({"type":[]})", "'type' is an empty list"},
           {R"({"properties":1})", "'properties' needs an object"},
           {R"({"required":"a"})", "'required' needs a list"},
           {R"({"required":[1]})", "'required' needs a list"},
           {R"({"enum":1})", "'enum' is 1"},
           {R"({"anyOf":[]})", "'anyOf' needs a list"},
           {R"({"minItems":-1})", "'minItems' is -1"},
           {R"({"maxLength":1.5})", "'maxLength' is 1.5"},
           {R"({"minimum":"1"})", "'minimum' is \"1\""},
           {R"({"type":"integer","exclusiveMinimum":true})", "'exclusiveMinimum' is true"},
           {R"({"items":[{}]})", "'items' is a list; write it as prefixItems"},
           {R"({"$ref":"#/$defs/none"})", "'$ref' is \"#/$defs/none\", which is not in the schema"},
           {R"({"$ref":"#/$defs/%na","$defs":{"na":{}}})", "which is not in the schema"},
           {R"({"$ref":"http://x/y"})", "only references into this schema"},
           {R"({"$ref":5})", "only references into this schema"},
           {R"({"$ref":"#"})", "leads to itself"},
           {R"({"$defs":{"a":{"anyOf":[{"$ref":"#/$defs/a"},{}]}},"$ref":"#/$defs/a"})",
            "leads to itself"},
           {"false", "no value that nests at most 64 deep satisfies"},
           {R"({"enum":[]})", "no value"},
           {R"({"type":"string","minLength":3,"maxLength":2})", "no value"},
           {R"({"type":"integer","minimum":3,"maximum":2})", "no value"},
           {R"({"type":"integer","exclusiveMinimum":1,"exclusiveMaximum":2})", "no value"},
           {R"({"type":"array","items":false,"minItems":1})", "no value"},
           {R"({"type":"object","required":["a"],"additionalProperties":false})", "no value"},
           {R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})", "no value"},
           {R"({"allOf":[{"type":"string"}],"type":"integer"})", "no value"},
       }) {
    ExpectRefusal(schema, message);
  }
  // What cannot be satisfied in one place only is left out there.
  ExpectTexts(Compile(R"({"type":"object","properties":{"a":false,"b":{"type":"integer"}}})"),
              {"{}", R"({"b":1})"}, {R"({"a")", R"({"a":1})"});
  ExpectTexts(
      Compile(R"({"anyOf":[{"type":"object","properties":{"x":{"enum":[]}},"required":["x"]},
                                   {"type":"null"}]})"),
      {"null"}, {"{"});
}

TEST(JsonSchema, HostileSchemasEndInARefusal) {
  // Each definition names the next one twice: 2^60 ways, one union.
  std::string doubling = R"({"$defs":{)";
  for (int i = 0; i < 60; ++i) {
    const std::string next = R"({"$ref":"#/$defs/d)" + std::to_string(i + 1) + "\"}";
    doubling += "\"d" + std::to_string(i) + R"(":{"type":"array","items":{"anyOf":[)" + next + "," +
                next + "]}},";
  }
  EXPECT_EQ(Refusal(doubling + R"("d60":{}},"$ref":"#/$defs/d0"})"), "accepted");
  // The same with a neighbour, so that no result can be shared.
  std::string merging = R"({"$defs":{)";
  for (int i = 0; i < 40; ++i) {
    const std::string next =
        R"({"type":"string","$ref":"#/$defs/d)" + std::to_string(i + 1) + "\"}";
    merging += "\"d" + std::to_string(i) + R"(":{"anyOf":[)" + next + "," + next + "]},";
  }
  ExpectRefusal(merging + R"("d40":{}},"$ref":"#/$defs/d0"})", "too large");
  ordered_json many = ordered_json::array();
  for (int i = 0; i < 65; ++i) many.push_back({{"type", "string"}, {"minLength", i}});
  EXPECT_NE(RefusalOf({{"anyOf", many}}).find("more than 64 alternatives"), std::string::npos);
  // 30 x 30 alternatives meet one level further down.
  ordered_json outer = ordered_json::array();
  for (int i = 0; i < 30; ++i) {
    ordered_json inner = ordered_json::array();
    for (int j = 0; j < 30; ++j) inner.push_back({{"type", "string"}, {"minLength", 30 * i + j}});
    outer.push_back({{"type", "array"}, {"items", {{"anyOf", inner}}}});
  }
  EXPECT_NE(RefusalOf({{"anyOf", outer}}).find("64 alternatives side by side"), std::string::npos);
  ordered_json::object_t members;
  for (int i = 0; i < 60000; ++i) members.emplace_back("p" + std::to_string(i), true);
  const ordered_json names = std::move(members);
  EXPECT_NE(RefusalOf({{"properties", names}}).find("too large"), std::string::npos);
  EXPECT_NE(RefusalOf({{"const", std::string(size_t{1} << 20, 'x')}}).find("too large"),
            std::string::npos);
  ordered_json chain = {{"$defs", ordered_json::object()}, {"$ref", "#/$defs/d0"}};
  for (int i = 0; i < 500; ++i) {
    chain["$defs"]["d" + std::to_string(i)] = {{"$ref", "#/$defs/d" + std::to_string(i + 1)}};
  }
  chain["$defs"]["d500"] = true;
  EXPECT_NE(RefusalOf(chain).find("more than 64 references"), std::string::npos);
  ordered_json deep = 1;
  for (int i = 0; i < 80; ++i) deep = ordered_json::array({deep});
  EXPECT_NE(RefusalOf({{"const", deep}}).find("nested deeper"), std::string::npos);
  EXPECT_NE(RefusalOf({{"const", "\xFF"}}).find("not UTF-8"), std::string::npos);
}

TEST(JsonSchema, FortyPropertiesWithLongEnums) {
  ordered_json values = ordered_json::array();
  for (int i = 0; i < 500; ++i) values.push_back("value " + std::to_string(i));
  ordered_json schema = {{"type", "object"}, {"properties", ordered_json::object()}};
  for (int i = 0; i < 40; ++i) schema["properties"]["p" + std::to_string(i)] = {{"enum", values}};
  const JsonSchema compiled = JsonSchema::Compile(schema, "schema");
  ExpectTexts(compiled, {R"({"p3":"value 7","p39":"value 499"})"},
              {R"({"p3":"value 500"})", R"({"p3":"value 7","p2":"value 1"})"});
}

TEST(JsonSchema, ReferencesIntoWideSchemasCostTimeInProportion) {
  ordered_json::object_t definitions, properties;
  for (int i = 0; i < 300'000; ++i) definitions.emplace_back("d" + std::to_string(i), true);
  const ordered_json last = {{"$ref", "#/$defs/d299999"}};
  for (int i = 0; i < 10'000; ++i) properties.emplace_back("p" + std::to_string(i), last);
  ordered_json schema = {{"$defs", std::move(definitions)}, {"properties", std::move(properties)}};
  const auto start = std::chrono::steady_clock::now();
  JsonSchema::Compile(schema, "schema");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

TEST(JsonSchema, LongReferencesCostTimeInProportion) {
  std::string reference = "#/";
  for (int i = 0; i < 1'000'000; ++i) reference += "%41";
  const auto start = std::chrono::steady_clock::now();
  EXPECT_NE(RefusalOf({{"$ref", reference}}).find("not in the schema"), std::string::npos);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
}

}  // namespace
}  // namespace strata
