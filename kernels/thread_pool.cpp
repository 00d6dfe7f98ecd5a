#include "kernels/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <exception>

namespace strata {

namespace {

// Long enough to bridge the gap between two ops of a step, short enough not to burn a core between
// tokens.
constexpr int kSpins = 4000;

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

int UsableCores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

ThreadPool::ThreadPool(int threads) : threads_(std::max(1, threads)), errors_(threads_) {
  workers_.reserve(threads_ - 1);
  for (int worker = 1; worker < threads_; ++worker) {
    workers_.emplace_back([this, worker] { WorkerLoop(worker); });
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_.store(true);
    generation_.fetch_add(1);
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::RunShare(int worker) {
  const int64_t blocks = (count_ + grain_ - 1) / grain_;
  const int64_t begin = blocks * worker / active_ * grain_;
  const int64_t end = std::min(count_, blocks * (worker + 1) / active_ * grain_);
  if (begin >= end) return;
  try {
    call_(context_, begin, end, worker);
  } catch (...) {
    errors_[worker] = std::current_exception();
  }
}

void ThreadPool::Run(int64_t count, int64_t grain, Call call, const void* context) {
  if (count <= 0) return;
  call_ = call;
  context_ = context;
  count_ = count;
  grain_ = std::max<int64_t>(1, grain);
  active_ = threads_;
  if (threads_ == 1 || count_ <= grain_) {
    active_ = 1;
    call(context, 0, count, 0);
    return;
  }
  pending_.store(threads_ - 1, std::memory_order_relaxed);
  bool sleepers;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    generation_.fetch_add(1, std::memory_order_release);
    sleepers = sleeping_ > 0;
  }
  if (sleepers) wake_.notify_all();
  RunShare(0);
  for (int spins = 0; pending_.load(std::memory_order_acquire) != 0; ++spins) {
    if (spins < kSpins) {
      Pause();
    } else {
      std::this_thread::yield();
    }
  }
  for (std::exception_ptr& error : errors_) {
    if (error) {
      std::exception_ptr first = nullptr;
      std::swap(first, error);
      for (std::exception_ptr& other : errors_) other = nullptr;
      std::rethrow_exception(first);
    }
  }
}

void ThreadPool::WorkerLoop(int worker) {
  uint64_t seen = 0;
  for (;;) {
    int spins = 0;
    while (generation_.load(std::memory_order_acquire) == seen) {
      if (++spins < kSpins) {
        Pause();
        continue;
      }
      std::unique_lock<std::mutex> lock(mutex_);
      ++sleeping_;
      wake_.wait(lock, [&] { return generation_.load(std::memory_order_acquire) != seen; });
      --sleeping_;
    }
    ++seen;
    if (stop_.load()) return;
    RunShare(worker);
    pending_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace strata
