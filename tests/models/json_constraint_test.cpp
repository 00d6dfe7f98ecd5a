#include "models/json_constraint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <thread>

#include "kernels/status.h"
#include "models/json.h"
#include "tests/models/model_fixture.h"

namespace strata {
namespace {

using nlohmann::ordered_json;

// JSON Schema as its text says, for the keywords used here.
bool Valid(const ordered_json& root, const ordered_json& schema, const ordered_json& value) {
  if (schema.is_boolean()) return schema.get<bool>();
  const auto has = [&](const char* name) { return schema.contains(name); };
  const auto is = [&](const std::string& type) {
    if (type == "integer")
      return value.is_number_integer() ||
             (value.is_number_float() && value.get<double>() == std::floor(value.get<double>()));
    return type == (value.is_number() ? "number" : value.type_name());
  };
  if (has("$ref")) {
    const std::string pointer = schema["$ref"].get<std::string>().substr(1);
    if (!Valid(root, root.at(ordered_json::json_pointer(pointer)), value)) return false;
  }
  if (has("type")) {
    const ordered_json types =
        schema["type"].is_array() ? schema["type"] : ordered_json::array({schema["type"]});
    if (std::none_of(types.begin(), types.end(),
                     [&](const ordered_json& type) { return is(type.get<std::string>()); }))
      return false;
  }
  if (has("enum") &&
      std::find(schema["enum"].begin(), schema["enum"].end(), value) == schema["enum"].end())
    return false;
  if (has("const") && schema["const"] != value) return false;
  const auto matches = [&](const char* name) {
    return std::count_if(schema[name].begin(), schema[name].end(),
                         [&](const ordered_json& one) { return Valid(root, one, value); });
  };
  if (has("anyOf") && matches("anyOf") == 0) return false;
  if (has("oneOf") && matches("oneOf") != 1) return false;
  if (value.is_string()) {
    const std::string text = value.get<std::string>();
    const auto length = std::count_if(text.begin(), text.end(), [](char c) {
      return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
    });
    if (has("minLength") && length < schema["minLength"].get<int64_t>()) return false;
    if (has("maxLength") && length > schema["maxLength"].get<int64_t>()) return false;
  }
  if (value.is_number()) {
    if (has("minimum") && value < schema["minimum"]) return false;
    if (has("maximum") && value > schema["maximum"]) return false;
    if (has("exclusiveMinimum") && value <= schema["exclusiveMinimum"]) return false;
    if (has("exclusiveMaximum") && value >= schema["exclusiveMaximum"]) return false;
  }
  if (value.is_array()) {
    if (has("minItems") && value.size() < schema["minItems"].get<size_t>()) return false;
    if (has("maxItems") && value.size() > schema["maxItems"].get<size_t>()) return false;
    const size_t prefix = has("prefixItems") ? schema["prefixItems"].size() : 0;
    for (size_t i = 0; i < value.size(); ++i) {
      if (i < prefix ? !Valid(root, schema["prefixItems"][i], value[i])
                     : has("items") && !Valid(root, schema["items"], value[i]))
        return false;
    }
  }
  if (value.is_object()) {
    for (size_t i = 0; has("required") && i < schema["required"].size(); ++i) {
      if (!value.contains(schema["required"][i].get<std::string>())) return false;
    }
    for (const auto& [name, member] : value.items()) {
      if (has("properties") && schema["properties"].contains(name)) {
        if (!Valid(root, schema["properties"][name], member)) return false;
      } else if (has("additionalProperties") &&
                 !Valid(root, schema["additionalProperties"], member)) {
        return false;
      }
    }
  }
  return true;
}

// Random schemas and random values of them.
class Maker {
 public:
  explicit Maker(unsigned seed) : random_(seed) {}

  size_t Below(size_t n) { return random_() % n; }

  ordered_json Root() {
    root_ = Schema(3);
    if (!root_.is_object()) root_ = {{"type", "object"}};
    root_["$defs"] = {{"node",
                       {{"type", "object"},
                        {"properties",
                         {{"value", Scalar()},
                          {"next", {{"anyOf", {{{"$ref", "#/$defs/node"}}, {{"type", "null"}}}}}},
                          {"list", {{"type", "array"}, {"items", {{"$ref", "#/$defs/node"}}}}}}},
                        {"required", {"next"}}}}};
    return root_;
  }
  ordered_json Value() { return ValueOf(root_, 4); }

