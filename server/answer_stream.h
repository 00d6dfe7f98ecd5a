// Answers on their way to a client: one loop for every dialect, streamed or whole.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "server/answer.h"
#include "server/api_error.h"
#include "server/http.h"

namespace strata {

// How one API words an answer. Made for one call; keeps what its whole form needs.
class AnswerDialect {
 public:
  virtual ~AnswerDialect() = default;
  // Server-sent events, each with its end. Of a stream's start:
  virtual std::string Open(const Answers& answers) = 0;
  virtual std::string Take(const AnswerPiece& piece) = 0;
  virtual std::string Progress(const Answers& answers) = 0;
  virtual std::string Close(const Answers& answers) = 0;
  virtual std::string Fail(const ApiError& error) = 0;
  // The answer in one object, when everything was taken.
  virtual nlohmann::ordered_json Whole(const Answers& answers) = 0;
};

// "data: {...}\n\n", under the name of an event when one is given.
std::string ServerSentEvent(const nlohmann::ordered_json& data, const char* name = nullptr);

// {"prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details"}
nlohmann::ordered_json UsageJson(const Usage& usage);

// Runs the answers to their end. Streamed: headers go out at once, a comment line after every
// ping_seconds of silence, progress of the prompt when asked for. A client that leaves ends its
// answers.
HttpResponse Respond(Service& service, const HttpRequest& request, const GenerationCall& call,
                     std::unique_ptr<Answers> answers, std::unique_ptr<AnswerDialect> dialect);

}  // namespace strata
