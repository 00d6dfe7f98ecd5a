#include "models/chat_template.h"

#include <gtest/gtest.h>

#include <chrono>

#include "kernels/status.h"
#include "models/json.h"
#include "models/tokenizer.h"
#include "tests/models/model_fixture.h"
#include "tests/models/temporary_folder.h"

namespace strata {
namespace {

using nlohmann::ordered_json;

std::string Render(const std::string& source, const ordered_json& messages = ordered_json::array(),
                   const ordered_json& tools = nullptr, const RenderOptions& options = {}) {
  return ChatTemplate::FromSource(source, "test.jinja").Render(messages, tools, options);
}

std::string ErrorOf(const std::string& source, const TemplateLimits& limits = {}) {
  try {
    ChatTemplate::FromSource(source, "test.jinja")
        .Render(ordered_json::array(), nullptr, {}, limits);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(ChatTemplate, RendersTheShippedTemplateAsTheReferenceDoes) {
  const ChatTemplate shipped = ChatTemplate::Load(ShippedModel(), "glm_moe_dsa");
  const Tokenizer tokenizer = Tokenizer::Load(ShippedModel());
  const auto cases =
      ParseJson(ReadTextFile(Golden("tiny-glm-dsa") / "chat_template_cases.json"), "cases");
  ASSERT_EQ(cases.size(), 5u);
  for (const auto& test : cases) {
    RenderOptions options;
    options.add_generation_prompt = false;
    EXPECT_EQ(shipped.Render(test["messages"], nullptr, options),
              test["rendered"].get<std::string>());
    options.add_generation_prompt = true;
    const std::string prompt = shipped.Render(test["messages"], nullptr, options);
    EXPECT_EQ(prompt, test["rendered_with_generation_prompt"].get<std::string>());
    EXPECT_EQ(tokenizer.Encode(prompt),
              test["ids_with_generation_prompt"].get<std::vector<int32_t>>());
  }
}

TEST(ChatTemplate, ControlsWhiteSpaceAsTransformersSetsIt) {
  EXPECT_EQ(Render("a\n{% if true %}\nb\n{% endif %}\nc"), "a\nb\nc");
  EXPECT_EQ(Render("a \n  {%- if true -%}  b  {%- endif -%}  c"), "abc");
  EXPECT_EQ(Render("  {% if true %}x{% endif %}\n{{ 'y' }}\n"),
            "xy");  // one newline at the very end goes too
  EXPECT_EQ(Render("a  {%+ if true %}b{% endif %}"), "a  b");
  EXPECT_EQ(Render("x{# note #}\ny"), "xy");
  EXPECT_EQ(Render("{% raw %}{{ a }}{% endraw %}"), "{{ a }}");
}

TEST(ChatTemplate, LoopsKnowTheirPlace) {
  EXPECT_EQ(Render("{% for x in [1,2,3] %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ "
                   "loop.last }}{{ loop.length }};{% endfor %}"),
            "10TrueFalse3;21FalseFalse3;32FalseTrue3;");
  EXPECT_EQ(Render("{% for x in [] %}a{% else %}none{% endfor %}"), "none");
  EXPECT_EQ(Render("{% for x in range(6) if x is odd %}{{ x }},{% endfor %}"), "1,3,5,");
  EXPECT_EQ(Render("{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }} {% endfor %}"),
            "a=1 b=2 ");
  EXPECT_EQ(Render("{% for x in range(9) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 4 "
                   "%}{% break %}{% endif %}{{ x }}{% endfor %}"),
            "013");
  EXPECT_EQ(
      Render("{% for x in ['a','b'] %}{{ loop.previtem }}{{ x }}{{ loop.nextitem }} {% endfor %}"),
      "ab ab ");
}

TEST(ChatTemplate, VariablesStayInTheirScopeUnlessANamespaceCarriesThem) {
  EXPECT_EQ(Render("{% set x = 1 %}{% for i in [1,2] %}{% set x = 5 %}{% endfor %}{{ x }}"), "1");
  EXPECT_EQ(Render("{% set ns = namespace(x=1) %}{% for i in [1,2] %}{% set ns.x = ns.x + i %}{% "
                   "endfor %}{{ ns.x }}"),
            "4");
  EXPECT_EQ(Render("{% set a, b = 1, 'z' %}{{ b }}{{ a }}"), "z1");
  EXPECT_EQ(Render("{% set x %}  body {% endset %}[{{ x | trim }}]"), "[body]");
  EXPECT_EQ(Render("{% filter upper %}abc{% endfilter %}"), "ABC");
}

TEST(ChatTemplate, MacrosTakeDefaultsAndNamedArguments) {
  EXPECT_EQ(Render("{% macro f(a, b='x') %}<{{ a }}{{ b }}>{% endmacro %}{{ f(1) }}{{ f(1, b=2) "
                   "}}{{ f(b=3, a=4) }}"),
            "<1x><12><43>");
}

TEST(ChatTemplate, ExpressionsBindAndPrintAsInPython) {
  EXPECT_EQ(
      Render("{{ 1 + 2 * 3 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 3 }}"),
      "7 3 -4 2 3.5 8");
  EXPECT_EQ(Render("{{ 'a' ~ 1 ~ none ~ true }} {{ 'ab' * 2 }}"), "a1NoneTrue abab");
  EXPECT_EQ(Render("{{ not a }} {{ 1 if false else 2 }} {{ 1 == 1.0 }} {{ 'x' in 'axb' }} {{ 3 not "
                   "in [1,2] }}"),
            "True 2 True True True");
  EXPECT_EQ(Render("{{ 'abcdef'[1:4] }} {{ 'abc'[::-1] }} {{ [1,2,3][-1] }} {{ [1,2,3][:-1] }}"),
            "bcd cba 3 [1, 2]");
  EXPECT_EQ(Render("{{ {'a': [1, 'x'], 'b': none} }}"), "{'a': [1, 'x'], 'b': None}");
  EXPECT_EQ(Render("{{ undefined_name }}{{ undefined_name is defined }}"), "False");
  EXPECT_EQ(Render("{{ 'it\\'s' }} {{ \"\\u00e9\" }} {{ 'a' 'b' }}"), "it's \u00e9 ab");
}

TEST(ChatTemplate, FiltersAndTestsDoWhatTheirNamesSay) {
  EXPECT_EQ(Render("{{ ' x ' | trim }}|{{ [3,1,2] | sort | join(',') }}|{{ 'a b' | replace(' ', "
                   "'_') | upper }}"),
            "x|1,2,3|A_B");
  EXPECT_EQ(Render("{{ x | default('d') }} {{ '' | default('e', true) }} {{ [1,2] | length }} {{ "
                   "'abc' | first }}{{ 'abc' | last }}"),
            "d e 2 ac");
  EXPECT_EQ(Render("{{ [{'r': 'u', 'c': 1}, {'r': 'v', 'c': 2}] | selectattr('r', 'equalto', 'v') "
                   "| map(attribute='c') | list }}"),
            "[2]");
  EXPECT_EQ(Render("{{ [1, none, 2] | reject('none') | list }} {{ '7' | int + 1 }} {{ [1,1,2] | "
                   "unique | list }}"),
            "[1, 2] 8 [1, 2]");
  EXPECT_EQ(Render("{{ 'a\nb' | indent(2) }} {{ {'b': 1, 'a': 2} | dictsort }}"),
            "a\n  b [['a', 2], ['b', 1]]");
  EXPECT_EQ(Render("{{ 1 is number and 'a' is string and {} is mapping and [] is iterable and none "
                   "is none }}"),
            "True");
  EXPECT_EQ(Render("{{ ' a,b ,c'.strip().split(',') }} {{ 'abc'.startswith('ab') }} {{ {'k': "
                   "1}.get('z', 5) }}"),
            "['a', 'b ', 'c'] True 5");
}

TEST(ChatTemplate, JsonIsWrittenAsTransformersWritesIt) {
  const ordered_json tools =
      ordered_json::parse(R"([{"name":"f","n":1.0,"s":"é\n","on":true,"none":null}])");
  EXPECT_EQ(Render("{{ tools[0] | tojson }}", {}, tools),
            "{\"name\": \"f\", \"n\": 1.0, \"s\": \"\u00e9\\n\", \"on\": true, \"none\": null}");
  EXPECT_EQ(Render("{{ [1, {'a': 2}] | tojson(indent=2) }}"), "[\n  1,\n  {\n    \"a\": 2\n  }\n]");
}

TEST(ChatTemplate, RendersAToolTemplateOfTheGlmKind) {
  const std::string source =
      "[gMASK]<sop>\n{%- if tools %}\n<|system|>\n# Tools\n{% for tool in tools %}\n{{ tool | "
      "tojson(ensure_ascii=False) }}\n{% endfor %}\n{%- endif %}\n"
      "{%- macro visible_text(content) -%}\n    {%- if content is string -%}\n        {{- content "
      "}}\n    {%- elif content is iterable and content is not mapping -%}\n"
      "        {%- for item in content -%}{%- if item is mapping and item.type == 'text' -%}{{- "
      "item.text }}{%- elif item is string -%}{{- item }}{%- endif -%}{%- endfor -%}\n"
      "    {%- endif -%}\n{%- endmacro -%}\n"
      "{%- set ns = namespace(last_user_index=-1) %}\n{%- for m in messages %}{%- if m.role == "
      "'user' %}{% set ns.last_user_index = loop.index0 -%}{%- endif %}{%- endfor %}\n"
      "{%- for m in messages -%}\n{%- if m.role == 'user' -%}<|user|>\n{{ visible_text(m.content) "
      "}}\n{%- elif m.role == 'assistant' -%}\n<|assistant|>\n"
      "{%- if m.tool_calls -%}{%- for tc in m.tool_calls -%}\n<tool_call>{{ tc.function.name }}{% "
      "for k, v in tc.function.arguments.items() %}<arg_key>{{ k }}</arg_key><arg_value>{{ v | "
      "tojson if v is not string else v }}</arg_value>{% endfor %}</tool_call>{%- endfor -%}{%- "
      "endif -%}\n"
      "{%- endif -%}\n{%- endfor -%}\n{%- if add_generation_prompt -%}\n<|assistant|>{{ "
      "'\\n<think></think>' if (enable_thinking is defined and not enable_thinking) else '' "
      "}}\n{%- endif -%}";
  const ordered_json messages = ordered_json::parse(
      R"([{"role":"user","content":[{"type":"text","text":"hi"}]},{"role":"assistant","tool_calls":[{"function":{"name":"get","arguments":{"a":1,"b":"x"}}}]}])");
  RenderOptions options;
  options.enable_thinking = false;
  EXPECT_EQ(Render(source, messages, ordered_json::parse(R"([{"name":"get"}])"), options),
            "[gMASK]<sop><|system|>\n# Tools\n{\"name\": "
            "\"get\"}\n<|user|>\nhi<|assistant|><tool_call>get<arg_key>a</arg_key><arg_value>1</"
            "arg_value><arg_key>b</arg_key>"
            "<arg_value>x</arg_value></tool_call><|assistant|>\n<think></think>");
}

TEST(ChatTemplate, UnknownFeaturesAreRefusedAtLoadWithLineAndName) {
  EXPECT_NE(ErrorOf("a\n{{ x | wordwrap }}")
                .find("test.jinja line 2: the filter 'wordwrap' is not supported"),
            std::string::npos);
  EXPECT_NE(ErrorOf("{% include 'x' %}").find("line 1: the tag 'include' is not supported"),
            std::string::npos);
  EXPECT_NE(ErrorOf("{{ x is prime }}").find("the test 'prime' is not supported"),
            std::string::npos);
  EXPECT_NE(ErrorOf("{% if x %}").find("endif"), std::string::npos);
  EXPECT_NE(ErrorOf("{{ 'abc }}").find("string is not closed"), std::string::npos);
  EXPECT_NE(ErrorOf("{{ (1 }}").find("expected"), std::string::npos);
  EXPECT_NE(ErrorOf("{% endfor %}").find("no opening tag"), std::string::npos);
}

TEST(ChatTemplate, RaisedExceptionsReachTheCallerAsOneLine) {
  EXPECT_NE(ErrorOf("{{ raise_exception('roles must alternate') }}").find("roles must alternate"),
            std::string::npos);
  EXPECT_NE(ErrorOf("\n{{ none.x.y }}").find("line 2"), std::string::npos);
  EXPECT_NE(ErrorOf("{{ 1 / 0 }}").find("division by zero"), std::string::npos);
}

TEST(TemplateSandbox, EndlessAndHugeTemplatesEndWithAClearError) {
  const auto start = std::chrono::steady_clock::now();
  EXPECT_NE(ErrorOf("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}").find("nests too deep"),
            std::string::npos);
  EXPECT_NE(ErrorOf("{% for i in range(10**9) %}x{% endfor %}").find("range"), std::string::npos);
  TemplateLimits few;
  few.steps = 100000;
  EXPECT_NE(
      ErrorOf("{% for i in range(1000) %}{% for j in range(1000) %}{% endfor %}{% endfor %}", few)
          .find("steps"),
      std::string::npos);
  EXPECT_NE(ErrorOf("{{ 'x' * 10**12 }}").find("too long"), std::string::npos);
  TemplateLimits small;
  small.output_bytes = 1000;
  EXPECT_NE(ErrorOf("{% for i in range(1000) %}abc{% endfor %}", small).find("too long"),
            std::string::npos);
  EXPECT_NE(ErrorOf("{% set ns = namespace(l=[1]) %}{% for i in range(100) %}{% set ns.l = ns.l + "
                    "ns.l %}{% endfor %}",
                    few)
                .find("steps"),
            std::string::npos);
  EXPECT_NE(ErrorOf("{{ " + std::string(100000, '(') + " }}").find("deeper"), std::string::npos);
  EXPECT_NE(ErrorOf("{{ " + std::string(100000, '[') + " }}").find("deeper"), std::string::npos);
  std::string ifs;
  for (int i = 0; i < 100000; ++i) ifs += "{% if 1 %}";
  EXPECT_NE(ErrorOf(ifs).find("deeper"), std::string::npos);
  std::string sum = "{{ 1";
  for (int i = 0; i < 100000; ++i) sum += "+1";
  EXPECT_NE(ErrorOf(sum + " }}").find("chain"), std::string::npos);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST(ChatTemplate, MessagesThatNoTemplateCanHoldAreTheCallersFault) {
  const ordered_json messages = {{{"role", "user"}, {"content", std::string(9 << 20, 'x')}},
                                 {{"role", "user"}, {"content", std::string(9 << 20, 'y')}}};
  try {
    Render("{{ messages[0].content }}", messages);
    ADD_FAILURE() << "18 MiB of text were taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCapacity);
    EXPECT_EQ(std::string(error.what()).rfind("the messages and tools have 188743", 0), 0u)
        << error.what();
  }
}

TEST(TemplateSandbox, ValuesThatHoldThemselvesAreRefused) {
  EXPECT_NE(ErrorOf("{% set a = namespace() %}{% set a.x = [a] %}").find("cannot be stored"),
            std::string::npos);
  EXPECT_NE(
      ErrorOf("{% set a = namespace() %}{% set b = namespace(x=a) %}").find("cannot be stored"),
      std::string::npos);
  EXPECT_NE(ErrorOf("{% macro m() %}{% endmacro %}{% set a = namespace() %}{% set a.x = [m] %}")
                .find("cannot be stored"),
            std::string::npos);
  EXPECT_NE(ErrorOf("{% set a = {} %}{% set a.x = 1 %}").find("is no namespace"),
            std::string::npos);
}

TEST(TemplateSandbox, ValuesThatDoubleOrNestWithoutEndAreRefusedWhereTheyAreMade) {
  std::string doubling = "{% set a = ['x'] %}", deep = "{% set a = [] %}", methods = deep;
  for (int i = 0; i < 60; ++i) doubling += "{% set a = [a, a] %}";
  for (int i = 0; i < 20000; ++i) {
    deep += "{% set a = [a] %}";
    methods += "{% set a = {'k': a}.get %}";
  }
  EXPECT_NE(ErrorOf(doubling + "{{ a }}").find("larger than"), std::string::npos);
  EXPECT_NE(ErrorOf(doubling).find("larger than"), std::string::npos);
  EXPECT_NE(ErrorOf(deep).find("nested deeper"), std::string::npos);
  EXPECT_NE(ErrorOf(methods).find("nested deeper"), std::string::npos);
}

TEST(TemplateSandbox, LookingThroughLargeValuesCosts) {
  TemplateLimits few;
  few.steps = 100000;
  const std::string large = "{% set s = 'x' * 1000000 %}{% set l = [s] %}{% for i in range(100) %}";
  for (const char* use :
       {"{{ s == s ~ '' }}", "{% if l == l %}{% endif %}", "{{ s | upper | length }}",
        "{% set q = s.strip() %}", "{{ 'y' in l }}"}) {
    EXPECT_NE(ErrorOf(large + use + "{% endfor %}", few).find("steps"), std::string::npos) << use;
  }
}

TEST(TemplateSandbox, ExtremeNumbersStayNumbers) {
  EXPECT_EQ(Render("{{ [1,2,3][::999999999999999999] }}{{ [1,2,3][::-999999999999999999] }}"),
            "[1][3]");
  EXPECT_EQ(Render("{{ range(-9 * 10**18, 9 * 10**18, 9 * 10**18) | length }}"), "2");
}

TEST(ChatTemplate, ItemsAreReachedByNumberAndAbsentToolsAreNone) {
  EXPECT_EQ(Render("{% set m = {'c': [{'t': 'x'}]} %}{{ m.c.0.t }}"), "x");
  EXPECT_EQ(Render("{{ tools is defined }}{{ tools is none }}{{ documents is none }}"),
            "TrueTrueTrue");
}

TEST(ChatTemplate, RequestsBringVariablesOfTheirOwn) {
  RenderOptions options;
  options.enable_thinking = true;
  options.variables = {{"reasoning_effort", "high"}, {"deep", {{"a", 1}}}};
  EXPECT_EQ(Render("{{ reasoning_effort }} {{ deep.a }} {{ enable_thinking }}",
                   ordered_json::array(), nullptr, options),
            "high 1 True");
  options.variables["enable_thinking"] = false;
  options.variables["bos_token"] = "<s>";
  ChatTemplate chat = ChatTemplate::FromSource("{{ bos_token }}{{ enable_thinking }}", "test");
  chat.SetVariable("bos_token", "<b>");
  EXPECT_EQ(chat.Render(ordered_json::array(), nullptr, options), "<s>False");
  EXPECT_EQ(chat.source(), "{{ bos_token }}{{ enable_thinking }}");

  const auto refused = [&](const ordered_json& variables) {
    options.variables = variables;
    EXPECT_THROW(chat.Render(ordered_json::array(), nullptr, options), Error) << variables;
  };
  for (const char* name : {"messages", "tools", "documents", "add_generation_prompt"})
    refused({{name, 1}});
  refused(ordered_json::array({1}));
  refused("thinking");
  ordered_json many = ordered_json::object();
  for (int i = 0; i < 65; ++i) many["v" + std::to_string(i)] = i;
  refused(many);
}

// The expected texts of the following tests are those of Jinja2 3.1.6 with transformers' settings.

TEST(ChatTemplate, MethodsOfAMappingComeBeforeItsEntries) {
  const ordered_json tools = ordered_json::parse(R"([{"items":[1],"keys":2,"get":"g"}])");
  EXPECT_EQ(Render("{% for k, v in tools[0].items() %}{{ k }}={{ v }};{% endfor %}{{ "
                   "tools[0].get('get') }}{{ tools[0]['items'] }}",
                   {}, tools),
            "items=[1];keys=2;get=g;g[1]");
  EXPECT_EQ(Render("{% set ns = namespace(items=3) %}{{ ns.items }}{{ ns.get is defined }}"),
            "3False");
}

TEST(ChatTemplate, WhiteSpaceIsUnicodes) {
  EXPECT_EQ(Render("{{ '\u3000a\u00a0' | trim }}|{{ '\u2028 b\\x85\\x1c'.strip() }}|{{ "
                   "'\u200bc'.lstrip() }}|{{ '\u2003d e\u3000f'.split() | join('-') }}"),
            "a|b|\u200bc|d-e-f");
  EXPECT_EQ(Render("{{ ' a b  c '.split(none, 1) | join('-') }}|{{ 'éaèé'.strip('é') }}"),
            "a-b  c |aè");
  EXPECT_EQ(Render("{{ 'a\\r\\nb\\rc\\n\\nd\\u2028e\\n'.splitlines() | join('-') }}"),
            "a-b-c--d-e");
  EXPECT_EQ(Render("x\u3000{%- if true -%}\u3000a{% endif %}\n\u3000{% if true %}b{% endif %}"),
            "xab");
}

TEST(ChatTemplate, TextsInsideContainersPrintAsPythonsRepr) {
  EXPECT_EQ(Render("{{ messages[0] }}",
                   ordered_json::array({{{"k", "it's \u00e9\u4f60\U0001F600\u200d\u3000\u00a0"},
                                         {"c", std::string("\x07\x7f\0", 3)}}})),
            "{'k': \"it's \u00e9\u4f60\U0001F600\\u200d\\u3000\\xa0\", 'c': '\\x07\\x7f\\x00'}");
  EXPECT_EQ(Render("{{ ['\\U000e0001', '\"\\''] }}"), "['\\U000e0001', '\"\\'']");
}

TEST(ChatTemplate, JsonTakesTheArgumentsOfTransformers) {
  const ordered_json tools = ordered_json::parse(R"([{"b":[1,{}],"a":"é"}])");
  EXPECT_EQ(
      Render("{{ tools[0] | tojson(true) }} {{ tools[0] | tojson(separators=(',', ':')) }} {{ "
             "tools[0] | tojson(sort_keys=true) }}",
             {}, tools),
      "{\"b\": [1, {}], \"a\": \"\\u00e9\"} {\"b\":[1,{}],\"a\":\"\u00e9\"} {\"a\": "
      "\"\u00e9\", \"b\": [1, {}]}");
  EXPECT_EQ(Render("{{ tools[0] | tojson(indent='-') }}", {}, tools),
            "{\n-\"b\": [\n--1,\n--{}\n-],\n-\"a\": \"\u00e9\"\n}");
  EXPECT_NE(ErrorOf("{{ [] | tojson(default=1) }}").find("no argument 'default'"),
            std::string::npos);
  EXPECT_NE(ErrorOf("{{ [] | tojson(indent=17) }}").find("16 bytes"), std::string::npos);
}

TEST(ChatTemplate, SignsFiltersAndPowersBindAsInJinja) {
  EXPECT_EQ(Render("{{ -1 | abs }} {{ -2 ** 2 }} {{ 2 ** 3 ** 2 }} {{ -[3][0] }}"), "1 4 64 -3");
  EXPECT_NE(ErrorOf("{{ 1 < 2 < 3 }}").find("line 1: chains of comparisons"), std::string::npos);
}

TEST(ChatTemplate, UndefinedValuesAreEmptySequences) {
  EXPECT_EQ(
      Render("{{ 'x' in nope }}{{ nope is iterable }}{{ nope is sequence }}{{ nope is mapping "
             "}}{{ null is defined }}"),
      "FalseTrueTrueFalseFalse");
  EXPECT_EQ(
      Render("{% set ns = namespace() %}{{ ns is mapping }}{{ ns is iterable }}{{ 1 if ns }}"),
      "FalseFalse1");
}

TEST(ChatTemplate, TheElseOfALoopHasAScopeOfItsOwn) {
  EXPECT_EQ(
      Render("{% set x = 1 %}{% for i in [] %}{% else %}{% set x = 2 %}{{ x }}{% endfor %}{{ x "
             "}}"),
      "21");
}

TEST(ChatTemplate, LinesMayEndWithCarriageReturns) {
  EXPECT_EQ(Render("a\r\n{% if true %}\r\nb\r{% endif %}\r\n{{ 'c\r\nd' }}\r\n"), "a\nb\nc\nd");
  EXPECT_EQ(Render("a {# kept +#}\nb {# cut #}\nc"), "a \nb c");
}

TEST(ChatTemplate, WholeNumbersKeepAllTheirDigits) {
  EXPECT_EQ(Render("{{ 9007199254740993 == 9007199254740992 }} {{ 9007199254740993 > "
                   "9007199254740992 }} {{ 1 == 1.0 }} {{ '\\101\\0\\f' == 'A\\x00\\x0c' }}"),
            "False True True True");
}

TEST(ChatTemplate, FiltersReachAttributesByPath) {
  const ordered_json messages =
      ordered_json::parse(R"([{"a":{"b":3},"c":["x"]},{"a":{"b":1},"c":["y"]}])");
  EXPECT_EQ(Render("{{ messages | map(attribute='a.b') | join(',') }} {{ messages | "
                   "selectattr('a.b', 'eq', 1) | map(attribute='c.0') | join }} {{ messages | "
                   "sort(attribute='a.b') | join('-', attribute='c.0') }}",
                   messages),
            "3,1 y y-x");
  EXPECT_NE(ErrorOf("{{ [{}] | map(attribute='a.b') }}").find("no attribute 'b'"),
            std::string::npos);
  EXPECT_EQ(Render("{{ ['a', 'A'] | unique | join }} {{ 'x' | float(2.5) }} {{ \"it's a-b x.y\" | "
                   "title }} {{ \"it's x.y\".title() }} {{ 'éx'.find('x') }}"),
            "a 2.5 It's A-B X.y It'S X.Y 1");
}

TEST(ChatTemplate, CharactersOfATextAreReachedByNumber) {
  EXPECT_EQ(
      Render("{% set s = 'a\u00e9\U0001F600z' %}{{ s[0] }}{{ s.1 }}{{ s[2] }}{{ s[-1] }}{{ s[-3] "
             "}}{{ s[-4] }} {{ s[4] is defined }}{{ s[-5] is defined }}{{ ''.0 is defined }} {{ "
             "s | length }}"),
      "a\u00e9\U0001F600z\u00e9a FalseFalseFalse 4");
  TemplateLimits few;
  few.steps = 10000;
  const std::string large = "{% set s = 'x' * 100000 %}{% for i in range(100) %}";
  EXPECT_NE(ErrorOf(large + "{{ s[99999] }}{% endfor %}", few).find("steps"), std::string::npos);
  EXPECT_EQ(ErrorOf(large + "{{ s.0.y is defined }}{% endfor %}", few), "");
}

TEST(ChatTemplate, TheLengthOfALongConversationIsCheapToAskFor) {
  ordered_json messages = ordered_json::array();
  for (int i = 0; i < 2000; ++i)
    messages.push_back({{"role", "user"}, {"content", std::string(4000, 'x')}});
  EXPECT_EQ(Render("{% for m in messages %}{% if loop.index0 == messages | length - 1 %}{{ "
                   "(messages | last).role }}{% endif %}{% endfor %}",
                   messages),
            "user");
}

TEST(ChatTemplate, ArgumentsThatAreJsonTextReachTheTemplateAsObjects) {
  const std::string source =
      "{% for c in messages[0].tool_calls %}{% for k, v in c.function.arguments.items() %}{{ k }}="
      "{{ v }};{% endfor %}{% endfor %}";
  const auto with = [](const ordered_json& arguments) {
    return ordered_json::array(
        {{{"role", "assistant"},
          {"tool_calls",
           ordered_json::array({{{"function", {{"name", "f"}, {"arguments", arguments}}}}})}}});
  };
  EXPECT_EQ(Render(source, with(R"({"b": [1], "a": "x"})")), "b=[1];a=x;");
  EXPECT_EQ(Render(source, with(ordered_json({{"b", 2}}))), "b=2;");
  EXPECT_EQ(Render(source, with(" ")), "");
  for (const char* text : {"{", "[1]", "\"a\"", "{\"a\": 1} x"}) {
    try {
      Render(source, with(text));
      FAIL() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUsage);
      EXPECT_NE(std::string(error.what()).find("messages[0].tool_calls[0].function.arguments"),
                std::string::npos)
          << error.what();
    }
  }
  EXPECT_THROW(Render(source, ordered_json({{"role", "user"}})), Error);
}

TEST(ChatTemplate, APromptThatEndsInAnOpenThinkIsSeen) {
  EXPECT_TRUE(EndsInsideThink("<|assistant|><think>"));
  EXPECT_TRUE(EndsInsideThink("<|assistant|>\n<think>\n"));
  EXPECT_FALSE(EndsInsideThink("<|assistant|>\n<think></think>\n"));
  EXPECT_FALSE(EndsInsideThink("<|user|>what is <think>?<|assistant|>"));
  EXPECT_FALSE(EndsInsideThink(""));
  EXPECT_FALSE(EndsInsideThink(" \n"));
}

TEST(ChatTemplate, NamesOfAConfigMayBeAnything) {
  const TemporaryFolder folder;
  folder.Write("tokenizer_config.json",
               R"({"chat_template": [{"name": 5, "template": "five"}, {"template": "none"},
                                     {"name": "default", "template": "this"}]})");
  EXPECT_EQ(ChatTemplate::Load(folder.path(), "glm_moe_dsa").source(), "this");
}

TEST(ChatTemplate, AModelWithoutATemplateSaysHowToGoOn) {
  try {
    ChatTemplate::Load(Golden("glm_moe_dsa"), "glm_moe_dsa");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("--raw"), std::string::npos);
  }
  EXPECT_EQ(ChatTemplate::Load(Golden("deepseek_v32"), "deepseek_v32").Render("hi"),
            "<｜begin▁of▁sentence｜><｜User｜>hi<｜Assistant｜></think>");
}

}  // namespace
}  // namespace strata
