// What goes wrong with a request, as the OpenAI API words it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <stdexcept>
#include <string>

#include "kernels/status.h"

namespace strata {

// `param` names the field at fault ("" when none is), `code` is a word for programs.
class ApiError : public std::runtime_error {
 public:
  ApiError(int status, const std::string& message, std::string param = "", std::string code = "")
      : std::runtime_error(message),
        message_(message),
        status_(status),
        param_(std::move(param)),
        code_(std::move(code)) {}

  // All of what(), which ends at the first NUL that a client sent.
  const std::string& message() const { return message_; }
  int status() const { return status_; }
  const char* type() const;  // "invalid_request_error", "authentication_error", ...
  // {"message", "type", "param", "code"}; param and code are null when empty.
  nlohmann::ordered_json Json() const;

 private:
  std::string message_;
  int status_;
  std::string param_, code_;
};

// A failure of the engine or of a model file in the API's words: kUsage is the client's (400),
// kCapacity is a prompt that does not fit (400, context_length_exceeded), the rest is ours (500).
ApiError FromError(const Error& error);

// JSON text of a value that may hold split UTF-8: invalid bytes become U+FFFD.
std::string JsonText(const nlohmann::ordered_json& value);

}  // namespace strata
