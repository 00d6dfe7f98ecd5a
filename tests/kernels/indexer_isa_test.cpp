// The indexer path's loops give the same bits at every vector width this machine has.
#include "kernels/cpu/isa.h"
#include "kernels/cpu/isa/attend.h"
#include "kernels/cpu/isa/scan.h"
#include "kernels/cpu/isa/select.h"
#include "kernels/order.h"
#include "tests/kernels/paged_fixture.h"

namespace strata::cpu {
namespace {

struct Level {
  Isa isa;
  const ScanLoops* scan;
  const AttendLoops* attend;
  const SelectLoops* select;
};
// The levels above the baseline that can run here.
std::vector<Level> WiderLevels() {
  std::vector<Level> levels;
  const Level all[] = {
      {Isa::kAvx2, &avx2::kScanLoops, &avx2::kAttendLoops, &avx2::kSelectLoops},
      {Isa::kAvx512, &avx512::kScanLoops, &avx512::kAttendLoops, &avx512::kSelectLoops}};
  for (const Level& level : all) {
    if (IsaSupported(level.isa)) levels.push_back(level);
  }
  return levels;
}

// Stored values of any type that are numbers: random bytes with the patterns of NaN and infinity
// avoided.
std::vector<std::byte> RandomCodes(DType dtype, int64_t values, uint64_t seed) {
  Random random(seed);
  std::vector<std::byte> bytes(static_cast<size_t>(values * DTypeBytes(dtype)));
  for (int64_t i = 0; i < values; ++i) {
    const float value = random.Normal();
    std::byte* out = &bytes[static_cast<size_t>(i * DTypeBytes(dtype))];
    if (dtype == DType::kF32) std::memcpy(out, &value, 4);
    if (dtype == DType::kBf16) {
      const uint16_t bits = FloatToBf16(value);
      std::memcpy(out, &bits, 2);
    }
    if (dtype == DType::kInt8) *out = std::byte(static_cast<uint8_t>(random.Below(256)));
    if (dtype == DType::kFp8E4M3) {
      const uint8_t code = static_cast<uint8_t>(random.Below(256));
      *out = std::byte{(code & 0x7f) == 0x7f ? uint8_t{0x55} : code};
    }
  }
  return bytes;
}

TEST(IndexerIsaTest, ScanLoops) {
  for (DType dtype : {DType::kF32, DType::kBf16, DType::kFp8E4M3}) {
    for (int64_t dim : {1, 16, 40, 128}) {
      for (int64_t heads : {1, 4, 7, 32}) {
        for (int64_t count : {1, 16, 17, 33, 64}) {
          SCOPED_TRACE(std::string(DTypeName(dtype)) + ", dim " + std::to_string(dim) + ", heads " +
                       std::to_string(heads) + ", keys " + std::to_string(count));
          const std::vector<std::byte> codes = RandomCodes(dtype, count * dim, 3);
          std::vector<const std::byte*> keys;
          for (int64_t j = 0; j < count; ++j)
            keys.push_back(&codes[static_cast<size_t>(j * dim * DTypeBytes(dtype))]);
          const std::vector<float> query = Random(4).Normals(heads * dim),
                                   weights = Random(5).Normals(heads);
          const std::vector<float> scales = Random(6).Normals(kScanTile);
          const auto run = [&](const ScanLoops& loops) {
            std::vector<float> panel(static_cast<size_t>(kScanTile * PanelValues(dtype, dim)),
                                     Poison());
            std::vector<float> scores(static_cast<size_t>(kScanTile), Poison());
            loops.fill_panel(keys.data(), count, dtype, dim, panel.data());
            loops.score_row({.query = query.data(),
                             .head_stride = dim,
                             .weights = weights.data(),
                             .heads = heads,
                             .dim = dim,
                             .panel = panel.data(),
                             .panel_values = PanelValues(dtype, dim),
                             .key_scales = dtype == DType::kFp8E4M3 ? scales.data() : nullptr,
                             .visible = count,
                             .scores = scores.data()});
            return std::pair(panel, scores);
          };
          const auto expected = run(baseline::kScanLoops);
          for (const Level& level : WiderLevels()) {
            const auto found = run(*level.scan);
            ASSERT_TRUE(SameBits(found.first, expected.first)) << IsaName(level.isa) << " panel";
            ASSERT_TRUE(SameBits(found.second, expected.second)) << IsaName(level.isa) << " scores";
          }
        }
      }
    }
  }
}

TEST(IndexerIsaTest, AttendLoops) {
  for (DType dtype : {DType::kF32, DType::kBf16, DType::kInt8, DType::kFp8E4M3}) {
    for (auto [latent, rope] : {std::pair<int64_t, int64_t>{256, 64}, {144, 0}, {40, 6}, {7, 1}}) {
      for (int64_t heads : {1, 8, 11}) {
        for (int64_t count : {1, 16, 37}) {
          SCOPED_TRACE(std::string(DTypeName(dtype)) + " " + std::to_string(latent) + " + " +
                       std::to_string(rope) + ", heads " + std::to_string(heads) + ", cells " +
                       std::to_string(count));
          const LatentLayout layout{.dtype = dtype, .latent = latent, .rope = rope};
          const bool quantised = dtype == DType::kInt8 || dtype == DType::kFp8E4M3;
          std::vector<std::byte> memory;
          for (int64_t j = 0; j < count; ++j) {
            std::vector<std::byte> row = RandomCodes(dtype, latent, static_cast<uint64_t>(10 + j));
            if (quantised) {
              const std::vector<float> scales =
                  Random(static_cast<uint64_t>(j)).Normals(layout.ScaleBytes() / 4);
              const std::byte* bytes = reinterpret_cast<const std::byte*>(scales.data());
              row.insert(row.end(), bytes, bytes + layout.ScaleBytes());
            }
            const std::vector<std::byte> tail =
                RandomCodes(quantised ? DType::kBf16 : dtype, rope, 99);
            row.insert(row.end(), tail.begin(), tail.end());
            ASSERT_EQ(static_cast<int64_t>(row.size()), layout.RowBytes());
            memory.insert(memory.end(), row.begin(), row.end());
          }
          std::vector<const std::byte*> cells;
          for (int64_t j = 0; j < count; ++j)
            cells.push_back(&memory[static_cast<size_t>(j * layout.RowBytes())]);
          const std::vector<float> query = Random(4).Normals(heads * (latent + rope));
          const int64_t stride = (count + 15) / 16 * 16;
          const auto run = [&](const AttendLoops& loops) {
            std::vector<float> probabilities(static_cast<size_t>(heads * stride), Poison());
            std::vector<float> sums(static_cast<size_t>(heads)), maxima(static_cast<size_t>(heads));
            std::vector<float> out(static_cast<size_t>(heads * latent), Poison());
            std::vector<float> cells_fp32(static_cast<size_t>(2 * AttendCellFloats(latent, rope)),
                                          Poison());
            const AttendArgs args{.cells = cells.data(),
                                  .count = count,
                                  .dtype = dtype,
                                  .latent = latent,
                                  .rope = rope,
                                  .rope_offset = quantised ? latent + layout.ScaleBytes()
                                                           : latent * DTypeBytes(dtype),
                                  .scale_offset = latent,
                                  .query = query.data(),
                                  .query_stride = latent + rope,
                                  .heads = heads,
                                  .scale = 0.07f,
                                  .probabilities = probabilities.data(),
                                  .probability_stride = stride,
                                  .sums = sums.data(),
                                  .maxima = maxima.data(),
                                  .out = out.data(),
                                  .out_stride = latent,
                                  .cells_fp32 = cells_fp32.data()};
            // Cut where a thread's share may end: scores after any cell, values after any run of
            // sixteen.
            loops.scores(args, 0, count / 2);
            loops.scores(args, count / 2, count);
            loops.softmax(args);
            loops.values(args, 0, latent / 32 * 16);
            loops.values(args, latent / 32 * 16, latent);
            std::vector<float> all = probabilities;
            for (const std::vector<float>* more : {&sums, &maxima, &out})
              all.insert(all.end(), more->begin(), more->end());
            return all;
          };
          const std::vector<float> expected = run(baseline::kAttendLoops);
          for (const Level& level : WiderLevels()) {
            ASSERT_TRUE(SameBits(run(*level.attend), expected)) << IsaName(level.isa);
          }
        }
      }
    }
  }
}

TEST(IndexerIsaTest, SelectLoops) {
  for (int64_t n : {1, 15, 16, 17, 100, 1000}) {
    std::vector<float> scores = Random(static_cast<uint64_t>(n)).Normals(n);
    for (int64_t i = 0; i < n; i += 3) scores[i] = 0.25f;
    for (int64_t i = 1; i < n; i += 7) scores[i] = i % 2 == 0 ? 0.0f : -0.0f;
    const float specials[] = {kNaN,       -kNaN,          kInfinity,
                              -kInfinity, BitsToFloat(1), BitsToFloat(0x80000001)};
    for (int64_t i = 0; i < 6 && 11 * i < n; ++i) scores[11 * i] = specials[i];
    // Everything a level gives, in one list; places behind an append are not compared.
    const auto run = [&](const SelectLoops& loops) {
      std::vector<int64_t> all;
      std::vector<uint32_t> keys(static_cast<size_t>(n + kAppendSlack)), kept(keys);
      KeyRange range = loops.order_keys(scores.data(), n, keys.data());
      all.insert(all.end(), {range.lowest, range.highest});
      all.insert(all.end(), keys.begin(), keys.begin() + n);
      std::vector<int32_t> positions(keys.size()), equal(keys.size()), picked(keys.size());
      for (float threshold : {0.25f, 0.0f, -kInfinity, kInfinity, 2.0f}) {
        for (int64_t capacity : {n, n / 3}) {
          Collected out{.keys = kept.data(),
                        .positions = positions.data(),
                        .count = 0,
                        .capacity = capacity,
                        .equal_positions = equal.data(),
                        .equal_count = 0,
                        .equal_capacity = n / 5};
          loops.collect(scores.data(), n / 4, n, threshold, &out);
          all.insert(all.end(), {out.count, out.equal_count});
          if (out.count > capacity) continue;
          all.insert(all.end(), kept.begin(), kept.begin() + out.count);
          all.insert(all.end(), positions.begin(), positions.begin() + out.count);
          all.insert(all.end(), equal.begin(), equal.begin() + out.equal_count);
          const int64_t emitted = loops.emit(kept.data(), positions.data(), out.count,
                                             OrderKey(FloatToBits(0.5f)), 2, picked.data());
          all.push_back(emitted);
          all.insert(all.end(), picked.begin(), picked.begin() + emitted);
        }
      }
      KeyRange part = {OrderKey(FloatToBits(-1.0f)), OrderKey(FloatToBits(1.0f))};
      const int64_t members = loops.keep_range(keys.data(), n, &part, kept.data());
      all.insert(all.end(), {members, part.lowest, part.highest});
      all.insert(all.end(), kept.begin(), kept.begin() + members);
      for (int64_t ties : {0, 1, 20}) {
        const int64_t emitted =
            loops.emit(keys.data(), nullptr, n, OrderKey(FloatToBits(0.25f)), ties, picked.data());
        all.push_back(emitted);
        all.insert(all.end(), picked.begin(), picked.begin() + emitted);
      }
      return all;
    };
    const std::vector<int64_t> expected = run(baseline::kSelectLoops);
    for (const Level& level : WiderLevels())
      ASSERT_EQ(run(*level.select), expected) << IsaName(level.isa) << ", " << n;
    // The baseline's own keys are those of the declared order.
    for (int64_t i = 0; i < n; ++i)
      ASSERT_EQ(expected[2 + i], int64_t{OrderKey(FloatToBits(scores[i]))}) << i;
  }
}

}  // namespace
}  // namespace strata::cpu
