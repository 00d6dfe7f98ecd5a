// The Anthropic dialect: /v1/messages and /v1/messages/count_tokens.
#include "server/answer_stream.h"
#include "server/conversation.h"
#include "server/prompt.h"

namespace strata {

namespace {

using Json = nlohmann::ordered_json;

Json ErrorJson(const ApiError& error) {
  const char* type = error.status() == 429   ? "rate_limit_error"
                     : error.status() == 503 ? "overloaded_error"
                     : error.status() == 401 ? "authentication_error"
                     : error.status() == 404 ? "not_found_error"
                     : error.status() < 500  ? "invalid_request_error"
                                             : "api_error";
  return {{"type", "error"}, {"error", {{"type", type}, {"message", error.message()}}}};
}

class MessagesDialect : public AnswerDialect {
 public:
  MessagesDialect(const Service& service, const OutputOptions& output,
                  const std::string& request_id)
      : service_(service), parser_(service.model().format, output), id_("msg_" + request_id) {}

  std::string Open(const Answers& answers) override {
    Json message = Message();
    message["content"] = Json::array();
    message["stop_reason"] = nullptr;
    message["stop_sequence"] = nullptr;
    message["usage"] = UsageOf(answers.usage());
    return Event("message_start", {{"message", std::move(message)}}) +
           Event("ping", Json::object());
  }

  std::string Take(const AnswerPiece& piece) override {
    std::string text;
    for (const OutputDelta& delta : parser_.Push(piece.text)) text += Apply(delta);
    if (piece.finish) {
      const bool cut = *piece.finish != "stop" || !piece.stop_string.empty();
      for (const OutputDelta& delta : parser_.Finish(cut)) text += Apply(delta);
      text += EndBlock();
      stop_string_ = piece.stop_string;
      stop_reason_ = !stop_string_.empty()                  ? "stop_sequence"
                     : *piece.finish == "length"            ? "max_tokens"
                     : !cut && parser_.finished_calls() > 0 ? "tool_use"
                                                            : "end_turn";
    }
    return text;
  }

  std::string Progress(const Answers&) override { return Event("ping", Json::object()); }

  std::string Close(const Answers& answers) override {
    return Event("message_delta", {{"delta", Stop()}, {"usage", UsageOf(answers.usage())}}) +
           Event("message_stop", Json::object());
  }

  std::string Fail(const ApiError& error) override {
    return ServerSentEvent(ErrorJson(error), "error");
  }

  Json Whole(const Answers& answers) override {
    Json message = Message();
    Json content = Json::array();
    int calls = 0;
    for (Json& block : blocks_) {
      if (block["type"] == "tool_use") {
        // A call that was cut is none.
        if (calls++ >= parser_.finished_calls()) continue;
        block["input"] = Json::parse(block["input"].get<std::string>());
      }
      content.push_back(block);
    }
    message["content"] = std::move(content);
    message.update(Stop());
    message["usage"] = UsageOf(answers.usage());
    return message;
  }

 private:
  static std::string Event(const char* name, const Json& fields) {
    Json json = {{"type", name}};
    json.update(fields);
    return ServerSentEvent(json, name);
  }
  static Json UsageOf(const Usage& usage) {
    return {{"input_tokens", usage.prompt_tokens - usage.cached_tokens},
            {"cache_read_input_tokens", usage.cached_tokens},
            {"cache_creation_input_tokens", 0},
            {"output_tokens", usage.completion_tokens}};
  }
  Json Message() const {
    return {{"id", id_},
            {"type", "message"},
            {"role", "assistant"},
            {"model", service_.model().names.front()}};
  }
  Json Stop() const {
    return {{"stop_reason", stop_reason_},
            {"stop_sequence", stop_string_.empty() ? Json(nullptr) : Json(stop_string_)}};
  }

