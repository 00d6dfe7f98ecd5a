// Chat and text completions over real HTTP: whole, streamed, limited, sampled, reused.
#include "tests/server/running_server.h"

namespace strata {
namespace {

class ChatTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    server_ =
        new RunningServer({"--max-context", "4096", "--alias", "small", "--alias", "lab/small"});
  }
  static void TearDownTestSuite() {
    EXPECT_EQ(server_->Stop(), 0) << server_->log();
    delete server_;
  }
  static constexpr const char* kChat = "/v1/chat/completions";
  static RunningServer* server_;
};
RunningServer* ChatTest::server_ = nullptr;

TEST_F(ChatTest, AnswersWholeAndStreamedAlike) {
  const Json body = ChatBody(
      "The access code for Silver Falcon is 4821. What is the access code "
      "for Silver Falcon?",
      24);
  const Json whole = server_->Post(kChat, body).json();
  const std::string text = whole["choices"][0]["message"]["content"];
  EXPECT_NE(text.find("4821"), text.npos) << text;
  EXPECT_EQ(whole["object"], "chat.completion");
  EXPECT_EQ(whole["choices"][0]["message"]["role"], "assistant");
  EXPECT_EQ(whole["choices"][0]["finish_reason"], "stop");
  const RunningServer::Stream stream = server_->PostStream(kChat, body);
  EXPECT_EQ(stream.Text(), text);
  EXPECT_EQ(stream.finish(), "stop");
  EXPECT_EQ(stream.data.back(), "[DONE]");
  EXPECT_EQ(stream.chunks().front()["choices"][0]["delta"]["role"], "assistant");
  for (const Json& chunk : stream.chunks()) {
    EXPECT_EQ(chunk["object"], "chat.completion.chunk");
    EXPECT_FALSE(chunk.contains("usage"));
  }
}

