#include "tools/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cctype>
#include <charconv>
#include <cstdio>

#include "kernels/cpu/isa.h"
#include "kernels/paged.h"
#include "kernels/status.h"
#include "tools/cli_docs.h"

namespace strata {

namespace {

constexpr const char* kFooter =
    "Environment:\n"
    "  STRATA_SCORES_HALVE   0: butterfly scorer, 1: halving scorer (the same bits); unset: the "
    "measured best\n"
    "  STRATA_TOPK_SPLIT     0: one-CTA selection, 1: split selection (the same ids); unset: the "
    "measured best\n"
    "  STRATA_API_KEY        the key that requests to --serve must bring\n"
    "\n"
    "The answer goes to stdout and nothing else does; everything else goes to stderr.\n"
    "Exit codes: 0 done, 1 the run failed, 2 the command line is wrong, 130 stopped by Ctrl-C.\n"
    "\n"
    "Examples:\n"
    "  strata --prompt \"Who are you?\"\n"
    "  strata --file report.txt --timings\n"
    "  strata --serve --model DIR --port 8080\n"
    "  strata --model DIR --raw --prompt \"In computer science, a tree is\" -n 64 --temp 0\n"
    "  strata logits --ids 0,5,17 --out logits.safetensors\n"
    "  strata plan --model DIR --context 128K\n"
    "  strata eval --context 1K,4K\n";

// Counts with a unit, checked where they are given.
CLI::Validator CountBetween(int64_t low, int64_t high) {
  return CLI::Validator(
      [low, high](std::string& text) -> std::string {
        try {
          const int64_t value = ParseCount(text, "the value");
          if (value < low || value > high)
            return fmt::format("{} is outside {} to {}", text, low, high);
          text = std::to_string(value);
          return "";
        } catch (const Error& error) {
          return error.what();
        }
      },
      "COUNT");
}

// CLI::Range lets a NaN through.
CLI::Validator NumberBetween(double low, double high) {
  return CLI::Validator(
      [low, high](std::string& text) -> std::string {
        double value = 0.0;
        if (CLI::detail::lexical_cast(text, value) && value >= low && value <= high) return "";
        return fmt::format("the value '{}' is not a number from {} to {}", text, low, high);
      },
      fmt::format("FLOAT in [{} - {}]", low, high));
}

// Conversion to 64 bits alone would cut what is larger.
CLI::Validator Seed() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        uint64_t positive = 0;
        int64_t negative = 0;
        const char* end = text.data() + text.size();
        const auto read = [&](auto& value) {
          const auto [at, error] = std::from_chars(text.data(), end, value);
          return at == end && error == std::errc();
        };
        if (read(positive) || read(negative)) return "";
        return fmt::format("the value '{}' is not a whole number of 64 bits", text);
      },
      "");
}

// An empty value is mostly a shell variable that is not set. Taken for "not given" it would serve
// another model, or serve without a key.
void RefuseEmptyValues(CLI::App& app) {
  const CLI::Validator filled(
      [](std::string& text) -> std::string {
        return text.empty() ? "the value is empty; leave the flag out for its default" : "";
      },
      "");
  for (CLI::Option* option : app.get_options({})) {
    const bool may_be_empty = option->check_lname("prompt") || option->check_lname("system");
    if (option->get_items_expected_max() > 0 && !may_be_empty) option->check(filled);
  }
  for (CLI::App* command : app.get_subcommands({})) RefuseEmptyValues(*command);
}

constexpr const char* kSpeculation = "Speculation (the same answers in fewer steps)";
constexpr const char* kOutput = "Output";
constexpr int64_t kMaxContext = int64_t{1} << 24;

