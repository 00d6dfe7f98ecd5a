// Logits and selections of a token sequence, for comparison with other engines.
#include <fmt/format.h>

#include <cstring>
#include <map>

#include "kernels/status.h"
#include "models/json.h"
#include "tools/commands.h"
#include "tools/session.h"

namespace strata {

namespace {

std::vector<int32_t> ReadIds(const Options& options) {
  if (options.ids.empty() == options.ids_file.empty())
    Fail(ErrorCode::kUsage, "give the tokens with --ids 5,17,3 or --ids-file FILE, one of the two");
  const std::string text = options.ids.empty() ? ReadTextFile(options.ids_file) : options.ids;
  std::vector<int32_t> ids;
  std::string number;
  for (size_t i = 0; i <= text.size(); ++i) {
    const char c = i < text.size() ? text[i] : ',';
    if (c != ',' && std::strchr(" \t\r\n", c) == nullptr) {
      number += c;
      continue;
    }
    if (number.empty()) continue;
    if (number.size() > 9 || number.find_first_not_of("0123456789") != std::string::npos) {
      Fail(ErrorCode::kUsage, fmt::format("'{}' is not a token id", number));
    }
    ids.push_back(static_cast<int32_t>(std::stol(number)));
    number.clear();
  }
  if (ids.empty()) Fail(ErrorCode::kUsage, "the list of token ids is empty");
  return ids;
}

// Collects [rows, k] ids per layer, padded with -1.
class IdCollector : public SelectionObserver {
 public:
  void Observe(const ObservedSelection& selection) override {
    columns = selection.ids.dim(1);
    std::vector<int32_t>& all = layers[selection.layer];
    for (int64_t row = 0; row < selection.ids.dim(0); ++row) {
      all.insert(all.end(), selection.ids.row(row), selection.ids.row(row) + columns);
    }
  }
  std::map<int64_t, std::vector<int32_t>> layers;
  int64_t columns = 0;
};

}  // namespace

int RunLogits(const Options& options, const std::filesystem::path& directory) {
  const std::vector<int32_t> ids = ReadIds(options);
  const int64_t count = static_cast<int64_t>(ids.size());
  ModelConfig config = LoadConfig(options, directory);
  Options sized = options;
  if (sized.max_context == 0) sized.max_context = std::max<int64_t>(count, 2);
  const EngineOptions engine_options = MakeEngineOptions(sized, config.max_position);
  if (count > engine_options.max_context) {
    Fail(ErrorCode::kCapacity, fmt::format("{} token ids, a context of {}; raise --max-context",
                                           count, engine_options.max_context));
  }
  const int64_t vocabulary = config.vocabulary;
  for (int32_t id : ids) {
    if (id >= vocabulary) {
      Fail(ErrorCode::kUsage,
           fmt::format("token id {} is outside the vocabulary of {}", id, vocabulary));
    }
  }
  // No tokenizer: a folder of config and weights is enough to compare engines.
  const std::unique_ptr<Backend> backend = MakeCpuBackend(options.threads);
  const std::unique_ptr<DsaModel> model = DsaModel::Load(directory, std::move(config), *backend);
  StepRunner runner(*model, *backend, engine_options);
  std::vector<int32_t> pages;
  while (static_cast<int64_t>(pages.size()) * kPageCells < count) {
    pages.push_back(runner.pages().Take());
  }
  std::vector<float> logits;
  logits.reserve(static_cast<size_t>(count * vocabulary));
  IdCollector collector;
  for (int64_t begin = 0; begin < count; begin += engine_options.chunk) {
    const int64_t rows = std::min(engine_options.chunk, count - begin);
    const StepGroup group{.slot = 0,
                          .first_position = begin,
                          .tokens = std::span<const int32_t>(ids).subspan(
                              static_cast<size_t>(begin), static_cast<size_t>(rows)),
                          .pages = pages,
                          .logit_rows = rows};
    const StepOutput output = runner.Run({&group, 1}, nullptr, &collector);
    for (int64_t row = 0; row < rows; ++row) {
      logits.insert(logits.end(), output.logits.row(row), output.logits.row(row) + vocabulary);
    }
  }
  std::vector<TensorToWrite> tensors = {{.name = "logits",
                                         .dtype = DType::kF32,
                                         .shape = {count, vocabulary},
                                         .data = logits.data()}};
  for (const auto& [layer, all] : collector.layers) {
    tensors.push_back({.name = fmt::format("topk.{}", layer),
                       .dtype = DType::kI32,
                       .shape = {count, collector.columns},
                       .data = all.data()});
  }
  WriteSafetensors(options.out, tensors);
  if (!options.quiet) {
    std::fputs(fmt::format("{}: logits [{}, {}] and {} layers of selected ids, {} cache\n",
                           options.out, count, vocabulary, collector.layers.size(),
                           KvFormatName(engine_options.kv_format))
                   .c_str(),
               stderr);
  }
  return 0;
}

}  // namespace strata
