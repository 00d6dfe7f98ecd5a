#include "kernels/cache_write.h"

#include "tests/kernels/paged_fixture.h"

namespace strata {
namespace {

struct LatentCase {
  DType dtype;
  int64_t latent;
  int64_t rope;
};
std::string LatentName(const LatentCase& c) {
  return std::string(DTypeName(c.dtype)) + " " + std::to_string(c.latent) + " + " +
         std::to_string(c.rope);
}
std::vector<LatentCase> LatentCases() {
  std::vector<LatentCase> cases;
  for (DType dtype : {DType::kF32, DType::kBf16, DType::kInt8, DType::kFp8E4M3}) {
    for (auto [latent, rope] : {std::pair<int64_t, int64_t>{512, 64}, {32, 0}, {200, 8}, {33, 5}}) {
      cases.push_back({dtype, latent, rope});
    }
  }
  return cases;
}

// The step between neighbouring e4m3 values around a magnitude.
double Fp8Step(double magnitude) {
  return magnitude < std::ldexp(1.0, -6) ? std::ldexp(1.0, -9)
                                         : std::ldexp(1.0, std::ilogb(magnitude) - 3);
}
double Bf16Step(double magnitude) {
  return magnitude == 0.0 ? std::ldexp(1.0, -133)
                          : std::ldexp(1.0, std::max(std::ilogb(magnitude), -126) - 7);
}

// Rows of three sequences at positions around page edges, one of them negative.
struct LatentStep {
  Groups groups{{{0, 4}, {2, 3}, {1, 2}}};
  std::vector<int32_t> positions = {62, 63, 64, 65, 0, -1, 1, 130, 131};
  std::vector<float> values;
  int64_t width;