  std::string Text() {
    static const std::vector<std::string> pieces = {"a",
                                                    "word",
                                                    " ",
                                                    "\"",
                                                    "\\",
                                                    "/",
                                                    "\n",
                                                    "\x01",
                                                    "\xC3\xBC",
                                                    "{\"",
                                                    "\":1",
                                                    "],",
                                                    "\xE4\xBD\xA0",
                                                    "\xF0\x9F\x98\x80",
                                                    "\x7F"};
    std::string text;
    for (size_t i = Below(5); i > 0; --i) text += pieces[Below(pieces.size())];
    return text;
  }

 private:
  ordered_json Scalar() {
    ordered_json schema;
    switch (Below(9)) {
      case 0:
        schema["type"] = "string";
        if (Below(2)) schema["minLength"] = Below(4);
        if (Below(2)) schema["maxLength"] = 6 + Below(20);
        return schema;
      case 1:
      case 2: {
        const bool whole = Below(2);
        const int low = static_cast<int>(Below(400)) - 200;
        const double unit = whole ? 1 : 0.25;
        schema["type"] = whole ? "integer" : "number";
        if (Below(2)) schema[Below(2) ? "minimum" : "exclusiveMinimum"] = low * unit;
        if (Below(2))
          schema[Below(2) ? "maximum" : "exclusiveMaximum"] = (low + 3 + double(Below(300))) * unit;
        return schema;
      }
      case 3:
        return {{"type", "boolean"}};
      case 4:
        return {{"type", "null"}};
      case 5:
        return {{"enum", {Text(), "fix", "fixed", 1, 10, -2.5, nullptr, true}}};
      case 6:
        return {{"const", Text()}};
      case 7:
        return {{"type", {"string", "integer", "null"}}};
      default:
        return {{"enum", {{{"k", Text()}, {"l", {1, ordered_json::array()}}}, {1, "x"}, Text()}}};
    }
  }
  ordered_json Schema(int depth) {
    if (depth == 0) return Scalar();
    ordered_json schema;
    switch (Below(7)) {
      case 0:
        return Scalar();
      case 1:
        schema = {{"type", "array"}, {"items", Schema(depth - 1)}};
        if (Below(3) == 0) schema["prefixItems"] = {Schema(depth - 1), Scalar()};
        if (Below(2)) schema["minItems"] = Below(3);
        if (Below(2)) schema["maxItems"] = 2 + Below(4);
        return schema;
      case 2:
        schema["anyOf"] = ordered_json::array();
        for (size_t i = 1 + Below(3); i > 0; --i) schema["anyOf"].push_back(Schema(depth - 1));
        return schema;
      case 3:
        return {{"oneOf",
                 {{{"type", "object"},
                   {"properties", {{"kind", {{"const", "one"}}}, {"v", Schema(depth - 1)}}},
                   {"required", {"kind", "v"}}},
                  {{"type", "object"},
                   {"properties", {{"kind", {{"enum", {"on", "two"}}}}, {"w", Schema(depth - 1)}}},
                   {"required", {"kind"}}},
                  {{"type", "integer"}}}}};
      case 4:
        return Below(3) ? ordered_json{{"$ref", "#/$defs/node"}} : ordered_json(true);
      default:
        break;
    }
    static const std::vector<std::string> names = {"a", "ab", "abc\"", "\xC3\xBC", "", "a\nb", "k"};
    schema = {{"type", "object"}, {"properties", ordered_json::object()}};
    schema["required"] = ordered_json::array();
    for (const std::string& name : names) {
      if (Below(2)) continue;
      schema["properties"][name] = Schema(depth - 1);
      if (Below(2)) schema["required"].push_back(name);
    }
    switch (Below(4)) {
      case 0:
        schema["additionalProperties"] = false;
        break;
      case 1:
        schema["additionalProperties"] = true;
        break;
      case 2:
        schema["additionalProperties"] = Scalar();
        break;
      default:
        break;
    }
    return schema;
  }

