// What the server says about itself, and the tokenizer's own endpoints.
#include <fmt/format.h>

#include <cmath>

#include "server/api_error.h"
#include "server/draft_json.h"
#include "server/page.h"
#include "server/prompt.h"

namespace strata {

namespace {

using Json = nlohmann::ordered_json;

HttpResponse JsonResponse(const Json& json) {
  HttpResponse response;
  response.body = JsonText(json);
  return response;
}

HttpResponse Health(const Service& service) {
  HttpResponse response;
  Json json = {{"status", "ok"}};
  if (service.draining()) {
    json = {{"status", "draining"}, {"reason", "the server is shutting down"}};
  } else if (!service.ready()) {
    const double percent = std::floor(service.loading() * 100.0);
    json = {{"status", "loading"}, {"reason", "the model is loading"}, {"percent", percent}};
  }
  response.status = service.ready() && !service.draining() ? 200 : 503;
  response.body = JsonText(json);
  return response;
}

Json ModelJson(const ServedModel& model, const std::string& name) {
  return {{"id", name},
          {"object", "model"},
          {"created", model.created},
          {"owned_by", "strata"},
          {"context_length", model.engine->engine().context()},
          {"max_model_len", model.engine->engine().context()}};
}

constexpr std::string_view kModels = "/v1/models/";

// Names may have slashes in them.
HttpResponse OneModel(const Service& service, const HttpRequest& http) {
  const std::string name = http.path.substr(kModels.size());
  service.CheckName(name);
  return JsonResponse(ModelJson(service.model(), name));
}

HttpResponse Models(const Service& service) {
  const ServedModel& model = service.model();
  Json list = Json::array();
  for (const std::string& name : model.names) list.push_back(ModelJson(model, name));
  return JsonResponse({{"object", "list"}, {"data", std::move(list)}});
}

Json StageJson(const StageClock& clock, int64_t tokens) {
  Json json = {{"tokens", tokens}, {"seconds", clock.total_seconds()}};
  for (int stage = 0; stage < kStages; ++stage)
    json[fmt::format("{}_seconds", StageName(static_cast<Stage>(stage)))] =
        clock.seconds(static_cast<Stage>(stage));
  return json;
}

HttpResponse Status(const Service& service) {
  const ServedModel& model = service.model();
  const EngineStatus status = model.engine->Status();
  const EngineOptions& options = model.engine->engine().runner().options();
  Json sequences = Json::array();
  for (const EngineStatus::SequenceStatus& sequence : status.sequences) {
    sequences.push_back({{"id", sequence.id},
                         {"phase", sequence.answer_tokens > 0 ? "answer" : "prompt"},
                         {"prompt_tokens", sequence.prompt_tokens},
                         {"cells", sequence.cells},
                         {"answer_tokens", sequence.answer_tokens}});
  }
  const auto switch_text = [](int value) { return value < 0 ? Json("unset") : Json(value); };
  const Switches& switches = service.options().switches;
  return JsonResponse({{"model", model.names.front()},
                       {"description", model.description},
                       {"version", service.options().version},
                       {"device", model.device},
                       {"context", model.engine->engine().context()},
                       {"kv_format", KvFormatName(options.kv_format)},
                       {"running", status.running},
                       {"waiting", status.waiting},
                       {"max_sequences", options.max_sequences},
                       {"max_waiting", model.engine->max_waiting()},
                       {"sequences", std::move(sequences)},
                       {"pages",
                        {{"total", status.pages},
                         {"free", status.free_pages},
                         {"reusable", status.cached_pages},
                         {"cells_per_page", kPageCells}}},
                       {"prefill", StageJson(status.stats.prefill, status.stats.prefill_tokens)},
                       {"decode", StageJson(status.stats.decode, status.stats.decode_tokens)},
                       {"prompt_tokens", status.stats.prompt_tokens},
                       {"cached_tokens", status.stats.cached_tokens},
                       {"generated_tokens", status.stats.generated_tokens},
                       {"preemptions", status.stats.preemptions},
                       {"drafts", DraftJson(status.stats.drafts)},
                       {"switches",
                        {{"STRATA_SCORES_HALVE", switch_text(switches.scores_halve)},
                         {"STRATA_TOPK_SPLIT", switch_text(switches.topk_split)}}}});
}

HttpResponse Selections(const Service& service, const HttpRequest& http) {
  const std::string id = http.query("id");
  Json json = service.selections().Find(id, *service.model().tokenizer);
  if (json.is_null()) {
    throw ApiError(404,
                   fmt::format("no selection is kept for '{}': ask for it with \"strata\": "
                               "{{\"selection\": true}}; the last {} answers are kept",
                               id.substr(0, 100), SelectionStore::kKept),
                   "id");
  }
  json["kpool"] = service.model().engine->engine().runner().model().geometry().index_kpool;
  return JsonResponse(json);
}

HttpResponse Props(const Service& service) {
  const ServedModel& model = service.model();
  const EngineOptions& options = model.engine->engine().runner().options();
  const SamplingParams defaults = DefaultSampling(model.generation);
  return JsonResponse({{"model", model.names.front()},
                       {"context", model.engine->engine().context()},
                       {"chunk", options.chunk},
                       {"max_sequences", options.max_sequences},
                       {"max_waiting", model.engine->max_waiting()},
                       {"score_scratch_mib", options.score_scratch_mib},
                       {"prefix_reuse", options.prefix_reuse},
                       {"speculative",
                        {{"drafts", options.speculation.drafts},
                         {"drafter", DrafterName(options.speculation.drafter)},
                         {"min_p", options.speculation.min_probability},
                         {"adaptive", options.speculation.adaptive}}},
                       {"ping_seconds", service.options().ping_seconds},
                       {"max_answer_tokens", service.options().max_answer_tokens},
                       {"chat", model.chat != nullptr},
                       {"saves_conversations", model.conversations != nullptr},
                       {"default_sampling",
                        {{"temperature", defaults.temperature},
                         {"top_k", defaults.top_k},
                         {"top_p", defaults.top_p},
                         {"min_p", defaults.min_p},
                         {"repetition_penalty", defaults.repetition_penalty}}}});
}

HttpResponse MetricsText(Service& service) {
  HttpResponse response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body =
      service.metrics().Text(service.ready() ? service.model().engine->Status() : EngineStatus());
  return response;
}

HttpResponse Tokenize(const Service& service, const HttpRequest& http) {
  const Tokenizer& tokenizer = *service.model().tokenizer;
  const Json body = ParseBody(http.body);
  const Fields fields(body);
  auto text = fields.String("content");
  if (!text) text = fields.String("prompt");
  if (!text) fields.Refuse("content", "the text is wanted");
  const bool start = fields.Boolean("add_special").value_or(false);
  const bool parse = fields.Boolean("parse_special").value_or(true);
  const bool pieces = fields.Boolean("with_pieces").value_or(false);
  const std::vector<int32_t> tokens =
      start ? tokenizer.EncodePrompt(*text)
            : tokenizer.Encode(*text, parse ? SpecialTokens::kParse : SpecialTokens::kAsText);
  Json list = Json::array();
  for (int32_t token : tokens) {
    if (pieces) {
      list.push_back({{"id", token}, {"piece", tokenizer.TokenBytes(token)}});
    } else {
      list.push_back(token);
    }
  }
  return JsonResponse({{"tokens", std::move(list)}, {"count", tokens.size()}});
}

HttpResponse Detokenize(const Service& service, const HttpRequest& http) {
  const Json body = ParseBody(http.body);
  const Fields fields(body);
  const Json* list = fields.Array("tokens");
  if (list == nullptr) fields.Refuse("tokens", "a list of token ids is wanted");
  std::vector<int32_t> tokens;
  for (const Json& id : *list) {
    if (!id.is_number_integer() || id < 0 || id >= service.model().tokenizer->vocabulary())
      fields.Refuse("tokens", fmt::format("ids from 0 to {} are wanted",
                                          service.model().tokenizer->vocabulary() - 1));
    tokens.push_back(id.get<int32_t>());
  }
  return JsonResponse({{"content", service.model().tokenizer->Decode(tokens)}});
}

HttpResponse ApplyTemplate(const Service& service, const HttpRequest& http) {
  const Json body = ParseBody(http.body);
  const Fields fields(body);
  const ChatPrompt prompt = ReadChatPrompt(fields, ReadConversation(fields), service);
  return JsonResponse({{"prompt", prompt.text}, {"count", prompt.tokens.size()}});
}

}  // namespace

void AddInfoRoutes(HttpServer& http, Service& service) {
  const auto get = [&](const char* path, HttpResponse (*answer)(const Service&)) {
    http.Route("GET", path, [&service, answer](const HttpRequest&) { return answer(service); });
  };
  const auto post = [&](const char* path,
                        HttpResponse (*answer)(const Service&, const HttpRequest&)) {
    http.Route("POST", path,
               [&service, answer](const HttpRequest& request) { return answer(service, request); });
  };
  get("/health", Health);
  get("/v1/models", Models);
  http.Route("GET", std::string(kModels) + "*",
             [&service](const HttpRequest& request) { return OneModel(service, request); });
  get("/v1/status", Status);
  get("/props", Props);
  http.Route("GET", "/v1/selections",
             [&service](const HttpRequest& request) { return Selections(service, request); });
  http.Route("GET", "/metrics", [&service](const HttpRequest&) { return MetricsText(service); });
  http.Route("GET", "/", [](const HttpRequest&) {
    HttpResponse response;
    response.content_type = "text/html; charset=utf-8";
    response.headers = {{"Content-Security-Policy",
                         "default-src 'none'; style-src 'unsafe-inline'; script-src "
                         "'unsafe-inline'; connect-src 'self'; img-src data:"},
                        {"X-Content-Type-Options", "nosniff"},
                        {"X-Frame-Options", "DENY"}};
    response.body = kPage;
    return response;
  });
  post("/tokenize", Tokenize);
  post("/detokenize", Detokenize);
  post("/apply-template", ApplyTemplate);
}

}  // namespace strata
