#include "kernels/thread_pool.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <exception>

#include "kernels/status.h"

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

// offer_ is call number * 2^32 + shares * 2^16 + next share.
constexpr int kMaxThreads = 1 << 15;
uint32_t CallOf(uint64_t offer) { return static_cast<uint32_t>(offer >> 32); }
int SharesOf(uint64_t offer) { return static_cast<int>(offer >> 16 & 0xffff); }
int NextOf(uint64_t offer) { return static_cast<int>(offer & 0xffff); }
bool IsOpen(uint64_t offer) { return NextOf(offer) < SharesOf(offer); }

}  // namespace

int UsableCores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

ThreadPool::ThreadPool(int threads)
    : threads_(std::clamp(threads, 1, kMaxThreads)), errors_(threads_) {
  workers_.reserve(threads_ - 1);
  try {
    for (int worker = 1; worker < threads_; ++worker)
      workers_.emplace_back([this] { WorkerLoop(); });
  } catch (const std::exception& error) {  // the system has no thread, or no memory for one
    Stop();
    Fail(ErrorCode::kCapacity, fmt::format("only {} of {} CPU threads could be started ({}); lower "
                                           "--threads",
                                           workers_.size() + 1, threads_, error.what()));
  }
}

ThreadPool::~ThreadPool() { Stop(); }

void ThreadPool::Stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_.store(true);
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::RunShare(int share, int shares) {
  const int64_t blocks = (count_ + grain_ - 1) / grain_;
  const int64_t begin = blocks * share / shares * grain_;
  const int64_t end = std::min(count_, blocks * (share + 1) / shares * grain_);
  try {
    call_(context_, begin, end, share);
  } catch (...) {
    errors_[share] = std::current_exception();
  }
}

bool ThreadPool::RunOneShare() {
  uint64_t offer = offer_.load(std::memory_order_acquire);
  while (IsOpen(offer)) {
    // Succeeds only while the offer is the one that was read: its call then waits for this share.
    if (!offer_.compare_exchange_weak(offer, offer + 1, std::memory_order_acq_rel)) continue;
    RunShare(NextOf(offer), SharesOf(offer));
    finished_.fetch_add(1, std::memory_order_release);
    return true;
  }
  return false;
}

void ThreadPool::Run(int64_t count, int64_t grain, Call call, const void* context) {
  if (count <= 0) return;
  grain = std::max<int64_t>(1, grain);
  if (threads_ == 1 || count <= grain) return call(context, 0, count, 0);
  call_ = call;
  context_ = context;
  count_ = count;
  grain_ = grain;
  const int shares = static_cast<int>(std::min<int64_t>(threads_, (count + grain - 1) / grain));
  finished_.store(0, std::memory_order_relaxed);
  const uint64_t number = CallOf(offer_.load(std::memory_order_relaxed)) + uint64_t{1};
  bool sleepers;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    offer_.store(number << 32 | static_cast<uint64_t>(shares) << 16, std::memory_order_release);
    sleepers = sleeping_ > 0;
  }
  if (sleepers) wake_.notify_all();
  while (RunOneShare()) {
  }
  for (int spins = 0; finished_.load(std::memory_order_acquire) != shares; ++spins) {
    if (spins < kSpins) {
      Pause();
    } else {
      std::this_thread::yield();
    }
  }
  std::exception_ptr first = nullptr;
  for (std::exception_ptr& error : errors_) {
    if (error && !first) first = error;
    error = nullptr;
  }
  if (first) std::rethrow_exception(first);
}

void ThreadPool::WorkerLoop() {
  for (int spins = 0;;) {
    if (stop_.load(std::memory_order_relaxed)) return;
    if (RunOneShare()) {
      spins = 0;
    } else if (++spins < kSpins) {
      Pause();
    } else {
      spins = 0;
      std::unique_lock<std::mutex> lock(mutex_);
      ++sleeping_;
      wake_.wait(lock, [&] { return stop_.load() || IsOpen(offer_.load()); });
      --sleeping_;
    }
  }
}

}  // namespace strata