  ordered_json ValueOf(const ordered_json& schema, int depth) {
    if (schema == true) return Any(std::min(depth, 2));
    if (schema.contains("$ref")) return ValueOf(root_["$defs"]["node"], depth);
    for (const char* name : {"anyOf", "oneOf"}) {
      if (!schema.contains(name)) continue;
      const size_t count = schema[name].size();
      return ValueOf(schema[name][depth > 0 ? Below(count) : count - 1], depth - 1);
    }
    if (schema.contains("enum")) return schema["enum"][Below(schema["enum"].size())];
    if (schema.contains("const")) return schema["const"];
    const ordered_json& types = schema["type"];
    const std::string type = types.is_array() ? types[Below(types.size())] : types;
    if (type == "null") return nullptr;
    if (type == "boolean") return Below(2) == 1;
    if (type == "string") return String(schema);
    if (type == "integer" || type == "number") return Number(schema, type == "integer");
    if (type == "array") {
      ordered_json list = ordered_json::array();
      const size_t least = schema.value("minItems", 0), most = schema.value("maxItems", 3);
      const size_t count = depth > 0 ? least + Below(most - least + 1) : least;
      const size_t prefix = schema.contains("prefixItems") ? schema["prefixItems"].size() : 0;
      for (size_t i = 0; i < count; ++i)
        list.push_back(ValueOf(i < prefix ? schema["prefixItems"][i] : schema["items"], depth - 1));
      return list;
    }
    ordered_json object = ordered_json::object();
    const ordered_json required = schema.value("required", ordered_json::array());
    const ordered_json properties = schema.value("properties", ordered_json::object());
    for (const auto& [name, member] : properties.items()) {
      const bool needed = std::find(required.begin(), required.end(), name) != required.end();
      if (needed || (depth > 0 && Below(2))) object[name] = ValueOf(member, depth - 1);
    }
    const ordered_json others =
        schema.value("additionalProperties", ordered_json(!schema.contains("properties")));
    for (size_t i = others == false ? 0 : Below(3); i > 0; --i) {
      const std::string name = "x" + Text();
      if (!object.contains(name)) object[name] = ValueOf(others, depth - 1);
    }
    return object;
  }
  ordered_json String(const ordered_json& schema) {
    std::string text;
    size_t length = schema.value("minLength", 0) + Below(4);
    for (; length > 0; --length)
      text += std::vector<std::string>{"a", "\"", "\n", "\xC3\xBC", "\xF0\x9F\x98\x80"}[Below(5)];
    return text;
  }
  ordered_json Number(const ordered_json& schema, bool whole) {
    const double unit = whole ? 1 : 0.25;
    double low = -1000, high = 1000;
    if (schema.contains("minimum")) low = schema["minimum"];
    if (schema.contains("exclusiveMinimum")) low = schema["exclusiveMinimum"].get<double>() + unit;
    if (schema.contains("maximum")) high = schema["maximum"];
    if (schema.contains("exclusiveMaximum")) high = schema["exclusiveMaximum"].get<double>() - unit;
    const double value = low + unit * double(Below(static_cast<size_t>((high - low) / unit) + 1));
    if (whole) return static_cast<int64_t>(value);
    return value == 0 ? ordered_json(0) : ordered_json(value);
  }
  ordered_json Any(int depth) {
    switch (Below(depth > 0 ? 6 : 4)) {
      case 0:
        return nullptr;
      case 1:
        return Text();
      case 2:
        return std::vector<double>{-0.5, 1e-7, 2.5e30, 1234567.875}[Below(4)];
      case 3:
        return static_cast<int64_t>(Below(2000)) - 1000;
      case 4:
        return ordered_json::array({Any(depth - 1), Any(depth - 1)});
      default: {
        ordered_json object = ordered_json::object();
        object[Text()] = Any(depth - 1);
        object["y"] = Any(depth - 1);
        return object;
      }
    }
  }

