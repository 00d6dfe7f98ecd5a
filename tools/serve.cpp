// strata --serve: loads the model behind an HTTP server.
#include <fmt/format.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <csignal>
#include <cstdlib>
#include <ctime>

#include "kernels/status.h"
#include "models/json.h"
#include "models/model_digest.h"
#include "server/serve.h"
#include "tools/commands.h"
#include "tools/session.h"

namespace strata {

namespace {

// Writes a line's message as a JSON string.
class JsonMessage : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&,
              spdlog::memory_buf_t& to) override {
    const std::string text =
        nlohmann::json(std::string(message.payload.data(), message.payload.size()))
            .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    to.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<JsonMessage>();
  }
};

void SetUpLog(const ServingOptions& serving) {
  auto log = spdlog::stderr_logger_mt("strata");
  if (serving.log_json) {
    auto formatter = std::make_unique<spdlog::pattern_formatter>();
    formatter->add_flag<JsonMessage>('*').set_pattern(
        "{\"time\":\"%Y-%m-%dT%H:%M:%S.%e%z\",\"level\":\"%l\",\"message\":%*}");
    log->set_formatter(std::move(formatter));
  } else {
    log->set_pattern("%Y-%m-%d %H:%M:%S.%e %L %v");
  }
  log->set_level(spdlog::level::from_str(serving.log_level));
  spdlog::set_default_logger(std::move(log));
}

std::string WithoutEnd(std::string key) {
  while (!key.empty() && std::isspace(static_cast<unsigned char>(key.back())) != 0) key.pop_back();
  return key;
}

// Empty: nobody asked for a key.
std::string ReadApiKey(const ServingOptions& serving) {
  if (serving.api_key_file.empty()) {
    const char* variable = std::getenv("STRATA_API_KEY");
    if (variable == nullptr) return "";
    const std::string key = WithoutEnd(variable);
    if (key.empty())
      Fail(ErrorCode::kUsage,
           "STRATA_API_KEY is empty; give it a key, or unset it to serve without one");
    return key;
  }
  std::string key;
  try {
    key = WithoutEnd(ReadTextFile(serving.api_key_file, 4096));
  } catch (const Error& error) {
    Fail(ErrorCode::kUsage, fmt::format("--api-key-file: {}", error.what()));
  }
  if (key.empty())
    Fail(ErrorCode::kUsage, fmt::format("--api-key-file {} is empty", serving.api_key_file));
  return key;
}

// A loaded model with the thread that runs it.
struct RunningModel : ServedModel {
  explicit RunningModel(std::unique_ptr<Session> loaded) : session(std::move(loaded)) {}
  std::unique_ptr<Session> session;
  std::unique_ptr<EngineThread> thread;
};

std::unique_ptr<ServedModel> LoadServed(const Options& options,
                                        const std::filesystem::path& directory,
                                        const std::function<void(double)>& progress) {
  int last_tenth = 0;
  const std::string name = directory.filename().string();
  const auto tell = [&](double share) {
    progress(share);
    const int tenth = static_cast<int>(share * 10.0);
    if (tenth > last_tenth && tenth < 10) spdlog::info("loading {}: {} %", name, tenth * 10);
    last_tenth = std::max(last_tenth, tenth);
  };
  std::unique_ptr<ConversationStore> conversations;
  if (!options.serving.save_dir.empty()) {
    conversations = std::make_unique<ConversationStore>(
        options.serving.save_dir, fmt::format("{:016x} {} {}", ModelDigest(directory),
                                              options.rope_scaling, options.rope_scale));
  }
  auto model = std::make_unique<RunningModel>(std::make_unique<Session>(options, directory, tell));
  Session& session = *model->session;
  const StepRunner& runner = session.engine->runner();
  const CachePlan& plan = runner.plan();
  spdlog::info("{}: {}, loaded in {:.2f} s on {}", name, session.model->Describe(),
               session.load_seconds, session.backend->Info().name);
  spdlog::info("memory: weights {}, cache {} ({} tokens, {}), step {}",
               ByteText(session.model->weight_bytes()),
               ByteText(plan.latent_bytes + plan.key_bytes), plan.pages * kPageCells,
               KvFormatName(runner.options().kv_format),
               ByteText(plan.scratch_bytes + plan.score_bytes + plan.step_bytes));
  if (!session.chat) spdlog::warn("no chat: {}", session.chat_missing);

  model->names = {name};
  model->names.insert(model->names.end(), options.serving.alias.begin(),
                      options.serving.alias.end());
  model->created = std::time(nullptr);
  model->description = session.model->Describe();
  model->device = session.backend->Info().name;
  model->tokenizer = &session.tokenizer;
  model->chat = session.chat ? &*session.chat : nullptr;
  model->chat_missing = session.chat_missing;
  model->format = session.chat
                      ? OutputFormatOf(session.model->config().model_type, session.chat->source())
                      : OutputFormat::kPlain;
  model->generation = session.generation;
  model->constraints =
      std::make_unique<AnswerConstraints>(session.tokenizer, session.model->geometry().vocabulary,
                                          session.generation.eos_token_ids, model->format);
  model->conversations = std::move(conversations);
  model->thread = std::make_unique<EngineThread>(std::move(session.engine), options.serving.queue);
  model->engine = model->thread.get();
  return model;
}

}  // namespace

int RunServe(const Options& options, const std::filesystem::path& directory) {
  // Every thread made from here on leaves these to the one that waits for them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);

  const ServingOptions& serving = options.serving;
  SetUpLog(serving);
  ServeOptions serve;
  serve.host = serving.host;
  serve.port = serving.port;
  serve.drain_seconds = serving.drain_seconds;
  serve.limits.body_bytes = static_cast<size_t>(serving.max_body_mib) << 20;
  serve.limits.connections = serving.max_connections;
  serve.service.version = STRATA_VERSION;
  serve.service.api_key = ReadApiKey(serving);
  serve.service.cors_origins = serving.cors_origins;
  serve.service.loopback = IsLoopback(serving.host);
  serve.service.ping_seconds = serving.ping_seconds;
  serve.service.max_answer_tokens = serving.max_answer_tokens;
  serve.service.switches = options.switches;
  if (!serve.service.loopback && serve.service.api_key.empty()) {
    spdlog::warn(
        "--host {} opens the server to the network and anyone may use it: set --api-key-file or "
        "STRATA_API_KEY, or put a proxy with access control in front",
        serving.host);
  }
  return Serve(serve, [&](const std::function<void(double)>& progress) {
    return LoadServed(options, directory, progress);
  });
}

}  // namespace strata
