#include "engine/engine_thread.h"

#include <algorithm>
#include <utility>

#include "kernels/status.h"

namespace strata {

std::vector<TokenEvent> TokenStream::Take(std::chrono::milliseconds wait) {
  std::unique_lock<std::mutex> lock(mutex_);
  ready_.wait_for(lock, wait, [&] { return !events_.empty(); });
  return std::exchange(events_, {});
}

void TokenStream::Push(TokenEvent event) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    events_.push_back(std::move(event));
  }
  ready_.notify_one();
}

EngineThread::EngineThread(std::unique_ptr<Engine> engine, int64_t max_waiting)
    : engine_(std::move(engine)), max_waiting_(max_waiting) {
  Publish();
  thread_ = std::thread([this] { Loop(); });
}

EngineThread::~EngineThread() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopped_ = ending_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

std::shared_ptr<TokenStream> EngineThread::Submit(Request request) {
  engine_->Check(request);
  auto stream = std::make_shared<TokenStream>();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (stopped_ || open_requests_ >= engine_->runner().options().max_sequences + max_waiting_)
      return nullptr;
    ++open_requests_;
    arrivals_.push_back({std::move(request), stream});
  }
  wake_.notify_one();
  return stream;
}

void EngineThread::Stop() {
  const std::lock_guard<std::mutex> lock(mutex_);
  stopped_ = true;
}

void EngineThread::CancelAll() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    cancel_all_ = true;
  }
  wake_.notify_one();
}

void EngineThread::Do(const std::function<void(Engine&)>& work) {
  Errand errand{.work = work, .done = false, .failure = {}};
  std::unique_lock<std::mutex> lock(mutex_);
  if (ending_) Fail(ErrorCode::kInternal, "the engine has ended");
  errands_.push_back(&errand);
  wake_.notify_one();
  errand_done_.wait(lock, [&] { return errand.done; });
  if (!errand.failure.empty()) Fail(ErrorCode::kInternal, errand.failure);
}

EngineStatus EngineThread::Status() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  EngineStatus status = status_;
  status.waiting += static_cast<int64_t>(arrivals_.size());
  return status;
}

int64_t EngineThread::open_requests() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return open_requests_;
}

void EngineThread::Run(Errand& errand) {
  std::string failure;
  try {
    errand.work(*engine_);
  } catch (const std::exception& error) {
    failure = error.what();
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    errand.failure = std::move(failure);
    errand.done = true;
  }
  errand_done_.notify_all();
}

void EngineThread::Start(Arrival arrival) {
  const RequestId id = engine_->Submit(
      std::move(arrival.request), [this](const TokenEvent& event) { outbox_.push_back(event); });
  streams_.emplace(id, std::move(arrival.stream));
}

void EngineThread::Publish() {
  EngineStatus status;
  status.stats = engine_->stats();
  status.running = static_cast<int64_t>(engine_->running());
  status.waiting = static_cast<int64_t>(engine_->waiting());
  status.pages = engine_->runner().pages().pages();
  status.free_pages = engine_->runner().pages().free_pages();
  status.cached_pages = engine_->prefixes().cached_pages();
  for (const std::unique_ptr<Sequence>& sequence : engine_->sequences()) {
    status.sequences.push_back(
        {sequence->id, sequence->prompt_tokens(), sequence->cells, sequence->answer_tokens()});
    const auto stream = streams_.find(sequence->id);
    if (stream != streams_.end())
      stream->second->prompt_read_ = std::min(sequence->cells, sequence->prompt_tokens());
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  status_ = std::move(status);
}

void EngineThread::Deliver() {
  for (TokenEvent& event : outbox_) {
    const auto stream = streams_.find(event.id);
    const std::shared_ptr<TokenStream> reader = stream->second;
    if (event.finish) {
      streams_.erase(stream);
      const std::lock_guard<std::mutex> lock(mutex_);
      --open_requests_;
    }
    reader->Push(std::move(event));
  }
  outbox_.clear();
}

void EngineThread::Loop() {
  bool busy = false;
  while (true) {
    std::vector<Arrival> arrivals;
    std::vector<Errand*> errands;
    bool ending = false, cancel_all = false;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock, [&] {
        return busy || ending_ || cancel_all_ || !arrivals_.empty() || !errands_.empty();
      });
      arrivals.swap(arrivals_);
      errands.swap(errands_);
      ending = ending_;
      cancel_all = std::exchange(cancel_all_, false) || ending;
      status_.waiting += static_cast<int64_t>(arrivals.size());
    }
    for (Errand* errand : errands) Run(*errand);
    for (Arrival& arrival : arrivals) Start(std::move(arrival));
    for (const auto& [id, stream] : streams_) {
      if (cancel_all || stream->cancelled_) engine_->Cancel(id);
    }
    try {
      engine_->Step();
    } catch (const std::exception& error) {
      engine_->FailAll(error.what());
    }
    busy = engine_->running() + engine_->waiting() > 0;
    Publish();
    Deliver();
    if (ending) return;
  }
}

}  // namespace strata
