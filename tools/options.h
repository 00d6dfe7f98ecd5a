// The command line of `strata`, in one table.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/options.h"
#include "engine/sampler.h"

namespace strata {

enum class Command { kGenerate, kServe, kLogits, kPlan, kEval, kVersion };

// --serve
struct ServingOptions {
  std::string host = "127.0.0.1";
  int port = 8080;
  int64_t parallel = 32;     // requests in the batch
  int64_t queue = 128;       // requests that wait beyond them
  int64_t cache_tokens = 0;  // 0: two whole contexts
  bool no_prefix_cache = false;
  std::vector<std::string> alias;
  std::string api_key_file;
  std::string save_dir;
  std::vector<std::string> cors_origins;
  int64_t max_answer_tokens = 0;
  int64_t max_body_mib = 32;
  int max_connections = 512;
  int ping_seconds = 15;
  int drain_seconds = 30;
  std::string log_level = "info";
  bool log_json = false;
};

struct Options {
  Command command = Command::kGenerate;

  std::string model;  // folder; empty: the shipped checkpoint
  std::optional<std::string> prompt;
  std::string file;                // prompt from a file
  bool chat = false, raw = false;  // neither: chat when the model has a template
  std::string system;              // system message in chat mode

  int64_t n_predict = 256;  // 0: to the end of the context
  bool ignore_eos = false;
  std::optional<double> temperature, top_p, min_p;
  std::optional<double> repetition_penalty, presence_penalty, frequency_penalty;
  std::optional<int64_t> top_k;
  std::vector<std::string> logit_bias;  // TOKEN=BIAS
  std::optional<uint64_t> seed;         // default: 0

  SpeculationOptions speculation;

  int64_t max_context = 0;  // 0: what the model was trained for
  std::string rope_scaling = "none";
  double rope_scale = 1.0;
  std::string kv;   // empty: bf16 (fp32 for `logits`)
  int threads = 0;  // 0: all cores
  int64_t chunk = 512;
  int64_t score_scratch_mib = 64;

  bool json = false;
  bool timings = false;
  bool trace_selection = false;
  bool verbose = false;
  bool quiet = false;

  ServingOptions serving;

  std::string ids, ids_file, out;      // logits
  std::vector<int64_t> eval_contexts;  // eval
  bool eval_numbers_only = false;

  Switches switches;
};

// Parses argv. Help and version text go to stdout and usage errors to stderr as one line; then
// `exit_code` is set and the options are not to be used.
Options ParseOptions(int argc, char** argv, std::optional<int>& exit_code);

// "4096", "16K", "1M" (powers of two). Fail(kUsage) names the flag.
int64_t ParseCount(const std::string& text, const char* flag);

// Engine options of a model with the given trained context; Fail(kUsage) for an unknown --kv.
EngineOptions MakeEngineOptions(const Options& options, int64_t model_context);

}  // namespace strata
