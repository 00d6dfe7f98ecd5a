// What breaks careless servers: malformed and huge requests, wrong types, odd HTTP, strangers.
#include <fmt/format.h>

#include "tests/server/running_server.h"

namespace strata {
namespace {

class HostileTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    server_ = new RunningServer({"--max-context", "2048", "--max-body", "2"});
  }
  static void TearDownTestSuite() {
    EXPECT_EQ(server_->Stop(), 0) << server_->log();
    delete server_;
  }
  void TearDown() override { EXPECT_EQ(server_->Get("/health").status, 200); }
  static std::string Raw(const std::string& request) {
    RawConnection connection(server_->port());
    connection.Send(request);
    return connection.Read("\r\n\r\n", 5000);
  }
  static bool Answers(const std::string& request, const std::string& status) {
    const std::string reply = Raw(request);
    EXPECT_EQ(reply.rfind("HTTP/1.1 " + status, 0), 0u) << reply.substr(0, 200);
    return !reply.empty();
  }
  static constexpr const char* kChat = "/v1/chat/completions";
  static RunningServer* server_;
};
RunningServer* HostileTest::server_ = nullptr;

TEST_F(HostileTest, BodiesThatAreNoRequestGetAnErrorObject) {
  const std::string deep(100'000, '[');
  const std::string tools = "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":" +
                            std::string(10'000, '[') + std::string(10'000, ']') + "}";
  for (const std::string& body :
       {std::string(), std::string("[]"), std::string("5"), std::string("nonsense"),
        std::string("{\"messages\":"), std::string("{\"a\":1,\"a\":2}"), deep, "{\"a\":" + deep,
        tools, std::string("{\"messages\":\"\\ud800\"}"), std::string("\0\0", 2),
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":1}" +
            std::string("\0x", 2),
        std::string("{\"temperature\":1e400}"), std::string("{\"temperature\":NaN}"),
        std::string("{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}")}) {
    const auto asked = std::chrono::steady_clock::now();
    const RunningServer::Reply reply = server_->PostText(kChat, body);
    EXPECT_LT(std::chrono::steady_clock::now() - asked, std::chrono::seconds(1));
    EXPECT_EQ(reply.status, 400) << body.substr(0, 60);
    EXPECT_FALSE(reply.error().empty());
    EXPECT_EQ(reply.json()["error"]["type"], "invalid_request_error");
  }
}

TEST_F(HostileTest, WrongTypesAreRefusedByNameAndUnknownFieldsTolerated) {
  const std::vector<std::pair<Json, std::string>> cases = {
      {{{"messages", Json::array()}}, "messages"},
      {{{"messages", "hi"}}, "messages"},
      {{{"messages", {5}}}, "messages[0]"},
      {{{"messages", {{{"role", "king"}, {"content", "x"}}}}}, "messages[0].role"},
      {{{"messages", {{{"role", "user"}, {"content", 5}}}}}, "messages[0].content"},
      {{{"messages", {{{"role", "user"}}}}}, "messages[0].content"},
      {{{"messages", {{{"role", "user"}, {"content", {{{"type", "image_url"}}}}}}}},
       "messages[0].content[0].type"},
      {{{"stream", "false"}}, "stream"},
      {{{"max_tokens", "8"}}, "max_tokens"},
      {{{"max_tokens", -5}}, "max_tokens"},
      {{{"max_tokens", 1e300}}, "max_tokens"},
      {{{"max_tokens", 1.5}}, "max_tokens"},
      {{{"temperature", "hot"}}, "temperature"},
      {{{"temperature", -1}}, "temperature"},
      {{{"top_p", 0}}, "top_p"},
      {{{"top_p", 1.5}}, "top_p"},
      {{{"n", 0}}, "n"},
      {{{"n", 1000}}, "n"},
      {{{"stop", 5}}, "stop"},
      {{{"stop", Json::array({"a", 5})}}, "stop"},
      {{{"stop", std::vector<std::string>(17, "a")}}, "stop"},
      {{{"stop_token_ids", {-1}}}, "stop_token_ids"},
      {{{"logit_bias", {{"x", 1}}}}, "logit_bias"},
      {{{"logit_bias", {{"999999", 1}}}}, "logit_bias"},
      {{{"logit_bias", {{std::string("5\0x", 3), 1}}}}, "logit_bias"},
      {{{"seed", "x"}}, "seed"},
      {{{"stream_options", {{"include_usage", true}}}}, "stream_options"},
      {{{"tools", {{{"type", "retrieval"}}}}}, "tools[0].type"},
      {{{"tool_choice", "required"}}, "tool_choice"},
      {{{"logprobs", 3}}, "logprobs"}};
  for (const auto& [change, param] : cases) {
    Json body = ChatBody("Hi", 1);
    body.update(change);
    const RunningServer::Reply reply = server_->Post(kChat, body);
    EXPECT_EQ(reply.status, 400) << change.dump();
    EXPECT_EQ(reply.param(), param) << change.dump() << " " << reply.body;
    EXPECT_NE(reply.error().find(param.substr(0, param.find('['))), std::string::npos)
        << reply.error();
  }
  Json body = ChatBody("Hi", 1);
  body["frobnicate"] = {{"x", 1}};
  body["user"] = "someone";
  EXPECT_EQ(server_->Post(kChat, body).status, 200);
}

TEST_F(HostileTest, WideObjectsCostTimeInProportion) {
  std::string names;
  for (int i = 0; i < 100'000; ++i) names += (i == 0 ? "\"p" : ",\"p") + std::to_string(i) + "\":1";
  std::string tokens;  // some in many spellings
  for (int i = 0; i < 80'000; ++i)
    tokens += fmt::format("{}\"{:0{}}\":1", i == 0 ? "" : ",", i % 4000, 4 + i / 4000);
  const std::string message =
      "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":1,";
  for (const std::string& body :
       {message + "\"chat_template_kwargs\":{" + names + "}}",
        message +
            "\"tool_choice\":\"required\",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":"
            "\"f\",\"parameters\":{\"properties\":{" +
            names + "}}}}]}",
        message + "\"logit_bias\":{" + names + "}}", message + "\"logit_bias\":{" + tokens + "}}",
        message + names + "}"}) {
    const auto asked = std::chrono::steady_clock::now();
    const int status = server_->PostText(kChat, body).status;
    EXPECT_TRUE(status == 200 || status == 400) << status;
    EXPECT_LT(std::chrono::steady_clock::now() - asked, std::chrono::seconds(kSanitized ? 20 : 2));
  }
}

TEST_F(HostileTest, PathsMethodsAndBodiesAreCheckedBeforeTheyAreRead) {
  Answers("GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n", "404");
  Answers("GET /" + std::string(7000, 'a') + " HTTP/1.1\r\nHost: localhost\r\n\r\n", "404");
  Answers("GET /v1/completions HTTP/1.1\r\nHost: localhost\r\n\r\n", "405");
  Answers("DELETE /health HTTP/1.1\r\nHost: localhost\r\n\r\n", "405");
  Answers("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n\r\n", "411");
  Answers(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: "
      "chunked\r\n\r\n0\r\n\r\n",
      "411");
  Answers("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 209715200\r\n\r\n{",
          "413");
  Answers("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3000000\r\n\r\n{",
          "413");
  Answers("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", "400");
  Answers("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n", "400");
  Answers(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nContent-Length: "
      "3\r\n\r\n{}",
      "400");
  Answers(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: gzip\r\n"
      "Content-Length: 2\r\n\r\n{}",
      "415");
  Answers(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; "
      "boundary=x\r\nContent-Length: 2\r\n\r\n{}",
      "415");
  Answers("nonsense\r\n\r\n", "400");
}

TEST_F(HostileTest, MessagesGoOnBehindTheZerosThatTheyQuote) {
  const std::string body =
      R"({"model": "a\u0000b", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]})";
  for (const char* path : {kChat, "/v1/messages"}) {
    const RunningServer::Reply reply = server_->PostText(path, body);
    EXPECT_EQ(reply.status, 404);
    EXPECT_NE(reply.error().find("' is not served, 'tiny-glm-dsa' is"), std::string::npos)
        << reply.body;
  }
}

TEST_F(HostileTest, HeadersHaveABudget) {
  std::string many = "GET /health HTTP/1.1\r\nHost: localhost\r\n";
  for (int i = 0; i < 10'000; ++i) many += "X-Header-" + std::to_string(i) + ": value\r\n";
  Answers(many + "\r\n", "431");
  Answers("GET /health HTTP/1.1\r\nX: " + std::string(1 << 20, 'a'), "431");
}

TEST_F(HostileTest, AShortBodyDoesNotHangOthers) {
  RawConnection half(server_->port());
  half.Send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{");
  EXPECT_EQ(server_->Get("/health").status, 200);
  half.Close();
}

TEST_F(HostileTest, StrangersAreKeptOut) {
  for (const char* host : {"evil.example", "127.evil.example", "127.0.0.1.evil.example", "127."})
    Answers("GET /v1/models HTTP/1.1\r\nHost: " + std::string(host) + "\r\n\r\n", "403");
  Answers("GET /v1/models HTTP/1.1\r\nHost: 127.0.0.2:80\r\n\r\n", "200");
  Answers("GET /v1/models HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\n\r\n",
          "403");
  Answers("GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1:1\r\nOrigin: http://127.0.0.1:9\r\n\r\n",
          "200");
  Answers("GET /v1/models HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", "200");
}

TEST_F(HostileTest, ManyConnectionsAtOnceAreAllServed) {
  std::vector<std::unique_ptr<RawConnection>> connections;
  for (int i = 0; i < 200; ++i) {
    connections.push_back(std::make_unique<RawConnection>(server_->port()));
    ASSERT_TRUE(connections.back()->connected()) << i;
  }
  for (auto& connection : connections)
    connection->Send("GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  for (auto& connection : connections) EXPECT_EQ(connection->Read().rfind("HTTP/1.1 200", 0), 0u);
}

TEST_F(HostileTest, ConnectionsAreReusedBetweenRequests) {
  RawConnection connection(server_->port());
  for (int i = 0; i < 20; ++i) {
    connection.Send(PostText("/tokenize", "{\"content\":\"tree\"}"));
    const std::string reply = connection.Read("\"count\"");
    EXPECT_EQ(reply.rfind("HTTP/1.1 200", 0), 0u) << i;
  }
}

TEST(Threads, AConnectionThatFindsNoneIsTurnedAway) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer ends the program when memory is refused";
  RunningServer server({"--max-context", "2048"});
  const std::string request = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
  RawConnection first(server.port());
  first.Send(request);
  EXPECT_EQ(first.Read("\r\n\r\n").rfind("HTTP/1.1 200", 0), 0u);
  // Room for no thread's stack beyond those that ended threads left.
  rlimit usual{};
  ASSERT_EQ(prlimit(server.process(), RLIMIT_AS, nullptr, &usual), 0);
  rlimit tight = usual;
  tight.rlim_cur = static_cast<rlim_t>(server.AddressSpaceKib() + 1024) * 1024;
  ASSERT_EQ(prlimit(server.process(), RLIMIT_AS, &tight, nullptr), 0);
  std::vector<std::unique_ptr<RawConnection>> connections;
  int refused = 0;
  for (int i = 0; i < 20; ++i) {
    connections.push_back(std::make_unique<RawConnection>(server.port()));
    connections.back()->Send(request);
    refused += connections.back()->Read("\r\n\r\n", 5000).rfind("HTTP/1.1 503", 0) == 0;
  }
  EXPECT_GE(refused, 10);
  ASSERT_EQ(prlimit(server.process(), RLIMIT_AS, &usual, nullptr), 0);
  EXPECT_EQ(server.Get("/health").status, 200);
  EXPECT_EQ(server.Stop(), 0) << server.log();
}

TEST(HugePrompts, ThatNoTemplateHoldsAreTooLongAndNameNoFileOfTheServers) {
  const RunningServer server({"--max-context", "2048"});
  const Json message = {{"role", "user"}, {"content", std::string(18'000'000, 'x')}};
  const RunningServer::Reply reply =
      server.Post("/v1/chat/completions", {{"messages", Json::array({message})}});
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.json()["error"]["code"], "context_length_exceeded");
  EXPECT_EQ(reply.error().find(".jinja"), std::string::npos) << reply.error();
}

TEST(ApiKey, IsAskedForEverywhereButHealthAndThePage) {
  RunningServer server({"--max-context", "2048", "--cors-origin", "http://app.example"},
                       {"STRATA_API_KEY=secret"});
  EXPECT_EQ(server.Get("/health").status, 200);
  EXPECT_EQ(server.Get("/").status, 200);
  for (const char* path : {"/v1/models", "/v1/status", "/metrics", "/props"}) {
    EXPECT_EQ(server.Get(path).status, 401) << path;
    EXPECT_EQ(server.Get(path, {{"Authorization", "Bearer wrong"}}).status, 401) << path;
    EXPECT_EQ(server.Get(path, {{"Authorization", "Bearer secret"}}).status, 200) << path;
    EXPECT_EQ(server.Get(path, {{"X-Api-Key", "secret"}}).status, 200) << path;
  }
  EXPECT_EQ(server.Get("/v1/models").json()["error"]["type"], "authentication_error");
  const auto preflight = server.Client().Options("/v1/models", {{"Origin", "http://app.example"}});
  ASSERT_TRUE(preflight);
  EXPECT_EQ(preflight->status, 204);
  EXPECT_EQ(preflight->get_header_value("Access-Control-Allow-Origin"), "http://app.example");
  EXPECT_EQ(server.log().find("secret"), std::string::npos);
  EXPECT_EQ(server.Stop(), 0) << server.log();
}

}  // namespace
}  // namespace strata
