// Prompts that were read before, and requests that share steps.
#include "tests/models/temporary_folder.h"
#include "tests/server/running_server.h"

namespace strata {
namespace {

Json Completion(int64_t count, int max_tokens, int64_t salt = 0) {
  Json tokens = Json::array();
  for (int64_t i = 0; i < count; ++i)
    tokens.push_back(20 + (i * 37 + i * i * 11 + salt * 101) % 900);
  return {{"prompt", tokens}, {"max_tokens", max_tokens}, {"temperature", 0}, {"ignore_eos", true}};
}

TEST(Reuse, APromptAskedAgainIsReadOnceAndAnsweredAlike) {
  RunningServer server({"--max-context", "5120"});
  const auto ask = [&](const Json& body) { return server.Post("/v1/completions", body).json(); };
  for (int64_t length : {63, 64, 65, 256}) {
    const Json first = ask(Completion(length, 8, length));
    EXPECT_EQ(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0) << length;
    for (int again = 0; again < 2; ++again) {
      const Json next = ask(Completion(length, 8, length));
      EXPECT_EQ(next["choices"], first["choices"]) << length;
      EXPECT_EQ(next["usage"]["prompt_tokens_details"]["cached_tokens"], length - 1);
    }
  }
  const double first = ask(Completion(4096, 1, 1))["timings"]["prompt_ms"];
  const double second = ask(Completion(4096, 1, 1))["timings"]["prompt_ms"];
  EXPECT_LT(second, first / 3);
}

class CacheFormat : public ::testing::TestWithParam<const char*> {};

TEST_P(CacheFormat, AShortPromptThatJoinsALongAnswerChangesNeither) {
  // The shipped model selects 256 cells: the long one drops cells, the others are around that.
  RunningServer server({"--max-context", "1024", "--kv", GetParam()});
  const auto ask = [&](const Json& body) {
    return server.Post("/v1/completions", body).json()["choices"][0]["text"].get<std::string>();
  };
  const std::vector<int64_t> lengths = {1, 100, 255, 256, 257};
  Json long_body = Completion(300, 200);
  long_body["cache_prompt"] = false;
  std::vector<std::string> solo;
  for (int64_t length : lengths) {
    Json body = Completion(length, 5, length);
    body["cache_prompt"] = false;
    solo.push_back(ask(body));
  }
  const std::string long_solo = ask(long_body);
  std::string long_text;
  std::thread longer([&] { long_text = ask(long_body); });
  ASSERT_TRUE(RunningServer::Eventually([&] { return server.open() == 1; }));
  int joined = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    Json body = Completion(lengths[i], 5, lengths[i]);
    body["cache_prompt"] = false;
    EXPECT_EQ(ask(body), solo[i]) << lengths[i];
    joined += server.open() == 1 ? 1 : 0;
  }
  longer.join();
  EXPECT_EQ(long_text, long_solo);
  EXPECT_GT(joined, 0) << "the long answer had ended before the first short one";
}
INSTANTIATE_TEST_SUITE_P(Kv, CacheFormat, ::testing::Values("fp32", "bf16", "int8", "fp8"),
                         [](const auto& info) { return std::string(info.param); });

class SavedConversation : public ::testing::Test {
 protected:
  static std::vector<std::string> Flags(const TemporaryFolder& folder,
                                        std::vector<std::string> more = {}) {
    more.insert(more.end(), {"--max-context", "1024", "--save-dir", folder.path().string()});
    return more;
  }
  // A conversation of two turns; the server answers the first.
  static Json Conversation(const RunningServer& server) {
    std::string story = "The access code for Silver Falcon is 4821. ";
    for (int i = 0; i < 40; ++i) story += "Line " + std::to_string(i) + " of a long story. ";
    Json body = ChatBody(story, 20);
    body["messages"].push_back(server.Post(kChat, body).json()["choices"][0]["message"]);
    body["messages"].push_back(
        {{"role", "user"}, {"content", "What is the access code for Silver Falcon?"}});
    return body;
  }
  static RunningServer::Reply Slots(const RunningServer& server, const char* action, Json body,
                                    const std::string& name) {
    body["filename"] = name;
    return server.Post(std::string("/slots?action=") + action, body);
  }
  static std::string Code(const RunningServer::Reply& reply) {
    EXPECT_EQ(reply.json()["error"]["type"],
              reply.status == 404 ? "not_found_error" : "invalid_request_error");
    return reply.json()["error"]["code"];
  }
  static size_t Files(const TemporaryFolder& folder) {
    const std::filesystem::directory_iterator files(folder.path());
    return static_cast<size_t>(std::distance(begin(files), end(files)));
  }
  static constexpr const char* kChat = "/v1/chat/completions";
};

TEST_F(SavedConversation, GoesOnAfterARestartWithTheSameTokens) {
  const TemporaryFolder folder;
  Json body, cold;
  int64_t saved = 0;
  {
    RunningServer server(Flags(folder));
    body = Conversation(server);
    const RunningServer::Reply reply = Slots(server, "save", body, "falcon.cache");
    ASSERT_EQ(reply.status, 200) << reply.body;
    saved = reply.json()["n_saved"];
    EXPECT_GT(saved, 256);  // more than is selected, so a wrong index key would show
    EXPECT_EQ(saved % 64, 0);
    EXPECT_EQ(reply.json()["n_written"],
              std::filesystem::file_size(folder.path() / "falcon.cache"));
    EXPECT_EQ(Files(folder), 1u);
    Json fresh = body;
    fresh["cache_prompt"] = false;
    cold = server.Post(kChat, fresh).json();
    EXPECT_EQ(server.Stop(), 0) << server.log();
  }
  RunningServer server(Flags(folder));
  const RunningServer::Reply reply = Slots(server, "restore", Json::object(), "falcon.cache");
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.json()["n_restored"], saved);
  body["logprobs"] = true;
  const Json warm = server.Post(kChat, body).json();
  EXPECT_EQ(warm["usage"]["prompt_tokens_details"]["cached_tokens"], saved);
  EXPECT_EQ(warm["choices"][0]["message"], cold["choices"][0]["message"]);
  body["cache_prompt"] = false;
  EXPECT_EQ(server.Post(kChat, body).json()["choices"], warm["choices"]);
  const Json pages = server.Get("/v1/status").json()["pages"];
  EXPECT_EQ(pages["free"].get<int>() + pages["reusable"].get<int>(), pages["total"].get<int>());
}

