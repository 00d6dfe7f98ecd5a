#include "server/service.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "server/api_error.h"

namespace strata {

namespace {

// Takes the same time wherever the first difference is.
bool SameSecret(const std::string& a, const std::string& b) {
  unsigned char difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i)
    difference |= static_cast<unsigned char>(a[i] ^ (b.empty() ? 0 : b[i % b.size()]));
  return difference == 0;
}

// "http://localhost:8080" -> "localhost", "[::1]:8080" -> "[::1]"
std::string HostOf(std::string text) {
  if (const size_t scheme = text.find("://"); scheme != text.npos) text = text.substr(scheme + 3);
  if (!text.empty() && text.front() == '[') return text.substr(0, text.find(']') + 1);
  return text.substr(0, text.find(':'));
}

bool OriginAllowed(const ServiceOptions& options, const std::string& origin) {
  return std::any_of(
      options.cors_origins.begin(), options.cors_origins.end(),
      [&](const std::string& allowed) { return allowed == "*" || allowed == origin; });
}

bool IsOpen(const std::string& path) { return path == "/" || path == "/health"; }

}  // namespace

bool IsLoopback(const std::string& host) {
  // 127.0.0.0/8 as an address: a name that begins like one is anybody's.
  in_addr address{};
  return host == "localhost" || host == "[::1]" || host == "::1" ||
         (inet_pton(AF_INET, host.c_str(), &address) == 1 && ntohl(address.s_addr) >> 24 == 127);
}

const ServedModel& Service::model() const {
  const ServedModel* model = model_;
  if (model == nullptr) {
    throw ApiError(503,
                   fmt::format("the model is loading ({:.0f} %), try again soon", loading_ * 100),
                   "", "loading");
  }
  return *model;
}

void Service::CheckName(const std::string& name) const {
  const std::vector<std::string>& names = model().names;
  if (std::find(names.begin(), names.end(), name) != names.end()) return;
  throw ApiError(
      404, fmt::format("the model '{}' is not served, '{}' is", name.substr(0, 200), names.front()),
      "model", "model_not_found");
}

int Service::RetryAfterSeconds() const {
  const EngineThread& engine = *model().engine;
  const double running =
      static_cast<double>(std::max<int64_t>(1, engine.engine().runner().options().max_sequences));
  const double seconds =
      metrics_.recent_request_seconds() * static_cast<double>(engine.open_requests()) / running;
  return static_cast<int>(std::clamp(std::ceil(seconds), 1.0, 600.0));
}

HttpResponse ErrorResponse(const ApiError& error) {
  HttpResponse response;
  response.status = error.status();
  response.body = JsonText({{"error", error.Json()}});
  return response;
}

HttpResponse Service::Refusal(const std::exception& error) const {
  if (const auto* api = dynamic_cast<const ApiError*>(&error)) {
    HttpResponse response = ErrorResponse(*api);
    if (api->status() == 429) {
      response.headers.emplace_back("Retry-After", std::to_string(RetryAfterSeconds()));
    } else if (api->status() == 503) {
      response.headers.emplace_back("Retry-After", "5");
    }
    return response;
  }
  if (const auto* known = dynamic_cast<const Error*>(&error)) {
    const ApiError converted = FromError(*known);
    if (converted.status() >= 500) spdlog::error("{}", known->what());
    return ErrorResponse(converted);
  }
  spdlog::error("unexpected failure: {}", error.what());
  return ErrorResponse(ApiError(500, "the server failed on this request; its log says why"));
}

std::unique_ptr<HttpResponse> CheckAccess(const Service& service, const HttpRequest& request) {
  const ServiceOptions& options = service.options();
  const std::string origin = request.header("Origin");
  const bool allowed_origin = std::find(options.cors_origins.begin(), options.cors_origins.end(),
                                        "*") != options.cors_origins.end() ||
                              std::find(options.cors_origins.begin(), options.cors_origins.end(),
                                        origin) != options.cors_origins.end();
  const auto refuse = [](int status, const std::string& message) {
    return std::make_unique<HttpResponse>(ErrorResponse(ApiError(status, message)));
  };
  if (options.api_key.empty()) {
    // Without a key a page on the web must not reach the server through a visitor's browser.
    const std::string host = HostOf(request.header("Host"));
    if (options.loopback && !host.empty() && !IsLoopback(host))
      return refuse(403, fmt::format("the host '{}' is not a loopback name; set --api-key-file or "
                                     "STRATA_API_KEY to serve under other names",
                                     host.substr(0, 100)));
    if (!origin.empty() && !allowed_origin && HostOf(origin) != host)
      return refuse(403, fmt::format("the origin '{}' may not call this server; allow it with "
                                     "--cors-origin, or set --api-key-file or STRATA_API_KEY",
                                     origin.substr(0, 100)));
  } else if (!IsOpen(request.path) && request.method != "OPTIONS") {
    const std::string bearer = request.header("Authorization");
    const std::string given =
        bearer.rfind("Bearer ", 0) == 0 ? bearer.substr(7) : request.header("X-Api-Key");
    if (!SameSecret(options.api_key, given))
      return refuse(401, given.empty() ? "an API key is needed: send 'Authorization: Bearer KEY'"
                                       : "the API key is wrong");
  }
  if (!origin.empty() && allowed_origin && request.method == "OPTIONS") {
    auto response = std::make_unique<HttpResponse>();
    response->status = 204;
    response->headers = {{"Access-Control-Allow-Methods", "GET, POST, OPTIONS"},
                         {"Access-Control-Allow-Headers", "Authorization, Content-Type, X-Api-Key"},
                         {"Access-Control-Max-Age", "600"}};
    return response;
  }
  return nullptr;
}

void AddCorsHeaders(const Service& service, const HttpRequest& request, HttpResponse& response) {
  const std::string origin = request.header("Origin");
  if (origin.empty() || !OriginAllowed(service.options(), origin)) return;
  response.headers.emplace_back("Access-Control-Allow-Origin", origin);
  response.headers.emplace_back("Vary", "Origin");
}

}  // namespace strata
