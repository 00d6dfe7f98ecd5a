// Memory of every part, and the largest context that fits, before anything is loaded.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "kernels/status.h"
#include "models/json.h"
#include "server/api_error.h"
#include "tools/commands.h"
#include "tools/session.h"

namespace strata {

namespace {

size_t MachineMemory() {
  return static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGE_SIZE));
}

}  // namespace

int RunPlan(const Options& options, const std::filesystem::path& directory) {
  const ModelConfig config = LoadConfig(options, directory);
  EngineOptions engine = MakeEngineOptions(options, config.max_position);
  const std::unique_ptr<Backend> backend = MakeCpuBackend(options.threads);
  // Loading maps the weights and copies only what is derived from them.
  const std::unique_ptr<DsaModel> model = DsaModel::Load(
      directory, config, *backend,
      LoadOptions{.draft_layer = NeededDraftLayer(options.speculation), .progress = {}});
  const CachePlan plan = PlanCaches(*model, engine);
  const size_t weights = model->weight_bytes();
  const size_t total = weights + plan.total();
  const size_t memory = MachineMemory();

  // Bytes grow linearly with whole pages: bisect the largest context.
  const auto fits = [&](int64_t context) {
    EngineOptions trial = engine;
    trial.max_context = context;
    return weights + PlanCaches(*model, trial).total() <= memory;
  };
  int64_t low = 0, high = config.max_position;
  if (fits(high)) low = high;
  while (high - low > kPageCells) {
    const int64_t middle = (low + high) / 2 / kPageCells * kPageCells;
    if (middle <= low) break;
    (fits(middle) ? low : high) = middle;
  }
  if (options.json) {
    const nlohmann::ordered_json json = {{"model", directory.string()},
                                         {"context", engine.max_context},
                                         {"kv", KvFormatName(engine.kv_format)},
                                         {"weight_bytes", weights},
                                         {"latent_cache_bytes", plan.latent_bytes},
                                         {"index_key_cache_bytes", plan.key_bytes},
                                         {"activation_bytes", plan.scratch_bytes},
                                         {"score_scratch_bytes", plan.score_bytes},
                                         {"step_input_bytes", plan.step_bytes},
                                         {"total_bytes", total},
                                         {"memory_bytes", memory},
                                         {"largest_context", low}};
    fmt::print("{}\n", JsonText(json));
  } else {
    fmt::print("{}\n", model->Describe());
    fmt::print("context {}, cache {}, {} row steps\n\n", engine.max_context,
               KvFormatName(engine.kv_format), engine.chunk);
    const auto line = [](const char* part, size_t bytes) {
      fmt::print("  {:<26} {:>14} B  {:>10}\n", part, bytes, ByteText(bytes));
    };
    line("weights", weights);
    line("latent cache", plan.latent_bytes);
    line("index-key cache", plan.key_bytes);
    line("activations of a step", plan.scratch_bytes);
    line("index scores", plan.score_bytes);
    line("step inputs", plan.step_bytes);
    line("total", total);
    line("this machine", memory);
    fmt::print("\nlargest context that fits: {} (the model was made for {})\n", low,
               config.max_position);
  }
  if (total > memory) {
    Fail(ErrorCode::kCapacity,
         fmt::format(
             "a context of {} needs {}, {} more than this machine has; the largest that fits is {}",
             engine.max_context, ByteText(total), ByteText(total - memory), low));
  }
  return 0;
}

}  // namespace strata
