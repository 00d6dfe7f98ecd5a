// An engine on a thread of its own: any thread submits, waits for tokens, cancels and asks what it
// does.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"

namespace strata {

// What the engine did up to its last step, and what it holds now.
struct EngineStatus {
  EngineStats stats;
  int64_t running = 0;
  int64_t waiting = 0;
  int64_t pages = 0;
  int64_t free_pages = 0;
  int64_t cached_pages = 0;  // held by the prefix cache; given up when a sequence needs them

  struct SequenceStatus {
    RequestId id = 0;
    int64_t prompt_tokens = 0;
    int64_t cells = 0;  // tokens read so far
    int64_t answer_tokens = 0;
  };
  std::vector<SequenceStatus> sequences;  // running ones, oldest first
};

// The events of one request. One reader; the engine's thread writes.
class TokenStream {
 public:
  // All events since the last call; waits up to `wait` for the first one. The last event of a
  // stream has `finish`.
  std::vector<TokenEvent> Take(std::chrono::milliseconds wait);
  // The request ends before the next step, with kCancelled, and its pages are free then.
  void Cancel() { cancelled_ = true; }
  // Tokens of the prompt that are in the cache: grows while the prompt is read.
  int64_t prompt_read() const { return prompt_read_; }

 private:
  friend class EngineThread;
  void Push(TokenEvent event);

  std::mutex mutex_;
  std::condition_variable ready_;
  std::vector<TokenEvent> events_;
  std::atomic<bool> cancelled_ = false;
  std::atomic<int64_t> prompt_read_ = 0;
};

class EngineThread {
 public:
  // At most `max_waiting` requests are taken beyond those that can run at the same time.
  EngineThread(std::unique_ptr<Engine> engine, int64_t max_waiting);
  // Ends every request with kCancelled, after the step in flight.
  ~EngineThread();
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  // Fails as Engine::Check does. Null: the queue is full, or Stop was called.
  std::shared_ptr<TokenStream> Submit(Request request);
  // No request is taken any more; those that run or wait go on.
  void Stop();
  // Ends every request with kCancelled, after the step in flight.
  void CancelAll();

  // Runs `work` on the engine's thread between two steps and waits for its end. No step runs
  // meanwhile, so it must be short. Fail(kInternal) in the words of what it throws.
  void Do(const std::function<void(Engine&)>& work);

  EngineStatus Status() const;
  int64_t open_requests() const;  // submitted and not ended
  // Only what never changes may be asked of it: options, plan, model, context.
  const Engine& engine() const { return *engine_; }
  int64_t max_waiting() const { return max_waiting_; }

 private:
  struct Arrival {
    Request request;
    std::shared_ptr<TokenStream> stream;
  };

  struct Errand {
    const std::function<void(Engine&)>& work;
    bool done = false;
    std::string failure;  // empty: none
  };

  void Loop();
  void Run(Errand& errand);
  void Start(Arrival arrival);
  void Publish();
  void Deliver();

  const std::unique_ptr<Engine> engine_;
  const int64_t max_waiting_;

  mutable std::mutex mutex_;  // guards the next nine
  std::condition_variable wake_, errand_done_;
  std::vector<Arrival> arrivals_;
  std::vector<Errand*> errands_;  // their callers wait
  EngineStatus status_;
  int64_t open_requests_ = 0;
  bool stopped_ = false;
  bool cancel_all_ = false;
  bool ending_ = false;

  // The engine's thread only.
  std::map<RequestId, std::shared_ptr<TokenStream>> streams_;
  std::vector<TokenEvent> outbox_;  // events of the step, handed out when its status is published
  std::thread thread_;
};

}  // namespace strata
