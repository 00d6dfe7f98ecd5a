#include "kernels/device.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "kernels/status.h"

namespace strata {
namespace {

TEST(CpuBackendTest, AllocatesZeroedAlignedMemory) {
  const std::unique_ptr<Backend> backend = MakeCpuBackend(1);
  for (size_t bytes : {size_t{1}, size_t{4096}, size_t{1} << 20}) {
    const Buffer buffer = backend->Allocate(bytes);
    EXPECT_GE(buffer.bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0u);
    for (size_t i = 0; i < bytes; ++i) ASSERT_EQ(buffer.data()[i], std::byte{0}) << i;
    std::memset(buffer.data(), 0xff, bytes);  // writable
  }
  EXPECT_NE(backend->Allocate(0).data(), nullptr);
}

TEST(CpuBackendTest, NamesTheBytesItCannotGive) {
  const std::unique_ptr<Backend> backend = MakeCpuBackend(1);
  constexpr size_t kTooMany = size_t{1} << 62;
  try {
    backend->Allocate(kTooMany);
    FAIL() << "no machine has " << kTooMany << " bytes";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCapacity);
    EXPECT_NE(std::string(error.what()).find(std::to_string(kTooMany)), std::string::npos)
        << error.what();
  }
}

TEST(CpuBackendTest, SaysWhatItRunsOn) {
  const std::unique_ptr<Backend> backend = MakeCpuBackend(3);
  EXPECT_NE(backend->Info().name.find("3 threads"), std::string::npos) << backend->Info().name;
  EXPECT_NE(MakeCpuBackend(1)->Info().name.find("1 thread)"), std::string::npos);
  EXPECT_GT(backend->Info().memory_bytes, size_t{1} << 20);
  const Stream stream = backend->DefaultStream();
  EXPECT_EQ(stream.device.kind, DeviceKind::kCpu);
  EXPECT_EQ(stream.pool->threads(), 3);
  EXPECT_EQ(MakeCpuBackend(0)->DefaultStream().pool->threads(), UsableCores());
}

TEST(CpuBackendTest, AGraphRunsItsBodyAtEveryReplay) {
  const std::unique_ptr<Backend> backend = MakeCpuBackend(1);
  const Stream stream = backend->DefaultStream();
  int runs = 0, length = 5, seen = 0;
  const std::unique_ptr<Graph> graph = backend->Capture(stream, [&](Stream used) {
    EXPECT_EQ(used.pool, stream.pool);
    ++runs;
    seen = length;  // lengths are read at replay
  });
  const int captured = runs;
  length = 9;
  graph->Replay(stream);
  EXPECT_EQ(runs, captured + 1);
  EXPECT_EQ(seen, 9);
  backend->Synchronize(stream);
}

// A buffer over memory of the test that counts its releases.
struct Tracked {
  alignas(64) std::byte memory[1024] = {};
  int releases = 0;
  Buffer Make(size_t bytes = sizeof(memory)) {
    return Buffer(memory, bytes, [this](std::byte* data, size_t) {
      EXPECT_EQ(data, memory);
      ++releases;
    });
  }
};

TEST(BufferTest, HasOneOwnerWhichReleasesOnce) {
  Tracked tracked;
  {
    Buffer first = tracked.Make();
    Buffer second = std::move(first);
    EXPECT_EQ(second.data(), tracked.memory);
    Buffer third;
    third = std::move(second);
    EXPECT_EQ(third.bytes(), sizeof(tracked.memory));
    EXPECT_EQ(tracked.releases, 0);
  }
  EXPECT_EQ(tracked.releases, 1);
  { const Buffer empty; }
}

TEST(ArenaTest, TakesAlignedRangesThatDoNotOverlap) {
  Tracked tracked;
  Arena arena(tracked.Make());
  EXPECT_EQ(arena.bytes(), 1024u);
  const View<float, 2> first = arena.Take<float>({3, 5});  // 60 bytes of 64
  const View<int32_t, 1> second = arena.Take<int32_t>({17});
  const View<std::byte, 1> third = arena.Take<std::byte>({1});
  EXPECT_EQ(first.stride[0], 5);
  EXPECT_EQ(first.stride[1], 1);
  EXPECT_EQ(reinterpret_cast<std::byte*>(first.data), tracked.memory);
  EXPECT_EQ(reinterpret_cast<std::byte*>(second.data), tracked.memory + 64);
  EXPECT_EQ(third.data, tracked.memory + 192);
  EXPECT_EQ(arena.used(), 256u);
}

TEST(ArenaTest, ReleaseGivesBackWhatWasTakenSinceTheMark) {
  Tracked tracked;
  Arena arena(tracked.Make());
  arena.TakeBytes(100);
  const size_t mark = arena.used();
  void* const inner = arena.TakeBytes(300);
  arena.Release(mark);
  EXPECT_EQ(arena.TakeBytes(1), inner);
  arena.Reset();
  EXPECT_EQ(arena.used(), 0u);
  EXPECT_EQ(arena.TakeBytes(1), static_cast<void*>(tracked.memory));
}

TEST(ArenaTest, RefusesMoreThanItHoldsAndSaysHowMuch) {
  Tracked tracked;
  Arena arena(tracked.Make());
  arena.TakeBytes(1000);  // rounds to all 1024
  try {
    arena.TakeBytes(65);
    FAIL() << "the arena is full";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    for (const char* number : {"1024", "128"})
      EXPECT_NE(std::string(error.what()).find(number), std::string::npos) << error.what();
  }
  EXPECT_EQ(arena.used(), 1024u);
}

}  // namespace
}  // namespace strata
