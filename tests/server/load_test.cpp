// Mixed random load: chats, streams, bad requests, disconnects at random places, with verify
// windows of every depth beside plain steps. STRATA_LOAD_SECONDS sets its length (20 by default).
#include <atomic>
#include <random>

#include "tests/server/running_server.h"

namespace strata {
namespace {

constexpr const char* kChat = "/v1/chat/completions";

Json Body(int kind) {
  std::string text;
  for (int i = 0; i < kind * 12; ++i) text += "word" + std::to_string(i * kind) + " ";
  Json body = ChatBody(text + "What is a tree?", 5 + kind * 7 % 40);
  body["ignore_eos"] = true;
  body["temperature"] = kind % 3 == 0 ? 0.0 : 0.9;
  body["seed"] = kind;
  return body;
}

class Load {
 public:
  explicit Load(RunningServer& server) : server_(server) {
    for (int kind = 0; kind < kKinds; ++kind) {
      Json body = Body(kind);
      body["speculative"] = {{"drafts", 0}};
      const Json whole = server.Post(kChat, body).json();
      expected_.push_back(whole["choices"][0]["message"]["content"]);
    }
  }

  // One random action after another until the time is over.
  void Run(unsigned seed, std::chrono::steady_clock::time_point end) {
    std::mt19937 random(seed);
    while (std::chrono::steady_clock::now() < end) {
      const int kind = static_cast<int>(random() % kKinds);
      switch (random() % 6) {
        case 0:
          Check(server_.Post(kChat, Body(kind)), kind);
          break;
        case 1:
        case 2: {
          Json body = Body(kind);
          body["stream"] = true;
          const RunningServer::Reply reply = server_.Post(kChat, body);
          if (reply.status == 429) break;
          EXPECT_EQ(reply.status, 200);
          EXPECT_EQ(RunningServer::Parse(reply.body).Text(), expected_[static_cast<size_t>(kind)]);
          ++answers_;
          break;
        }
        case 3:
        case 4: {
          // Leaves at a random moment.
          RawConnection connection(server_.port());
          Json body = Body(kind);
          body["stream"] = random() % 2 == 0;
          body["max_tokens"] = 400;
          const std::string text = PostText(kChat, body.dump());
          connection.Send(random() % 4 == 0 ? text.substr(0, random() % text.size()) : text);
          connection.Read("no such text", static_cast<int>(random() % 200));
          break;
        }
        default:
          EXPECT_EQ(
              server_.PostText(kChat, "{\"messages\":[" + std::string(random() % 999, '[')).status,
              400);
      }
    }
  }
  int64_t answers() const { return answers_; }

 private:
  static constexpr int kKinds = 16;
  void Check(const RunningServer::Reply& reply, int kind) {
    if (reply.status == 429) return;
    ASSERT_EQ(reply.status, 200) << reply.body;
    EXPECT_EQ(reply.json()["choices"][0]["message"]["content"],
              expected_[static_cast<size_t>(kind)]);
    ++answers_;
  }

  RunningServer& server_;
  std::vector<std::string> expected_;
  std::atomic<int64_t> answers_ = 0;
};

TEST(MixedLoad, LeaksNothingAndChangesNoAnswer) {
  const char* length = std::getenv("STRATA_LOAD_SECONDS");
  const std::chrono::seconds time(length == nullptr ? 20 : std::atoi(length));
  RunningServer server({"--max-context", "2048", "--parallel", "8", "--queue", "8",
                        "--cache-tokens", "8192", "--spec", "3", "--spec-fixed"});
  Load load(server);
  int64_t early = 0;
  const auto run = [&](std::chrono::seconds part) {
    const auto end = std::chrono::steady_clock::now() + part;
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < 12; ++i)
      threads.emplace_back([&, i] { load.Run(i + static_cast<unsigned>(early), end); });
    for (std::thread& thread : threads) thread.join();
    ASSERT_TRUE(RunningServer::Eventually([&] { return server.open() == 0; }));
  };
  run(time / 2);
  early = server.ResidentKib();
  run(time - time / 2);
  const int64_t growth = server.ResidentKib() - early;
  EXPECT_LT(growth, kSanitized ? INT64_MAX : 16 * 1024);
  EXPECT_GT(load.answers(), 5);
  const Json status = server.Get("/v1/status").json();
  EXPECT_GT(status["drafts"]["accepted"][0], 0);
  EXPECT_LT(status["drafts"]["accepted"][0], status["drafts"]["drafted"][0]);
  const Json& pages = status["pages"];
  EXPECT_EQ(pages["free"].get<int>() + pages["reusable"].get<int>(), pages["total"].get<int>());
  EXPECT_EQ(server.Stop(), 0) << server.log();
}

}  // namespace
}  // namespace strata
