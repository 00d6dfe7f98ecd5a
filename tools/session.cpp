#include "tools/session.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "kernels/status.h"

namespace strata {

namespace {

// A bar on a terminal, a line per tenth in a log, nothing for loads that are over at once.
class LoadProgress {
 public:
  LoadProgress(const std::string& name, bool quiet)
      : name_(name), quiet_(quiet), terminal_(isatty(STDERR_FILENO) != 0) {}
  ~LoadProgress() {
    if (shown_ && terminal_) std::fputs("\r\033[K", stderr);
  }
  void operator()(double share) {
    const auto now = std::chrono::steady_clock::now();
    if (quiet_ || now - start_ < std::chrono::milliseconds(500)) return;
    const int tenth = static_cast<int>(share * 10.0);
    if (!terminal_ && tenth == last_tenth_) return;
    last_tenth_ = tenth;
    shown_ = true;
    if (terminal_) {
      const std::string bar(static_cast<size_t>(share * 30.0), '#');
      std::fputs(fmt::format("\rloading {} [{:<30}] {:3.0f} %", name_, bar, share * 100.0).c_str(),
                 stderr);
    } else {
      std::fputs(fmt::format("loading {}: {:.0f} %\n", name_, share * 100.0).c_str(), stderr);
    }
    std::fflush(stderr);
  }

