// Conversations on disk: the pages of a prompt, saved and brought back after a restart.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "engine/engine_thread.h"

namespace strata {

// Files of one folder, by plain names, written whole or not at all. A file holds the tokens and,
// page by page, latent rows and index keys of every layer with a checksum. It is good for the same
// model, cache format and device kind only. Any thread.
class ConversationStore {
 public:
  struct Moved {
    int64_t tokens = 0;  // that the file holds, or that are in the cache now
    int64_t bytes = 0;   // of the file
  };

  // `identity` stands for the model: files of another one are of no use. Fail(kUsage) when the
  // folder is none that can be written to.
  ConversationStore(const std::filesystem::path& folder, const std::string& identity);
  ~ConversationStore();
  ConversationStore(const ConversationStore&) = delete;
  ConversationStore& operator=(const ConversationStore&) = delete;

  // Writes what the cache holds of `tokens`, whole pages of it. ApiError(400) for a name that is
  // not plain or when nothing is held, (503) when the cache gave it up meanwhile, (500) when the
  // file cannot be written.
  Moved Save(const std::string& name, std::span<const int32_t> tokens, EngineThread& engine) const;
  // Fills the cache from the file, as far as there is room. ApiError(404) when there is none, (400)
  // when it is of something else, cut or damaged; nothing of such a page gets into the cache.
  Moved Restore(const std::string& name, EngineThread& engine) const;

 private:
  const int folder_;
  const uint64_t identity_;
};

}  // namespace strata
