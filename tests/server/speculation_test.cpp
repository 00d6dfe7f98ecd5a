// Verify windows over HTTP: the same answers, and what is told of them.
#include "tests/server/running_server.h"

namespace strata {
namespace {

constexpr const char* kChat = "/v1/chat/completions";

class SpeculationTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    server_ = new RunningServer({"--max-context", "2048", "--spec", "3", "--spec-fixed"});
  }
  static void TearDownTestSuite() {
    EXPECT_EQ(server_->Stop(), 0) << server_->log();
    delete server_;
  }
  static Json Ask(Json speculative, double temperature = 0.0) {
    Json body = ChatBody("Repeat: the file is read, the file is written, the file is closed.", 60);
    body["ignore_eos"] = true;
    body["temperature"] = temperature;
    body["seed"] = 11;
    body["logprobs"] = true;
    if (!speculative.is_null()) body["speculative"] = std::move(speculative);
    const RunningServer::Reply reply = server_->Post(kChat, body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return reply.json();
  }
  static RunningServer* server_;
};
RunningServer* SpeculationTest::server_ = nullptr;

TEST_F(SpeculationTest, EveryChoiceGivesTheSameAnswerAndLogprobs) {
  for (double temperature : {0.0, 0.9}) {
    const Json plain = Ask({{"drafts", 0}}, temperature);
    EXPECT_EQ(plain["timings"]["draft_n"], 0);
    for (const Json& choice :
         {Json(), Json{{"drafts", 7}}, Json{{"drafts", 2}, {"drafter", "ngram"}},
          Json{{"drafts", 5}, {"drafter", "mtp"}, {"min_p", 0.5}}, Json{{"drafter", "off"}}}) {
      const Json answer = Ask(choice, temperature);
      EXPECT_EQ(answer["choices"], plain["choices"]) << choice.dump();
    }
  }
}

TEST_F(SpeculationTest, AcceptanceIsTold) {
  const Json timings = Ask({{"drafts", 3}, {"drafter", "mtp"}})["timings"];
  EXPECT_GT(timings["draft_n_accepted"], 0);
  EXPECT_GE(timings["draft_n"], timings["draft_n_accepted"]);
  EXPECT_EQ(timings["drafts"]["accepted"].size(), 7u);
  EXPECT_GT(timings["drafts"]["windows"], 0);
  const Json drafts = server_->Get("/v1/status").json()["drafts"];
  EXPECT_GE(drafts["windows"], timings["drafts"]["windows"]);
  EXPECT_EQ(server_->Get("/props").json()["speculative"]["drafts"], 3);
  const std::string metrics = server_->Get("/metrics").body;
  for (const char* line :
       {"strata_spec_decode_num_drafts_total ", "strata_spec_decode_num_draft_tokens_total ",
        "strata_spec_decode_num_accepted_tokens_total ",
        "strata_spec_decode_num_accepted_tokens_per_pos_total{position=\"0\"} "}) {
    const size_t at = metrics.find("\n" + std::string(line)) + 1;
    ASSERT_NE(at, 0u) << line;
    EXPECT_GT(std::atoi(metrics.c_str() + at + std::string(line).size()), 0) << line;
  }
}

TEST_F(SpeculationTest, ChoicesThatCannotBeAreRefusedByName) {
  const std::pair<Json, const char*> wrong[] = {
      {Json{{"drafts", 8}}, "speculative.drafts"},
      {Json{{"drafts", -1}}, "speculative.drafts"},
      {Json{{"drafts", "3"}}, "speculative.drafts"},
      {Json{{"drafter", "medusa"}}, "speculative.drafter"},
      {Json{{"min_p", 1.5}}, "speculative.min_p"},
      {Json(3), "speculative"}};
  for (const auto& [choice, name] : wrong) {
    Json body = ChatBody("Hello", 4);
    body["speculative"] = choice;
    const RunningServer::Reply reply = server_->Post(kChat, body);
    EXPECT_EQ(reply.status, 400) << choice.dump();
    EXPECT_EQ(reply.json()["error"]["param"], name) << reply.body;
  }
}

TEST_F(SpeculationTest, AStopStringInsideAWindowEndsTheAnswerThere) {
  const std::string whole = Ask({{"drafts", 0}})["choices"][0]["message"]["content"];
  for (size_t at = 3; at + 12 < whole.size(); at += 17) {
    Json body = ChatBody("Repeat: the file is read, the file is written, the file is closed.", 60);
    body["ignore_eos"] = true;
    body["temperature"] = 0.0;
    body["stop"] = whole.substr(at, 6);
    const std::string expected = whole.substr(0, whole.find(whole.substr(at, 6)));
    for (int drafts : {0, 7}) {
      body["speculative"] = {{"drafts", drafts}};
      body["stream"] = false;
      const Json answer = server_->Post(kChat, body).json();
      EXPECT_EQ(answer["choices"][0]["message"]["content"], expected);
      EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
      body["stream"] = true;
      EXPECT_EQ(RunningServer::Parse(server_->Post(kChat, body).body).Text(), expected);
    }
  }
}

TEST(SpeculationServer, TheLayerIsRefusedByRequestsWhereItIsNotLoaded) {
  RunningServer server({"--max-context", "512"});
  Json body = ChatBody("Hello", 4);
  body["speculative"] = {{"drafts", 2}, {"drafter", "mtp"}};
  const RunningServer::Reply reply = server.Post(kChat, body);
  EXPECT_EQ(reply.status, 400) << reply.body;
  EXPECT_NE(reply.body.find("--drafter mtp"), std::string::npos) << reply.body;
  body["speculative"]["drafter"] = "auto";
  EXPECT_EQ(server.Post(kChat, body).status, 200);
  EXPECT_EQ(server.Stop(), 0) << server.log();
}

}  // namespace
}  // namespace strata
