#include "server/answer.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "server/api_error.h"
#include "server/draft_json.h"

namespace strata {

namespace {

double Seconds(Answers::Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

Answers::Answers(Service& service, std::vector<Request> requests,
                 const std::vector<std::string>& stops, int64_t prompt_tokens,
                 std::string request_id)
    : service_(service), request_id_(std::move(request_id)) {
  const ServedModel& model = service.model();
  usage_.prompt_tokens = prompt_tokens;
  // The markup of calls and reasoning is made of special tokens in some vocabularies.
  const bool skip_special = model.format == OutputFormat::kPlain;
  for (Request& request : requests) {
    std::shared_ptr<TokenStream> stream;
    try {
      stream = model.engine->Submit(std::move(request));
    } catch (const Error& error) {
      Cancel();
      throw FromError(error);
    }
    if (!stream) {
      Cancel();
      if (service.draining()) throw ApiError(503, "the server is shutting down", "", "draining");
      throw ApiError(429,
                     fmt::format("{} requests run or wait, no more are taken; try again in {} s",
                                 model.engine->open_requests(), service.RetryAfterSeconds()),
                     "", "queue_full");
    }
    choices_.push_back(
        {std::move(stream), Tokenizer::Stream(*model.tokenizer, skip_special), StopStrings(stops)});
    ++open_;
  }
}

void Answers::Watch(const std::string& id, std::vector<int32_t> prompt) {
  watch_id_ = id;
  watched_.prompt_tokens = static_cast<int64_t>(prompt.size());
  watched_.tokens = std::move(prompt);
}

Answers::~Answers() {
  Cancel();
  times_.total = Seconds(Clock::now() - arrival_);
  if (choices_.empty()) return;
  service_.metrics().RequestEnded(finish_, times_);
  Log();
}

void Answers::Cancel() {
  for (Choice& choice : choices_) {
    if (choice.open) choice.stream->Cancel();
  }
}

int64_t Answers::prompt_read() const {
  return choices_.empty() ? 0 : choices_.front().stream->prompt_read();
}

void Answers::End(Choice& choice, const std::string& reason) {
  choice.open = false;
  // Kept before the client learns of the end, so that it can ask for it at once.
  if (&choice == choices_.data() && !watch_id_.empty())
    service_.selections().Keep(watch_id_, std::exchange(watched_, {}));
  --open_;
  finish_ = reason;
}

void Answers::Read(int64_t index, const TokenEvent& event, AnswerPiece& piece) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  choice.drafts = event.drafts;
  if (index == 0 && event.cached_tokens > 0) usage_.cached_tokens = event.cached_tokens;
  if (event.finish == FinishReason::kError) {
    End(choice, "error");
    Cancel();
    throw ApiError(500, event.error);
  }
  if (event.finish == FinishReason::kCancelled) {
    End(choice, "cancelled");
    throw ApiError(503, "the server is shutting down and has ended this answer", "", "draining");
  }
  const bool is_text = event.token >= 0 && event.finish != FinishReason::kStop;
  if (event.token >= 0) {
    const Clock::time_point now = Clock::now();
    if (!first_token_) {
      first_token_ = now;
      times_.to_first_token = Seconds(now - arrival_);
    } else if (index == 0) {
      times_.between_tokens.push_back(Seconds(now - *last_token_));
    }
    if (index == 0 || !last_token_) last_token_ = now;
    ++usage_.completion_tokens;
  }
  if (index == 0 && event.selection && watched_.steps.size() < SelectionStore::kMaxSteps)
    watched_.steps.push_back(*event.selection);
  if (is_text) {
    if (index == 0 && !watch_id_.empty()) watched_.tokens.push_back(event.token);
    piece.tokens.push_back({event.token, event.logprob, event.top});
    piece.text += choice.stops.Push(choice.text.Push(event.token));
  }
  if (event.finish && !choice.stops.matched()) {
    piece.text += choice.stops.Push(choice.text.Finish());
    piece.text += choice.stops.Finish();
    piece.finish = FinishReasonName(*event.finish);
  }
  if (choice.stops.matched()) {
    piece.finish = "stop";
    piece.stop_string = choice.stops.match();
    choice.stream->Cancel();
  }
  if (piece.finish) End(choice, *piece.finish);
}

std::vector<AnswerPiece> Answers::Next(std::chrono::milliseconds wait) {
  std::vector<AnswerPiece> pieces;
  // What is there already; else the first open choice is waited for, and a short time when others
  // may be earlier.
  for (const auto pause : {std::chrono::milliseconds(0),
                           open_ > 1 ? std::min(wait, std::chrono::milliseconds(5)) : wait}) {
    bool waited = false;
    for (size_t i = 0; i < choices_.size(); ++i) {
      if (!choices_[i].open) continue;
      AnswerPiece piece;
      piece.choice = static_cast<int64_t>(i);
      const auto share = waited ? std::chrono::milliseconds(0) : pause;
      waited = true;
      for (const TokenEvent& event : choices_[i].stream->Take(share)) {
        if (choices_[i].open) Read(piece.choice, event, piece);
      }
      if (!piece.tokens.empty() || !piece.text.empty() || piece.finish)
        pieces.push_back(std::move(piece));
    }
    if (!pieces.empty()) break;
  }
  return pieces;
}

nlohmann::ordered_json Answers::Timings() const {
  const Clock::time_point first = first_token_.value_or(Clock::now());
  const double prompt = Seconds(first - arrival_);
  const double answer = last_token_ ? Seconds(*last_token_ - first) : 0.0;
  const int64_t read = usage_.prompt_tokens - usage_.cached_tokens;
  DraftCounts drafts;
  for (const Choice& choice : choices_) drafts.Add(choice.drafts);
  const int64_t later = usage_.completion_tokens - static_cast<int64_t>(choices_.size());
  return {{"cached_n", usage_.cached_tokens},
          {"prompt_n", read},
          {"prompt_ms", prompt * 1e3},
          {"prompt_per_second", prompt > 0.0 ? static_cast<double>(read) / prompt : 0.0},
          {"predicted_n", usage_.completion_tokens},
          {"predicted_ms", answer * 1e3},
          {"predicted_per_second",
           answer > 0.0 && later > 0 ? static_cast<double>(later) / answer : 0.0},
          {"draft_n", drafts.drafted_tokens()},
          {"draft_n_accepted", drafts.accepted_tokens()},
          {"drafts", DraftJson(drafts)}};
}

void Answers::Log() const {
  const double answer = last_token_ && first_token_ ? Seconds(*last_token_ - *first_token_) : 0.0;
  spdlog::info(
      "request {} {}: prompt {} (cached {}), answer {}, first token {:.3f} s, {:.1f} tok/s, {:.3f} "
      "s",
      request_id_, finish_, usage_.prompt_tokens, usage_.cached_tokens, usage_.completion_tokens,
      times_.to_first_token,
      answer > 0.0 ? static_cast<double>(times_.between_tokens.size()) / answer : 0.0,
      times_.total);
}

}  // namespace strata
