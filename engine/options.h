// What the owner of an engine decides, with the defaults.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/speculation.h"
#include "kernels/dtype.h"

namespace strata {

// How cached rows are stored: latent rows, and the index keys that go with them.
enum class KvFormat : uint8_t { kFp32, kBf16, kInt8, kFp8 };

const char* KvFormatName(KvFormat format);                // "fp32", "bf16", "int8", "fp8"
std::optional<KvFormat> ParseKvFormat(const char* name);  // none when unknown
DType LatentType(KvFormat format);
DType IndexKeyType(KvFormat format);  // fp32 with fp32, fp8 with fp8, bf16 otherwise

// The environment switches; -1 is unset.
struct Switches {
  int scores_halve =
      -1;               // STRATA_SCORES_HALVE: 0 forces the butterfly scorer, 1 the halving scorer
  int topk_split = -1;  // STRATA_TOPK_SPLIT: 0 forces the one-CTA selection, 1 the split one
};
// Reads both variables. A value other than 0 or 1: Fail(kUsage) naming variable and value. Called
// once, at start.
Switches ReadSwitches();

struct EngineOptions {
  int64_t max_context = 0;    // tokens of the longest sequence, prompt and answer together
  int64_t max_sequences = 1;  // running at the same time
  int64_t cache_pages = 0;    // pages of 64 cells in all; 0: max_sequences sequences of max_context
  KvFormat kv_format = KvFormat::kBf16;
  int64_t chunk = 512;             // rows of one step at most: the prefill chunk
  int64_t score_scratch_mib = 64;  // bound on the [rows x candidates] scores of one layer
  bool prefix_reuse = true;  // keep the pages of finished sequences for prompts that begin alike
  Switches switches;         // which CUDA kernels score and select
  SpeculationOptions speculation;  // of requests that do not choose themselves
};

}  // namespace strata
