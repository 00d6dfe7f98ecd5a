#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/status.h"

namespace strata {

namespace {

int64_t PagesFor(int64_t cells) { return (cells + kPageCells - 1) / kPageCells; }

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
    : runner_(model, backend, options),
      context_(std::min(options.max_context, runner_.pages().pages() * kPageCells)),
      prefixes_(runner_.pages(), model.geometry().index_kpool),
      speculator_(runner_, options.speculation) {
  for (int64_t slot = options.max_sequences - 1; slot >= 0; --slot) free_slots_.push_back(slot);
}

Engine::~Engine() {
  for (std::unique_ptr<Sequence>& sequence : running_) Release(*sequence, false);
}

void Engine::Check(const Request& request) const {
  const ModelGeometry& geometry = runner_.model().geometry();
  const int64_t prompt = static_cast<int64_t>(request.prompt.size());
  if (prompt == 0) Fail(ErrorCode::kUsage, "the prompt is empty; give at least one token");
  if (prompt >= context_) {
    Fail(ErrorCode::kCapacity,
         fmt::format(
             "the prompt has {} tokens, a context of {} has room for {} and one answer "
             "token; shorten it or raise {}",
             prompt, context_, context_ - 1,
             context_ < runner_.options().max_context ? "the cache's size" : "--max-context"));
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
  if (request.top_logprobs < 0 || request.top_logprobs > kMaxTopLogprobs)
    Fail(ErrorCode::kUsage, fmt::format("top_logprobs is {}, 0 to {} are accepted",
                                        request.top_logprobs, kMaxTopLogprobs));
  ValidateSampling(request.sampling, geometry.vocabulary);
  if (request.speculation) speculator_.Check(*request.speculation);
}

RequestId Engine::Submit(Request request, TokenCallback callback) {
  Check(request);
  waiting_.push_back(std::make_unique<Sequence>(next_id_, std::move(request), std::move(callback)));
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
    hit = prefixes_.Match(sequence.tokens, static_cast<int64_t>(sequence.tokens.size()) - 1);
  }
  const int64_t shared = static_cast<int64_t>(hit.pages.size());
  const int64_t fresh = PagesFor(static_cast<int64_t>(sequence.tokens.size())) - shared;
  // One page more for each sequence that runs: all may come to need one soon.
  const bool fits = prefixes_.Evict(fresh + static_cast<int64_t>(running_.size()));
  if (fits) {
    sequence.pages = hit.pages;
    for (int64_t i = 0; i < fresh; ++i) sequence.pages.push_back(pool.Take());
    if (hit.copy_page >= 0) {
      runner_.kv().CopyPage(hit.copy_page, sequence.pages[static_cast<size_t>(shared)]);
      runner_.keys().CopyPage(hit.copy_page, sequence.pages[static_cast<size_t>(shared)]);
    }
    sequence.cells = hit.cells;
    if (sequence.cached_tokens < 0) {
      sequence.cached_tokens = hit.cells;
      stats_.prompt_tokens += sequence.prompt_tokens();
      stats_.cached_tokens += hit.cells;
    }
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
    if (free_slots_.empty() || !TryAdmit(next)) return;
    const auto place =
        std::find_if(running_.begin(), running_.end(),
                     [&](const std::unique_ptr<Sequence>& s) { return s->id > next.id; });
    running_.insert(place, std::move(waiting_.front()));
    waiting_.pop_front();
  }
}

// Makes sure that the sequence owns pages for its first `cells` cells.
bool Engine::Grow(Sequence& sequence, int64_t cells) {
  const int64_t fresh = PagesFor(cells) - static_cast<int64_t>(sequence.pages.size());
  if (fresh <= 0) return true;
  if (!prefixes_.Evict(fresh)) return false;
  for (int64_t i = 0; i < fresh; ++i) sequence.pages.push_back(runner_.pages().Take());
  return true;
}

// Its tokens stay; its cells are read again when there is room, from the prefix cache as far as
// that still holds them.
void Engine::PreemptYoungest() {
  std::unique_ptr<Sequence> youngest = std::move(running_.back());
  running_.pop_back();
  Release(*youngest, true);
  youngest->cells = 0;
  youngest->draft.Reset();
  waiting_.push_front(std::move(youngest));
  ++stats_.preemptions;
}

// What the scheduler chooses, with pages for all of it. A sequence alone always fits: no context is
// larger than the cache.
std::vector<StepShare> Engine::Plan() {
  while (true) {
    std::vector<ScheduledSequence> scheduled;
    for (const std::unique_ptr<Sequence>& sequence : running_) {
      scheduled.push_back(
          {.pending = static_cast<int64_t>(sequence->tokens.size()) - sequence->cells,
           .decoding = sequence->decoding(),
           .drafts = static_cast<int64_t>(sequence->draft.tokens.size())});
    }
    std::vector<StepShare> shares = PlanStep(scheduled, runner_.options().chunk);
    const bool fits = std::all_of(shares.begin(), shares.end(), [&](const StepShare& share) {
      Sequence& sequence = *running_[share.sequence];
      return Grow(sequence, sequence.cells + share.tokens);
    });
    if (fits) return shares;
    if (running_.size() == 1)
      Fail(ErrorCode::kInternal, "one sequence alone does not fit into the cache");
    PreemptYoungest();
  }
}

void Engine::Remember(Sequence& sequence, int64_t cells) {
  if (!runner_.options().prefix_reuse || cells == 0) return;
  prefixes_.Insert(std::span<const int32_t>(sequence.tokens).first(static_cast<size_t>(cells)),
                   sequence.pages);
}

void Engine::Release(Sequence& sequence, bool keep_prefix) {
  if (keep_prefix) Remember(sequence, sequence.cells);
  for (int32_t page : sequence.pages) runner_.pages().Release(page);
  sequence.pages.clear();
  free_slots_.push_back(sequence.slot);
  sequence.slot = -1;
}

void Engine::Finish(Sequence& sequence, TokenEvent event) {
  ++stats_.finished[static_cast<size_t>(*event.finish)];
  if (sequence.slot >= 0) Release(sequence, event.finish != FinishReason::kError);
  sequence.callback(event);
}

void Engine::DropFinished() {
  std::erase_if(running_,
                [](const std::unique_ptr<Sequence>& sequence) { return sequence->slot < 0; });
}

// Takes the next token of a sequence whose known tokens are all in the cache.
void Engine::Emit(Sequence& sequence, const View<const float, 1>& logits, int64_t row) {
  if (sequence.constraint) sequence.constraint->Allowed(allowed_);
  const Sampled sampled = sequence.sampler.Sample(logits, sequence.constraint ? &allowed_ : nullptr,
                                                  runner_.backend().DefaultStream());
  TokenEvent event{.id = sequence.id,
                   .top = {},
                   .selection = {},
                   .cached_tokens = sequence.cached_tokens,
                   .finish = {},
                   .drafts = sequence.draft.counts,
                   .error = {}};
  if (sequence.request.watch_selection && observer_ == nullptr)
    event.selection = std::make_shared<const TokenSelection>(recorder_.Take(row));
  if (sampled.token < 0) {
    event.finish = FinishReason::kError;
    event.error =
        "the model's logits are not numbers (NaN or -infinity everywhere); the weights or the "
        "cache are damaged";
    return Finish(sequence, event);
  }
  event.token = sampled.token;
  event.logprob = sampled.logprob;
  if (sequence.request.top_logprobs > 0)
    event.top = MostLikely(logits, sequence.request.top_logprobs);
  if (sequence.request.StopsAt(sampled.token)) {
    event.finish = FinishReason::kStop;
    return Finish(sequence, event);
  }
  // The pages of a prompt are shared as soon as it is read; those it fills only in part when it
  // ends.
  if (sequence.answer_tokens() == 0) Remember(sequence, sequence.cells / kPageCells * kPageCells);
  sequence.tokens.push_back(sampled.token);
  sequence.sampler.Accept(sampled.token);
  if (sequence.constraint) sequence.constraint->Accept(sampled.token);
  ++stats_.generated_tokens;
  if ((sequence.request.max_tokens > 0 &&
       sequence.answer_tokens() >= sequence.request.max_tokens) ||
      static_cast<int64_t>(sequence.tokens.size()) >= context_) {
    event.finish = FinishReason::kLength;
    return Finish(sequence, event);
  }
  sequence.callback(event);
}

void Engine::FailAll(const std::string& message) {
  const auto fail = [&](Sequence& sequence) {
    Finish(sequence, TokenEvent{.id = sequence.id,
                                .top = {},
                                .selection = {},
                                .finish = FinishReason::kError,
                                .drafts = sequence.draft.counts,
                                .error = message});
  };
  // Those that the failed step had ended already have had their last event.
  DropFinished();
  recorder_.Clear();
  for (std::unique_ptr<Sequence>& sequence : running_) fail(*sequence);
  for (std::unique_ptr<Sequence>& sequence : waiting_) fail(*sequence);
  running_.clear();
  waiting_.clear();
}

// Ends what was cancelled, wherever it stands in the queue.
void Engine::DropCancelled() {
  const auto end = [&](std::unique_ptr<Sequence>& sequence) {
    if (!sequence->cancelled) return false;
    Finish(*sequence, TokenEvent{.id = sequence->id,
                                 .top = {},
                                 .selection = {},
                                 .finish = FinishReason::kCancelled,
                                 .drafts = sequence->draft.counts,
                                 .error = {}});
    return true;
  };
  std::erase_if(running_, end);
  std::erase_if(waiting_, end);
}

// Takes the tokens that a window of [known token, drafts] gives: that of its first row, then those
// of rows whose draft was the token before. Gives how many drafts were right: their cells stand,
// those behind them will be written again.
int64_t Engine::EmitWindow(Sequence& sequence, std::span<const int32_t> drafts,
                           const View<const float, 2>& logits, int64_t first_row) {
  const int64_t count = static_cast<int64_t>(drafts.size());
  if (count > 0) {
    sequence.draft.counts.AddWindow(count);
    stats_.drafts.AddWindow(count);
  }
  for (int64_t kept = 0;; ++kept) {
    ++sequence.cells;
    Emit(sequence, MakeView(logits.row(kept), {logits.dim(1)}), first_row + kept);
    if (sequence.slot < 0 || kept == count ||
        sequence.tokens.back() != drafts[static_cast<size_t>(kept)])
      return kept;
    sequence.draft.counts.AddAccepted(kept);
    stats_.drafts.AddAccepted(kept);
  }
}

// How many drafts a window behind the sequence's tokens may have: what the answer and the context
// have left, and cells for which no other sequence has to give way.
int64_t Engine::DraftRoom(Sequence& sequence, int64_t wanted) {
  int64_t left = context_ - static_cast<int64_t>(sequence.tokens.size()) - 1;
  if (sequence.request.max_tokens > 0)
    left = std::min(left, sequence.request.max_tokens - sequence.answer_tokens() - 1);
  wanted = std::min(wanted, left);
  if (wanted <= 0) return 0;
  const int64_t cells = sequence.cells + 1 + wanted;
  const int64_t fresh = PagesFor(cells) - static_cast<int64_t>(sequence.pages.size());
  if (fresh > 0 && prefixes_.Evict(fresh + static_cast<int64_t>(running_.size())))
    Grow(sequence, cells);
  return std::clamp<int64_t>(
      static_cast<int64_t>(sequence.pages.size()) * kPageCells - sequence.cells - 1, 0, wanted);
}

bool Engine::Step() {
  DropCancelled();
  Admit();
  if (running_.empty()) return false;

  const std::vector<StepShare> shares = Plan();
  std::vector<StepGroup> groups;
  // Windows: the token that is known, then drafts.
  std::vector<std::vector<int32_t>> windows(shares.size());
  bool prefill = false;
  int64_t rows = 0;
  for (size_t i = 0; i < shares.size(); ++i) {
    const Sequence& sequence = *running_[shares[i].sequence];
    const int64_t known = static_cast<int64_t>(sequence.tokens.size()) - sequence.cells;
    const int64_t tokens = shares[i].tokens;
    StepGroup group{.slot = sequence.slot,
                    .first_position = sequence.cells,
                    .tokens = std::span<const int32_t>(sequence.tokens)
                                  .subspan(static_cast<size_t>(sequence.cells),
                                           static_cast<size_t>(std::min(tokens, known))),
                    .pages = sequence.pages,
                    .logit_rows = tokens >= known ? 1 + tokens - known : 0};
    if (tokens > known) {
      windows[i].assign(group.tokens.begin(), group.tokens.end());
      windows[i].insert(windows[i].end(), sequence.draft.tokens.begin(),
                        sequence.draft.tokens.begin() + (tokens - known));
      group.tokens = windows[i];
    }
    groups.push_back(group);
    prefill = prefill || !sequence.decoding();
    if (sequence.request.watch_selection) {
      for (int64_t row = tokens - group.logit_rows; row < tokens; ++row)
        recorder_.Watch(rows + row, sequence.cells + row);
    }
    rows += tokens;
  }
  StageClock& clock = prefill ? stats_.prefill : stats_.decode;
  ++stats_.steps;
  clock.Start();
  const double before = clock.total_seconds();
  SelectionObserver* observer = observer_;
  if (observer == nullptr && recorder_.watches()) observer = &recorder_;
  const StepOutput output = runner_.Run(groups, &clock, observer);
  const int64_t generated = stats_.generated_tokens;
  std::vector<StandingRows> standing;
  int64_t first_logits = 0, first_row = 0;
  for (size_t i = 0; i < shares.size(); ++i) {
    Sequence& sequence = *running_[shares[i].sequence];
    const int64_t tokens = shares[i].tokens, logit_rows = groups[i].logit_rows;
    const int64_t drafts = std::max<int64_t>(0, logit_rows - 1);
    StandingRows stands{.sequence = &sequence,
                        .first_row = first_row,
                        .first_cell = sequence.cells,
                        .rows = tokens - drafts,
                        .prompt = !sequence.decoding()};
    if (logit_rows > 0) {
      sequence.cells += tokens - logit_rows;
      const int64_t kept = EmitWindow(sequence, groups[i].tokens.last(static_cast<size_t>(drafts)),
                                      output.logits.Rows(first_logits, first_logits + logit_rows),
                                      first_row + tokens - logit_rows);
      if (drafts > 0) Speculator::ObserveWindow(sequence, drafts, kept);
      stands.rows += kept;
      if (observer_ != nullptr) {
        for (int64_t row = 0; row <= kept; ++row)
          observer_->Keep(first_row + tokens - logit_rows + row);
      }
    } else {
      sequence.cells += tokens;
    }
    if (sequence.slot >= 0) standing.push_back(stands);
    first_row += tokens;
    first_logits += logit_rows;
  }
  recorder_.Clear();
  (prefill ? stats_.prefill_tokens : stats_.decode_tokens) +=
      prefill ? rows : stats_.generated_tokens - generated;
  clock.Stop();
  if (!prefill)
    speculator_.ObserveStep(rows, static_cast<int64_t>(shares.size()),
                            clock.total_seconds() - before);
  clock.Start();
  speculator_.Propose(standing, output.hidden, [this](Sequence& sequence, int64_t wanted) {
    return DraftRoom(sequence, wanted);
  });
  clock.Stop();
  DropFinished();
  return true;
}

}  // namespace strata
