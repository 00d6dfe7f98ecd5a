// The thread pool's shares, exceptions and reuse; buffers, arenas and shape errors.
#include "kernels/device.h"

#include <atomic>
#include <chrono>
#include <stdexcept>

#include "tests/kernels/paged_fixture.h"

namespace strata {
namespace {

TEST(ThreadPoolTest, EveryItemRunsOnceInSharesThatStartAtAGrain) {
  for (int threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (int64_t count : {0, 1, 2, 15, 16, 17, 48, 130, 1000}) {
      for (int64_t grain : {1, 4, 16, 200}) {
        std::vector<int> runs(static_cast<size_t>(count));
        std::vector<int64_t> sizes(static_cast<size_t>(threads), -1);
        pool.For(count, grain, [&](int64_t begin, int64_t end, int worker) {
          for (int64_t i = begin; i < end; ++i) ++runs[i];
          sizes[worker] = end - begin;
          if (begin % grain != 0) throw std::logic_error("a share starts between two grains");
        });
        EXPECT_EQ(runs, std::vector<int>(static_cast<size_t>(count), 1)) << threads << " " << count;
        int64_t smallest = count, largest = 0;
        for (int64_t size : sizes) {
          if (size < 0) continue;
          smallest = std::min(smallest, size);
          largest = std::max(largest, size);
        }
        if (count >= grain * threads) {
          EXPECT_LE(largest - smallest, 2 * grain - 1) << count << " " << grain;
        }
      }
    }
  }
}

TEST(ThreadPoolTest, AWorkersExceptionReachesTheCallerAndThePoolStaysUsable) {
  ThreadPool pool(3);
  for (int thrower = 0; thrower < 3; ++thrower) {
    std::atomic<int> finished{0};
    try {
      pool.For(3, 1, [&](int64_t, int64_t, int worker) {
        if (worker == thrower) Fail(ErrorCode::kNumeric, "from worker " + std::to_string(worker));
        ++finished;
      });
      FAIL() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.what(), "from worker " + std::to_string(thrower));
      EXPECT_EQ(error.code(), ErrorCode::kNumeric);
    }
    EXPECT_EQ(finished, 2);  // the others ran to their end
    std::atomic<int64_t> sum{0};
    pool.For(100, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) sum += i;
    });
    EXPECT_EQ(sum, 4950);
  }
  EXPECT_THROW(pool.For(3, 1, [](int64_t, int64_t, int) { throw std::runtime_error("all"); }),
               std::runtime_error);
  pool.For(3, 1, [](int64_t, int64_t, int) {});  // no error is left over
}

TEST(ThreadPoolTest, ManyShortCallsAndPauses) {
  ThreadPool pool(3);
  std::vector<int64_t> totals(3);
  for (int round = 0; round < 600; ++round) {
    if (round % 150 == 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(3));  // the workers fall asleep
    pool.For(3, 1, [&](int64_t begin, int64_t end, int worker) { totals[worker] += end - begin; });
  }
  EXPECT_EQ(totals, (std::vector<int64_t>{600, 600, 600}));
}

TEST(DeviceTest, BuffersAreZeroAlignedAndMove) {
  const std::unique_ptr<Backend> backend = MakeCpuBackend(2);
  EXPECT_NE(backend->Info().name.find("2 threads"), std::string::npos) << backend->Info().name;
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{100}, size_t{1} << 20}) {
    Buffer buffer = backend->Allocate(bytes);
    ASSERT_NE(buffer.data(), nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0u);
    for (size_t i = 0; i < bytes; ++i) ASSERT_EQ(buffer.data()[i], std::byte{0});
    std::byte* data = buffer.data();
    Buffer other = std::move(buffer);
    EXPECT_EQ(other.data(), data);
    EXPECT_EQ(buffer.data(), nullptr);
  }
  const std::string message =
      MessageOf(ErrorCode::kCapacity, [&] { backend->Allocate(size_t{1} << 62); });
  EXPECT_NE(message.find("4611686018427387904"), std::string::npos) << message;
}

TEST(DeviceTest, ArenaHandsOutAlignedPiecesUntilItIsFull) {
  Arena arena(MakeCpuBackend(1)->Allocate(1024));
  const View<float, 2> first = arena.Take<float>({3, 5});
  const View<float, 1> second = arena.Take<float>({1});
  EXPECT_EQ(first.stride[0], 5);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(second.data) % 64, 0u);
  EXPECT_GE(second.data, first.data + 15);
  const size_t mark = arena.used();
  arena.Take<float>({64});
  arena.Release(mark);
  EXPECT_EQ(arena.used(), mark);
  const std::string message = MessageOf(ErrorCode::kInternal, [&] { arena.Take<float>({1024}); });
  EXPECT_NE(message.find("1024"), std::string::npos) << message;
  EXPECT_NE(message.find("4096"), std::string::npos) << message;
  arena.Reset();
  EXPECT_EQ(arena.Take<float>({256}).data, first.data);
}

TEST(DeviceTest, AGraphRunsItsBodyAtEachReplay) {
  const std::unique_ptr<Backend> backend = MakeCpuBackend(1);
  int runs = 0;
  const std::unique_ptr<Graph> graph =
      backend->Capture(backend->DefaultStream(), [&](Stream) { ++runs; });
  const int captured = runs;
  graph->Replay(backend->DefaultStream());
  graph->Replay(backend->DefaultStream());
  EXPECT_EQ(runs, captured + 2);
}

TEST(ViewTest, RowsAndColumnsKeepTheirStrides) {
  std::vector<int> values(24);
  std::iota(values.begin(), values.end(), 0);
  const View<int, 2> view = MakeView(values.data(), {4, 6});
  const View<int, 2> part = view.Rows(1, 3).Columns(2, 5);
  EXPECT_EQ(part.dim(0), 2);
  EXPECT_EQ(part.dim(1), 3);
  EXPECT_EQ(part(1, 2), 16);
  EXPECT_TRUE(view.Rows(2, 2).empty());
}

TEST(ViewTest, AShapeErrorNamesOpViewDimensionAndBothNumbers) {
  std::vector<float> values(24);
  Dim rows{"rows"}, width{"width"};
  Match("Op", "first", MakeView(values.data(), {4, 6}), {&rows, &width});
  const std::string message = MessageOf(ErrorCode::kShape, [&] {
    Match("Op", "second", MakeView(values.data(), {4, 5}), {&rows, &width});
  });
  for (const char* part : {"Op", "second", "width", "dimension 1", "5", "6"})
    EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
}

}  // namespace
}  // namespace strata