void AddModelFlags(CLI::App& app, Options& options) {
  const char* group = "Model";
  app.add_option(
         "-m,--model", options.model,
         "checkpoint folder (config.json, safetensors, tokenizer.json); default: the shipped one")
      ->group(group)
      ->type_name("DIR");
  app.add_option(
         "--max-context,--context", options.max_context,
         "tokens of prompt and answer together, e.g. 32K; default: what the model was trained for")
      ->group(group)
      ->transform(CountBetween(2, kMaxContext))
      ->type_name("N");
  app.add_option("--kv", options.kv,
                 "cache format: fp32, bf16, int8 or fp8; default bf16 (logits: fp32)")
      ->group(group)
      ->type_name("FORMAT");
  app.add_option("--rope-scaling", options.rope_scaling,
                 "none or yarn: stretch positions beyond the trained length")
      ->group(group)
      ->type_name("TYPE");
  app.add_option("--rope-scale", options.rope_scale, "factor of --rope-scaling yarn")
      ->group(group)
      ->type_name("F");
  app.add_option("-t,--threads", options.threads, "CPU threads; default: all cores")
      ->group(group)
      ->check(CLI::Range(1, 1024))
      ->type_name("N");
  app.add_option("--chunk", options.chunk, "rows of one step at most: the prefill chunk")
      ->group(group)
      ->check(CLI::Range(1, 65536))
      ->type_name("N");
  app.add_option("--score-scratch", options.score_scratch_mib, "MiB for one layer's index scores")
      ->group(group)
      ->check(CLI::Range(1, 1 << 20))
      ->type_name("MIB");
}

void AddPromptFlags(CLI::App& app, Options& options) {
  const char* group = "Prompt";
  app.add_option("-p,--prompt", options.prompt, "the prompt; without it and --file, stdin is read")
      ->group(group)
      ->type_name("TEXT");
  app.add_option(
         "-f,--file", options.file,
         "read the prompt from a file; with --prompt, the prompt follows it after an empty line")
      ->group(group)
      ->type_name("FILE");
  CLI::Option* chat =
      app.add_flag("--chat", options.chat,
                   "wrap the prompt in the model's chat template (default when there is one)")
          ->group(group);
  app.add_flag("--raw", options.raw, "give the model the bare text, with its start token in front")
      ->group(group)
      ->excludes(chat);
  app.add_option("--system", options.system, "system message in chat mode")
      ->group(group)
      ->type_name("TEXT");
}

void AddSamplingFlags(CLI::App& app, Options& options) {
  const char* group = "Sampling (defaults: generation_config.json of the model)";
  app.add_option("-n,--n-predict", options.n_predict,
                 "answer tokens at most; 0: to the end of the context")
      ->group(group)
      ->transform(CountBetween(0, kMaxContext))
      ->type_name("N");
  app.add_option("--temp,--temperature", options.temperature, "0: always the most likely token")
      ->group(group)
      ->check(NumberBetween(0.0, 100.0))
      ->type_name("T");
  app.add_option("--top-k", options.top_k, "keep the K most likely tokens; 0: all")
      ->group(group)
      ->check(CLI::Range(0, 1 << 30))
      ->type_name("K");
  app.add_option("--top-p", options.top_p,
                 "keep the most likely tokens whose probabilities reach P")
      ->group(group)
      ->check(NumberBetween(1e-6, 1.0))
      ->type_name("P");
  app.add_option("--min-p", options.min_p, "drop tokens below P times the best one's probability")
      ->group(group)
      ->check(NumberBetween(0.0, 0.999999))
      ->type_name("P");
  app.add_option("--repetition-penalty", options.repetition_penalty,
                 "above 1: make tokens of prompt and answer less likely")
      ->group(group)
      ->check(NumberBetween(0.01, 100.0))
      ->type_name("F");
  app.add_option("--presence-penalty", options.presence_penalty,
                 "subtracted once from tokens of the answer")
      ->group(group)
      ->check(NumberBetween(-2.0, 2.0))
      ->type_name("F");
  app.add_option("--frequency-penalty", options.frequency_penalty,
                 "subtracted per occurrence in the answer")
      ->group(group)
      ->check(NumberBetween(-2.0, 2.0))
      ->type_name("F");
  app.add_option("--logit-bias", options.logit_bias,
                 "TOKEN=BIAS, -100 to 100; may be given several times")
      ->group(group)
      ->type_name("ID=B");
  app.add_option("--seed", options.seed, "the same seed gives the same answer; default 0")
      ->group(group)
      ->check(Seed())
      ->type_name("N");
  app.add_flag("--ignore-eos", options.ignore_eos, "go on after the model's end tokens")
      ->group(group);
}

