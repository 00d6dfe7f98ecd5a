// Shards, tensors as layers ask for them, and files that chance has changed.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <random>

#include "models/checkpoint.h"
#include "models/json.h"
#include "tests/models/temporary_folder.h"

namespace strata {
namespace {

using nlohmann::ordered_json;

template <class Call>
std::string MessageOf(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kModelFile) << error.what();
    return error.what();
  }
  return "";
}
::testing::AssertionResult Says(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    if (message.find(part) == std::string::npos)
      return ::testing::AssertionFailure() << "'" << part << "' is not in: " << message;
  }
  return ::testing::AssertionSuccess();
}
void WriteShard(const TemporaryFolder& folder, const std::string& name, const std::string& tensor) {
  const float values[2] = {1.0f, 2.0f};
  const TensorToWrite tensors[] = {{tensor, DType::kF32, {2}, values}};
  WriteSafetensors(folder.path() / name, tensors);
}
void WriteIndex(const TemporaryFolder& folder, const ordered_json& weight_map) {
  folder.Write("model.safetensors.index.json", ordered_json{{"weight_map", weight_map}}.dump());
}
std::string FolderFails(const TemporaryFolder& folder) {
  return MessageOf([&] { Checkpoint::Open(folder.path()); });
}

TEST(CheckpointFolder, ShardsAreReadTogether) {
  TemporaryFolder folder;
  WriteShard(folder, "one.safetensors", "a");
  WriteShard(folder, "two.safetensors", "b");
  WriteIndex(folder, {{"a", "one.safetensors"}, {"b", "two.safetensors"}});
  const Checkpoint checkpoint = Checkpoint::Open(folder.path());
  EXPECT_EQ(checkpoint.Names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(checkpoint.NeedFloats("b", {{2}}), (std::vector<float>{1.0f, 2.0f}));
}

TEST(CheckpointFolder, WhatIsMissingIsNamed) {
  TemporaryFolder folder;
  EXPECT_TRUE(Says(FolderFails(folder), {folder.path().string(), "model.safetensors"}));
  EXPECT_TRUE(
      Says(MessageOf([] { Checkpoint::Open("/nonexistent/model"); }), {"/nonexistent/model"}));
  WriteShard(folder, "one.safetensors", "a");
  WriteIndex(folder, {{"a", "one.safetensors"}, {"b", "two.safetensors"}});
  EXPECT_TRUE(Says(FolderFails(folder), {"two.safetensors", "fetch"}));
  WriteIndex(folder, {{"a", "one.safetensors"}, {"lost.weight", "one.safetensors"}});
  EXPECT_TRUE(Says(FolderFails(folder), {"lost.weight", "one.safetensors"}));
  std::filesystem::create_directory(folder.path() / "folder.safetensors");
  WriteIndex(folder, {{"a", "folder.safetensors"}});
  EXPECT_TRUE(Says(FolderFails(folder), {"folder.safetensors", "regular file"}));
  ASSERT_EQ(mkfifo((folder.path() / "pipe.safetensors").c_str(), 0600), 0);
  WriteIndex(folder, {{"a", "pipe.safetensors"}});
  EXPECT_TRUE(Says(FolderFails(folder), {"pipe.safetensors", "regular file"}));
}

TEST(CheckpointFolder, ATensorInTwoShardsIsRefused) {
  TemporaryFolder folder;
  WriteShard(folder, "one.safetensors", "twice.weight");
  WriteShard(folder, "two.safetensors", "twice.weight");
  WriteShard(folder, "three.safetensors", "b");
  WriteIndex(folder, {{"twice.weight", "one.safetensors"}, {"b", "two.safetensors"}});
  EXPECT_TRUE(Says(FolderFails(folder), {"twice.weight", "one.safetensors", "two.safetensors"}));
}

TEST(CheckpointFolder, OddIndexFilesAreRefused) {
  TemporaryFolder folder;
  WriteShard(folder, "one.safetensors", "a");
  for (const ordered_json& shard :
       {ordered_json(5), ordered_json(nullptr), ordered_json("../one.safetensors"),
        ordered_json("/etc/passwd"), ordered_json(".."), ordered_json("")}) {
    WriteIndex(folder, {{"a", shard}});
    EXPECT_NE(FolderFails(folder), "") << shard;
  }
  for (const char* text : {"", "[]", "{}", "{\"weight_map\": []}", "{\"weight_map\": 5}"}) {
    folder.Write("model.safetensors.index.json", text);
    EXPECT_TRUE(Says(FolderFails(folder), {"model.safetensors.index.json"})) << text;
  }
}

TEST(CheckpointTensors, MissingAndMisshapenOnesAreNamedWithBothShapes) {
  TemporaryFolder folder;
  const std::vector<uint16_t> zeros(12);
  const TensorToWrite tensors[] = {{"model.w", DType::kBf16, {3, 4}, zeros.data()}};
  WriteSafetensors(folder.path() / "model.safetensors", tensors);
  const Checkpoint checkpoint = Checkpoint::Open(folder.path());
  EXPECT_TRUE(Says(MessageOf([&] {
                     checkpoint.Need("model.v", {{3, 4}});
                   }),
                   {"model.v", "[3, 4]", "missing"}));
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{4, 3}, {3}, {12}, {3, 4, 1}, {}}) {
    EXPECT_TRUE(Says(MessageOf([&] { checkpoint.Need("model.w", shape); }),
                     {"model.w", "[3, 4]", "config.json"}));
  }
  EXPECT_TRUE(Says(MessageOf([&] { checkpoint.NeedMatrix("model.w", 6, 2); }),
                   {"model.w", "[3, 4]", "[6, 2]"}));
  EXPECT_TRUE(Says(MessageOf([&] { checkpoint.NeedFloats("model.w", {{3}}); }),
                   {"model.w", "[3, 4]", "[3]"}));
  const Matrix matrix = checkpoint.NeedMatrix("model.w", 3, 4);
  EXPECT_EQ(matrix.dtype, DType::kBf16);
  EXPECT_EQ(matrix.row_stride, 4);
}

