// Threads with a fixed partition of work: which thread runs an item never changes what the item
// computes.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace strata {

// One caller at a time. The calling thread takes part; the others spin briefly for the next call,
// then sleep. A share that no other thread has begun is run by the caller, so a thread that is
// asleep or busy elsewhere costs speed-up, not waiting time.
class ThreadPool {
 public:
  // Fail(kCapacity) when the system cannot start that many.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  // Splits [0, count) into at most one contiguous share per thread and calls body(begin, end,
  // share) once for each; shares differ by at most one `grain` and start at multiples of it.
  // `share` is below threads(): no two calls that run at the same time have the same one. Returns
  // when all are done. An exception of any share is rethrown here.
  template <class Body>
  void For(int64_t count, int64_t grain, const Body& body) {
    Run(
        count, grain,
        [](const void* context, int64_t begin, int64_t end, int worker) {
          (*static_cast<const Body*>(context))(begin, end, worker);
        },
        &body);
  }

 private:
  using Call = void (*)(const void* context, int64_t begin, int64_t end, int share);
  void Run(int64_t count, int64_t grain, Call call, const void* context);
  void WorkerLoop();
  void Stop();
  bool RunOneShare();
  void RunShare(int share, int shares);

  const int threads_;
  std::vector<std::thread> workers_;

  // The call in flight. Written by the caller before it offers shares, read by whoever took one.
  Call call_ = nullptr;
  const void* context_ = nullptr;
  int64_t count_ = 0;
  int64_t grain_ = 1;
  std::vector<std::exception_ptr> errors_;  // one slot per share

  // What may be taken: the number of the call, its shares, and the next share, in one word, so that
  // a thread that comes late cannot take a share of another call.
  std::atomic<uint64_t> offer_{0};
  std::atomic<int> finished_{0};  // shares of the call in flight
  std::atomic<bool> stop_{false};
  std::mutex mutex_;  // guards sleeping_ and orders it with offer_
  std::condition_variable wake_;
  int sleeping_ = 0;
};

// Cores this process may run on (its affinity mask, cgroup quota not counted).
int UsableCores();

}  // namespace strata
