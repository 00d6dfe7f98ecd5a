// Safetensors files and folders: what is written reads back, and everything damaged is refused with
// an Error that names it.
#include "models/checkpoint.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <thread>

#include "models/json.h"
#include "tests/models/temporary_folder.h"

namespace strata {
namespace {

using nlohmann::ordered_json;

ordered_json Entry(const std::string& dtype, ordered_json shape, ordered_json offsets) {
  return {{"dtype", dtype}, {"shape", std::move(shape)}, {"data_offsets", std::move(offsets)}};
}
// The bytes of a file with this header text; byte i of its data is i.
std::string RawFile(const std::string& header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string text(reinterpret_cast<const char*>(&length), sizeof(length));
  text += header;
  for (size_t i = 0; i < data_bytes; ++i) text += static_cast<char>(i);
  return text;
}
template <class Call>
std::string MessageOf(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kModelFile) << error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
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

class CheckpointTest : public ::testing::Test {
 protected:
  std::string OpenFails(const std::string& bytes) {
    const std::filesystem::path file = folder_.Write("file.safetensors", bytes);
    return MessageOf([&] { Checkpoint::OpenFile(file); });
  }
  std::string OpenFails(const ordered_json& header, size_t data_bytes) {
    return OpenFails(RawFile(header.dump(), data_bytes));
  }
  Checkpoint Open(const ordered_json& header, size_t data_bytes) {
    return Checkpoint::OpenFile(
        folder_.Write("file.safetensors", RawFile(header.dump(), data_bytes)));
  }

  TemporaryFolder folder_;
};

TEST_F(CheckpointTest, WhatIsWrittenReadsBack) {
  const float floats[6] = {1.0f, -2.5f, 0.0f, 3e38f, 1e-40f, -0.0f};
  const uint16_t halves[3] = {0x3f80, 0xc040, 0x7f7f};  // 1, -3, 3.39e38
  const uint8_t codes[5] = {0, 1, 0x38, 0xfe, 0x80};
  const int32_t whole[2] = {-7, 1 << 30};
  const TensorToWrite tensors[] = {
      {"b.codes", DType::kFp8E4M3, {5}, codes},  // the next one starts at byte 5
      {"a.floats", DType::kF32, {2, 3}, floats},
      {"c.halves", DType::kBf16, {3, 1}, halves},
      {"d \"quoted\"", DType::kI32, {2}, whole},
      {"e.empty", DType::kF32, {0, 4}, nullptr}};
  const std::filesystem::path file = folder_.path() / "model.safetensors";
  WriteSafetensors(file, tensors);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 1);
  const Checkpoint checkpoint = Checkpoint::Open(folder_.path());
  EXPECT_EQ(checkpoint.Names(), (std::vector<std::string>{"a.floats", "b.codes", "c.halves",
                                                          "d \"quoted\"", "e.empty"}));
  EXPECT_EQ(checkpoint.total_bytes(), 5u + 24u + 6u + 8u);
  for (const TensorToWrite& tensor : tensors) {
    const TensorRef* found = checkpoint.Find(tensor.name);
    ASSERT_NE(found, nullptr) << tensor.name;
    EXPECT_EQ(found->dtype, tensor.dtype);
    EXPECT_EQ(found->shape, tensor.shape);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(found->data) % DTypeBytes(tensor.dtype), 0u);
    if (found->bytes == 0) continue;
    EXPECT_EQ(std::memcmp(found->data, tensor.data, found->bytes), 0);
  }
  EXPECT_EQ(checkpoint.NeedFloats("c.halves", {{3, 1}})[1], -3.0f);
  EXPECT_EQ(checkpoint.NeedFloats("a.floats", {{2, 3}}), std::vector<float>(floats, floats + 6));
  EXPECT_EQ(checkpoint.Find("nothing"), nullptr);
  // Writing over a file that is still mapped leaves the mapping as it was.
  const float other[1] = {9.0f};
  const TensorToWrite replacement[] = {{"a.floats", DType::kF32, {1}, other}};
  WriteSafetensors(file, replacement);
  EXPECT_EQ(checkpoint.NeedFloats("a.floats", {{2, 3}})[3], 3e38f);
  EXPECT_EQ(Checkpoint::Open(folder_.path()).NeedFloats("a.floats", {{1}})[0], 9.0f);
}

TEST_F(CheckpointTest, APathThatCannotBeWrittenIsNamed) {
  const float value = 1.0f;
  const TensorToWrite tensors[] = {{"a", DType::kF32, {1}, &value}};
  const std::filesystem::path missing = folder_.path() / "no" / "such.safetensors";
  EXPECT_TRUE(Says(MessageOf([&] { WriteSafetensors(missing, tensors); }), {missing.string()}));
  const std::filesystem::path occupied = folder_.path() / "folder";
  std::filesystem::create_directories(occupied / "inside");
  EXPECT_TRUE(Says(MessageOf([&] { WriteSafetensors(occupied, tensors); }), {occupied.string()}));
}