TEST(CheckpointTensors, TypesThatAreNotServedAreRefusedWhenAskedFor) {
  TemporaryFolder folder;
  const ordered_json header = {
      {"half", {{"dtype", "F16"}, {"shape", {2, 2}}, {"data_offsets", {0, 8}}}},
      {"whole", {{"dtype", "I32"}, {"shape", {2, 1}}, {"data_offsets", {8, 16}}}}};
  const uint64_t length = header.dump().size();
  folder.Write("model.safetensors", std::string(reinterpret_cast<const char*>(&length), 8) +
                                        header.dump() + std::string(16, '\1'));
  const Checkpoint checkpoint = Checkpoint::Open(folder.path());
  EXPECT_TRUE(
      Says(MessageOf([&] { checkpoint.NeedMatrix("half", 2, 2); }), {"half", "F16", "BF16"}));
  EXPECT_TRUE(Says(MessageOf([&] { checkpoint.NeedFloats("half", {{2, 2}}); }), {"half", "F16"}));
  EXPECT_TRUE(Says(MessageOf([&] { checkpoint.NeedMatrix("whole", 2, 1); }), {"whole", "int32"}));
  EXPECT_TRUE(Says(MessageOf([&] {
                     checkpoint.NeedFloats("whole", {{2, 1}});
                   }),
                   {"whole", "int32"}));
}

