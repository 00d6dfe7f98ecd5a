// Saving and restoring conversations: POST /slots?action=save and ?action=restore.
#include <fmt/format.h>

#include <chrono>

#include "server/api_error.h"
#include "server/prompt.h"

namespace strata {

namespace {

using Json = nlohmann::ordered_json;

// The tokens of a chat, or of a text prompt.
std::vector<int32_t> TokensOf(const Fields& fields, const Service& service) {
  if (fields.Find("prompt") == nullptr)
    return ReadChatPrompt(fields, ReadConversation(fields), service).tokens;
  std::vector<std::vector<int32_t>> prompts = ReadPrompts(fields, *service.model().tokenizer);
  if (prompts.size() != 1) fields.Refuse("prompt", "one prompt is wanted");
  return std::move(prompts.front());
}

HttpResponse Slots(const Service& service, const HttpRequest& http) {
  const ServedModel& model = service.model();
  if (!model.conversations) {
    throw ApiError(400, "conversations are not saved here: start the server with --save-dir DIR",
                   "", "no_save_dir");
  }
  const std::string action = http.query("action");
  if (action != "save" && action != "restore")
    throw ApiError(400, "action is wanted in the query: save or restore", "action");
  const Json body = ParseBody(http.body);
  const Fields fields(body);
  const auto name = fields.String("filename");
  if (!name) fields.Refuse("filename", "a file's name is wanted");
  const auto start = std::chrono::steady_clock::now();
  const bool save = action == "save";
  const ConversationStore::Moved moved =
      save ? model.conversations->Save(*name, TokensOf(fields, service), *model.engine)
           : model.conversations->Restore(*name, *model.engine);
  const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;
  HttpResponse response;
  response.body = JsonText({{"filename", *name},
                            {save ? "n_saved" : "n_restored", moved.tokens},
                            {save ? "n_written" : "n_read", moved.bytes},
                            {"timings", {{save ? "save_ms" : "restore_ms", time.count()}}}});
  return response;
}

}  // namespace

void AddSlotRoutes(HttpServer& http, Service& service) {
  http.Route("POST", "/slots",
             [&service](const HttpRequest& request) { return Slots(service, request); });
}

}  // namespace strata
