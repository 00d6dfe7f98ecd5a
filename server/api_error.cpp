#include "server/api_error.h"

#include <nlohmann/json.hpp>

namespace strata {

const char* ApiError::type() const {
  switch (status_) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    default:
      return status_ < 500 ? "invalid_request_error" : "server_error";
  }
}

nlohmann::ordered_json ApiError::Json() const {
  nlohmann::ordered_json json = {
      {"message", message_}, {"type", type()}, {"param", nullptr}, {"code", nullptr}};
  if (!param_.empty()) json["param"] = param_;
  if (!code_.empty()) json["code"] = code_;
  return json;
}

ApiError FromError(const Error& error) {
  switch (error.code()) {
    case ErrorCode::kUsage:
      return ApiError(400, error.what());
    case ErrorCode::kCapacity:
      return ApiError(400, error.what(), "messages", "context_length_exceeded");
    default:
      return ApiError(500, error.what());
  }
}

std::string JsonText(const nlohmann::ordered_json& value) {
  return value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace strata