  // Books a delta in its block, which a change of kind ends.
  std::string Apply(const OutputDelta& delta) {
    switch (delta.kind) {
      case OutputDelta::Kind::kReasoning:
        return Append("thinking", "thinking", "thinking_delta", "thinking", delta.text);
      case OutputDelta::Kind::kContent:
        return Append("text", "text", "text_delta", "text", delta.text);
      case OutputDelta::Kind::kCall: {
        std::string text = EndBlock();
        const std::string id = "toolu_" + FreshId();
        blocks_.push_back({{"type", "tool_use"}, {"id", id}, {"name", delta.text}, {"input", ""}});
        Json started = blocks_.back();
        started["input"] = Json::object();
        open_ = true;
        return text + StartBlock(started);
      }
      case OutputDelta::Kind::kArguments:
        break;
    }
    return Append("tool_use", "input", "input_json_delta", "partial_json", delta.text);
  }

  std::string Append(const char* type, const char* field, const char* delta_type,
                     const char* delta_field, const std::string& piece) {
    std::string text;
    if (!open_ || blocks_.back()["type"] != type) {
      text = EndBlock();
      blocks_.push_back({{"type", type}, {field, ""}});
      open_ = true;
      text += StartBlock(blocks_.back());
    }
    blocks_.back()[field].get_ref<std::string&>() += piece;
    return text +
           Event("content_block_delta", {{"index", blocks_.size() - 1},
                                         {"delta", {{"type", delta_type}, {delta_field, piece}}}});
  }
  std::string StartBlock(const Json& block) const {
    return Event("content_block_start", {{"index", blocks_.size() - 1}, {"content_block", block}});
  }
  std::string EndBlock() {
    if (!open_) return "";
    open_ = false;
    return Event("content_block_stop", {{"index", blocks_.size() - 1}});
  }

  const Service& service_;
  OutputParser parser_;
  const std::string id_;
  std::vector<Json> blocks_;  // a tool use's input is text until the end
  bool open_ = false;
  std::string stop_reason_ = "end_turn", stop_string_;
};

ChatPrompt PromptOf(const Fields& fields, const Service& service) {
  return ReadChatPrompt(fields, ReadAnthropicConversation(fields), service);
}

HttpResponse Messages(Service& service, const HttpRequest& http) {
  const Json body = ParseBody(http.body);
  const Fields fields(body);
  GenerationCall call = ReadCall(fields, service);
  if (!fields.Find("max_tokens")) fields.Refuse("max_tokens", "an integer is wanted");
  call.choices = 1;
  call.stops = ReadStops(fields, "stop_sequences");
  const ChatPrompt prompt = PromptOf(fields, service);
  call.request.prompt = prompt.tokens;
  call.request.constraint = ReadConstraint(fields, prompt, call, service);
  auto dialect = std::make_unique<MessagesDialect>(service, prompt.output, http.id);
  auto answers = std::make_unique<Answers>(service, RequestsOf(call), call.stops,
                                           static_cast<int64_t>(prompt.tokens.size()), http.id);
  return Respond(service, http, call, std::move(answers), std::move(dialect));
}

HttpResponse CountTokens(Service& service, const HttpRequest& http) {
  const Json body = ParseBody(http.body);
  HttpResponse response;
  response.body = JsonText({{"input_tokens", PromptOf(Fields(body), service).tokens.size()}});
  return response;
}

// Errors in this dialect's words.
HttpServer::Handler Worded(Service& service,
                           HttpResponse (*handler)(Service&, const HttpRequest&)) {
  return [&service, handler](const HttpRequest& request) {
    try {
      return handler(service, request);
    } catch (const ApiError& error) {
      HttpResponse response = service.Refusal(error);
      response.body = JsonText(ErrorJson(error));
      return response;
    }
  };
}

}  // namespace

void AddAnthropicRoutes(HttpServer& http, Service& service) {
  http.Route("POST", "/v1/messages", Worded(service, Messages));
  http.Route("POST", "/v1/messages/count_tokens", Worded(service, CountTokens));
}

}  // namespace strata
