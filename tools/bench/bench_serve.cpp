// strata-bench serve: what a client of a running server sees. Decode rates of one and of many
// streams and whether their answers are the same, a long first and a short second turn, and how
// fast others are answered meanwhile.
#include <fmt/format.h>
#include <httplib.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <nlohmann/json.hpp>
#include <thread>

#include "kernels/status.h"
#include "tools/bench/bench.h"

namespace strata::bench {

namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr const char* kChat = "/v1/chat/completions";
constexpr int kTimeoutSeconds = 600;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Target {
  std::string url = "http://127.0.0.1:8080";
  std::string api_key;
};

std::unique_ptr<httplib::Client> Connect(const Target& target) {
  auto client = std::make_unique<httplib::Client>(target.url);
  client->set_read_timeout(kTimeoutSeconds);
  client->set_keep_alive(true);
  client->set_tcp_nodelay(true);
  if (!target.api_key.empty()) client->set_bearer_token_auth(target.api_key);
  return client;
}

struct Answer {
  std::string text;  // reasoning and answer
  int64_t tokens = 0, prompt_tokens = 0, cached_tokens = 0;
  double first_seconds = 0.0, seconds = 0.0;  // from the request to the first text, to the end
  std::string error;                          // empty: all went well

  double DecodeRate() const { return static_cast<double>(tokens - 1) / (seconds - first_seconds); }
};

Json Ask(const std::string& text, int64_t tokens) {
  return {{"messages", Json::array({{{"role", "user"}, {"content", text}}})},
          {"temperature", 0},
          {"max_tokens", tokens},
          {"ignore_eos", true},
          {"cache_prompt", false}};
}

// One event's data into the answer.
void Read(const std::string& data, Clock::time_point start, Answer& answer) {
  if (data == "[DONE]") return;
  const Json event = Json::parse(data, nullptr, false);
  if (event.is_discarded() || event.contains("error")) {
    answer.error = data;
    return;
  }
  for (const Json& choice : event.value("choices", Json::array())) {
    for (const char* field : {"reasoning_content", "content"}) {
      const Json delta = choice.value("delta", Json::object());
      if (!delta.contains(field) || !delta[field].is_string()) continue;
      const std::string piece = delta[field];
      if (answer.text.empty() && !piece.empty()) answer.first_seconds = SecondsSince(start);
      answer.text += piece;
    }
  }
  if (!event.contains("usage") || !event["usage"].is_object()) return;
  const Json& usage = event["usage"];
  answer.tokens = usage.value("completion_tokens", int64_t{0});
  answer.prompt_tokens = usage.value("prompt_tokens", int64_t{0});
  answer.cached_tokens =
      usage.value("prompt_tokens_details", Json::object()).value("cached_tokens", int64_t{0});
}

// Streams one chat answer; leaves when `stop` becomes true.
Answer Stream(const Target& target, Json body, const std::atomic<bool>* stop = nullptr) {
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  Answer answer;
  const Clock::time_point start = Clock::now();
  std::string pending;
  httplib::Request request;
  request.method = "POST";
  request.path = kChat;
  request.set_header("Content-Type", "application/json");
  request.body = body.dump();
  request.content_receiver = [&](const char* bytes, size_t size, uint64_t, uint64_t) {
    pending.append(bytes, size);
    for (size_t end; (end = pending.find("\n\n")) != pending.npos; pending.erase(0, end + 2)) {
      if (pending.rfind("data: ", 0) != 0) continue;
      const std::string data = pending.substr(6, end - 6);
      try {
        Read(data, start, answer);
      } catch (const Json::exception&) {
        answer.error = "an event that is no answer's: " + data;
      }
    }
    return stop == nullptr || !*stop;
  };
  const httplib::Result result = Connect(target)->send(request);
  answer.seconds = SecondsSince(start);
  if (stop != nullptr && *stop) return answer;
  if (!result) {
    answer.error = httplib::to_string(result.error());
  } else if (result->status != 200) {
    answer.error = fmt::format("HTTP {}: {}", result->status, pending);
  }
  return answer;
}

class ServeBench {
 public:
  ServeBench(Target target, bool json) : target_(std::move(target)), report_(json) {}

  void CheckServer() {
    if (target_.url.rfind("http://", 0) != 0 && target_.url.rfind("https://", 0) != 0) {
      Fail(ErrorCode::kUsage,
           fmt::format("--url {}: want http://HOST:PORT or https://HOST:PORT", target_.url));
    }
    const httplib::Result status = Connect(target_)->Get("/v1/status");
    if (!status) {
      Fail(ErrorCode::kUsage,
           fmt::format("--url {}: {}; start one with strata --serve, or name another", target_.url,
                       httplib::to_string(status.error())));
    }
    if (status->status != 200) {
      Fail(ErrorCode::kUsage, fmt::format("--url {}: HTTP {} from /v1/status: {}", target_.url,
                                          status->status, status->body));
    }
  }