void AddSpeculationFlags(CLI::App& app, Options& options) {
  const char* group = kSpeculation;
  app.add_option("--spec", options.speculation.drafts,
                 "tokens to draft and verify per step, 0 to 7; default 0")
      ->group(group)
      ->check(CLI::Range(int64_t{0}, kMaxDrafts))
      ->type_name("N");
  app.add_option_function<std::string>(
         "--drafter",
         [&options](const std::string& name) {
           options.speculation.drafter = *ParseDrafter(name.c_str());
         },
         "mtp: the model's prediction layer; ngram: what followed the last tokens before; auto: "
         "ngram where a long stretch repeats, else mtp; off. Default auto")
      ->group(group)
      ->check(CLI::IsMember({"auto", "mtp", "ngram", "off"}))
      ->type_name("NAME");
  app.add_option("--spec-min-p", options.speculation.min_probability,
                 "mtp stops drafting before a token less likely than P; default 0")
      ->group(group)
      ->check(NumberBetween(0.0, 1.0))
      ->type_name("P");
  app.add_flag_callback(
         "--spec-fixed", [&options] { options.speculation.adaptive = false; },
         "draft N tokens at every step, also where fewer are measured to be faster")
      ->group(group);
}

void AddJsonFlag(CLI::App& app, Options& options) {
  app.add_flag("--json", options.json, "one JSON object on stdout instead of the text")
      ->group(kOutput);
}

void AddVerboseFlag(CLI::App& app, Options& options) {
  app.add_flag("-v,--verbose", options.verbose, "say more on stderr")->group(kOutput);
}

void AddQuietFlag(CLI::App& app, Options& options) {
  app.add_flag("-q,--quiet", options.quiet, "say nothing on stderr but errors")->group(kOutput);
}

void AddOutputFlags(CLI::App& app, Options& options) {
  AddJsonFlag(app, options);
  app.add_flag("--timings", options.timings, "tokens per second, and where the time went")
      ->group(kOutput);
  app.add_flag("--trace-selection", options.trace_selection,
               "per layer: where the selected cells lie, margins, ties, overlap")
      ->group(kOutput);
  AddVerboseFlag(app, options);
  AddQuietFlag(app, options);
}

void AddServingFlags(CLI::App& app, Options& options, bool& serve) {
  const char* group = "Serving";
  ServingOptions& serving = options.serving;
  CLI::Option* flag =
      app.add_flag("--serve", serve, "serve HTTP instead of answering one prompt")->group(group);
  const auto add = [&](const char* name, auto& value, const char* help, const char* type) {
    return app.add_option(name, value, help)->group(group)->needs(flag)->type_name(type);
  };
  add("--host", serving.host, "address to listen on; default: loopback only", "ADDRESS");
  add("--port", serving.port, "port; 0: a free one", "N")->check(CLI::Range(0, 65535));
  add("--parallel", serving.parallel, "requests in one batch", "N")->check(CLI::Range(1, 4096));
  add("--queue", serving.queue, "requests that may wait beyond them", "N")
      ->check(CLI::Range(0, 1 << 20));
  add("--cache-tokens", serving.cache_tokens,
      "tokens the cache holds for all requests together; default: two whole contexts", "N")
      ->transform(CountBetween(kPageCells, int64_t{1} << 32));
  app.add_flag("--no-prefix-cache", serving.no_prefix_cache,
               "read every prompt anew instead of reusing what was read before")
      ->group(group)
      ->needs(flag);
  add("--save-dir", serving.save_dir,
      "folder for conversations that requests save and restore; default: none are", "DIR");
  add("--alias", serving.alias, "a name requests may call the model by; several are allowed",
      "NAME");
  add("--api-key-file", serving.api_key_file,
      "file with the key that requests must bring; default: STRATA_API_KEY, else none", "FILE");
  add("--cors-origin", serving.cors_origins,
      "origin whose pages may call the server, or *; several are allowed", "ORIGIN");
  add("--max-answer-tokens", serving.max_answer_tokens,
      "cut every request's max_tokens to this; 0: the context is the limit", "N")
      ->transform(CountBetween(0, kMaxContext));
  add("--max-body", serving.max_body_mib, "largest request body", "MIB")
      ->check(CLI::Range(1, 1 << 16));
  add("--max-connections", serving.max_connections, "connections served at the same time", "N")
      ->check(CLI::Range(8, 1 << 16));
  add("--ping-seconds", serving.ping_seconds, "silence in a stream before a comment line", "N")
      ->check(CLI::Range(1, 3600));
  add("--drain-seconds", serving.drain_seconds, "time for open requests after SIGTERM", "N")
      ->check(CLI::Range(0, 86400));
  add("--log-level", serving.log_level, "debug, info, warn or error", "LEVEL")
      ->check(CLI::IsMember({"debug", "info", "warn", "error"}));
  app.add_flag("--log-json", serving.log_json, "one JSON object per log line")
      ->group(group)
      ->needs(flag);
}

