// Failures: every error has a kind, names the value that caused it and says the way out.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace strata {

enum class ErrorCode {
  kUsage,      // the caller's flags or arguments (exit code 2)
  kConfig,     // a config.json field
  kModelFile,  // a checkpoint, tokenizer or template file
  kCapacity,   // it does not fit: context, pages, memory
  kNumeric,    // NaN or infinity where a number is needed
  kDevice,     // a device or a feature it lacks
  kShape,      // an op called with views that do not agree
  kInternal,   // a broken invariant of Strata itself
};

// A word for logs and JSON: "usage", "config", "model_file", ...
const char* ErrorCodeName(ErrorCode code);

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

// Throws Error. `message` is one line: the field, the value found, what was expected, the way out.
[[noreturn]] void Fail(ErrorCode code, const std::string& message);

}  // namespace strata