  std::mt19937 random_;
  ordered_json root_;
};

// The 256 bytes, tokens that cut across JSON's grammar and characters, and an end token.
const std::shared_ptr<const JsonVocabulary>& Toy() {
  static const auto vocabulary = [] {
    std::vector<std::string> tokens(1);
    for (int byte = 0; byte < 256; ++byte)
      tokens.push_back(std::string(1, static_cast<char>(byte)));
    std::mt19937 random(3);
    const std::string bytes = "{}[]\":,\\u0d8aetrfn12.- \n\xC3\xBC\xF0\x9F\x98\x80x";
    for (int i = 0; i < 1500; ++i) {
      std::string token;
      for (size_t length = 2 + random() % 5; length > 0; --length)
        token += bytes[random() % bytes.size()];
      tokens.push_back(token);
    }
    for (const char* token : {"{\"", "\":", "\",\"", "\"}", "}]", "},{\"", "[]", "null,", "true}",
                              "\":{\"", "\\ud83d\\ude00", "fixed\"", "\n    ", ": [", "\": \"", ""})
      tokens.push_back(token);
    return std::make_shared<const JsonVocabulary>(tokens, std::vector<int32_t>{0});
  }();
  return vocabulary;
}

const Tokenizer& ShippedTokenizer() {
  static const Tokenizer tokenizer = Tokenizer::Load(ShippedModel());
  return tokenizer;
}
// As a model with more logits than tokens has it.
const std::shared_ptr<const JsonVocabulary>& Shipped() {
  static const auto vocabulary = std::make_shared<const JsonVocabulary>(
      ShippedTokenizer(), ShippedTokenizer().vocabulary() + 37,
      std::vector<int32_t>{*ShippedTokenizer().eos()});
  return vocabulary;
}

bool Bit(const std::vector<uint32_t>& mask, int32_t token) {
  return (mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1) != 0;
}
std::vector<int32_t> Tokens(const std::vector<uint32_t>& mask) {
  std::vector<int32_t> tokens;
  for (int32_t token = 0; token < static_cast<int32_t>(mask.size() * 32); ++token) {
    if (Bit(mask, token)) tokens.push_back(token);
  }
  return tokens;
}

// What ends a value soonest comes first.
int Eagerness(const std::string& bytes) {
  static const std::string order = "\"]},:ntf0123456789-";
  if (bytes.size() != 1) return 1000;
  const size_t at = order.find(bytes[0]);
  return at != std::string::npos ? static_cast<int>(at)
                                 : 100 + static_cast<int>(static_cast<uint8_t>(bytes[0]));
}

// Writes `steps` random tokens, then ends as soon as it can. Empty: it got stuck.
std::string Walk(const std::shared_ptr<const JsonVocabulary>& vocabulary, JsonConstraint constraint,
                 Maker& maker, int steps) {
  std::string text;
  std::vector<uint32_t> mask;
  for (int step = 0; step < steps + 3000; ++step) {
    constraint.Allowed(mask);
    std::vector<int32_t> tokens = Tokens(mask);
    if (tokens.empty()) return "";
    int32_t token = tokens[maker.Below(tokens.size())];
    if (step < steps && maker.Below(2)) {
      std::erase_if(tokens, [&](int32_t one) {
        const std::string& bytes = vocabulary->bytes(one);
        return bytes.empty() || std::string("{}[]\",:\\").find(bytes[0]) == std::string::npos;
      });
      if (!tokens.empty()) token = tokens[maker.Below(tokens.size())];
    } else if (step >= steps) {
      token = *std::min_element(tokens.begin(), tokens.end(), [&](int32_t a, int32_t b) {
        const auto rank = [&](int32_t one) {
          return vocabulary->IsEnd(one) ? -1 : Eagerness(vocabulary->bytes(one));
        };
        return rank(a) < rank(b);
      });
    }
    constraint.Accept(token);
    if (vocabulary->IsEnd(token)) return text;
    text += vocabulary->bytes(token);
  }
  return "";
}

class JsonConstraintTest
    : public ::testing::TestWithParam<const std::shared_ptr<const JsonVocabulary>& (*)()> {
 protected:
  const std::shared_ptr<const JsonVocabulary>& vocabulary() const { return GetParam()(); }
};
INSTANTIATE_TEST_SUITE_P(Vocabularies, JsonConstraintTest, ::testing::Values(&Toy, &Shipped),
                         [](const auto& info) { return info.index == 0 ? "Toy" : "Shipped"; });

TEST_P(JsonConstraintTest, EveryWalkEndsInAValidValue) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    Maker maker(seed);
    const ordered_json schema = maker.Root();
    SCOPED_TRACE(schema.dump());
    const JsonConstraint start(vocabulary(), JsonSchema::Compile(schema, "schema"));
    for (int walk = 0; walk < 4; ++walk) {
      const std::string text = Walk(vocabulary(), start, maker, walk * 12);
      ASSERT_NE(text, "");
      SCOPED_TRACE(text);
      // Refuses what is not UTF-8, names that stand twice, depth.
      ASSERT_TRUE(Valid(schema, schema, ParseJson(text, "answer")));
    }
  }
}

