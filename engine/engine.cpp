#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/scheduler.h"
#include "kernels/status.h"

namespace strata {

namespace {

int64_t PagesFor(int64_t cells) { return (cells + kPageCells - 1) / kPageCells; }

// The cells a sequence may come to own: prompt and answer. The last answer token needs none.
int64_t CellsNeeded(const Sequence& sequence, int64_t max_context) {
  if (sequence.request.max_tokens <= 0) return max_context;
  return std::min(max_context, sequence.prompt_tokens() + sequence.request.max_tokens);
}

}  // namespace

const char* FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kError:
      return "error";
  }
  return "unknown";
}

Engine::Engine(const Model& model, Backend& backend, const EngineOptions& options)
    : runner_(model, backend, options), prefixes_(runner_.pages(), model.geometry().index_kpool) {
  for (int64_t slot = options.max_sequences - 1; slot >= 0; --slot) free_slots_.push_back(slot);
}

Engine::~Engine() {
  for (std::unique_ptr<Sequence>& sequence : running_) Release(*sequence, false);
}

RequestId Engine::Submit(Request request, TokenCallback callback) {
  const ModelGeometry& geometry = runner_.model().geometry();
  const int64_t limit = runner_.options().max_context;
  const int64_t prompt = static_cast<int64_t>(request.prompt.size());
  if (prompt == 0) Fail(ErrorCode::kUsage, "the prompt is empty; give at least one token");
  if (prompt >= limit) {
    Fail(ErrorCode::kCapacity,
         fmt::format("the prompt has {} tokens, a context of {} has room for {} and one answer "
                     "token; shorten it or raise --max-context",
                     prompt, limit, limit - 1));
  }
  for (int32_t token : request.prompt) {
    if (token < 0 || token >= geometry.vocabulary) {
      Fail(ErrorCode::kUsage,
           fmt::format("token id {} is outside the vocabulary of {}", token, geometry.vocabulary));
    }
  }
  if (request.max_tokens < 0)
    Fail(ErrorCode::kUsage,
         fmt::format("max_tokens is {}, 0 or more is accepted", request.max_tokens));
  ValidateSampling(request.sampling, geometry.vocabulary);
  auto sequence = std::make_unique<Sequence>(next_id_, std::move(request), std::move(callback));
  const int64_t needed = PagesFor(CellsNeeded(*sequence, limit));
  if (needed > runner_.pages().pages()) {
    Fail(ErrorCode::kCapacity,
         fmt::format("the request needs {} cache pages, the cache has {}; lower max_tokens or give "
                     "the cache more pages",
                     needed, runner_.pages().pages()));
  }
  waiting_.push_back(std::move(sequence));
  return next_id_++;
}

void Engine::Cancel(RequestId id) {
  for (std::unique_ptr<Sequence>& sequence : running_) {
    if (sequence->id == id) sequence->cancelled = true;
  }
  for (std::unique_ptr<Sequence>& sequence : waiting_) {
    if (sequence->id == id) sequence->cancelled = true;
  }
}

bool Engine::TryAdmit(Sequence& sequence) {
  PagePool& pool = runner_.pages();
  PrefixHit hit;
  if (sequence.request.reuse_prefix && runner_.options().prefix_reuse) {
    hit = prefixes_.Match(sequence.tokens, sequence.prompt_tokens() - 1);
  }
  const int64_t shared = static_cast<int64_t>(hit.pages.size());
  const int64_t fresh = PagesFor(CellsNeeded(sequence, runner_.options().max_context)) - shared;
  const bool fits = prefixes_.Evict(fresh);
  if (fits) {
    sequence.pages = hit.pages;
    for (int64_t i = 0; i < fresh; ++i) sequence.pages.push_back(pool.Take());
    if (hit.copy_page >= 0) {
      runner_.kv().CopyPage(hit.copy_page, sequence.pages[static_cast<size_t>(shared)]);
      runner_.keys().CopyPage(hit.copy_page, sequence.pages[static_cast<size_t>(shared)]);
    }
    sequence.cells = sequence.cached_tokens = hit.cells;
    sequence.slot = free_slots_.back();
    free_slots_.pop_back();
  } else {
    for (int32_t page : hit.pages) pool.Release(page);
  }
  if (hit.copy_page >= 0) pool.Release(hit.copy_page);
  return fits;
}

