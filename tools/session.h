// A loaded model with everything a command needs around it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "models/chat_template.h"
#include "models/config.h"
#include "models/dsa_model.h"
#include "models/tokenizer.h"
#include "tools/options.h"

namespace strata {

// The folder that --model names, or the shipped checkpoint: beside the program's source tree, or
// ../share/strata of an installed one. Fail(kUsage) when neither is there.
std::filesystem::path ModelDirectory(const Options& options, const char* program);

// The config with the command line's rope scaling applied; its warnings go to stderr.
ModelConfig LoadConfig(const Options& options, const std::filesystem::path& directory);

// The prediction layer as the speculation flags need it.
DraftLayer NeededDraftLayer(const SpeculationOptions& speculation);

struct Session {
  // `progress` is told the share of the weights that is loaded; without it, a bar or lines on
  // stderr tell it.
  Session(const Options& options, const std::filesystem::path& directory,
          std::function<void(double)> progress = {});

  // The tokens of a prompt as the flags ask for it: templated, or raw with the start token.
  std::vector<int32_t> EncodePrompt(const Options& options, const std::string& text) const;
  // Sampling of the flags over generation_config.json's defaults. Fail(kUsage) for a malformed
  // --logit-bias.
  SamplingParams Sampling(const Options& options) const;

  Tokenizer tokenizer;
  std::optional<ChatTemplate> chat;  // none: no template in the folder
  std::string chat_missing;          // why there is none
  GenerationConfig generation;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<DsaModel> model;
  std::unique_ptr<Engine> engine;
  double load_seconds = 0.0;
};

// "31.5 MB", "1.2 GB"
std::string ByteText(size_t bytes);

}  // namespace strata
