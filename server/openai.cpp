// The OpenAI dialect: /v1/chat/completions and /v1/completions.
#include <cmath>
#include <ctime>

#include "server/answer_stream.h"
#include "server/conversation.h"
#include "server/prompt.h"

namespace strata {

namespace {

using Json = nlohmann::ordered_json;

constexpr float kLeastLogprob = -9999.0f;  // -infinity is no JSON

float Finite(float logprob) { return std::fmax(logprob, kLeastLogprob); }

Json Bytes(const std::string& text) {
  Json bytes = Json::array();
  for (char c : text) bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

Json ChatLogprobs(const Tokenizer& tokenizer, const std::vector<AnswerToken>& tokens) {
  Json content = Json::array();
  const auto entry = [&](int32_t id, float logprob) -> Json {
    const std::string& text = tokenizer.TokenBytes(id);
    return {{"token", text}, {"logprob", Finite(logprob)}, {"bytes", Bytes(text)}};
  };
  for (const AnswerToken& token : tokens) {
    Json json = entry(token.id, token.logprob);
    json["top_logprobs"] = Json::array();
    for (const TokenLogprob& top : token.top)
      json["top_logprobs"].push_back(entry(top.token, top.logprob));
    content.push_back(std::move(json));
  }
  return content;
}

// What both forms of the dialect share: the envelope, usage, errors, the end.
class OpenAiDialect : public AnswerDialect {
 public:
  OpenAiDialect(const Service& service, const GenerationCall& call, const char* prefix,
                const char* object, const std::string& request_id)
      : service_(service),
        include_usage_(call.include_usage),
        logprobs_(call.logprobs),
        object_(object),
        id_(prefix + request_id),
        created_(std::time(nullptr)) {}

  const std::string& id() const { return id_; }
  std::string Progress(const Answers& answers) override {
    Json json = Envelope(true);
    json["choices"] = Json::array();
    json["prompt_progress"] = {{"total", answers.usage().prompt_tokens},
                               {"processed", answers.prompt_read()}};
    return ServerSentEvent(json);
  }
  std::string Close(const Answers& answers) override {
    std::string text;
    if (include_usage_) {
      Json json = Envelope(true);
      json["choices"] = Json::array();
      json["usage"] = UsageJson(answers.usage());
      json["timings"] = answers.Timings();
      text = ServerSentEvent(json);
    }
    return text + "data: [DONE]\n\n";
  }
  std::string Fail(const ApiError& error) override {
    return ServerSentEvent({{"error", error.Json()}}) + "data: [DONE]\n\n";
  }

 protected:
  Json Envelope(bool chunk) const {
    return {{"id", id_},
            {"object", chunk ? std::string(object_) + ".chunk" : std::string(object_)},
            {"created", created_},
            {"model", service_.model().names.front()},
            {"system_fingerprint", "strata-" + service_.options().version}};
  }
  Json WholeEnvelope(const Answers& answers, Json choices) const {
    Json json = Envelope(false);
    json["choices"] = std::move(choices);
    json["usage"] = UsageJson(answers.usage());
    json["timings"] = answers.Timings();
    return json;
  }
  const Tokenizer& tokenizer() const { return *service_.model().tokenizer; }

  const Service& service_;
  const bool include_usage_;
  const bool logprobs_;

 private:
  const char* object_;
  const std::string id_;
  const std::time_t created_;
};

class ChatDialect : public OpenAiDialect {
 public:
  ChatDialect(const Service& service, const GenerationCall& call, const OutputOptions& output,
              const std::string& request_id)
      : OpenAiDialect(service, call, "chatcmpl-", "chat.completion", request_id) {
    for (int64_t i = 0; i < call.choices; ++i)
      choices_.emplace_back(OutputParser(service.model().format, output));
  }

  std::string Open(const Answers&) override {
    std::string text;
    for (size_t i = 0; i < choices_.size(); ++i)
      text += Chunk(static_cast<int64_t>(i), {{"role", "assistant"}, {"content", ""}}, nullptr);
    return text;
  }

  std::string Take(const AnswerPiece& piece) override {
    Choice& choice = choices_[static_cast<size_t>(piece.choice)];
    std::vector<OutputDelta> deltas = choice.parser.Push(piece.text);
    if (piece.finish) {
      // The model ended the text by itself only with an end token.
      const bool cut = *piece.finish != "stop" || !piece.stop_string.empty();
      const std::vector<OutputDelta> rest = choice.parser.Finish(cut);
      deltas.insert(deltas.end(), rest.begin(), rest.end());
      choice.finish = *piece.finish;
      if (!cut && choice.parser.finished_calls() > 0) choice.finish = "tool_calls";
    }
    Json logprobs = nullptr;
    if (logprobs_ && !piece.tokens.empty()) {
      logprobs = ChatLogprobs(tokenizer(), piece.tokens);
      choice.logprobs.insert(choice.logprobs.end(), logprobs.begin(), logprobs.end());
      if (deltas.empty()) deltas.push_back({OutputDelta::Kind::kContent, ""});
    }
    std::string text;
    for (const OutputDelta& delta : deltas) {
      text += Chunk(piece.choice, Apply(choice, delta), logprobs);
      logprobs = nullptr;
    }
    if (piece.finish) text += Chunk(piece.choice, Json::object(), nullptr, choice.finish.c_str());
    return text;
  }

  Json Whole(const Answers& answers) override {
    Json choices = Json::array();
    for (size_t i = 0; i < choices_.size(); ++i) {
      const Choice& choice = choices_[i];
      Json message = {{"role", "assistant"}, {"content", choice.content}};
      if (!choice.reasoning.empty()) message["reasoning_content"] = choice.reasoning;
      const int calls = choice.parser.finished_calls();
      if (choice.finish == "tool_calls" || calls > 0) {
        Json list = Json::array();
        for (int call = 0; call < calls; ++call)
          list.push_back(choice.calls[static_cast<size_t>(call)]);
        message["tool_calls"] = std::move(list);
        if (choice.content.empty()) message["content"] = nullptr;
      }
      Json json = {{"index", i}, {"message", std::move(message)}, {"logprobs", nullptr}};
      if (logprobs_) json["logprobs"] = {{"content", choice.logprobs}};
      json["finish_reason"] = choice.finish;
      choices.push_back(std::move(json));
    }
    return WholeEnvelope(answers, std::move(choices));
  }

 private:
  struct Choice {
    explicit Choice(OutputParser output) : parser(std::move(output)) {}
    OutputParser parser;
    std::string content, reasoning, finish;
    Json calls = Json::array();
    Json logprobs = Json::array();
  };

  // Books a delta in the whole answer; what the stream says of it.
  Json Apply(Choice& choice, const OutputDelta& delta) {
    switch (delta.kind) {
      case OutputDelta::Kind::kReasoning:
        choice.reasoning += delta.text;
        return {{"reasoning_content", delta.text}};
      case OutputDelta::Kind::kContent:
        choice.content += delta.text;
        return {{"content", delta.text}};
      case OutputDelta::Kind::kCall: {
        const Json call = {{"id", "call_" + FreshId()},
                           {"type", "function"},
                           {"function", {{"name", delta.text}, {"arguments", ""}}}};
        choice.calls.push_back(call);
        Json started = {{"index", delta.call}};
        started.update(call);
        return {{"tool_calls", Json::array({started})}};
      }
      case OutputDelta::Kind::kArguments:
        break;
    }
    Json& arguments = choice.calls[static_cast<size_t>(delta.call)]["function"]["arguments"];
    arguments.get_ref<std::string&>() += delta.text;
    return {{"tool_calls",
             Json::array({{{"index", delta.call}, {"function", {{"arguments", delta.text}}}}})}};
  }

  std::string Chunk(int64_t index, Json delta, const Json& logprobs, const char* finish = nullptr) {
    Json choice = {{"index", index}, {"delta", std::move(delta)}, {"logprobs", nullptr}};
    if (!logprobs.is_null()) choice["logprobs"] = {{"content", logprobs}};
    choice["finish_reason"] = finish == nullptr ? Json(nullptr) : Json(finish);
    Json json = Envelope(true);
    json["choices"] = Json::array({std::move(choice)});
    return ServerSentEvent(json);
  }

  std::vector<Choice> choices_;
};

class CompletionDialect : public OpenAiDialect {
 public:
  CompletionDialect(const Service& service, const GenerationCall& call, size_t choices,
                    const std::string& request_id)
      : OpenAiDialect(service, call, "cmpl-", "text_completion", request_id), choices_(choices) {}

  std::string Open(const Answers&) override { return ""; }

  std::string Take(const AnswerPiece& piece) override {
    Choice& choice = choices_[static_cast<size_t>(piece.choice)];
    Json logprobs = nullptr;
    if (logprobs_) {
      if (choice.logprobs.is_null()) choice.logprobs = EmptyLogprobs();
      logprobs = Logprobs(choice, piece.tokens);
      for (const auto& [name, list] : logprobs.items())
        choice.logprobs[name].insert(choice.logprobs[name].end(), list.begin(), list.end());
    }
    choice.text += piece.text;
    if (piece.finish) choice.finish = *piece.finish;
    if (piece.text.empty() && !piece.finish && !logprobs_) return "";
    Json json = Envelope(true);
    json["object"] = "text_completion";
    json["choices"] =
        Json::array({{{"index", piece.choice},
                      {"text", piece.text},
                      {"logprobs", logprobs},
                      {"finish_reason", piece.finish ? Json(*piece.finish) : Json(nullptr)}}});
    return ServerSentEvent(json);
  }

  Json Whole(const Answers& answers) override {
    Json choices = Json::array();
    for (size_t i = 0; i < choices_.size(); ++i) {
      choices.push_back({{"index", i},
                         {"text", choices_[i].text},
                         {"logprobs", choices_[i].logprobs},
                         {"finish_reason", choices_[i].finish}});
    }
    return WholeEnvelope(answers, std::move(choices));
  }

 private:
  struct Choice {
    std::string text, finish;
    Json logprobs = nullptr;
    int64_t offset = 0;  // of the next token in the text
  };

  static Json EmptyLogprobs() {
    return {{"tokens", Json::array()},
            {"token_logprobs", Json::array()},
            {"top_logprobs", Json::array()},
            {"text_offset", Json::array()}};
  }
  Json Logprobs(Choice& choice, const std::vector<AnswerToken>& tokens) const {
    Json json = EmptyLogprobs();
    for (const AnswerToken& token : tokens) {
      const std::string& text = tokenizer().TokenBytes(token.id);
      json["tokens"].push_back(text);
      json["token_logprobs"].push_back(Finite(token.logprob));
      Json top = Json::object();
      for (const TokenLogprob& entry : token.top)
        top[tokenizer().TokenBytes(entry.token)] = Finite(entry.logprob);
      json["top_logprobs"].push_back(std::move(top));
      json["text_offset"].push_back(choice.offset);
      choice.offset += static_cast<int64_t>(text.size());
    }
    return json;
  }

  std::vector<Choice> choices_;
};

HttpResponse Chat(Service& service, const HttpRequest& http) {
  const Json body = ParseBody(http.body);
  const Fields fields(body);
  GenerationCall call = ReadCall(fields, service);
  call.logprobs = fields.Boolean("logprobs").value_or(false);
  const auto top = fields.Integer("top_logprobs", 0, kMaxTopLogprobs);
  if (top && !call.logprobs) fields.Refuse("top_logprobs", "which needs \"logprobs\": true");
  call.request.top_logprobs = static_cast<int32_t>(top.value_or(0));

  const ChatPrompt prompt = ReadChatPrompt(fields, ReadConversation(fields), service);
  call.request.prompt = prompt.tokens;
  call.request.constraint = ReadConstraint(fields, prompt, call, service);
  auto dialect = std::make_unique<ChatDialect>(service, call, prompt.output, http.id);
  auto answers = std::make_unique<Answers>(service, RequestsOf(call), call.stops,
                                           static_cast<int64_t>(prompt.tokens.size()), http.id);
  if (call.watch_selection) answers->Watch(dialect->id(), prompt.tokens);
  return Respond(service, http, call, std::move(answers), std::move(dialect));
}

HttpResponse Complete(Service& service, const HttpRequest& http) {
  const Json body = ParseBody(http.body);
  const Fields fields(body);
  GenerationCall call = ReadCall(fields, service);
  for (const char* name : {"echo", "suffix", "best_of"}) {
    const Json* value = fields.Find(name);
    if (value != nullptr && *value != false && *value != 1 && *value != "")
      fields.Refuse(name, "which is not served; leave it out");
  }
  if (const auto logprobs = fields.Integer("logprobs", 0, kMaxTopLogprobs)) {
    call.logprobs = true;
    call.request.top_logprobs = static_cast<int32_t>(*logprobs);
  }
  // The API's own default, which bounds an answer nobody limited.
  if (call.request.max_tokens == 0) call.request.max_tokens = 16;
  std::vector<Request> requests;
  std::vector<int32_t> first_prompt;
  int64_t prompt_tokens = 0;
  for (std::vector<int32_t>& prompt : ReadPrompts(fields, *service.model().tokenizer)) {
    prompt_tokens += static_cast<int64_t>(prompt.size());
    if (requests.empty()) first_prompt = prompt;
    call.request.prompt = std::move(prompt);
    for (Request& request : RequestsOf(call)) requests.push_back(std::move(request));
  }
  auto dialect = std::make_unique<CompletionDialect>(service, call, requests.size(), http.id);
  auto answers =
      std::make_unique<Answers>(service, std::move(requests), call.stops, prompt_tokens, http.id);
  if (call.watch_selection) answers->Watch(dialect->id(), first_prompt);
  return Respond(service, http, call, std::move(answers), std::move(dialect));
}

}  // namespace

void AddOpenAiRoutes(HttpServer& http, Service& service) {
  http.Route("POST", "/v1/chat/completions",
             [&service](const HttpRequest& request) { return Chat(service, request); });
  http.Route("POST", "/v1/completions",
             [&service](const HttpRequest& request) { return Complete(service, request); });
}

}  // namespace strata