// As root, a rename over /dev/null or /dev/stdout would take it from everybody.
TEST_F(CheckpointTest, LinksAndPipesAreWrittenThroughNotReplaced) {
  const float value = 1.0f;
  const TensorToWrite tensors[] = {{"a", DType::kF32, {1}, &value}};
  const std::filesystem::path plain = folder_.path() / "plain";
  WriteSafetensors(plain, tensors);
  const std::string bytes = ReadTextFile(plain);

  const std::filesystem::path target = folder_.path() / "target", link = folder_.path() / "link";
  std::filesystem::create_symlink(target, link);
  WriteSafetensors(link, tensors);
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(ReadTextFile(target), bytes);

  const std::filesystem::path pipe = folder_.path() / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::string read;
  std::thread reader([&] {
    std::ifstream stream(pipe, std::ios::binary);
    read.assign(std::istreambuf_iterator<char>(stream), {});
  });
  std::ofstream held(pipe, std::ios::binary);  // the reader ends even if nothing else is written
  WriteSafetensors(pipe, tensors);
  held.close();
  reader.join();
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  EXPECT_EQ(read, bytes);
}

TEST_F(CheckpointTest, UnalignedNumbersAreReadable) {
  const Checkpoint checkpoint =
      Open({{"codes", Entry("F8_E4M3", {3}, {0, 3})}, {"floats", Entry("F32", {2}, {3, 11})}}, 11);
  const TensorRef& floats = checkpoint.Need("floats", {{2}});
  EXPECT_EQ(reinterpret_cast<uintptr_t>(floats.data) % sizeof(float), 0u);
  const uint32_t expected[2] = {0x06050403, 0x0a090807};
  EXPECT_EQ(std::memcmp(floats.data, expected, sizeof(expected)), 0);
}

TEST_F(CheckpointTest, TruncatedFilesAreRefused) {
  const std::string whole = RawFile(ordered_json{{"a", Entry("F32", {4}, {0, 16})}}.dump(), 16);
  EXPECT_EQ(OpenFails(whole), "");
  for (size_t length = 0; length < whole.size(); ++length) {
    EXPECT_TRUE(Says(OpenFails(whole.substr(0, length)), {"file.safetensors"})) << length;
  }
  for (uint64_t claimed : {uint64_t{whole.size()}, uint64_t{1} << 40, UINT64_MAX, UINT64_MAX - 7}) {
    std::string broken = whole;
    std::memcpy(broken.data(), &claimed, sizeof(claimed));
    EXPECT_TRUE(Says(OpenFails(broken), {std::to_string(claimed), "header"}));
  }
}

TEST_F(CheckpointTest, DamagedHeadersAreRefusedByTensor) {
  const std::pair<ordered_json, std::string> cases[] = {
      {Entry("F32", {4}, {-16, 0}), "data_offsets"},
      {Entry("F32", {4}, {0, 20}), "20"},
      {Entry("F32", {4}, {16, 0}), "16"},
      {Entry("F32", {4}, {8, 24}), "24"},
      {Entry("F32", {4}, {0, 12}), "12"},
      {Entry("F32", {4}, {0, UINT64_MAX}), "18446744073709551615"},
      {Entry("F32", {4}, {UINT64_MAX - 15, UINT64_MAX}), ""},
      {Entry("F32", {4}, {0, 16, 16}), "data_offsets"},
      {Entry("F32", {4}, {0.0, 16.0}), "data_offsets"},
      {Entry("F32", {4}, nullptr), "data_offsets"},
      {Entry("F32", {-4}, {0, 16}), "shape"},
      {Entry("F32", {5}, {0, 16}), "20"},
      {Entry("F32", {int64_t{1} << 40, int64_t{1} << 40}, {0, 16}), "shape"},
      {Entry("F32", {uint64_t{1} << 62}, {0, 16}), "shape"},
      {Entry("F32", 4, {0, 16}), "shape"},
      {Entry("F32", {"4"}, {0, 16}), "shape"},
      {Entry("F32", nullptr, {0, 16}), "shape"},
      {Entry("F4", {4}, {0, 16}), "F4"},
      {Entry("", {4}, {0, 16}), "dtype"},
      {{{"shape", {4}}, {"data_offsets", {0, 16}}}, "dtype"},
      {{{"dtype", 5}, {"shape", {4}}, {"data_offsets", {0, 16}}}, "dtype"},
      {5, ""},
      {ordered_json::array(), ""}};
  for (const auto& [entry, word] : cases) {
    EXPECT_TRUE(Says(OpenFails(ordered_json{{"some.tensor", entry}}, 16), {"some.tensor", word}))
        << entry;
  }
  EXPECT_TRUE(Says(
      OpenFails(ordered_json{{"a", Entry("F32", {2}, {0, 8})}, {"b", Entry("F32", {2}, {4, 12})}},
                16),
      {"overlap", "4"}));
  for (const std::string& header : {std::string("[]"), std::string("{"), std::string(2000, '['),
                                    std::string("{\"\xff\": 1}"), std::string(16, '\0')}) {
    EXPECT_TRUE(Says(OpenFails(RawFile(header, 16)), {"file.safetensors"})) << header;
  }
}

TEST_F(CheckpointTest, AFileThatCannotBeWrittenSaysWhy) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the sanitizer needs descriptors of its own";
#endif
  // No descriptor is left: a reason that taking the unfinished file away must not replace.
  rlimit usual{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &usual), 0);
  const int lowest = open("/dev/null", O_RDONLY);
  close(lowest);
  rlimit none = usual;
  none.rlim_cur = static_cast<rlim_t>(lowest);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const std::string message =
      MessageOf([&] { WriteSafetensors(folder_.path() / "file.safetensors", {}); });
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &usual), 0);
  EXPECT_TRUE(Says(message, {"file.safetensors", std::strerror(EMFILE)}));
}

}  // namespace
}  // namespace strata