TEST(CheckpointTensors, Fp8MatricesComeWithTheirBlockScales) {
  TemporaryFolder folder;
  const std::vector<uint8_t> codes(130 * 200, 0x38);
  const float scales[4] = {1.0f, 2.0f, 3.0f, 4.0f};
  const std::vector<uint16_t> halves(4);
  const TensorToWrite tensors[] = {{"w", DType::kFp8E4M3, {130, 200}, codes.data()},
                                   {"w_scale_inv", DType::kF32, {2, 2}, scales},
                                   {"bare", DType::kFp8E4M3, {130, 200}, codes.data()},
                                   {"short", DType::kFp8E4M3, {130, 200}, codes.data()},
                                   {"short_scale_inv", DType::kF32, {1, 2}, scales},
                                   {"soft", DType::kFp8E4M3, {130, 200}, codes.data()},
                                   {"soft_scale_inv", DType::kBf16, {2, 2}, halves.data()}};
  WriteSafetensors(folder.path() / "model.safetensors", tensors);
  const Checkpoint checkpoint = Checkpoint::Open(folder.path());
  const Matrix matrix = checkpoint.NeedMatrix("w", 130, 200);
  EXPECT_EQ(matrix.dtype, DType::kFp8E4M3);
  EXPECT_EQ(matrix.scale_stride, 2);
  ASSERT_NE(matrix.scales, nullptr);
  EXPECT_EQ(matrix.scales[3], 4.0f);
  EXPECT_TRUE(Says(MessageOf([&] { checkpoint.NeedMatrix("bare", 130, 200); }),
                   {"bare_scale_inv", "[2, 2]"}));
  EXPECT_TRUE(Says(MessageOf([&] { checkpoint.NeedMatrix("short", 130, 200); }),
                   {"short_scale_inv", "[1, 2]", "[2, 2]"}));
  EXPECT_TRUE(Says(MessageOf([&] { checkpoint.NeedMatrix("soft", 130, 200); }),
                   {"soft_scale_inv", "bf16"}));
  EXPECT_TRUE(Says(MessageOf([&] { checkpoint.NeedFloats("w", {{130, 200}}); }), {"w", "fp8"}));
}

// Whatever bytes a file holds, it loads or throws Error, and every tensor it then shows lies inside
// the file.
TEST(CheckpointMutations, LoadOrThrowError) {
  TemporaryFolder folder;
  std::vector<float> values(40, 0.5f);
  const TensorToWrite tensors[] = {{"a", DType::kF32, {2, 4}, values.data()},
                                   {"b", DType::kBf16, {5}, values.data()},
                                   {"c", DType::kFp8E4M3, {3, 3}, values.data()},
                                   {"c_scale_inv", DType::kF32, {1, 1}, values.data()}};
  WriteSafetensors(folder.path() / "valid", tensors);
  const std::string valid = ReadTextFile(folder.path() / "valid");
  std::mt19937 random(20);
  int loaded = 0, refused = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string bytes = valid;
    for (int edits = random() % 4 == 0 ? 3 : 1; edits > 0; --edits) {
      const size_t at = random() % bytes.size();
      const char* const spice = "0123456789-[]{},:\"\\eE.";
      switch (random() % 6) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes[at] = spice[random() % 22];
          break;
        case 2:
          bytes.insert(at, 1 + random() % 4, spice[random() % 22]);
          break;
        case 3:
          bytes.erase(at, 1 + random() % 9);
          break;
        case 4:
          bytes[random() % 8] = static_cast<char>(random());
          break;
        default:
          bytes[8 + random() % 200] = static_cast<char>('0' + random() % 10);
          break;
      }
      if (bytes.size() < 300) bytes.resize(300, ' ');
    }
    const std::filesystem::path file = folder.Write("mutant", bytes);
    try {
      const Checkpoint checkpoint = Checkpoint::OpenFile(file);
      ++loaded;
      unsigned sum = 0;
      EXPECT_LE(checkpoint.total_bytes(), bytes.size());
      for (const std::string& name : checkpoint.Names()) {
        const TensorRef& tensor = *checkpoint.Find(name);
        for (size_t i = 0; i < tensor.bytes; ++i) sum += std::to_integer<unsigned>(tensor.data[i]);
      }
      EXPECT_LE(sum, 255u * bytes.size());
      checkpoint.NeedFloats("a", {{2, 4}});
      checkpoint.NeedFloats("b", {{5}});
      checkpoint.NeedMatrix("c", 3, 3);
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(loaded, 100);
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace strata
