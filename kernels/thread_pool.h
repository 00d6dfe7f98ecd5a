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

// One caller at a time. The calling thread is worker 0; the others spin briefly for the next call,
// then sleep.
class ThreadPool {
 public:
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  // Calls body(begin, end, worker) on every worker with its contiguous share of [0, count); shares
  // differ by at most one `grain` and start at multiples of it. Returns when all are done. An
  // exception of any worker is rethrown here.
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
  using Call = void (*)(const void* context, int64_t begin, int64_t end, int worker);
  void Run(int64_t count, int64_t grain, Call call, const void* context);
  void WorkerLoop(int worker);
  void RunShare(int worker);

  const int threads_;
  std::vector<std::thread> workers_;

  // The call in flight; written by the caller before generation_ is raised, read by workers after
  // they see it.
  Call call_ = nullptr;
  const void* context_ = nullptr;
  int64_t count_ = 0;
  int64_t grain_ = 1;
  int active_ = 1;
  std::vector<std::exception_ptr> errors_;  // one slot per worker

  std::atomic<uint64_t> generation_{0};
  std::atomic<int> pending_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;  // guards sleeping_ and orders it with generation_
  std::condition_variable wake_;
  int sleeping_ = 0;
};

// Cores this process may run on (its affinity mask, cgroup quota not counted).
int UsableCores();

}  // namespace strata