TEST_P(JsonConstraintTest, EveryObjectWalkParses) {
  const JsonConstraint start(vocabulary(), JsonSchema::AnyObject());
  Maker maker(5);
  for (int walk = 0; walk < 60; ++walk) {
    const std::string text = Walk(vocabulary(), start, maker, walk * 3);
    SCOPED_TRACE(text);
    ASSERT_TRUE(ParseJson(text, "answer").is_object());
  }
}

TEST_P(JsonConstraintTest, MasksEqualTryingEveryToken) {
  for (unsigned seed = 100; seed < 130; ++seed) {
    Maker maker(seed);
    ordered_json schema = maker.Root();
    // Some tokens fit a literal only, others the string beside it only.
    if (seed % 3 == 0)
      schema = ParseJson(R"({"items":{"anyOf":[{"type":"string","maxLength":2},
        {"enum":["fixed","12null,","a \n"]}]},"minItems":2,"maxItems":3})",
                         "test");
    SCOPED_TRACE(schema.dump());
    const JsonSchema compiled = JsonSchema::Compile(schema, "schema");
    const JsonAutomaton automaton(compiled);
    JsonConstraint constraint(vocabulary(), compiled);
    JsonState state = automaton.Start(), other;
    std::vector<uint32_t> mask;
    std::string text;
    for (int step = 0; step < 25; ++step) {
      SCOPED_TRACE(text);
      constraint.Allowed(mask);
      ASSERT_EQ(mask.size(), vocabulary()->words());
      for (int32_t token = 0; token < static_cast<int32_t>(mask.size() * 32); ++token) {
        bool may = false;
        if (token < vocabulary()->size() && vocabulary()->IsEnd(token)) {
          may = automaton.MayEnd(state);
        } else if (token < vocabulary()->size() && !vocabulary()->bytes(token).empty()) {
          may = true;
          JsonState now = state;
          for (const char c : vocabulary()->bytes(token)) {
            if (!(may = automaton.Step(now, static_cast<uint8_t>(c), other))) break;
            std::swap(now, other);
          }
        }
        ASSERT_EQ(Bit(mask, token), may) << "token " << token;
      }
      const std::vector<int32_t> tokens = Tokens(mask);
      const int32_t token = tokens[maker.Below(tokens.size())];
      constraint.Accept(token);
      if (vocabulary()->IsEnd(token)) break;
      for (const char c : vocabulary()->bytes(token)) {
        ASSERT_TRUE(automaton.Step(state, static_cast<uint8_t>(c), other));
        std::swap(state, other);
      }
      text += vocabulary()->bytes(token);
    }
  }
}

TEST_P(JsonConstraintTest, EveryValidValueIsAcceptedTokenByToken) {
  for (unsigned seed = 1000; seed < 1150; ++seed) {
    Maker maker(seed);
    const ordered_json schema = maker.Root();
    SCOPED_TRACE(schema.dump());
    const JsonConstraint start(vocabulary(), JsonSchema::Compile(schema, "schema"));
    for (int round = 0; round < 4; ++round) {
      const ordered_json value = maker.Value();
      ASSERT_TRUE(Valid(schema, schema, value)) << value;
      const std::string text = round % 2 ? value.dump() : value.dump(round ? 4 : 2);
      SCOPED_TRACE(text);
      std::vector<int32_t> tokens;
      if (vocabulary() == Shipped()) {
        tokens = ShippedTokenizer().Encode(text, SpecialTokens::kAsText);
      } else {
        for (const char c : text) tokens.push_back(1 + static_cast<uint8_t>(c));
      }
      JsonConstraint constraint = start;
      std::vector<uint32_t> mask;
      std::string written;
      for (const int32_t token : tokens) {
        constraint.Allowed(mask);
        ASSERT_TRUE(Bit(mask, token)) << written << " then " << vocabulary()->bytes(token);
        constraint.Accept(token);
        written += vocabulary()->bytes(token);
      }
      constraint.Allowed(mask);
      ASSERT_TRUE(Bit(mask, vocabulary()->end_tokens()[0]));
    }
  }
}

