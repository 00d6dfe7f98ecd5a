#include "server/answer_stream.h"

#include <spdlog/spdlog.h>

namespace strata {

namespace {

constexpr std::chrono::milliseconds kLook{50};  // between looks at the client
constexpr int kClientGone = 499;                // in the log; nobody reads the response

// Sends pings and progress while nothing else is on the wire.
class SilenceBreaker {
 public:
  SilenceBreaker(int ping_seconds, bool progress) : ping_(ping_seconds), progress_(progress) {}

  void Wrote() { last_ = Answers::Clock::now(); }
  // What to write now, if anything.
  std::string Next(const Answers& answers, AnswerDialect& dialect) {
    const Answers::Clock::time_point now = Answers::Clock::now();
    if (progress_ && answers.prompt_read() != read_) {
      read_ = answers.prompt_read();
      return dialect.Progress(answers);
    }
    return now - last_ >= ping_ ? ": ping\n\n" : "";
  }

 private:
  const std::chrono::seconds ping_;
  const bool progress_;
  int64_t read_ = 0;
  Answers::Clock::time_point last_ = Answers::Clock::now();
};

void StreamAnswers(Service& service, const GenerationCall& call, Answers& answers,
                   AnswerDialect& dialect, BodySink& sink) {
  SilenceBreaker silence(service.options().ping_seconds, call.return_progress);
  const auto write = [&](const std::string& text) {
    silence.Wrote();
    if (text.empty() || sink.Write(text)) return true;
    answers.Cancel();
    return false;
  };
  if (!write(dialect.Open(answers))) return;
  try {
    while (!answers.done()) {
      std::string text;
      for (const AnswerPiece& piece : answers.Next(kLook)) text += dialect.Take(piece);
      if (text.empty()) text = silence.Next(answers, dialect);
      if (!text.empty() && !write(text)) return;
      if (!sink.ClientIsThere()) {
        answers.Cancel();
        return;
      }
    }
    write(dialect.Close(answers));
  } catch (const ApiError& error) {
    write(dialect.Fail(error));
  } catch (const std::exception& error) {
    spdlog::error("stream: {}", error.what());
    write(dialect.Fail(ApiError(500, "the server failed on this answer; its log says why")));
  }
}

}  // namespace

std::string ServerSentEvent(const nlohmann::ordered_json& data, const char* name) {
  std::string text;
  if (name != nullptr) text = std::string("event: ") + name + "\n";
  return text + "data: " + JsonText(data) + "\n\n";
}

nlohmann::ordered_json UsageJson(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
}

HttpResponse Respond(Service& service, const HttpRequest& request, const GenerationCall& call,
                     std::unique_ptr<Answers> answers, std::unique_ptr<AnswerDialect> dialect) {
  HttpResponse response;
  if (!call.stream) {
    while (!answers->done()) {
      for (const AnswerPiece& piece : answers->Next(kLook)) dialect->Take(piece);
      if (!request.client_is_there()) {
        response.status = kClientGone;
        return response;
      }
    }
    response.body = JsonText(dialect->Whole(*answers));
    return response;
  }
  response.content_type = "text/event-stream";
  // A response is copied on its way, so what the stream needs is shared.
  response.stream = [&service, call, answers = std::shared_ptr<Answers>(std::move(answers)),
                     dialect = std::shared_ptr<AnswerDialect>(std::move(dialect))](BodySink& sink) {
    StreamAnswers(service, call, *answers, *dialect, sink);
  };
  return response;
}

}  // namespace strata