  // Each of `streams` prompts alone, then all at once.
  void Streams(int64_t streams, int64_t tokens) {
    std::vector<Answer> alone, together(static_cast<size_t>(streams));
    Stream(target_, Question(0, tokens));  // warms the server
    for (int64_t i = 0; i < streams; ++i) alone.push_back(Stream(target_, Question(i, tokens)));
    std::vector<double> first, rate;
    for (const Answer& answer : alone) {
      Count(answer);
      first.push_back(answer.first_seconds * 1e3);
      rate.push_back(answer.DecodeRate());
    }
    Add("one stream, first token", Median(first), "ms", 1);
    Add("one stream, decode", Median(rate), "tok/s", 0);

    const Clock::time_point start = Clock::now();
    ForAll(streams, [&](int64_t i) {
      together[static_cast<size_t>(i)] = Stream(target_, Question(i, tokens));
    });
    const double seconds = SecondsSince(start);
    int64_t total = 0, same = 0;
    for (int64_t i = 0; i < streams; ++i) {
      const Answer& answer = together[static_cast<size_t>(i)];
      Count(answer);
      total += answer.tokens;
      same += answer.text == alone[static_cast<size_t>(i)].text;
    }
    Add(fmt::format("{} streams, all tokens over all time", streams),
        static_cast<double>(total) / seconds, "tok/s", 0);
    Add(fmt::format("{} streams, answers as alone", streams), static_cast<double>(same), "", 0);
    failures_ += streams - same;
  }

  void Turns(int64_t prompt_tokens) {
    Json body = Ask(LongText(prompt_tokens), 16);
    body["cache_prompt"] = true;
    const Answer first = Stream(target_, body);
    body["messages"].push_back({{"role", "assistant"}, {"content", first.text}});
    body["messages"].push_back({{"role", "user"}, {"content", "And what came before that?"}});
    const Answer second = Stream(target_, body);
    Count(first);
    Count(second);
    Add(fmt::format("first turn of {} tokens, first token", first.prompt_tokens),
        first.first_seconds * 1e3, "ms", 1);
    Add(fmt::format("second turn, {} of {} tokens cached, first token", second.cached_tokens,
                    second.prompt_tokens),
        second.first_seconds * 1e3, "ms", 1);
  }

