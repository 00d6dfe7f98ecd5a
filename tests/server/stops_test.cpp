// Where answers end: stop strings and tokens, the limits of request and server.
#include "tests/server/retaught_model.h"
#include "tests/server/running_server.h"

namespace strata {
namespace {

constexpr const char* kChat = "/v1/chat/completions";

class StopTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    server_ = new RunningServer({"--max-context", "2048", "--max-answer-tokens", "40"});
  }
  static void TearDownTestSuite() {
    EXPECT_EQ(server_->Stop(), 0) << server_->log();
    delete server_;
  }
  // A request whose answer can only be this text in quotes.
  static Json Saying(const std::string& text, const Json& stop) {
    Json body = ChatBody("Say it.", 40);
    body["response_format"] = {{"type", "json_schema"},
                               {"json_schema", {{"name", "words"}, {"schema", {{"const", text}}}}}};
    body["stop"] = stop;
    return body;
  }
  static void ExpectText(const Json& body, const std::string& text) {
    const Json whole = server_->Post(kChat, body).json();
    EXPECT_EQ(whole["choices"][0]["message"]["content"], text) << body["stop"];
    EXPECT_EQ(whole["choices"][0]["finish_reason"], "stop");
    const RunningServer::Stream stream = server_->PostStream(kChat, body);
    EXPECT_EQ(stream.Text(), text) << body["stop"];
    EXPECT_EQ(stream.finish(), "stop");
  }
  static RunningServer* server_;
};
RunningServer* StopTest::server_ = nullptr;

TEST_F(StopTest, AStopStringOverSeveralTokensLeaksNoneOfIt) {
  const std::string fox = "The quick brown fox";
  ExpectText(Saying(fox, "own fox"), "\"The quick br");
  ExpectText(Saying(fox, "own fix"), "\"The quick brown fox\"");
  ExpectText(Saying(fox, Json::array({"own f", "own"})), "\"The quick br");
  ExpectText(Saying(fox, Json::array({"own", "own f"})), "\"The quick br");
  ExpectText(Saying(fox, Json::array({"never", "fix", "cat", "quick"})), "\"The ");
  ExpectText(Saying(fox, "\"The"), "");
}

TEST_F(StopTest, AStopStringBehindALongCharacterLeavesItWhole) {
  ExpectText(Saying("naïve 日本語 text", " text"), "\"naïve 日本語");
  ExpectText(Saying("naïve 日本語 text", "語"), "\"naïve 日本");
  ExpectText(Saying("🙂🙃", "🙃"), "\"🙂");
}

TEST_F(StopTest, AStopStringEndsTheReasoningToo) {
  const RetaughtModel thinker(TurnsTemplate("", "<think>"));
  RunningServer server({"--model", thinker.path(), "--max-context", "2048"});
  Json body = ChatBody("What is a tree?", 12);
  body["ignore_eos"] = true;
  const Json full = server.Post(kChat, body).json()["choices"][0];
  EXPECT_EQ(full["message"]["content"], "");
  const std::string reasoning = full["message"]["reasoning_content"];
  ASSERT_GT(reasoning.size(), 10u);
  const std::string stop = reasoning.substr(6, 4);
  body["stop"] = stop;
  const std::string left = reasoning.substr(0, reasoning.find(stop));
  const Json stopped = server.Post(kChat, body).json()["choices"][0];
  EXPECT_EQ(stopped["message"]["reasoning_content"], left);
  EXPECT_EQ(stopped["message"]["content"], "");
  EXPECT_EQ(stopped["finish_reason"], "stop");
  EXPECT_EQ(server.PostStream(kChat, body).Text("reasoning_content"), left);
}

TEST_F(StopTest, AnyTokenOfTheAnswerCanEndIt) {
  Json body = {{"prompt", "A tree is"}, {"max_tokens", 12}, {"temperature", 0}, {"logprobs", 0}};
  body["ignore_eos"] = true;
  const Json full = server_->Post("/v1/completions", body).json()["choices"][0];
  const auto pieces = full["logprobs"]["tokens"].get<std::vector<std::string>>();
  ASSERT_EQ(pieces.size(), 12u);
  for (size_t place = 0; place < pieces.size(); ++place) {
    const Json ids = server_->Post("/tokenize", {{"content", pieces[place]}}).json()["tokens"];
    if (ids.size() != 1) continue;  // a piece that is no text of its own
    const size_t first = static_cast<size_t>(
        std::find(pieces.begin(), pieces.end(), pieces[place]) - pieces.begin());
    std::string expected;
    for (size_t i = 0; i < first; ++i) expected += pieces[i];
    body["stop_token_ids"] = ids;
    const Json whole = server_->Post("/v1/completions", body).json();
    EXPECT_EQ(whole["choices"][0]["text"], expected) << place;
    EXPECT_EQ(whole["choices"][0]["finish_reason"], "stop");
    EXPECT_EQ(whole["usage"]["completion_tokens"], first + 1);
    const RunningServer::Stream stream = server_->PostStream("/v1/completions", body);
    EXPECT_EQ(stream.Text(), expected) << place;
    EXPECT_EQ(stream.finish(), "stop");
  }
}

TEST_F(StopTest, TheServersLimitWinsWhereItIsSmaller) {
  const auto tokens = [&](Json body) {
    body["ignore_eos"] = true;
    const Json whole = server_->Post(kChat, body).json();
    EXPECT_EQ(whole["choices"][0]["finish_reason"], "length");
    return whole["usage"]["completion_tokens"].get<int>();
  };
  EXPECT_EQ(tokens(ChatBody("Count.", 39)), 39);
  EXPECT_EQ(tokens(ChatBody("Count.", 41)), 40);
  Json unlimited = ChatBody("Count.");
  unlimited.erase("max_tokens");
  EXPECT_EQ(tokens(unlimited), 40);
}

TEST_F(StopTest, LogprobsStayFiniteWhenOneTokenIsLeftToChooseFrom) {
  Json body = ChatBody("What is a tree?", 6);
  body["temperature"] = 0.8;
  body["top_k"] = 1;
  body["logprobs"] = true;
  for (int top : {0, 5, 20}) {
    body["top_logprobs"] = top;
    const Json whole = server_->Post(kChat, body).json();
    for (const Json& token : whole["choices"][0]["logprobs"]["content"]) {
      ASSERT_TRUE(token["logprob"].is_number()) << token;
      EXPECT_LE(token["logprob"].get<double>(), 1e-6);
      EXPECT_GE(token["logprob"].get<double>(), -9999.0);
      ASSERT_EQ(token["top_logprobs"].size(), static_cast<size_t>(top));
      if (top > 0) {
        EXPECT_EQ(token["top_logprobs"][0]["token"], token["token"]);
      }
      double sum = 0.0;
      for (const Json& other : token["top_logprobs"]) {
        ASSERT_TRUE(other["logprob"].is_number()) << other;
        sum += std::exp(other["logprob"].get<double>());
      }
      EXPECT_LE(sum, 1.0 + 1e-5);
    }
  }
}

}  // namespace
}  // namespace strata
