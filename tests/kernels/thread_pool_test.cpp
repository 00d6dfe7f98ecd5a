#include "kernels/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>

#include "kernels/status.h"

namespace strata {
namespace {

struct Share {
  int64_t begin, end;
};
// The shares of one call by their number; begin -1 where a number was not used.
std::vector<Share> Shares(ThreadPool& pool, int64_t count, int64_t grain) {
  std::vector<Share> shares(static_cast<size_t>(pool.threads()), Share{-1, -1});
  pool.For(count, grain, [&](int64_t begin, int64_t end, int share) {
    EXPECT_EQ(shares[static_cast<size_t>(share)].begin, -1) << "share " << share << " ran twice";
    shares[static_cast<size_t>(share)] = {begin, end};
  });
  return shares;
}

TEST(ThreadPoolTest, SharesCoverEveryItemOnceInOrder) {
  for (int threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (int64_t count : {1, 2, 5, 7, 64, 1000}) {
      for (int64_t grain : {1, 3, 16, 2000}) {
        int64_t next = 0, smallest = count, largest = 0;
        for (const Share& share : Shares(pool, count, grain)) {
          if (share.begin < 0) continue;
          EXPECT_EQ(share.begin, next);
          EXPECT_EQ(share.begin % grain, 0);
          next = share.end;
          smallest = std::min(smallest, share.end - share.begin);
          largest = std::max(largest, share.end - share.begin);
        }
        EXPECT_EQ(next, count) << threads << " threads, grain " << grain;
        // The last share may miss part of its last grain.
        EXPECT_LE(largest - smallest, 2 * grain - 1) << threads << " threads, grain " << grain;
      }
    }
  }
}

TEST(ThreadPoolTest, CallsThatDoNotFillAGrainRunOnTheCaller) {
  ThreadPool pool(3);
  const std::thread::id caller = std::this_thread::get_id();
  pool.For(16, 16, [&](int64_t begin, int64_t end, int share) {
    EXPECT_EQ(begin, 0);
    EXPECT_EQ(end, 16);
    EXPECT_EQ(share, 0);
    EXPECT_EQ(std::this_thread::get_id(), caller);
  });
  pool.For(0, 1, [&](int64_t, int64_t, int) { FAIL() << "no items, no call"; });
  pool.For(-5, 1, [&](int64_t, int64_t, int) { FAIL() << "no items, no call"; });
}

TEST(ThreadPoolTest, AtLeastOneThreadWhateverIsAskedFor) {
  for (int threads : {0, -3}) EXPECT_EQ(ThreadPool(threads).threads(), 1);
  EXPECT_GE(UsableCores(), 1);
}

// Exits with 0 when that is refused.
void StartMoreThreadsThanFit() {
  // Room for a few stacks.
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t bytes = static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE)) + (64 << 20);
  const rlimit tight = {bytes, bytes};
  setrlimit(RLIMIT_AS, &tight);
  try {
    ThreadPool pool(1024);
  } catch (const Error& error) {
    std::fputs(error.what(), stderr);
    std::_Exit(error.code() == ErrorCode::kCapacity ? 0 : 1);
  }
  std::_Exit(1);
}

TEST(ThreadPoolTest, ThreadsThatCannotBeStartedAreSaid) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer ends the program when memory is refused";
#endif
  EXPECT_EXIT(StartMoreThreadsThanFit(), ::testing::ExitedWithCode(0),
              "of 1024 CPU threads could be started .* --threads");
}

TEST(ThreadPoolTest, OtherThreadsTakePart) {
  ThreadPool pool(2);
  std::atomic<int> arrived{0};
  // Each share waits for the other: only two threads at once can finish this.
  pool.For(2, 1, [&](int64_t, int64_t, int) {
    ++arrived;
    while (arrived.load() < 2) std::this_thread::yield();
  });
  EXPECT_EQ(arrived.load(), 2);
}

TEST(ThreadPoolTest, ManyCallsInARowEachSeeTheirOwnBody) {
  ThreadPool pool(3);
  std::vector<int64_t> sums(3);
  for (int64_t call = 0; call < 20'000; ++call) {
    std::fill(sums.begin(), sums.end(), 0);
    pool.For(9, 1, [&](int64_t begin, int64_t end, int share) {
      for (int64_t i = begin; i < end; ++i) sums[static_cast<size_t>(share)] += call + i;
    });
    ASSERT_EQ(sums[0] + sums[1] + sums[2], 9 * call + 36) << "call " << call;
  }
}

TEST(ThreadPoolTest, WorksAgainAfterItsThreadsWentToSleep) {
  ThreadPool pool(3);
  for (int round = 0; round < 3; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::atomic<int> arrived{0};
    pool.For(3, 1, [&](int64_t, int64_t, int) {
      ++arrived;
      while (arrived.load() < 3) std::this_thread::yield();
    });
    EXPECT_EQ(arrived.load(), 3);
  }
}

TEST(ThreadPoolTest, RethrowsTheExceptionOfAnyShareAndStaysUsable) {
  ThreadPool pool(3);
  for (int64_t thrower : {0, 1, 2}) {
    std::atomic<int> finished{0};
    try {
      pool.For(3, 1, [&](int64_t begin, int64_t, int) {
        if (begin == thrower) throw std::runtime_error("share " + std::to_string(begin));
        ++finished;
      });
      FAIL() << "share " << thrower << " threw";
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(error.what(), "share " + std::to_string(thrower));
    }
    EXPECT_EQ(finished.load(), 2) << "the other shares still run to their end";
    int64_t items = 0;
    for (const Share& share : Shares(pool, 30, 1)) items += share.end - share.begin;
    EXPECT_EQ(items, 30);
  }
}

TEST(ThreadPoolTest, OneOfSeveralExceptionsIsRethrown) {
  ThreadPool pool(3);
  EXPECT_THROW(pool.For(3, 1, [](int64_t, int64_t, int) { throw std::logic_error("each"); }),
               std::logic_error);
  EXPECT_NO_THROW(Shares(pool, 3, 1));
  ThreadPool single(1);
  EXPECT_THROW(single.For(3, 1, [](int64_t, int64_t, int) { throw std::logic_error("alone"); }),
               std::logic_error);
}

}  // namespace
}  // namespace strata