  // /health while a long prompt is read beside open streams and idle connections.
  void Health(int64_t streams, int64_t idle, int64_t prompt_tokens) {
    std::vector<std::unique_ptr<httplib::Client>> connections;
    for (int64_t i = 0; i < idle; ++i) {
      connections.push_back(Connect(target_));
      CountReply(connections.back()->Get("/health"));
    }
    const Json prompt = Ask(LongText(prompt_tokens), 1);
    std::atomic<bool> read = false;
    std::thread reader([&] {
      Count(Stream(target_, prompt));
      read = true;
    });
    while (!read && Running() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::vector<std::thread> open;
    for (int64_t i = 0; i < streams; ++i)
      open.emplace_back([this, i, &read] { Count(Stream(target_, Question(i, 4000), &read)); });
    std::vector<double> milliseconds;
    const std::unique_ptr<httplib::Client> health = Connect(target_);
    do {
      const Clock::time_point start = Clock::now();
      CountReply(health->Get("/health"));
      milliseconds.push_back(SecondsSince(start) * 1e3);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    } while (!read);
    reader.join();
    for (std::thread& thread : open) thread.join();
    const std::string beside =
        fmt::format("/health beside {} streams, {} idle, a prompt", streams, idle);
    Add(beside + ", median", Median(milliseconds), "ms", 2);
    Add(beside + ", longest", *std::max_element(milliseconds.begin(), milliseconds.end()), "ms", 2);
  }

  void Connects(int64_t connections) {
    std::atomic<bool> go = false;
    Clock::time_point start;
    std::vector<std::thread> threads;
    for (int64_t i = 0; i < connections; ++i) {
      threads.emplace_back([&] {
        const std::unique_ptr<httplib::Client> client = Connect(target_);
        while (!go) std::this_thread::yield();
        CountReply(client->Get("/health"));
      });
    }
    start = Clock::now();
    go = true;
    for (std::thread& thread : threads) thread.join();
    Add(fmt::format("{} connections at once, all answered", connections), SecondsSince(start) * 1e3,
        "ms", 1);
  }

  // The exit code: 1 when anything failed.
  int Finish() {
    report_.Finish();
    if (failures_ == 0) return 0;
    fmt::print(stderr, "strata-bench: {} requests failed or differed; {}\n", failures_.load(),
               error_.empty() ? "answers differ from those of the same prompts alone" : error_);
    return 1;
  }

 private:
  template <class Body>
  static void ForAll(int64_t count, const Body& body) {
    std::vector<std::thread> threads;
    for (int64_t i = 0; i < count; ++i) threads.emplace_back([&body, i] { body(i); });
    for (std::thread& thread : threads) thread.join();
  }
  static double Median(std::vector<double> values) {
    std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
    return values[values.size() / 2];
  }
  static Json Question(int64_t i, int64_t tokens) {
    return Ask(fmt::format("Text number {}. The access code for Silver Falcon is {}. Tell me about "
                           "number {} and what the code is.",
                           i, 1000 + i * 37, i * i),
               tokens);
  }
  // About `tokens` tokens that no earlier request began with.
  std::string LongText(int64_t tokens) {
    std::string text =
        fmt::format("Story {} of {}. ", ++stories_, Clock::now().time_since_epoch().count());
    const httplib::Result reply =
        Connect(target_)->Post("/tokenize", Json{{"content", Line(1)}}.dump(), "application/json");
    CountReply(reply);
    const Json ids = reply ? Json::parse(reply->body, nullptr, false) : Json();
    const size_t a_line = ids.contains("tokens") ? std::max<size_t>(1, ids["tokens"].size()) : 16;
    for (size_t i = 0; i < static_cast<size_t>(tokens) / a_line; ++i) text += Line(i);
    return text;
  }
  static std::string Line(size_t i) {
    return fmt::format("On day {} the ship went on for {} miles along the coast. ", i % 10,
                       (i * 7) % 10);
  }

  int64_t Running() {
    const httplib::Result reply = Connect(target_)->Get("/v1/status");
    CountReply(reply);
    const Json status = reply ? Json::parse(reply->body, nullptr, false) : Json();
    return status.is_object() ? status.value("running", int64_t{0}) : 0;
  }

  void Add(const std::string& what, double value, const char* unit, int decimals) {
    Report::Row row;
    row.Text("what", what).Number("value", value, decimals).Text("unit", unit);
    report_.Add(row);
  }
  void Count(const Answer& answer) {
    if (!answer.error.empty()) Failed(answer.error);
  }
  void CountReply(const httplib::Result& result) {
    if (!result) Failed(httplib::to_string(result.error()));
    if (result && result->status != 200)
      Failed(fmt::format("HTTP {}: {}", result->status, result->body));
  }
  void Failed(const std::string& error) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (failures_++ == 0) error_ = error;
  }

  Target target_;
  Report report_;
  int64_t stories_ = 0;
  std::mutex mutex_;
  std::atomic<int64_t> failures_ = 0;
  std::string error_;  // the first
};

}  // namespace

int RunServe(int argc, const char* const* argv) {
  Target target;
  int64_t streams = 32, tokens = 200, prompt = 8192, open = 64, connections = 200;
  bool json = false;
  CLI::App app(
      "Measures a running server as its clients see it. Start it with --queue and --max-context "
      "large enough for the load.",
      "strata-bench serve");
  const auto count = CLI::Range(int64_t{1}, int64_t{1} << 24);
  app.add_option("--url", target.url, "where the server listens")->capture_default_str();
  app.add_option("--api-key", target.api_key, "the server's key");
  app.add_option("--streams", streams, "answers at once")->check(count)->capture_default_str();
  app.add_option("--tokens", tokens, "tokens of each answer")
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 24))
      ->capture_default_str();
  app.add_option("--prompt", prompt, "tokens of a long prompt, about")
      ->check(count)
      ->capture_default_str();
  app.add_option("--open", open, "open streams, and idle connections, beside the long prompt")
      ->check(count)
      ->capture_default_str();
  app.add_option("--connections", connections, "connections made at once")
      ->check(count)
      ->capture_default_str();
  app.add_flag("--json", json, "one JSON object a line");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  ServeBench bench(target, json);
  bench.CheckServer();
  fmt::print(stderr, "{} answers alone, then at once\n", streams);
  bench.Streams(streams, tokens);
  fmt::print(stderr, "two turns behind a long prompt\n");
  bench.Turns(prompt);
  fmt::print(stderr, "/health while a long prompt is read\n");
  bench.Health(open, open, prompt);
  bench.Connects(connections);
  return bench.Finish();
}

}  // namespace strata::bench