 private:
  std::string name_;
  bool quiet_, terminal_, shown_ = false;
  int last_tenth_ = -1;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

std::string ByteText(size_t bytes) {
  const double value = static_cast<double>(bytes);
  if (value >= 1e9) return fmt::format("{:.2f} GB", value / 1e9);
  if (value >= 1e6) return fmt::format("{:.1f} MB", value / 1e6);
  if (value >= 1e3) return fmt::format("{:.1f} kB", value / 1e3);
  return fmt::format("{} B", bytes);
}

std::filesystem::path ModelDirectory(const Options& options, const char* program) {
  std::error_code error;
  if (!options.model.empty()) {
    if (std::filesystem::is_directory(options.model, error)) return options.model;
    Fail(ErrorCode::kUsage,
         fmt::format(
             "--model {} is not a folder; a model is a folder with config.json, safetensors and "
             "tokenizer.json",
             options.model));
  }
  const std::filesystem::path executable = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::filesystem::path folder =
      error ? std::filesystem::path(program).parent_path() : executable.parent_path();
  const std::filesystem::path candidates[] = {
      std::filesystem::path(STRATA_SOURCE_DIR) / "models" / "tiny-glm-dsa",
      folder / ".." / "share" / "strata" / "models" / "tiny-glm-dsa"};
  for (const std::filesystem::path& candidate : candidates) {
    if (std::filesystem::exists(candidate / "config.json", error)) return candidate;
  }
  Fail(ErrorCode::kUsage,
       fmt::format("the shipped checkpoint is not at {}; name a model with --model DIR",
                   candidates[0].string()));
}

ModelConfig LoadConfig(const Options& options, const std::filesystem::path& directory) {
  ModelConfig config = LoadModelConfig(directory);
  if (options.rope_scaling == "none" && options.rope_scale != 1.0) {
    Fail(ErrorCode::kUsage,
         fmt::format("--rope-scale {} needs --rope-scaling yarn", options.rope_scale));
  }
  ApplyRopeScaling(config, options.rope_scaling, options.rope_scale);
  if (!options.quiet) {
    for (const std::string& warning : config.warnings)
      std::fputs(fmt::format("warning: {}\n", warning).c_str(), stderr);
  }
  return config;
}

DraftLayer NeededDraftLayer(const SpeculationOptions& speculation) {
  if (speculation.drafts == 0) return DraftLayer::kSkip;
  if (speculation.drafter == DrafterKind::kMtp) return DraftLayer::kNeeded;
  return speculation.drafter == DrafterKind::kAuto ? DraftLayer::kIfPresent : DraftLayer::kSkip;
}

Session::Session(const Options& options, const std::filesystem::path& directory,
                 std::function<void(double)> progress)
    : tokenizer(Tokenizer::Load(directory)), generation(LoadGenerationConfig(directory)) {
  const auto start = std::chrono::steady_clock::now();
  ModelConfig config = LoadConfig(options, directory);
  // Flags that cannot be are refused before the weights are read.
  const EngineOptions engine_options = MakeEngineOptions(options, config.max_position);
  Sampling(options);
  try {
    chat = ChatTemplate::Load(directory, config.model_type);
    if (tokenizer.bos()) chat->SetVariable("bos_token", tokenizer.TokenBytes(*tokenizer.bos()));
    if (tokenizer.eos()) chat->SetVariable("eos_token", tokenizer.TokenBytes(*tokenizer.eos()));
  } catch (const Error& error) {
    // No template is a fact about the model; one that cannot be read is a fault unless the prompt
    // is raw.
    if (ChatTemplate::Exists(directory, config.model_type) && !options.raw) throw;
    chat_missing = error.what();
  }
  backend = MakeCpuBackend(options.threads);
  LoadProgress bar(directory.filename().string(), options.quiet);
  if (!progress) progress = [&bar](double share) { bar(share); };
  model = DsaModel::Load(
      directory, std::move(config), *backend,
      LoadOptions{.draft_layer = NeededDraftLayer(options.speculation), .progress = progress});
  engine = std::make_unique<Engine>(*model, *backend, engine_options);
  load_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (options.verbose) {
    std::fputs(
        fmt::format(
            "model: {}\nweights: {}, device: {}, context {}, cache {} ({}), loaded in {:.3f} s\n",
            model->Describe(), ByteText(model->weight_bytes()), backend->Info().name,
            engine->runner().options().max_context,
            ByteText(engine->runner().plan().latent_bytes + engine->runner().plan().key_bytes),
            KvFormatName(engine->runner().options().kv_format), load_seconds)
            .c_str(),
        stderr);
  }
}

std::vector<int32_t> Session::EncodePrompt(const Options& options, const std::string& text) const {
  if (options.chat && !chat) Fail(ErrorCode::kModelFile, chat_missing);
  if (options.raw || !chat) {
    if (!options.system.empty())
      Fail(ErrorCode::kUsage, "--system needs the chat template; leave --raw out");
    return tokenizer.EncodePrompt(text);
  }
  // The text may come from anywhere; only the template's own marks are such.
  return tokenizer.Encode(chat->Render(tokenizer.Guard(text), tokenizer.Guard(options.system)),
                          SpecialTokens::kGuarded);
}

SamplingParams Session::Sampling(const Options& options) const {
  SamplingParams params = DefaultSampling(generation);
  const auto set = [](float& value, const std::optional<double>& given) {
    if (given) value = static_cast<float>(*given);
  };
  set(params.temperature, options.temperature);
  set(params.top_p, options.top_p);
  set(params.min_p, options.min_p);
  set(params.repetition_penalty, options.repetition_penalty);
  if (options.top_k) params.top_k = static_cast<int32_t>(*options.top_k);
  params.presence_penalty = static_cast<float>(options.presence_penalty.value_or(0.0));
  params.frequency_penalty = static_cast<float>(options.frequency_penalty.value_or(0.0));
  params.seed = options.seed.value_or(0);
  for (const std::string& entry : options.logit_bias) {
    const size_t equals = entry.find('=');
    char* end = nullptr;
    const std::string value = equals == std::string::npos ? "" : entry.substr(equals + 1);
    const float bias = std::strtof(value.c_str(), &end);
    if (value.empty() || *end != '\0')
      Fail(ErrorCode::kUsage,
           fmt::format("--logit-bias {} is not TOKEN=BIAS, for example 17=-5", entry));
    // Out of range stays so, to be refused with the other parameters.
    const int64_t token = ParseCount(entry.substr(0, equals), "--logit-bias token");
    params.logit_bias.emplace_back(static_cast<int32_t>(std::min<int64_t>(token, INT32_MAX)), bias);
  }
  return params;
}

}  // namespace strata
