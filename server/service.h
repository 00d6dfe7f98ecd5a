// What all request handlers share.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine_thread.h"
#include "models/chat_template.h"
#include "models/config.h"
#include "models/output_parser.h"
#include "models/tokenizer.h"
#include "server/answer_constraints.h"
#include "server/conversation_store.h"
#include "server/http.h"
#include "server/metrics.h"
#include "server/selection_store.h"

namespace strata {

// A model that is loaded and runs. Its owner keeps it alive while requests are open.
struct ServedModel {
  virtual ~ServedModel() = default;

  std::vector<std::string> names;  // what requests may call it; the first is shown
  int64_t created = 0;             // Unix time
  std::string description;
  std::string device;
  const Tokenizer* tokenizer = nullptr;
  const ChatTemplate* chat = nullptr;  // null: no chat, see chat_missing
  std::string chat_missing;
  OutputFormat format = OutputFormat::kPlain;
  GenerationConfig generation;
  std::unique_ptr<AnswerConstraints> constraints;  // for response_format and tool_choice
  EngineThread* engine = nullptr;
  std::unique_ptr<ConversationStore> conversations;  // null: no folder is named for them
};

struct ServiceOptions {
  std::string version;
  std::string api_key;                    // empty: none is asked for
  std::vector<std::string> cors_origins;  // origins that browsers may call from; "*": all
  bool loopback = true;                   // bound to a loopback address: Host must be one too
  int ping_seconds = 15;                  // of silence in a stream, then a comment line
  int64_t max_answer_tokens = 0;          // a request's max_tokens is cut to this; 0: no limit
  Switches switches;
};

class Service {
 public:
  explicit Service(ServiceOptions options) : options_(std::move(options)) {}

  const ServiceOptions& options() const { return options_; }
  Metrics& metrics() { return metrics_; }
  SelectionStore& selections() { return selections_; }
  const SelectionStore& selections() const { return selections_; }

  void SetLoading(double share) { loading_ = share; }
  void SetReady(const ServedModel* model) { model_ = model; }
  void SetDraining() { draining_ = true; }

  double loading() const { return loading_; }
  bool ready() const { return model_ != nullptr; }
  bool draining() const { return draining_; }
  // ApiError(503) while it loads.
  const ServedModel& model() const;
  // ApiError(404) when a request names another model than the one served.
  void CheckName(const std::string& name) const;
  // What a client that is turned away should wait: the queue's length in recent request times.
  int RetryAfterSeconds() const;

  // A response for anything that a handler threw.
  HttpResponse Refusal(const std::exception& error) const;

 private:
  const ServiceOptions options_;
  Metrics metrics_;
  SelectionStore selections_;
  std::atomic<double> loading_ = 0.0;
  std::atomic<const ServedModel*> model_ = nullptr;
  std::atomic<bool> draining_ = false;
};

// {"error": ...} with the error's status.
HttpResponse ErrorResponse(const class ApiError& error);

// Routes of each dialect.
void AddInfoRoutes(HttpServer& http, Service& service);
void AddOpenAiRoutes(HttpServer& http, Service& service);
void AddAnthropicRoutes(HttpServer& http, Service& service);
void AddSlotRoutes(HttpServer& http, Service& service);

// Whether a host, as --host and the Host header have it without a port, is this machine alone.
bool IsLoopback(const std::string& host);
// Keys, hosts, origins, preflights: null when the request may pass.
std::unique_ptr<HttpResponse> CheckAccess(const Service& service, const HttpRequest& request);
// Lets the pages of allowed origins read the response.
void AddCorsHeaders(const Service& service, const HttpRequest& request, HttpResponse& response);

}  // namespace strata