// A flag that the command does not read is refused: it would look obeyed.
void RefuseUselessFlags(const CLI::App& app, bool serve) {
  const std::vector<CLI::App*> commands = app.get_subcommands();
  if (commands.empty() && !serve) return;
  for (const CLI::Option* option : app.get_options({})) {
    if (option->count() == 0) continue;
    const std::string& group = option->get_group();
    const bool read = commands.empty()
                          ? group == "Model" || group == "Serving" || group == kSpeculation ||
                                option->check_lname("verbose") || option->check_lname("quiet")
                          : commands.front()->get_option_no_throw(option->get_name()) != nullptr;
    if (!read)
      Fail(ErrorCode::kUsage,
           fmt::format("{} is of no use with {}; leave it out", option->get_name(),
                       commands.empty() ? "--serve" : commands.front()->get_name()));
  }
}

std::string FirstLine(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

int64_t ParseCount(const std::string& text, const char* flag) {
  int64_t unit = 1;
  std::string digits = text;
  if (!digits.empty()) {
    const char last = static_cast<char>(std::toupper(static_cast<unsigned char>(digits.back())));
    if (last == 'K') unit = int64_t{1} << 10;
    if (last == 'M') unit = int64_t{1} << 20;
    if (unit > 1) digits.pop_back();
  }
  if (digits.empty() || digits.size() > 12 ||
      digits.find_first_not_of("0123456789") != std::string::npos) {
    Fail(ErrorCode::kUsage,
         fmt::format("{} '{}' is not a count; write 4096, 16K or 1M", flag, text));
  }
  return std::stoll(digits) * unit;
}

Options ParseOptions(int argc, char** argv, std::optional<int>& exit_code) {
  Options options;
  CLI::App app("Strata: decoding for sparse-attention MLA models (deepseek_v32, glm_moe_dsa)",
               "strata");
  app.footer(kFooter);
  app.set_help_flag("-h,--help", "this text")->group(kOutput);
  bool version = false, man = false, completion = false;
  app.add_flag("--man", man, "print the manual page (strata --man | man -l -)")->group(kOutput);
  app.add_flag("--completion", completion, "print a bash completion script")->group(kOutput);
  app.add_flag("--version", version, "version, build and kernels; --verbose adds the switches")
      ->group(kOutput);
  AddModelFlags(app, options);
  AddPromptFlags(app, options);
  AddSamplingFlags(app, options);
  AddSpeculationFlags(app, options);
  AddOutputFlags(app, options);
  bool serve = false;
  AddServingFlags(app, options, serve);

  CLI::App* logits = app.add_subcommand(
      "logits", "write the logits and selected ids of a token sequence to a file");
  AddModelFlags(*logits, options);
  logits->add_option("--ids", options.ids, "token ids: 5,17,3")->type_name("LIST");
  logits
      ->add_option("--ids-file", options.ids_file,
                   "file of token ids, separated by commas or white space")
      ->type_name("FILE");
  logits
      ->add_option(
          "-o,--out", options.out,
          "safetensors file: logits [n, vocab] fp32, topk.<layer> [n, k] int32 (-1 padded)")
      ->required()
      ->type_name("FILE");
  AddQuietFlag(*logits, options);

  CLI::App* plan = app.add_subcommand(
      "plan", "print every part's bytes and the largest context that fits, before loading");
  AddModelFlags(*plan, options);
  AddSpeculationFlags(*plan, options);
  AddJsonFlag(*plan, options);
  AddQuietFlag(*plan, options);

  CLI::App* eval =
      app.add_subcommand("eval", "look-up evaluation: facts planted in text, asked for at its end");
  AddModelFlags(*eval, options);
  std::string contexts = "1K,4K";
  eval->remove_option(eval->get_option("--max-context"));
  eval->add_option("--context", contexts, "text lengths, e.g. 1K,4K,16K")->type_name("LIST");
  eval->add_flag("--numbers", options.eval_numbers_only, "ask for numbers only");
  AddJsonFlag(*eval, options);
  AddVerboseFlag(*eval, options);
  AddQuietFlag(*eval, options);

  app.require_subcommand(0, 1);
  RefuseEmptyValues(app);
  try {
    app.parse(argc, argv);
    if (man || completion) {
      std::fputs((man ? ManPage(app, kFooter) : BashCompletion(app)).c_str(), stdout);
      exit_code = 0;
    }
    if (!exit_code && !version) RefuseUselessFlags(app, serve);
    if (serve) options.command = Command::kServe;
    if (version) options.command = Command::kVersion;
    if (*logits) options.command = Command::kLogits;
    if (*plan) options.command = Command::kPlan;
    if (*eval) {
      options.command = Command::kEval;
      for (const std::string& part : CLI::detail::split(contexts, ',')) {
        const int64_t context = ParseCount(part, "--context");
        // The facts and questions of a text fill most of the least.
        if (context < 512 || context > kMaxContext)
          Fail(ErrorCode::kUsage,
               fmt::format("--context {} is outside 512 to {}", part, kMaxContext));
        options.eval_contexts.push_back(context);
      }
    }
    options.switches = ReadSwitches();
  } catch (const CLI::CallForHelp& help) {
    std::fputs(app.help().c_str(), stdout);
    exit_code = 0;
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "strata: %s (see strata --help)\n", FirstLine(error.what()).c_str());
    exit_code = 2;
  } catch (const Error& error) {
    std::fprintf(stderr, "strata: %s\n", error.what());
    exit_code = 2;
  }
  return options;
}