TEST_P(JsonConstraintTest, ClonesGoTheirOwnWays) {
  const JsonConstraint first(
      vocabulary(), JsonSchema::Compile(ParseJson(R"({"enum":["ab","ac",12]})", "test"), "schema"));
  const auto accept = [&](TokenConstraint& constraint, char byte) {
    std::vector<uint32_t> mask;
    constraint.Allowed(mask);
    for (const int32_t token : Tokens(mask)) {
      if (vocabulary()->bytes(token) == std::string(1, byte)) return constraint.Accept(token);
    }
    FAIL() << byte << " is not allowed";
  };
  std::vector<uint32_t> before, after;
  first.Allowed(before);
  const std::unique_ptr<TokenConstraint> text = first.Clone(), number = first.Clone();
  for (const char byte : {'"', 'a'}) accept(*text, byte);
  const std::unique_ptr<TokenConstraint> other = text->Clone();
  for (const char byte : {'b', '"'}) accept(*text, byte);
  for (const char byte : {'c', '"'}) accept(*other, byte);
  for (const char byte : {'1', '2'}) accept(*number, byte);
  for (const auto& ended : {text.get(), other.get(), number.get()}) {
    ended->Allowed(after);
    EXPECT_EQ(Tokens(after), vocabulary()->end_tokens());
    EXPECT_THROW(ended->Accept(vocabulary()->end_tokens()[0] + 40), Error);
    ended->Accept(vocabulary()->end_tokens()[0]);
    ended->Allowed(after);
    EXPECT_EQ(Tokens(after), vocabulary()->end_tokens());
  }
  first.Allowed(after);
  EXPECT_EQ(before, after);
}

TEST_P(JsonConstraintTest, ClonesOnManyThreadsWriteWhatOneDoes) {
  const auto walk = [&](const JsonConstraint& start, unsigned seed) {
    Maker maker(seed);
    return Walk(vocabulary(), start, maker, 20);
  };
  const JsonConstraint alone(vocabulary(), JsonSchema::AnyObject());
  const JsonConstraint shared(vocabulary(), JsonSchema::AnyObject());
  std::vector<std::string> texts(4);
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < texts.size(); ++i)
    threads.emplace_back([&, i] { texts[i] = walk(shared, i); });
  for (std::thread& thread : threads) thread.join();
  for (unsigned i = 0; i < texts.size(); ++i) EXPECT_EQ(texts[i], walk(alone, i));
}

TEST(JsonConstraint, RefusesTokensThatCannotCome) {
  JsonConstraint constraint(Toy(), JsonSchema::AnyObject());
  for (const int32_t token : {-1, 0, 1 + '[', 1 + 'x', static_cast<int32_t>(Toy()->size()) - 1,
                              static_cast<int32_t>(Toy()->size())}) {
    try {
      constraint.Accept(token);
      ADD_FAILURE() << token;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInternal);
    }
  }
  constraint.Accept(1 + '{');  // a refused token leaves the state as it was
  constraint.Accept(1 + '}');
  constraint.Accept(0);
}

TEST(JsonConstraint, SpecialTokensAreNoText) {
  std::vector<uint32_t> mask;
  JsonConstraint constraint(Shipped(), JsonSchema::AnyObject());
  for (const int32_t token : ShippedTokenizer().Encode("{\"a\": \"")) constraint.Accept(token);
  constraint.Allowed(mask);
  EXPECT_GT(Tokens(mask).size(), static_cast<size_t>(ShippedTokenizer().vocabulary()) / 2);
  for (const int32_t token : Tokens(mask)) {
    ASSERT_LT(token, ShippedTokenizer().vocabulary());
    EXPECT_FALSE(ShippedTokenizer().IsSpecial(token)) << token;
  }
}

TEST(JsonVocabulary, LackingBytesAndEndTokensAreNamed) {
  const auto message = [](const std::vector<std::string>& tokens, std::vector<int32_t> end) {
    try {
      const JsonVocabulary vocabulary(tokens, std::move(end));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUsage);
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  std::vector<std::string> tokens(256);
  for (size_t byte = 0; byte < 256; ++byte) tokens[byte] = std::string(1, static_cast<char>(byte));
  EXPECT_EQ(message(tokens, {0}), "accepted");
  EXPECT_NE(message(tokens, {}).find("names no end token"), std::string::npos);
  EXPECT_NE(message(tokens, {256}).find("end token 256 is outside the vocabulary of 256"),
            std::string::npos);
  EXPECT_NE(message(tokens, {'{'}).find("each of the bytes 7b"), std::string::npos);
  tokens['"'] = tokens[0xE4] = "\"x";
  EXPECT_NE(message(tokens, {0}).find("each of the bytes 22 e4"), std::string::npos);
}

}  // namespace
}  // namespace strata