TEST_F(ChatTest, UsageComesInOneExtraChunkAndEqualsTheWholeAnswers) {
  Json body = ChatBody("What is a tree?", 9);
  body["cache_prompt"] = false;
  const Json whole = server_->Post(kChat, body).json();
  body["stream_options"] = {{"include_usage", true}};
  const RunningServer::Stream stream = server_->PostStream(kChat, body);
  int with_usage = 0;
  for (const Json& chunk : stream.chunks()) with_usage += chunk.contains("usage") ? 1 : 0;
  EXPECT_EQ(with_usage, 1);
  const Json last = Json::parse(stream.data[stream.data.size() - 2]);
  EXPECT_TRUE(last["choices"].empty());
  EXPECT_EQ(last["usage"], whole["usage"]);
  EXPECT_EQ(whole["usage"]["completion_tokens"], 9);
  EXPECT_EQ(whole["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
  EXPECT_EQ(whole["choices"][0]["finish_reason"], "length");
}

TEST_F(ChatTest, LimitsAreTheSmallerOfBothNamesAndAtLeastOne) {
  const auto tokens = [&](const Json& limits) {
    Json body = ChatBody("Count.", 1);
    body.erase("max_tokens");
    body.update(limits);
    body["ignore_eos"] = true;
    return server_->Post(kChat, body).json()["usage"]["completion_tokens"].get<int>();
  };
  EXPECT_EQ(tokens({{"max_tokens", 1}}), 1);
  EXPECT_EQ(tokens({{"max_completion_tokens", 3}}), 3);
  EXPECT_EQ(tokens({{"max_tokens", 5}, {"max_completion_tokens", 2}}), 2);
  EXPECT_EQ(tokens({{"max_tokens", 4.0}}), 4);
  Json zero = ChatBody("Count.", 0);
  const RunningServer::Reply reply = server_->Post(kChat, zero);
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.param(), "max_tokens");
}

TEST_F(ChatTest, StopStringsNeverLeakAcrossTokens) {
  Json body = ChatBody("Repeat: The quick brown fox jumps over the lazy dog.", 40);
  body["ignore_eos"] = true;
  const std::string full = server_->Post(kChat, body).json()["choices"][0]["message"]["content"];
  ASSERT_GT(full.size(), 24u);
  for (size_t begin : {size_t{5}, size_t{11}, size_t{17}}) {
    const std::string stop = full.substr(begin, 6);
    const std::string expected = full.substr(0, full.find(stop));
    body["stop"] = Json::array({"never there", stop});
    const Json whole = server_->Post(kChat, body).json();
    EXPECT_EQ(whole["choices"][0]["message"]["content"], expected) << stop;
    EXPECT_EQ(whole["choices"][0]["finish_reason"], "stop");
    EXPECT_EQ(server_->PostStream(kChat, body).Text(), expected) << stop;
  }
  body["stop"] = full.substr(5, 6) + "\x01";
  EXPECT_EQ(server_->PostStream(kChat, body).Text(), full);
  body["stop"] = "";
  EXPECT_EQ(server_->Post(kChat, body).param(), "stop");
}

TEST_F(ChatTest, SeveralChoicesDrawApartAndSeedsReproduce) {
  Json body = ChatBody("Tell me a story.", 12);
  body["temperature"] = 1.5;
  body["seed"] = 5;
  body["n"] = 3;
  const auto texts = [&] {
    std::vector<std::string> contents;
    const Json whole = server_->Post(kChat, body).json();
    for (const Json& choice : whole["choices"]) contents.push_back(choice["message"]["content"]);
    return contents;
  };
  const std::vector<std::string> first = texts();
  ASSERT_EQ(first.size(), 3u);
  EXPECT_EQ(texts(), first);
  EXPECT_NE(first[0], first[1]);
  body["n"] = 1;
  body["seed"] = 6;
  EXPECT_EQ(texts()[0], first[1]);
}

TEST_F(ChatTest, LogprobsAreFiniteAndHoldTheArgmax) {
  Json body = ChatBody("What is a tree?", 5);
  body["logprobs"] = true;
  for (int top : {0, 5, 20}) {
    body["top_logprobs"] = top;
    const Json whole = server_->Post(kChat, body).json();
    const Json content = whole["choices"][0]["logprobs"]["content"];
    ASSERT_EQ(content.size(), 5u);
    std::string text;
    for (const Json& token : content) {
      EXPECT_LE(token["logprob"].get<double>(), 1e-6);
      ASSERT_EQ(token["top_logprobs"].size(), static_cast<size_t>(top));
      if (top > 0) {
        EXPECT_EQ(token["top_logprobs"][0]["token"], token["token"]);
      }
      for (const Json& byte : token["bytes"]) text += static_cast<char>(byte.get<int>());
    }
    EXPECT_EQ(text, whole["choices"][0]["message"]["content"]);
    size_t streamed = 0;
    for (const Json& chunk : server_->PostStream(kChat, body).chunks()) {
      const Json& logprobs = chunk["choices"][0]["logprobs"];
      if (!logprobs.is_null()) streamed += logprobs["content"].size();
    }
    EXPECT_EQ(streamed, 5u);
  }
  body.erase("logprobs");
  EXPECT_EQ(server_->Post(kChat, body).param(), "top_logprobs");
}

TEST_F(ChatTest, BiasesPenaltiesAndStopTokensAreHonoured) {
  Json body = ChatBody("What is a tree?", 6);
  body["logit_bias"] = {{"100", 100}};
  const Json forced = server_->Post(kChat, body).json();
  body.erase("logit_bias");
  const Json plain = server_->Post(kChat, body).json();
  EXPECT_NE(forced["choices"][0]["message"]["content"], plain["choices"][0]["message"]["content"]);
  const std::string text = plain["choices"][0]["message"]["content"];
  const Json first = server_->Post("/tokenize", {{"content", text}}).json()["tokens"][0];
  body["stop_token_ids"] = {first};
  const Json stopped = server_->Post(kChat, body).json();
  EXPECT_EQ(stopped["choices"][0]["message"]["content"], "");
  EXPECT_EQ(stopped["choices"][0]["finish_reason"], "stop");
  body["ignore_eos"] = true;
  EXPECT_EQ(server_->Post(kChat, body).json()["choices"][0]["finish_reason"], "stop");
}

TEST_F(ChatTest, ConcurrentAnswersEqualTheirSoloRuns) {
  std::vector<Json> bodies;
  for (int i = 0; i < 8; ++i) {
    bodies.push_back(
        ChatBody("Number " + std::to_string(i * 37) + ": what is a tree?", 1 + i * 199 / 7));
    bodies.back()["ignore_eos"] = true;
    bodies.back()["temperature"] = i % 2;
    bodies.back()["seed"] = i;
  }
  std::vector<std::string> solo(bodies.size()), together(bodies.size());
  for (size_t i = 0; i < bodies.size(); ++i)
    solo[i] = server_->Post(kChat, bodies[i]).json()["choices"][0]["message"]["content"];
  std::vector<std::thread> threads;
  for (size_t i = 0; i < bodies.size(); ++i) {
    threads.emplace_back([&, i] { together[i] = server_->PostStream(kChat, bodies[i]).Text(); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(together, solo);
}

TEST_F(ChatTest, ASecondTurnReadsOnlyWhatIsNew) {
  std::string story;
  for (int i = 0; i < 120; ++i) story += "Line " + std::to_string(i) + " of a long story. ";
  Json body = ChatBody(story + "What is a tree?", 8);
  const Json first = server_->Post(kChat, body).json();
  body["messages"].push_back(first["choices"][0]["message"]);
  body["messages"].push_back({{"role", "user"}, {"content", "And a leaf?"}});
  const Json second = server_->Post(kChat, body).json();
  const int64_t cached = second["usage"]["prompt_tokens_details"]["cached_tokens"];
  EXPECT_GE(cached, first["usage"]["prompt_tokens"].get<int64_t>() - 64);
  EXPECT_LT(cached, second["usage"]["prompt_tokens"].get<int64_t>());
  body["cache_prompt"] = false;
  const Json cold = server_->Post(kChat, body).json();
  EXPECT_EQ(cold["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
  EXPECT_EQ(cold["choices"][0]["message"], second["choices"][0]["message"]);
}

TEST_F(ChatTest, PromptsAtTheContextLimitAreAnsweredOrRefusedByNumber) {
  const auto ids = [](int64_t count) {
    Json tokens = Json::array();
    for (int64_t i = 0; i < count; ++i) tokens.push_back(100 + i % 50);
    return tokens;
  };
  const auto complete = [&](int64_t count) {
    return server_->Post("/v1/completions",
                         {{"prompt", ids(count)}, {"max_tokens", 5}, {"temperature", 0}});
  };
  const Json fits = complete(4095).json();
  EXPECT_EQ(fits["usage"]["completion_tokens"], 1);
  EXPECT_EQ(fits["choices"][0]["finish_reason"], "length");
  for (int64_t count : {4096, 4097, 12288}) {
    const RunningServer::Reply reply = complete(count);
    EXPECT_EQ(reply.status, 400);
    EXPECT_EQ(reply.json()["error"]["code"], "context_length_exceeded");
    EXPECT_NE(reply.error().find(std::to_string(count)), std::string::npos) << reply.error();
    EXPECT_NE(reply.error().find("4096"), std::string::npos) << reply.error();
    // No stream is begun that can only fail.
    EXPECT_EQ(server_->Post("/v1/completions", {{"prompt", ids(count)}, {"stream", true}}).status,
              400);
  }
}

TEST_F(ChatTest, CompletionsTakeTextTokensAndSeveralPrompts) {
  const Json text =
      server_
          ->Post("/v1/completions",
                 {{"prompt", "A tree is"}, {"max_tokens", 6}, {"temperature", 0}, {"logprobs", 2}})
          .json();
  EXPECT_EQ(text["object"], "text_completion");
  EXPECT_EQ(text["choices"][0]["logprobs"]["tokens"].size(), 6u);
  EXPECT_EQ(text["choices"][0]["logprobs"]["text_offset"][0], 0);
  const Json several = server_
                           ->Post("/v1/completions", {{"prompt", {"A tree is", "A leaf is"}},
                                                      {"max_tokens", 6},
                                                      {"n", 2},
                                                      {"temperature", 0}})
                           .json();
  ASSERT_EQ(several["choices"].size(), 4u);
  EXPECT_EQ(several["choices"][0]["text"], text["choices"][0]["text"]);
  EXPECT_EQ(several["choices"][1]["text"], text["choices"][0]["text"]);
  const RunningServer::Stream stream = server_->PostStream(
      "/v1/completions", {{"prompt", "A tree is"}, {"max_tokens", 6}, {"temperature", 0}});
  EXPECT_EQ(stream.Text(), text["choices"][0]["text"]);
}

TEST_F(ChatTest, OneRefusedPromptOfSeveralLeavesNoneRunning) {
  const auto generated = [] {
    const std::string text = server_->Get("/metrics").body;
    const std::string name = "\nstrata_generation_tokens_total ";
    return std::stoll(text.substr(text.find(name) + name.size()));
  };
  const int64_t before = generated();
  const auto refused = server_->Post(
      "/v1/completions",
      {{"prompt", {{5, 6, 7}, {1 << 30}}}, {"max_tokens", 4000}, {"ignore_eos", true}});
  EXPECT_EQ(refused.status, 400);
  EXPECT_NE(refused.error().find("1073741824"), std::string::npos) << refused.body;
  EXPECT_TRUE(RunningServer::Eventually([&] { return server_->open() == 0; }));
  EXPECT_LT(generated() - before, 1000);
}

TEST_F(ChatTest, ModelsAreKnownByNameAndAlias) {
  Json body = ChatBody("Hi", 1);
  for (const char* name : {"tiny-glm-dsa", "small"}) {
    body["model"] = name;
    EXPECT_EQ(server_->Post(kChat, body).status, 200);
  }
  body["model"] = "gpt-4";
  const RunningServer::Reply reply = server_->Post(kChat, body);
  EXPECT_EQ(reply.status, 404);
  EXPECT_EQ(reply.json()["error"]["code"], "model_not_found");
  const Json models = server_->Get("/v1/models").json();
  EXPECT_EQ(models["data"][0]["id"], "tiny-glm-dsa");
  EXPECT_EQ(models["data"][0]["context_length"], 4096);
}

TEST_F(ChatTest, OneModelIsToldByItsName) {
  const Json models = server_->Get("/v1/models").json()["data"];
  ASSERT_EQ(models.size(), 3u);
  for (const Json& model : models) {
    const RunningServer::Reply reply = server_->Get("/v1/models/" + model["id"].get<std::string>());
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.json(), model);
  }
  EXPECT_EQ(server_->Get("/v1/models/lab%2Fsmall").json()["id"], "lab/small");
  for (const char* name : {"gpt-4", "small/", "SMALL", "lab"}) {
    const RunningServer::Reply reply = server_->Get(std::string("/v1/models/") + name);
    EXPECT_EQ(reply.status, 404);
    EXPECT_EQ(reply.json()["error"]["code"], "model_not_found");
    EXPECT_NE(reply.error().find('\'' + std::string(name) + '\''), std::string::npos);
  }
  EXPECT_EQ(server_->Get("/v1/models/").status, 404);
  EXPECT_EQ(server_->PostText("/v1/models/small", "{}").status, 405);
}

TEST_F(ChatTest, JsonIsEnforcedAndWhatCannotBeIsRefused) {
  Json body = ChatBody("Describe a tree.", 200);
  body["temperature"] = 1.0;
  body["seed"] = 3;
  body["response_format"] = {
      {"type", "json_schema"},
      {"json_schema",
       {{"name", "tree"},
        {"schema",
         {{"type", "object"},
          {"properties",
           {{"kind", {{"enum", {"oak", "fir"}}}},
            {"height", {{"type", "integer"}, {"minimum", 1}, {"maximum", 90}}}}},
          {"required", {"kind", "height"}},
          {"additionalProperties", false}}}}}};
  const Json whole = server_->Post(kChat, body).json();
  ASSERT_EQ(whole["choices"][0]["finish_reason"], "stop") << whole.dump();
  const Json answer = Json::parse(whole["choices"][0]["message"]["content"].get<std::string>());
  EXPECT_TRUE(answer["kind"] == "oak" || answer["kind"] == "fir");
  EXPECT_GE(answer["height"], 1);
  EXPECT_LE(answer["height"], 90);
  body["response_format"]["json_schema"]["schema"]["properties"]["height"]["multipleOf"] = 7;
  const RunningServer::Reply reply = server_->Post(kChat, body);
  EXPECT_EQ(reply.status, 400);
  EXPECT_NE(reply.error().find("multipleOf"), std::string::npos) << reply.error();
  body["response_format"] = {{"type", "yaml"}};
  EXPECT_EQ(server_->Post(kChat, body).param(), "response_format.type");
}

TEST_F(ChatTest, AWatchedAnswerTellsWhereItLooked) {
  std::string story = "The access code for Silver Falcon is 4821. ";
  for (int i = 0; i < 120; ++i) story += "Line " + std::to_string(i) + " of a long story. ";
  Json body = ChatBody(story + "What is the access code for Silver Falcon?", 8);
  body["strata"] = {{"selection", true}};
  const Json whole = server_->Post(kChat, body).json();
  const std::string id = whole["id"];
  const Json seen = server_->Get("/v1/selections?id=" + id).json();
  const int64_t prompt = whole["usage"]["prompt_tokens"];
  EXPECT_EQ(seen["prompt_tokens"], prompt);
  ASSERT_FALSE(seen["layers"].empty());
  for (const Json& layer : seen["layers"]) {
    EXPECT_EQ(layer["steps"].size(), whole["usage"]["completion_tokens"].get<size_t>());
    EXPECT_EQ(layer["steps"][0]["position"], prompt - 1);
    const auto ids = layer["steps"][0]["ids"].get<std::vector<int32_t>>();
    EXPECT_EQ(ids.size(), 256u);
    EXPECT_TRUE(std::is_sorted(ids.begin(), ids.end()));
    EXPECT_LT(ids.back(), prompt);
  }
  EXPECT_EQ(server_->Get("/v1/selections?id=unknown").status, 404);
}

TEST_F(ChatTest, MessagesOfTheOtherDialect) {
  const Json body = {
      {"model", "small"},
      {"max_tokens", 12},
      {"temperature", 0},
      {"system", "Be brief."},
      {"messages",
       {{{"role", "user"}, {"content", {{{"type", "text"}, {"text", "What is a tree?"}}}}}}}};
  const Json whole = server_->Post("/v1/messages", body).json();
  EXPECT_EQ(whole["type"], "message");
  EXPECT_EQ(whole["content"][0]["type"], "text");
  EXPECT_EQ(whole["stop_reason"], "max_tokens");
  EXPECT_EQ(whole["usage"]["output_tokens"], 12);
  Json streamed = body;
  streamed["stream"] = true;
  const RunningServer::Reply reply = server_->Post("/v1/messages", streamed);
  const RunningServer::Stream stream = RunningServer::Parse(reply.body);
  std::string text;
  std::vector<std::string> types;
  for (const Json& event : stream.chunks()) {
    types.push_back(event["type"]);
    EXPECT_NE(reply.body.find("event: " + types.back() + "\n"), std::string::npos);
    if (types.back() == "content_block_delta") text += event["delta"]["text"].get<std::string>();
  }
  EXPECT_EQ(types.front(), "message_start");
  EXPECT_EQ(types.back(), "message_stop");
  EXPECT_EQ(text, whole["content"][0]["text"]);
  const Json count = server_->Post("/v1/messages/count_tokens", body).json();
  EXPECT_EQ(count["input_tokens"].get<int64_t>(),
            whole["usage"]["input_tokens"].get<int64_t>() +
                whole["usage"]["cache_read_input_tokens"].get<int64_t>());
  Json bad = body;
  bad.erase("max_tokens");
  EXPECT_EQ(server_->Post("/v1/messages", bad).json()["type"], "error");
}

}  // namespace
}  // namespace strata