EngineOptions MakeEngineOptions(const Options& options, int64_t model_context) {
  EngineOptions engine;
  engine.max_context = options.max_context > 0 ? options.max_context : model_context;
  if (engine.max_context > model_context) {
    Fail(
        ErrorCode::kUsage,
        fmt::format(
            "--max-context {} is more than the model's {}; add --rope-scaling yarn --rope-scale {}",
            engine.max_context, model_context,
            (engine.max_context + model_context - 1) / model_context));
  }
  const std::string format =
      options.kv.empty() ? (options.command == Command::kLogits ? "fp32" : "bf16") : options.kv;
  const std::optional<KvFormat> parsed = ParseKvFormat(format.c_str());
  if (!parsed)
    Fail(ErrorCode::kUsage,
         fmt::format("--kv {} is not known; fp32, bf16, int8 and fp8 are", format));
  engine.kv_format = *parsed;
  engine.switches = options.switches;
  engine.chunk = options.chunk;
  engine.score_scratch_mib = options.score_scratch_mib;
  engine.speculation = options.speculation;
  if (options.command == Command::kServe) {
    engine.max_sequences = options.serving.parallel;
    engine.prefix_reuse = !options.serving.no_prefix_cache;
    const int64_t tokens =
        options.serving.cache_tokens > 0 ? options.serving.cache_tokens : 2 * engine.max_context;
    engine.cache_pages = (tokens + kPageCells - 1) / kPageCells;
    if (engine.chunk < engine.max_sequences)
      Fail(ErrorCode::kUsage, fmt::format("--chunk {} is less than --parallel {}; every request of "
                                          "the batch needs a row of the step",
                                          engine.chunk, engine.max_sequences));
  }
  return engine;
}

}  // namespace strata
