// Counts and times of what was served, as Prometheus text.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "engine/engine_thread.h"

namespace strata {

// What one answer took. Seconds.
struct RequestTimes {
  double to_first_token = 0.0;
  std::vector<double> between_tokens;
  double total = 0.0;
};

// Any thread.
class Metrics {
 public:
  // "stop", "length", "tool_calls", "cancelled", "error"
  void RequestEnded(const std::string& finish_reason, const RequestTimes& times);
  void HttpAnswered(int status);
  // Mean seconds of recent whole requests; 0 before the first.
  double recent_request_seconds() const;

  // The exposition format 0.0.4, engine gauges and counters included.
  std::string Text(const EngineStatus& status) const;

 private:
  struct Histogram {
    explicit Histogram(std::vector<double> upper_bounds)
        : bounds(std::move(upper_bounds)), counts(bounds.size() + 1, 0) {}
    void Add(double value);
    void Write(const std::string& name, const std::string& help, std::string& text) const;
    std::vector<double> bounds;
    std::vector<int64_t> counts;
    double sum = 0.0;
  };

  mutable std::mutex mutex_;
  std::map<std::string, int64_t> finished_;
  std::map<int, int64_t> http_;
  double recent_seconds_ = 0.0;
  Histogram first_token_{{0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300}};
  Histogram between_tokens_{
      {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5}};
  Histogram whole_{{0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800}};
};

}  // namespace strata