void Engine::Admit() {
  while (!waiting_.empty()) {
    Sequence& next = *waiting_.front();
    if (next.cancelled) {
      next.callback(TokenEvent{.id = next.id, .finish = FinishReason::kCancelled, .error = {}});
      waiting_.pop_front();
      continue;
    }
    if (free_slots_.empty() || !TryAdmit(next)) return;
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
}

void Engine::Release(Sequence& sequence, bool keep_prefix) {
  if (keep_prefix && runner_.options().prefix_reuse && sequence.cells > 0) {
    prefixes_.Insert(
        std::span<const int32_t>(sequence.tokens).first(static_cast<size_t>(sequence.cells)),
        sequence.pages);
  }
  for (int32_t page : sequence.pages) runner_.pages().Release(page);
  sequence.pages.clear();
  free_slots_.push_back(sequence.slot);
  sequence.slot = -1;
}

void Engine::Finish(Sequence& sequence, TokenEvent event) {
  Release(sequence, event.finish != FinishReason::kError);
  sequence.callback(event);
}

void Engine::DropFinished() {
  std::erase_if(running_,
                [](const std::unique_ptr<Sequence>& sequence) { return sequence->slot < 0; });
}

// Takes the next token of a sequence whose known tokens are all in the cache.
void Engine::Emit(Sequence& sequence, const View<const float, 1>& logits) {
  const Sampled sampled = sequence.sampler.Sample(logits, runner_.backend().DefaultStream());
  TokenEvent event{
      .id = sequence.id, .cached_tokens = sequence.cached_tokens, .finish = {}, .error = {}};
  if (sampled.token < 0) {
    event.finish = FinishReason::kError;
    event.error =
        "the model's logits are not numbers (NaN or -infinity everywhere); the weights or the "
        "cache are damaged";
    return Finish(sequence, event);
  }
  event.token = sampled.token;
  event.logprob = sampled.logprob;
  const std::vector<int32_t>& stops = sequence.request.stop_tokens;
  if (!sequence.request.ignore_eos &&
      std::find(stops.begin(), stops.end(), sampled.token) != stops.end()) {
    event.finish = FinishReason::kStop;
    return Finish(sequence, event);
  }
  sequence.tokens.push_back(sampled.token);
  sequence.sampler.Accept(sampled.token);
  const int64_t limit = runner_.options().max_context;
  if ((sequence.request.max_tokens > 0 &&
       sequence.answer_tokens() >= sequence.request.max_tokens) ||
      static_cast<int64_t>(sequence.tokens.size()) >= limit) {
    event.finish = FinishReason::kLength;
    return Finish(sequence, event);
  }
  sequence.callback(event);
}

bool Engine::Step() {
  for (std::unique_ptr<Sequence>& sequence : running_) {
    if (sequence->cancelled) {
      Finish(*sequence,
             TokenEvent{.id = sequence->id, .finish = FinishReason::kCancelled, .error = {}});
    }
  }
  DropFinished();
  Admit();
  if (running_.empty()) return false;

  std::vector<ScheduledSequence> scheduled;
  for (const std::unique_ptr<Sequence>& sequence : running_) {
    scheduled.push_back(
        {static_cast<int64_t>(sequence->tokens.size()) - sequence->cells, sequence->decoding()});
  }
  const std::vector<StepShare> shares = PlanStep(scheduled, runner_.options().chunk);
  std::vector<StepGroup> groups;
  bool prefill = false;
  int64_t rows = 0;
  for (const StepShare& share : shares) {
    const Sequence& sequence = *running_[share.sequence];
    const bool complete =
        sequence.cells + share.tokens == static_cast<int64_t>(sequence.tokens.size());
    groups.push_back(StepGroup{.slot = sequence.slot,
                               .first_position = sequence.cells,
                               .tokens = std::span<const int32_t>(sequence.tokens)
                                             .subspan(static_cast<size_t>(sequence.cells),
                                                      static_cast<size_t>(share.tokens)),
                               .pages = sequence.pages,
                               .logit_rows = complete ? 1 : 0});
    prefill = prefill || !scheduled[share.sequence].decoding;
    rows += share.tokens;
  }
  StageClock& clock = prefill ? stats_.prefill : stats_.decode;
  (prefill ? stats_.prefill_tokens : stats_.decode_tokens) += rows;
  ++stats_.steps;
  clock.Start();
  const StepOutput output = runner_.Run(groups, &clock, observer_);
  int64_t logit_row = 0;
  for (size_t i = 0; i < shares.size(); ++i) {
    Sequence& sequence = *running_[shares[i].sequence];
    sequence.cells += shares[i].tokens;
    if (groups[i].logit_rows == 0) continue;
    Emit(sequence,
         MakeView(static_cast<const float*>(output.logits.row(logit_row)), {output.logits.dim(1)}));
    ++logit_row;
  }
  clock.Stop();
  DropFinished();
  return true;
}

}  // namespace strata
