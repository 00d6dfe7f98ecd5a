#include "server/metrics.h"

#include <fmt/format.h>

#include <algorithm>

namespace strata {

namespace {

void Header(const char* name, const char* type, const char* help, std::string& text) {
  text += fmt::format("# HELP strata_{0} {2}\n# TYPE strata_{0} {1}\n", name, type, help);
}

void Single(const char* name, const char* type, const char* help, double value, std::string& text) {
  Header(name, type, help, text);
  text += fmt::format("strata_{} {}\n", name, value);
}

}  // namespace

void Metrics::Histogram::Add(double value) {
  const auto bucket = std::lower_bound(bounds.begin(), bounds.end(), value);
  ++counts[static_cast<size_t>(bucket - bounds.begin())];
  sum += value;
}

void Metrics::Histogram::Write(const std::string& name, const std::string& help,
                               std::string& text) const {
  Header(name.c_str(), "histogram", help.c_str(), text);
  int64_t below = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    below += counts[i];
    const std::string bound = i < bounds.size() ? fmt::format("{}", bounds[i]) : "+Inf";
    text += fmt::format("strata_{}_bucket{{le=\"{}\"}} {}\n", name, bound, below);
  }
  text += fmt::format("strata_{0}_sum {1}\nstrata_{0}_count {2}\n", name, sum, below);
}

void Metrics::RequestEnded(const std::string& finish_reason, const RequestTimes& times) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++finished_[finish_reason];
  if (finish_reason == "cancelled" || finish_reason == "error") return;
  first_token_.Add(times.to_first_token);
  for (double seconds : times.between_tokens) between_tokens_.Add(seconds);
  whole_.Add(times.total);
  recent_seconds_ =
      recent_seconds_ == 0.0 ? times.total : 0.8 * recent_seconds_ + 0.2 * times.total;
}

void Metrics::HttpAnswered(int status) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++http_[status];
}

double Metrics::recent_request_seconds() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return recent_seconds_;
}

std::string Metrics::Text(const EngineStatus& status) const {
  std::string text;
  const EngineStats& stats = status.stats;
  const auto number = [](int64_t value) { return static_cast<double>(value); };
  Single("num_requests_running", "gauge", "Requests in the batch.", number(status.running), text);
  Single("num_requests_waiting", "gauge", "Requests that wait for a place in the batch.",
         number(status.waiting), text);
  Single(
      "kv_cache_usage_ratio", "gauge",
      "Share of the cache's pages that running requests hold; pages kept for reuse only are free.",
      status.pages == 0
          ? 0.0
          : 1.0 - number(status.free_pages + status.cached_pages) / number(status.pages),
      text);
  Single("kv_cache_pages", "gauge", "Pages of 64 tokens in the cache.", number(status.pages), text);
  Single("prompt_tokens_total", "counter", "Prompt tokens of admitted requests.",
         number(stats.prompt_tokens), text);
  Single("generation_tokens_total", "counter", "Tokens generated.", number(stats.generated_tokens),
         text);
  Single("prefix_cache_queries_total", "counter", "Prompt tokens looked up in the prefix cache.",
         number(stats.prompt_tokens), text);
  Single("prefix_cache_hits_total", "counter", "Prompt tokens found in the prefix cache.",
         number(stats.cached_tokens), text);
  Single("num_preemptions_total", "counter",
         "Requests that gave their pages to older ones and were read again.",
         number(stats.preemptions), text);
  Single("spec_decode_num_drafts_total", "counter", "Steps of a sequence that verified drafts.",
         number(stats.drafts.windows), text);
  Single("spec_decode_num_draft_tokens_total", "counter", "Tokens drafted and verified.",
         number(stats.drafts.drafted_tokens()), text);
  Single("spec_decode_num_accepted_tokens_total", "counter", "Drafted tokens that were right.",
         number(stats.drafts.accepted_tokens()), text);
  Header("spec_decode_num_accepted_tokens_per_pos_total", "counter",
         "Drafted tokens that were right, by their place in the window.", text);
  for (size_t place = 0; place < stats.drafts.accepted.size(); ++place)
    text +=
        fmt::format("strata_spec_decode_num_accepted_tokens_per_pos_total{{position=\"{}\"}} {}\n",
                    place, stats.drafts.accepted[place]);
  Single("engine_steps_total", "counter", "Forward passes.", number(stats.steps), text);
  Header("stage_seconds", "counter", "Time of forward passes by stage.", text);
  for (int stage = 0; stage < kStages; ++stage) {
    const Stage which = static_cast<Stage>(stage);
    text += fmt::format("strata_stage_seconds{{phase=\"prefill\",stage=\"{}\"}} {}\n",
                        StageName(which), stats.prefill.seconds(which));
    text += fmt::format("strata_stage_seconds{{phase=\"decode\",stage=\"{}\"}} {}\n",
                        StageName(which), stats.decode.seconds(which));
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  Header("request_success_total", "counter", "Requests that ended, by the reason of their end.",
         text);
  for (const char* reason : {"stop", "length", "tool_calls", "cancelled", "error"}) {
    const auto found = finished_.find(reason);
    text += fmt::format("strata_request_success_total{{finish_reason=\"{}\"}} {}\n", reason,
                        found == finished_.end() ? 0 : found->second);
  }
  Header("http_responses_total", "counter", "HTTP responses by status.", text);
  for (const auto& [code, count] : http_)
    text += fmt::format("strata_http_responses_total{{status=\"{}\"}} {}\n", code, count);
  first_token_.Write("time_to_first_token_seconds", "From a request's arrival to its first token.",
                     text);
  between_tokens_.Write("inter_token_latency_seconds", "Between two tokens of an answer.", text);
  whole_.Write("e2e_request_latency_seconds", "From a request's arrival to its end.", text);
  return text;
}

}  // namespace strata