TEST_F(SavedConversation, TheDraftLayersCacheComesBackWithIt) {
  const TemporaryFolder folder;
  const std::vector<std::string> flags =
      Flags(folder, {"--spec", "3", "--drafter", "mtp", "--spec-fixed"});
  Json body;
  {
    RunningServer server(flags);
    body = Conversation(server);
    ASSERT_EQ(Slots(server, "save", body, "drafts").status, 200);
    EXPECT_EQ(server.Stop(), 0) << server.log();
  }
  RunningServer server(flags);
  ASSERT_EQ(Slots(server, "restore", Json::object(), "drafts").status, 200);
  body["max_tokens"] = 48;
  body["ignore_eos"] = true;
  body["timings"] = true;
  const Json warm = server.Post(kChat, body).json();
  EXPECT_GT(warm["usage"]["prompt_tokens_details"]["cached_tokens"], 256);
  body["cache_prompt"] = false;
  const Json cold = server.Post(kChat, body).json();
  EXPECT_EQ(warm["choices"][0]["message"], cold["choices"][0]["message"]);
  EXPECT_GT(cold["timings"]["draft_n_accepted"], 0);
  EXPECT_EQ(warm["timings"]["drafts"], cold["timings"]["drafts"]);
}

TEST_F(SavedConversation, FilesThatAreForeignCutOrDamagedAreRefused) {
  const TemporaryFolder folder;
  Json body;
  std::string file;
  {
    RunningServer server(Flags(folder));
    body = Conversation(server);
    ASSERT_EQ(Slots(server, "save", body, "good").status, 200);
    std::ifstream stream(folder.path() / "good", std::ios::binary);
    file.assign(std::istreambuf_iterator<char>(stream), {});
    for (size_t bytes : {size_t{0}, size_t{10}, size_t{48}, file.size() / 2, file.size() - 1}) {
      folder.Write("cut", file.substr(0, bytes));
      EXPECT_EQ(Code(Slots(server, "restore", {}, "cut")), "save_damaged") << bytes;
    }
    folder.Write("long", file + "x");
    EXPECT_EQ(Code(Slots(server, "restore", {}, "long")), "save_damaged");
    for (size_t at : {size_t{41}, size_t{100}, file.size() / 2, file.size() - 1}) {
      std::string damaged = file;
      damaged[at] = static_cast<char>(damaged[at] ^ 1);
      folder.Write("damaged", damaged);
      EXPECT_EQ(Code(Slots(server, "restore", {}, "damaged")), "save_damaged") << at;
    }
    for (size_t at : {size_t{0}, size_t{13}, size_t{17}, size_t{24}, size_t{33}}) {
      std::string other = file;
      other[at] = static_cast<char>(other[at] ^ 1);
      folder.Write("other", other);
      EXPECT_EQ(Code(Slots(server, "restore", {}, "other")), "save_mismatch") << at;
    }
  }
  // Another cache format, another model: nothing is taken over, the answer is that of a cold start.
  RunningServer int8(Flags(folder, {"--kv", "int8"}));
  EXPECT_EQ(Code(Slots(int8, "restore", {}, "good")), "save_mismatch");
  EXPECT_EQ(int8.Post(kChat, body).json()["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
  RunningServer stretched(Flags(folder, {"--rope-scaling", "yarn", "--rope-scale", "2"}));
  EXPECT_EQ(Code(Slots(stretched, "restore", {}, "good")), "save_mismatch");
}

TEST_F(SavedConversation, NamesStayInsideTheFolderAndNothingIsWrittenUnasked) {
  const TemporaryFolder folder, outside;
  outside.Write("secret", "secret");
  std::filesystem::create_symlink(outside.path() / "secret", folder.path() / "link");
  RunningServer server(Flags(folder));
  const Json body = Conversation(server);
  for (const std::string& name :
       {std::string(), std::string("."), std::string(".."), std::string("../x"),
        std::string("/etc/passwd"), std::string("a/b"), std::string("a\\b"), std::string("a\0b", 3),
        std::string(".hidden"), std::string("é"), std::string(200, 'a'),
        (outside.path() / "secret").string()}) {
    EXPECT_EQ(Code(Slots(server, "save", body, name)), "bad_name") << name;
    EXPECT_EQ(Code(Slots(server, "restore", {}, name)), "bad_name") << name;
  }
  EXPECT_EQ(Code(Slots(server, "restore", {}, "link")), "not_saved");
  EXPECT_EQ(Code(Slots(server, "restore", {}, "never")), "not_saved");
  EXPECT_EQ(Slots(server, "erase", body, "x").param(), "action");
  EXPECT_EQ(server.Post("/slots?action=save", body).param(), "filename");
  EXPECT_EQ(Code(Slots(server, "save", ChatBody("Never asked."), "x")), "not_cached");
  EXPECT_EQ(Files(folder), 1u);
  // A link is replaced, not followed.
  EXPECT_EQ(Slots(server, "save", body, "link").status, 200);
  EXPECT_EQ(std::filesystem::file_size(outside.path() / "secret"), 6u);
  EXPECT_TRUE(
      std::filesystem::is_regular_file(std::filesystem::symlink_status(folder.path() / "link")));

  EXPECT_EQ(server.Get("/props").json()["saves_conversations"], true);
  RunningServer plain({"--max-context", "1024"});
  EXPECT_EQ(plain.Get("/props").json()["saves_conversations"], false);
  EXPECT_EQ(Code(Slots(plain, "save", body, "x")), "no_save_dir");
  EXPECT_EQ(Code(Slots(plain, "restore", {}, "link")), "no_save_dir");
  EXPECT_EQ(Files(folder), 1u);
  EXPECT_THROW(RunningServer({"--save-dir", (folder.path() / "gone").string()}),
               std::runtime_error);
}

TEST_F(SavedConversation, WhatDoesNotFitIsRestoredInPart) {
  const TemporaryFolder folder;
  int64_t saved = 0;
  Json body;
  {
    RunningServer server(Flags(folder));
    body = Conversation(server);
    saved = Slots(server, "save", body, "large").json()["n_saved"];
  }
  RunningServer small(Flags(folder, {"--cache-tokens", "256"}));
  const Json reply = Slots(small, "restore", {}, "large").json();
  EXPECT_LT(reply["n_restored"].get<int64_t>(), saved);
  EXPECT_EQ(small.Post(kChat, ChatBody("What is a tree?", 4)).status, 200);
}

}  // namespace
}  // namespace strata