  LatentStep(int64_t width_, uint64_t seed) : width(width_) {
    Random random(seed);
    values = random.Normals(groups.rows() * width);
    // Magnitudes far apart between rows and within a row: a scale of the wrong row or block shows.
    for (int64_t row = 0; row < groups.rows(); ++row) {
      for (int64_t i = 0; i < width; ++i) {
        values[static_cast<size_t>(row * width + i)] *=
            std::ldexp(1.3f, static_cast<int>(row % 7 - i / 128));
      }
    }
  }
  void Write(LatentMemory& memory, int threads) const {
    CpuStream stream(threads);
    stream.Execute(WriteLatent{.values = MakeView(values.data(), {groups.rows(), width}),
                               .rows = groups.Map(),
                               .positions = MakeView(positions.data(), {groups.rows()}),
                               .pages = memory.pages});
  }
};

TEST(WriteLatentTest, StoresTheNearestCodesUnderTheDeclaredScales) {
  for (const LatentCase& c : LatentCases()) {
    SCOPED_TRACE(LatentName(c));
    LatentMemory memory({.dtype = c.dtype, .latent = c.latent, .rope = c.rope}, 3, 3, 7);
    const LatentStep step(c.latent + c.rope, 11);
    step.Write(memory, 2);
    for (int64_t row = 0; row < step.groups.rows(); ++row) {
      const int32_t position = step.positions[row];
      if (position < 0) continue;
      const float* x = &step.values[static_cast<size_t>(row * step.width)];
      const std::byte* stored = CellAddress(memory.pages, step.groups.sequence[row], position);
      const std::vector<float> read = ReadCell(memory.pages, step.groups.sequence[row], position);
      for (int64_t i = 0; i < step.width; ++i) {
        double allowed = 0.0;
        if (c.dtype == DType::kBf16 || i >= c.latent) allowed = 0.5 * Bf16Step(std::fabs(x[i]));
        if (c.dtype == DType::kF32) allowed = 0.0;
        if (i < c.latent && (c.dtype == DType::kInt8 || c.dtype == DType::kFp8E4M3)) {
          const bool fp8 = c.dtype == DType::kFp8E4M3;
          const int64_t begin = fp8 ? i / kFp8ScaleBlock * kFp8ScaleBlock : 0;
          const int64_t end = fp8 ? std::min(c.latent, begin + kFp8ScaleBlock) : c.latent;
          float largest = 0.0f;
          for (int64_t j = begin; j < end; ++j) largest = std::max(largest, std::fabs(x[j]));
          const float scale =
              ReadAs<float>(stored + c.latent + (fp8 ? begin / kFp8ScaleBlock * 4 : 0));
          ASSERT_EQ(scale, largest / (fp8 ? 448.0f : 127.0f)) << "row " << row << " value " << i;
          const double ratio = std::fabs(static_cast<double>(x[i]) / scale);
          // Half a step, and the rounding of x / scale and of code * scale.
          allowed = scale * (0.5 * (fp8 ? Fp8Step(ratio) : 1.0) + ratio * 3e-7);
        }
        ASSERT_LE(std::fabs(static_cast<double>(read[i]) - x[i]), allowed)
            << "row " << row << " value " << i;
      }
    }
  }
}

TEST(WriteLatentTest, WritesItsRowsAndNothingElse) {
  for (const LatentCase& c : LatentCases()) {
    SCOPED_TRACE(LatentName(c));
    const LatentLayout layout{.dtype = c.dtype, .latent = c.latent, .rope = c.rope};
    LatentMemory memory(layout, 3, 3, 7);
    LatentMemory expected = memory;
    const LatentStep step(c.latent + c.rope, 11);
    step.Write(memory, 1);
    for (int64_t row = 0; row < step.groups.rows(); ++row) {
      if (step.positions[row] < 0) continue;
      const int64_t sequence = step.groups.sequence[row];
      std::memcpy(CellAddress(expected.pages, sequence, step.positions[row]),
                  CellAddress(memory.pages, sequence, step.positions[row]),
                  static_cast<size_t>(layout.RowBytes()));
      // What was copied is the row and not the poison.
      EXPECT_NE(ReadAs<uint16_t>(CellAddress(memory.pages, sequence, step.positions[row])), 0xabab);
    }
    EXPECT_EQ(memory.bytes, expected.bytes);
  }
}

TEST(WriteLatentTest, SameBytesFromAnyThreadCount) {
  for (const LatentCase& c : LatentCases()) {
    SCOPED_TRACE(LatentName(c));
    const LatentLayout layout{.dtype = c.dtype, .latent = c.latent, .rope = c.rope};
    LatentMemory one(layout, 3, 3, 7), three(layout, 3, 3, 7);
    const LatentStep step(c.latent + c.rope, 5);
    step.Write(one, 1);
    step.Write(three, 3);
    EXPECT_EQ(one.bytes, three.bytes);
  }
}

// One row of `values` through the cache and back.
std::vector<float> LatentRoundTrip(const LatentLayout& layout, const std::vector<float>& values) {
  LatentMemory memory(layout, 1, 1, 3);
  CpuStream stream(1);
  const Groups groups({{0, 1}});
  const std::vector<int32_t> positions = {5};
  stream.Execute(WriteLatent{.values = MakeView(values.data(), {1, layout.latent + layout.rope}),
                             .rows = groups.Map(),
                             .positions = MakeView(positions.data(), {1}),
                             .pages = memory.pages});
  return ReadCell(memory.pages, 0, 5);
}

TEST(WriteLatentTest, ZerosReadBackAsZerosUnderScaleOne) {
  for (DType dtype : {DType::kInt8, DType::kFp8E4M3}) {
    const LatentLayout layout{.dtype = dtype, .latent = 256, .rope = 4};
    LatentMemory memory(layout, 1, 1, 3);
    CpuStream stream(1);
    const Groups groups({{0, 1}});
    const std::vector<int32_t> positions = {0};
    const std::vector<float> values(260, 0.0f);
    stream.Execute(WriteLatent{.values = MakeView(values.data(), {1, 260}),
                               .rows = groups.Map(),
                               .positions = MakeView(positions.data(), {1}),
                               .pages = memory.pages});
    EXPECT_EQ(ReadAs<float>(CellAddress(memory.pages, 0, 0) + 256), 1.0f);
    EXPECT_TRUE(SameBits(ReadCell(memory.pages, 0, 0), values));
  }
}

TEST(WriteLatentTest, ValuesTooSmallForAScaleStayFinite) {
  for (DType dtype : {DType::kInt8, DType::kFp8E4M3}) {
    const LatentLayout layout{.dtype = dtype, .latent = 128, .rope = 0};
    std::vector<float> values(128, 0.0f);
    values[3] = 1e-44f;
    const std::vector<float> read = LatentRoundTrip(layout, values);
    for (int i = 0; i < 128; ++i)
      EXPECT_LE(std::fabs(read[i]), 2e-44f) << DTypeName(dtype) << " value " << i;
  }
}

TEST(WriteLatentTest, NaNIsStoredSoThatReadersSeeNaN) {
  for (DType dtype : {DType::kF32, DType::kBf16, DType::kInt8, DType::kFp8E4M3}) {
    std::vector<float> values = Random(1).Normals(160);
    values[37] = kNaN;
    values[150] = kNaN;
    const std::vector<float> read =
        LatentRoundTrip({.dtype = dtype, .latent = 128, .rope = 32}, values);
    EXPECT_TRUE(std::isnan(read[37])) << DTypeName(dtype);
    EXPECT_TRUE(std::isnan(read[150])) << DTypeName(dtype);
  }
}

// ---- index keys ----

TEST(WriteIndexKeysTest, EveryKeyHasItsOwnScaleBehindThePagesKeys) {
  // Scales differ per token and are no powers of two; the second layer holds other data under the
  // same table.
  const KeyLayout layout{.dtype = DType::kFp8E4M3, .dim = 128, .kpool = 1};
  const int64_t tokens = 130;
  for (uint64_t layer : {0u, 1u}) {
    KeyMemory memory(layout, 2, 3, 9);
    std::vector<float> keys(static_cast<size_t>(tokens * 128));
    Random random(20 + layer);
    std::vector<int32_t> positions(tokens);
    for (int64_t t = 0; t < tokens; ++t) {
      positions[t] = static_cast<int32_t>(t);
      for (int64_t d = 0; d < 128; ++d) keys[t * 128 + d] = random.Uniform(-1.0f, 1.0f);
      keys[t * 128 + t % 128] = -1.0f;  // the largest magnitude
      for (int64_t d = 0; d < 128; ++d)
        keys[t * 128 + d] *= 448.0f * std::ldexp(1.3f, static_cast<int>(t % 7));
    }
    std::fill_n(&keys[77 * 128], 128, 0.0f);  // an all-zero key
    const Groups groups({{1, static_cast<int32_t>(tokens)}});
    CpuStream stream(2);
    stream.Execute(WriteIndexKeys{
        .keys = MakeView(static_cast<const float*>(keys.data()), {tokens, 128}),
        .rows = groups.Map(),
        .positions = MakeView(static_cast<const int32_t*>(positions.data()), {tokens}),
        .pages = memory.pages});
    for (int64_t t = 0; t < tokens; ++t) {
      const float scale = KeyScale(memory.pages, 1, t);
      EXPECT_EQ(scale, t == 77 ? 1.0f : std::ldexp(1.3f, static_cast<int>(t % 7))) << "token " << t;
      const std::vector<double> read = ReadKey(memory.pages, 1, t);
      for (int64_t d = 0; d < 128; ++d) {
        const double x = keys[t * 128 + d];
        ASSERT_LE(std::fabs(read[d] - x),
                  scale * 0.5 * Fp8Step(std::fabs(x) / scale) + std::fabs(x) * 3e-7)
            << "token " << t << " value " << d;
      }
    }
  }
}

TEST(WriteIndexKeysTest, KeepsFp32BitsAndRoundsBf16ToNearestEven) {
  for (DType dtype : {DType::kF32, DType::kBf16}) {
    KeyMemory memory({.dtype = dtype, .dim = 20, .kpool = 1}, 1, 2, 9);
    std::vector<float> keys = Random(4).Normals(3 * 20);
    keys[0] = BitsToFloat(0x3f808000);  // halfway, the even neighbour is below
    keys[1] = BitsToFloat(0x3f818000);  // halfway, the even neighbour is above
    keys[2] = BitsToFloat(0xbf808001);  // just above halfway
    const std::vector<int32_t> positions = {63, 64, -5};
    const Groups groups({{0, 3}});
    CpuStream stream(1);
    stream.Execute(WriteIndexKeys{.keys = MakeView(static_cast<const float*>(keys.data()), {3, 20}),
                                  .rows = groups.Map(),
                                  .positions = MakeView(positions.data(), {3}),
                                  .pages = memory.pages});
    const std::vector<double> first = ReadKey(memory.pages, 0, 63);
    if (dtype == DType::kBf16) {
      EXPECT_EQ(first[0], BitsToFloat(0x3f800000));
      EXPECT_EQ(first[1], BitsToFloat(0x3f820000));
      EXPECT_EQ(first[2], BitsToFloat(0xbf810000));
    }
    for (int64_t row = 0; row < 2; ++row) {
      const std::vector<double> read = ReadKey(memory.pages, 0, positions[row]);
      for (int64_t d = 0; d < 20; ++d) {
        const double x = keys[row * 20 + d];
        EXPECT_LE(std::fabs(read[d] - x),
                  dtype == DType::kF32 ? 0.0 : 0.5 * Bf16Step(std::fabs(x)));
      }
    }
  }
}

TEST(WriteIndexKeysTest, AKeyWithNaNIsNoNumberToItsReaders) {
  KeyMemory memory({.dtype = DType::kFp8E4M3, .dim = 32, .kpool = 1}, 1, 1, 9);
  std::vector<float> keys = Random(4).Normals(32);
  keys[9] = kNaN;
  const std::vector<int32_t> positions = {2};
  const Groups groups({{0, 1}});
  CpuStream stream(1);
  stream.Execute(WriteIndexKeys{.keys = MakeView(static_cast<const float*>(keys.data()), {1, 32}),
                                .rows = groups.Map(),
                                .positions = MakeView(positions.data(), {1}),
                                .pages = memory.pages});
  EXPECT_TRUE(std::isnan(KeyScale(memory.pages, 0, 2)));
}

// ---- refusals ----

TEST(CacheWriteTest, RefusesViewsThatDoNotAgree) {
  LatentMemory latents({.dtype = DType::kBf16, .latent = 32, .rope = 8}, 1, 1, 1);
  KeyMemory keys({.dtype = DType::kBf16, .dim = 16, .kpool = 1}, 1, 1, 1);
  const std::vector<float> values(80);
  const std::vector<int32_t> positions = {0, 1};
  const Groups groups({{0, 2}});
  CpuStream stream(1);
  const auto latent = [&](auto change) {
    WriteLatent op{.values = MakeView(values.data(), {2, 40}),
                   .rows = groups.Map(),
                   .positions = MakeView(positions.data(), {2}),
                   .pages = latents.pages};
    change(op);
    return MessageOf(ErrorCode::kShape, [&] { stream.Execute(op); });
  };
  EXPECT_EQ(latent([](WriteLatent&) {}), "");
  EXPECT_NE(latent([](WriteLatent& op) { op.values.shape[1] = 39; }), "");
  EXPECT_NE(latent([](WriteLatent& op) { op.positions.shape[0] = 1; }), "");
  EXPECT_NE(latent([](WriteLatent& op) { op.rows.sequence.shape[0] = 1; }), "");
  EXPECT_NE(latent([](WriteLatent& op) { op.rows.first_row.shape[0] = 0; }), "");
  EXPECT_NE(latent([](WriteLatent& op) { op.pages.page_stride = 1; }), "");
  EXPECT_NE(latent([](WriteLatent& op) { op.pages.layout.dtype = DType::kI32; }), "");

  const auto key = [&](auto change) {
    WriteIndexKeys op{.keys = MakeView(values.data(), {2, 16}),
                      .rows = groups.Map(),
                      .positions = MakeView(positions.data(), {2}),
                      .pages = keys.pages};
    change(op);
    return MessageOf(ErrorCode::kShape, [&] { stream.Execute(op); });
  };
  EXPECT_EQ(key([](WriteIndexKeys&) {}), "");
  EXPECT_NE(key([](WriteIndexKeys& op) { op.keys.shape[1] = 15; }), "");
  EXPECT_NE(key([](WriteIndexKeys& op) { op.pages.layout.kpool = 4; }), "");
  EXPECT_NE(key([](WriteIndexKeys& op) { op.pages.layout.kpool = 3; }), "");
  EXPECT_NE(key([](WriteIndexKeys& op) { op.pages.layout.dtype = DType::kInt8; }), "");
}

TEST(CacheWriteTest, RefusesAPositionBehindTheBlockTable) {
  LatentMemory latents({.dtype = DType::kBf16, .latent = 32, .rope = 8}, 1, 1, 1);
  KeyMemory keys({.dtype = DType::kBf16, .dim = 40, .kpool = 1}, 1, 1, 1);
  const std::vector<float> values(40);
  const std::vector<int32_t> positions = {64};
  const Groups groups({{0, 1}});
  CpuStream stream(1);
  EXPECT_NE(MessageOf(ErrorCode::kShape,
                      [&] {
                        stream.Execute(WriteLatent{.values = MakeView(values.data(), {1, 40}),
                                                   .rows = groups.Map(),
                                                   .positions = MakeView(positions.data(), {1}),
                                                   .pages = latents.pages});
                      }),
            "");
  EXPECT_NE(MessageOf(ErrorCode::kShape,
                      [&] {
                        stream.Execute(WriteIndexKeys{.keys = MakeView(values.data(), {1, 40}),
                                                      .rows = groups.Map(),
                                                      .positions = MakeView(positions.data(), {1}),
                                                      .pages = keys.pages});
                      }),
            "");
}

}  // namespace
}  // namespace strata
