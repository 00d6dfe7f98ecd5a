// Start, disconnects, queues, silence, the end.
#include "tests/server/running_server.h"

namespace strata {
namespace {

constexpr const char* kChat = "/v1/chat/completions";

std::string LongText(int words) {
  std::string text;
  for (int i = 0; i < words; ++i) text += "word" + std::to_string(i % 97) + " ";
  return text;
}

Json Endless(const std::string& text, int max_tokens = 1900) {
  Json body = ChatBody(text, max_tokens);
  body["ignore_eos"] = true;
  return body;
}

TEST(Disconnect, FreesTheSequenceWhereverItStandsAndLeaksNothing) {
  RunningServer server({"--max-context", "8192", "--parallel", "1", "--chunk", "128"});
  const auto gone = [&] { return RunningServer::Eventually([&] { return server.open() == 0; }); };
  const std::string expected = server.Post(kChat, ChatBody("What is a tree?")).body;
  int64_t memory = 0, files = 0, threads = 0;
  for (int round = 0; round < 10; ++round) {
    if (round == 4) {
      memory = server.ResidentKib();
      files = server.OpenFiles();
      threads = server.Threads();
    }
    for (bool stream : {true, false}) {
      Json body = Endless("Hi");
      body["stream"] = stream;
      RawConnection answering(server.port());
      answering.Send(PostText(kChat, body.dump()));
      ASSERT_TRUE(RunningServer::Eventually([&] { return server.open() == 1; }));
      if (stream) {
        EXPECT_NE(answering.Read("\"content\":\"").find("200 OK"), std::string::npos);
      }
      RawConnection queued(server.port());
      queued.Send(PostText(kChat, body.dump()));
      ASSERT_TRUE(RunningServer::Eventually([&] { return server.open() == 2; }));
      queued.Close();
      ASSERT_TRUE(RunningServer::Eventually([&] { return server.open() == 1; }));
      answering.Close();
      ASSERT_TRUE(gone());
    }
    // While the prompt is read.
    RawConnection reading(server.port());
    Json body = Endless(LongText(1500), 5);
    body["cache_prompt"] = false;
    body["stream"] = true;
    reading.Send(PostText(kChat, body.dump()));
    ASSERT_TRUE(RunningServer::Eventually([&] { return server.open() == 1; }));
    reading.Close();
    ASSERT_TRUE(gone());
  }
  const Json pages = server.Get("/v1/status").json()["pages"];
  EXPECT_EQ(pages["free"].get<int>() + pages["reusable"].get<int>(), pages["total"].get<int>());
  EXPECT_NE(server.Get("/metrics").body.find("finish_reason=\"cancelled\"} 50"), std::string::npos);
  if (!kSanitized) {
    EXPECT_LT(server.ResidentKib() - memory, 8 * 1024);
  }
  // Connections that were closed may have a moment left.
  EXPECT_LE(server.OpenFiles(), files + 4);
  EXPECT_LE(server.Threads(), threads + 4);
  const Json answer = server.Post(kChat, ChatBody("What is a tree?")).json();
  EXPECT_EQ(answer["choices"], Json::parse(expected)["choices"]);
  EXPECT_EQ(server.Stop(), 0) << server.log();
}

TEST(Queue, IsBoundedAndSaysWhenToComeBack) {
  RunningServer server({"--max-context", "2048", "--parallel", "1", "--queue", "1"});
  RawConnection first(server.port()), second(server.port());
  Json body = Endless("Hi");
  body["stream"] = true;
  first.Send(PostText(kChat, body.dump()));
  second.Send(PostText(kChat, body.dump()));
  ASSERT_TRUE(RunningServer::Eventually([&] { return server.open() == 2; }));
  const RunningServer::Reply reply = server.Post(kChat, ChatBody("Hi"));
  EXPECT_EQ(reply.status, 429);
  EXPECT_EQ(reply.json()["error"]["code"], "queue_full");
  EXPECT_GE(std::stoi(reply.headers.find("Retry-After")->second), 1);
  first.Close();
  second.Close();
  ASSERT_TRUE(RunningServer::Eventually([&] { return server.open() == 0; }));
  EXPECT_EQ(server.Post(kChat, ChatBody("Hi")).status, 200);
}

TEST(Streaming, HeadersPingsAndProgressComeWhileAPromptIsRead) {
  RunningServer server({"--max-context", "16384", "--ping-seconds", "1", "--chunk", "64"});
  RawConnection busy(server.port());
  Json body = ChatBody(LongText(700), 3);
  body["stream"] = true;
  body["return_progress"] = true;
  const auto start = std::chrono::steady_clock::now();
  busy.Send(PostText(kChat, body.dump()));
  const std::string head = busy.Read("\"role\":\"assistant\"");
  const auto to_head = std::chrono::steady_clock::now() - start;
  EXPECT_NE(head.find("text/event-stream"), std::string::npos);
  EXPECT_NE(head.find("X-Accel-Buffering: no"), std::string::npos);
  const std::string rest = busy.Read("[DONE]", 60'000);
  EXPECT_NE(rest.find("\"prompt_progress\""), std::string::npos);
  EXPECT_NE(rest.find("[DONE]"), std::string::npos);
  // The headers do not wait for the prompt.
  EXPECT_LT(to_head, (std::chrono::steady_clock::now() - start) / 4);
}

TEST(Streaming, SilenceIsBrokenByCommentsBetweenEvents) {
  // A token a step: slow on every machine.
  RunningServer server(
      {"--max-context", "65536", "--ping-seconds", "1", "--parallel", "1", "--chunk", "1"});
  using Clock = std::chrono::steady_clock;
  for (int words = 200;; words *= 2) {
    ASSERT_LT(words, 50'000);
    RawConnection quiet(server.port());
    Json body = ChatBody(LongText(words), 2);
    body["stream"] = true;
    body["cache_prompt"] = false;
    const Clock::time_point asked = Clock::now();
    Clock::time_point last = asked;
    Clock::duration silence{};
    quiet.Send(PostText(kChat, body.dump()));
    std::string all;
    while (all.find("[DONE]") == all.npos) {
      const std::string piece = quiet.Read("\n\n", 10'000);
      ASSERT_FALSE(piece.empty());
      all += piece;
      silence = std::max(silence, Clock::now() - last);
      last = Clock::now();
    }
    EXPECT_LT(silence, std::chrono::seconds(2));
    if (last - asked < std::chrono::milliseconds(2200)) continue;
    EXPECT_NE(all.find(": ping\n\n"), all.npos);
    for (size_t at = all.find(": ping"); at != all.npos; at = all.find(": ping", at + 1)) {
      // A comment is a chunk of its own, never inside an event.
      EXPECT_EQ(all.substr(at - 3, 3), "8\r\n");
    }
    return;
  }
}

TEST(Shutdown, DrainsWhatRunsAndTakesNothingNew) {
  RunningServer server({"--max-context", "2048", "--drain-seconds", "60"});
  RawConnection running(server.port());
  Json body = Endless("Hi", 400);
  body["stream"] = true;
  running.Send(PostText(kChat, body.dump()));
  running.Read("\"content\":\"");
  RawConnection second(server.port());
  second.Send("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
  second.Read("ok");
  server.Signal(SIGTERM);
  ASSERT_TRUE(RunningServer::Eventually(
      [&] { return server.log().find("draining") != std::string::npos; }));
  second.Send(PostText(kChat, ChatBody("Hi").dump()));
  EXPECT_EQ(second.Read("draining").rfind("HTTP/1.1 503", 0), 0u);
  EXPECT_NE(running.Read("[DONE]").find("\"finish_reason\":\"length\""), std::string::npos);
  EXPECT_EQ(server.Wait(), 0) << server.log();
}

TEST(Shutdown, ASecondSignalEndsAtOnceAndTheTimeLimitEndsAnswersWithAnError) {
  {
    RunningServer server({"--max-context", "8192", "--drain-seconds", "60"});
    RawConnection running(server.port());
    Json body = Endless("Hi", 8000);
    body["stream"] = true;
    running.Send(PostText(kChat, body.dump()));
    running.Read("\"content\":\"");
    server.Signal(SIGTERM);
    ASSERT_TRUE(RunningServer::Eventually(
        [&] { return server.log().find("draining") != std::string::npos; }));
    server.Signal(SIGTERM);
    EXPECT_EQ(server.Wait(), 1);
  }
  RunningServer server({"--max-context", "8192", "--drain-seconds", "0"});
  RawConnection running(server.port());
  Json body = Endless("Hi", 8000);
  body["stream"] = true;
  running.Send(PostText(kChat, body.dump()));
  running.Read("\"content\":\"");
  server.Signal(SIGINT);
  const std::string rest = running.Read("[DONE]");
  EXPECT_NE(rest.find("shutting down"), std::string::npos) << rest;
  EXPECT_EQ(server.Wait(), 0) << server.log();
}

TEST(Start, APortInUseIsOneClearLine) {
  RunningServer server({"--max-context", "2048"});
  try {
    RunningServer second({"--max-context", "2048", "--port", std::to_string(server.port())});
    FAIL() << "two servers share a port";
  } catch (const std::runtime_error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find(std::to_string(server.port())), text.npos) << text;
    EXPECT_NE(text.find("in use"), text.npos) << text;
  }
}

TEST(Shutdown, AListeningSocketThatIsLostEndsTheProgram) {
  RunningServer server({"--max-context", "2048"});
  const int process = static_cast<int>(syscall(SYS_pidfd_open, server.process(), 0));
  bool lost = false;
  for (int fd = 0; fd < 256 && !lost; ++fd) {
    const int copy = static_cast<int>(syscall(SYS_pidfd_getfd, process, fd, 0));
    int listens = 0;
    socklen_t size = sizeof listens;
    lost = getsockopt(copy, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens != 0 &&
           shutdown(copy, SHUT_RDWR) == 0;
    if (copy >= 0) close(copy);
  }
  close(process);
  if (!lost) GTEST_SKIP() << "the system does not let a test reach another process's socket";
  ASSERT_TRUE(RunningServer::Eventually([&] {
    return server.log().find("listening socket") != std::string::npos;
  })) << server.log();
  EXPECT_EQ(server.Wait(), 1);
}

TEST(Information, EndpointsSayWhatTheServerIsAndDoes) {
  RunningServer server({"--max-context", "2048"});
  server.Post(kChat, ChatBody("What is a tree?", 4));
  EXPECT_EQ(server.Get("/health").json()["status"], "ok");
  const Json status = server.Get("/v1/status").json();
  EXPECT_EQ(status["generated_tokens"], 4);
  EXPECT_EQ(status["context"], 2048);
  EXPECT_EQ(status["switches"]["STRATA_TOPK_SPLIT"], "unset");
  EXPECT_EQ(server.Get("/props").json()["default_sampling"]["top_p"].get<float>(), 0.95f);
  EXPECT_NE(server.Get("/").body.find("<html"), std::string::npos);

  const Json tokens = server.Post("/tokenize", {{"content", "A tree grows."}}).json()["tokens"];
  EXPECT_EQ(server.Post("/detokenize", {{"tokens", tokens}}).json()["content"], "A tree grows.");
  EXPECT_EQ(server.Post("/detokenize", {{"tokens", {-1}}}).status, 400);
  const Json templated = server.Post("/apply-template", ChatBody("Hi")).json();
  EXPECT_NE(templated["prompt"].get<std::string>().find("<|user|>"), std::string::npos);
}

// Every line is a comment or "name{labels} value"; each family has its help and type once, and the
// buckets of a histogram rise to its count.
TEST(Information, MetricsAreValidPrometheusText) {
  RunningServer server({"--max-context", "2048"});
  server.Post(kChat, ChatBody("What is a tree?", 4));
  const RunningServer::Reply reply = server.Get("/metrics");
  EXPECT_EQ(reply.headers.find("Content-Type")->second.rfind("text/plain; version=0.0.4", 0), 0u);
  std::istringstream lines(reply.body);
  std::string line, family;
  std::map<std::string, int> types;
  double bucket = 0.0;
  int samples = 0;
  while (std::getline(lines, line)) {
    if (line.rfind("# TYPE ", 0) == 0) {
      family = line.substr(7, line.find(' ', 7) - 7);
      EXPECT_EQ(++types[family], 1) << family;
      bucket = 0.0;
      continue;
    }
    if (line.rfind("# HELP ", 0) == 0) continue;
    ++samples;
    EXPECT_EQ(line.rfind(family, 0), 0u) << line;
    EXPECT_EQ(line.substr(0, line.find_first_of("{ ")).find(':'), std::string::npos) << line;
    const std::string value = line.substr(line.rfind(' ') + 1);
    size_t used = 0;
    const double number = std::stod(value, &used);
    EXPECT_EQ(used, value.size()) << line;
    if (line.find("_bucket{") != line.npos) {
      EXPECT_GE(number, bucket) << line;
      bucket = number;
    }
    if (line.rfind(family + "_count", 0) == 0) {
      EXPECT_EQ(number, bucket) << line;
    }
  }
  EXPECT_GT(samples, 60);
  EXPECT_EQ(types.count("strata_time_to_first_token_seconds"), 1u);
  EXPECT_NE(reply.body.find("strata_generation_tokens_total 4\n"), std::string::npos);
}

}  // namespace
}  // namespace strata
