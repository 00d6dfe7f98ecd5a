// The program as users meet it: stdout, stderr, exit codes, bad input.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "models/checkpoint.h"
#include "models/json.h"

namespace strata {
namespace {

const std::filesystem::path kModel =
    std::filesystem::path(STRATA_SOURCE_DIR) / "models" / "tiny-glm-dsa";
const std::filesystem::path kGolden = std::filesystem::path(STRATA_SOURCE_DIR) / "tests" / "golden";

struct Result {
  int code = -1;
  std::string out, err;
};

class Cli : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "strata-cli-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // Runs `strata ARGUMENTS` through the shell.
  Result Run(const std::string& arguments, const std::string& input = "/dev/null") {
    return RunTo(arguments, "'" + (folder_ / "out").string() + "'", input);
  }
  // With stdout at what the shell takes behind '>'.
  Result RunTo(const std::string& arguments, const std::string& output,
               const std::string& input = "/dev/null") {
    const std::string program = std::string(STRATA_BINARY_DIR) + "/tools/strata";
    const std::string command = "'" + program + "' " + arguments + " <'" + input + "' >" + output +
                                " 2>'" + (folder_ / "err").string() + "'";
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), Read("out"),
            WithoutProgress(Read("err"))};
  }
  // A slow machine sees lines about loading that a fast one does not.
  static std::string WithoutProgress(const std::string& text) {
    std::istringstream lines(text);
    std::string line, rest;
    while (std::getline(lines, line)) {
      if (line.rfind("loading ", 0) != 0) rest += line + "\n";
    }
    return rest;
  }
  std::string Read(const std::string& name) {
    std::ifstream stream(folder_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  std::string Write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return (folder_ / name).string();
  }
  // A copy of the shipped model whose files are links, but for those the test replaces.
  std::filesystem::path LinkedModel() {
    const std::filesystem::path copy = folder_ / "model";
    std::filesystem::create_directory(copy);
    for (const auto& entry : std::filesystem::directory_iterator(kModel))
      std::filesystem::create_symlink(entry.path(), copy / entry.path().filename());
    return copy;
  }
  void Replace(const std::filesystem::path& file, const std::string& text) {
    std::filesystem::remove(file);
    std::ofstream(file, std::ios::binary) << text;
  }
  // One line on stderr with these words, nothing on stdout, the given exit code.
  void ExpectFailure(const Result& result, int code, const std::vector<std::string>& words) {
    EXPECT_EQ(result.code, code) << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    for (const std::string& word : words)
      EXPECT_NE(result.err.find(word), std::string::npos) << word << " not in: " << result.err;
  }

  std::filesystem::path folder_;
};

// Every "--flag" of a text.
std::set<std::string> FlagsIn(std::string text) {
  for (size_t at; (at = text.find("\\-")) != text.npos;) text.erase(at, 1);
  std::set<std::string> flags;
  const std::regex flag("--[a-z][a-z-]+");
  for (std::sregex_iterator match(text.begin(), text.end(), flag), end; match != end; ++match)
    flags.insert(match->str());
  return flags;
}

TEST_F(Cli, ManualPageAndCompletionHaveTheFlagsOfHelp) {
  std::string help = Run("--help").out;
  for (const char* command : {"logits", "plan", "eval"})
    help += Run(std::string(command) + " --help").out;
  const std::set<std::string> flags = FlagsIn(help);
  EXPECT_GT(flags.size(), 50u);
  EXPECT_EQ(FlagsIn(Run("--man").out), flags);
  EXPECT_EQ(FlagsIn(Run("--completion").out), flags);
}

TEST_F(Cli, TheAnswerAloneGoesToStdout) {
  const Result result = Run("--prompt 'Who are you?' --temp 0");
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(result.out,
            "I am a very small language model with sparse attention. I can continue technical "
            "prose, define words, describe programs and look up facts in a long text.\n");
}

TEST_F(Cli, PromptsComeFromFlagsFilesAndStdin) {
  const std::string file = Write("prompt", "Who are you?");
  const std::string answer = Run("--prompt 'Who are you?' --temp 0").out;
  EXPECT_EQ(Run("--file '" + file + "' --temp 0").out, answer);
  EXPECT_EQ(Run("--temp 0", file).out, answer);
}

TEST_F(Cli, FindsAFactInALongTextAndShowsWhereItLooked) {
  const std::string text =
      (std::filesystem::path(STRATA_SOURCE_DIR) / "tools" / "examples" / "long.txt").string();
  const Result result = Run("--file '" + text +
                            "' --prompt 'What is the access code for Silver Falcon?' --temp 0 "
                            "--timings --trace-selection");
  EXPECT_EQ(result.out, "The access code for Silver Falcon is 48213.\n");
  for (const char* word : {"prefill", "decode", "scan", "select", "attend", "rest", "layer  0",
                           "margin at the boundary", "ties"}) {
    EXPECT_NE(result.err.find(word), std::string::npos) << word;
  }
}

TEST_F(Cli, JsonHoldsTextUsageAndTimingsThatSum) {
  const Result result = Run("--prompt 'Who are you?' --temp 0 --json -n 5");
  const auto json = ParseJson(result.out, "stdout");
  EXPECT_EQ(json["finish_reason"], "length");
  EXPECT_EQ(json["usage"]["completion_tokens"], 5);
  EXPECT_EQ(json["usage"]["prompt_tokens"], 11);
  const auto& decode = json["timings"]["decode"];
  const double parts =
      decode["scan_seconds"].get<double>() + decode["select_seconds"].get<double>() +
      decode["attend_seconds"].get<double>() + decode["rest_seconds"].get<double>();
  EXPECT_NEAR(parts, decode["seconds"].get<double>(),
              0.05 * decode["seconds"].get<double>() + 1e-9);
}

TEST_F(Cli, MarksInAPromptStayTextUnlessItIsRaw) {
  const auto tokens = [&](const std::string& flags) {
    return ParseJson(Run("-n 1 --json " + flags).out, "stdout")["usage"]["prompt_tokens"]
        .get<int>();
  };
  EXPECT_GT(tokens("--prompt '<|user|>'"), tokens("--prompt 'a'") + 2);
  EXPECT_EQ(tokens("--raw --prompt 'a<|user|>'"), tokens("--raw --prompt 'a'") + 1);
}

TEST_F(Cli, SamplingIsReproducibleBySeed) {
  const std::string base = "--raw --prompt 'The Linux kernel is' -n 20 --temp 1 ";
  const std::string first = Run(base + "--seed 5").out;
  EXPECT_EQ(Run(base + "--seed 5 --threads 1").out, first);
  EXPECT_NE(Run(base + "--seed 6").out, first);
}

TEST_F(Cli, LogitsFilesHoldWhatTransformersComputes) {
  // The first 16 rows see no more cells than may be selected, so that no tie can part the engines.
  const Checkpoint golden = Checkpoint::OpenFile(kGolden / "glm_moe_dsa" / "golden.safetensors");
  const int32_t* ids = reinterpret_cast<const int32_t*>(golden.Find("input_ids")->data);
  std::string list;
  for (int i = 0; i < 16; ++i) list += std::to_string(ids[i]) + "\n";
  const std::string out = (folder_ / "logits.safetensors").string();
  const Result result = Run("logits --model '" + (kGolden / "glm_moe_dsa").string() +
                            "' --ids-file '" + Write("ids", list) + "' --out '" + out + "'");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, "");
  const Checkpoint file = Checkpoint::OpenFile(out);
  ASSERT_EQ(file.Find("logits")->shape, (std::vector<int64_t>{16, 256}));
  const float* found = reinterpret_cast<const float*>(file.Find("logits")->data);
  const float* expected = reinterpret_cast<const float*>(golden.Find("logits")->data);
  for (int i = 0; i < 16 * 256; ++i) ASSERT_NEAR(found[i], expected[i], 2e-3) << i;
  ASSERT_EQ(file.Find("topk.2")->shape, (std::vector<int64_t>{16, 16}));
  EXPECT_EQ(file.Find("topk.1"), nullptr);  // a shared layer selects nothing itself
  const int32_t* selected = reinterpret_cast<const int32_t*>(file.Find("topk.0")->data);
  EXPECT_EQ(std::vector<int32_t>(selected + 3 * 16, selected + 3 * 16 + 5),
            (std::vector<int32_t>{0, 1, 2, 3, -1}));
}

TEST_F(Cli, PlanPrintsEveryPartAndTheLargestContext) {
  const auto json = ParseJson(Run("plan --context 8K --json").out, "plan");
  EXPECT_EQ(json["context"], 8192);
  EXPECT_EQ(json["latent_cache_bytes"], 8192 * 1152 * 6);
  EXPECT_EQ(json["index_key_cache_bytes"], 8192 * 256 * 4);
  EXPECT_EQ(
      json["total_bytes"].get<int64_t>(),
      json["weight_bytes"].get<int64_t>() + json["latent_cache_bytes"].get<int64_t>() +
          json["index_key_cache_bytes"].get<int64_t>() + json["activation_bytes"].get<int64_t>() +
          json["score_scratch_bytes"].get<int64_t>() + json["step_input_bytes"].get<int64_t>());
  EXPECT_NE(Run("plan --context 8K").out.find("largest context that fits"), std::string::npos);
}

TEST_F(Cli, PlanReadsFoldersWhoseNamesAreNoText) {
  const std::filesystem::path odd = folder_ / "\xFF";
  std::filesystem::create_directory_symlink(kModel, odd);
  const Result result = Run("plan --context 8K --json --model '" + odd.string() + "'");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_NE(ParseJson(result.out, "plan")["model"].get<std::string>().find("\uFFFD"),
            std::string::npos);
}

TEST_F(Cli, HelpIsGroupedAndVersionNamesTheKernels) {
  const Result help = Run("--help");
  EXPECT_EQ(help.code, 0);
  for (const char* word : {"Model:", "Prompt:", "Sampling", "Output:", "--kv", "--trace-selection",
                           "STRATA_TOPK_SPLIT", "logits", "plan"}) {
    EXPECT_NE(help.out.find(word), std::string::npos) << word;
  }
  const Result version = Run("--version --verbose");
  EXPECT_EQ(version.code, 0);
  EXPECT_NE(version.out.find("STRATA_SCORES_HALVE"), std::string::npos);
}

TEST_F(Cli, WrongFlagsAreOneLineAndExitCode2) {
  ExpectFailure(Run("--prompt x --temp -1"), 2, {"--temp", "-1"});
  ExpectFailure(Run("--prompt x --threads 0"), 2, {"--threads"});
  ExpectFailure(Run("--prompt x --threads 99999999999999999999"), 2, {"--threads"});
  ExpectFailure(Run("--prompt x --max-context 12Q"), 2, {"12Q"});
  ExpectFailure(Run("--prompt x -n -4"), 2, {"-4"});
  ExpectFailure(Run("--prompt x --kv fp16"), 2, {"fp16", "bf16"});
  ExpectFailure(Run("--prompt x --top-p 0"), 2, {"--top-p"});
  ExpectFailure(Run("--no-such-flag"), 2, {"no-such-flag"});
  ExpectFailure(Run("--prompt x --chat --raw"), 2, {"--raw"});
  ExpectFailure(Run("--prompt x --logit-bias 5"), 2, {"--logit-bias", "TOKEN=BIAS"});
  ExpectFailure(Run("--prompt x --logit-bias 4294967301=5"), 2, {"logit_bias token"});
  ExpectFailure(Run("--prompt x --rope-scaling ntk"), 2, {"ntk"});
  ExpectFailure(Run("--prompt x --rope-scale 4"), 2, {"--rope-scaling yarn"});
  ExpectFailure(Run("--prompt x --max-context 1M"), 2, {"131072", "--rope-scale 8"});
  ExpectFailure(Run("--prompt ''"), 2, {"empty"});
  ExpectFailure(Run("--model /no/such/folder --prompt x"), 2, {"/no/such/folder"});
  ExpectFailure(Run("logits --ids 5,x --out /dev/null"), 2, {"'x'"});
  ExpectFailure(Run("logits --ids 5000 --out /dev/null"), 2, {"5000", "4096"});
  ExpectFailure(Run("logits --ids 5"), 2, {"--out"});
  ExpectFailure(Run("eval --context 256"), 2, {"256", "512"});
}

TEST_F(Cli, NumbersThatAreNoneAreRefusedByFlag) {
  for (const char* flag : {"--temp", "--top-p", "--min-p", "--repetition-penalty",
                           "--presence-penalty", "--frequency-penalty", "--spec-min-p"}) {
    ExpectFailure(Run("--prompt x " + std::string(flag) + " nan"), 2, {flag, "nan"});
  }
  ExpectFailure(Run("--prompt x --seed 18446744073709551616"), 2, {"--seed", "551616"});
  ExpectFailure(Run("--prompt x --seed x"), 2, {"--seed", "'x'"});
  EXPECT_EQ(Run("--prompt x --temp 0 -n 1 --seed 18446744073709551615").code, 0);
}

// "$UNSET" must not stand for the shipped model, every address or no key.
TEST_F(Cli, EmptyValuesAreNotTakenForFlagsLeftOut) {
  for (const char* flag : {"--model", "--file", "--kv", "--rope-scaling"})
    ExpectFailure(Run("--prompt x " + std::string(flag) + " ''"), 2, {flag, "empty"});
  for (const char* flag : {"--api-key-file", "--save-dir", "--host", "--alias", "--cors-origin"})
    ExpectFailure(Run("--serve --model /no/such/folder " + std::string(flag) + " ''"), 2,
                  {flag, "empty"});
  ExpectFailure(Run("logits --ids 0 --out ''"), 2, {"--out", "empty"});
  for (const char* key : {"", " ", "\n"}) {
    setenv("STRATA_API_KEY", key, 1);
    ExpectFailure(Run("--serve --host 203.0.113.1"), 2, {"STRATA_API_KEY", "empty", "unset"});
  }
  EXPECT_EQ(Run("--prompt x --temp 0 -n 1").code, 0);
  unsetenv("STRATA_API_KEY");
  EXPECT_EQ(Run("--prompt x --system '' --temp 0 -n 1").code, 0);
}

TEST_F(Cli, FlagsThatACommandDoesNotReadAreRefused) {
  ExpectFailure(Run("--serve --model /no/such/folder --prompt x"), 2, {"--prompt", "--serve"});
  ExpectFailure(Run("--serve --model /no/such/folder --temp 0"), 2, {"--temp", "--serve"});
  ExpectFailure(Run("--serve --model /no/such/folder --json"), 2, {"--json", "--serve"});
  ExpectFailure(Run("--prompt x plan"), 2, {"--prompt", "plan"});
  ExpectFailure(Run("--serve plan"), 2, {"--serve", "plan"});
  ExpectFailure(Run("plan --timings"), 2, {"--timings"});
  ExpectFailure(Run("plan logits --ids 0 --out /dev/null"), 2, {"logits"});
  EXPECT_EQ(Run("--json plan --context 8K").code, 0);
}

TEST_F(Cli, OutputThatCannotBeWrittenFailsTheRun) {
  for (const char* arguments : {"--prompt x --temp 0 -n 2", "--prompt x --temp 0 -n 2 --json",
                                "plan --context 8K", "--help", "--man", "--version"}) {
    for (const char* to : {"/dev/full", "&-"}) {
      const Result result = RunTo(arguments, to);
      EXPECT_EQ(result.code, 1) << arguments << " >" << to;
      EXPECT_NE(result.err.find("stdout cannot be written"), std::string::npos) << result.err;
    }
  }
}

TEST_F(Cli, StdinThatCannotBeReadOrEndsTooLateIsRefused) {
  ExpectFailure(Run("-n 1", folder_.string()), 2, {"stdin", "directory"});
  const std::filesystem::path huge = folder_ / "huge";
  std::ofstream(huge).close();
  std::filesystem::resize_file(huge, (size_t{256} << 20) + 1);
  ExpectFailure(Run("-n 1", huge.string()), 2, {"stdin", "268435456"});
  ExpectFailure(Run("-n 1 --file '" + huge.string() + "'"), 1, {huge.string(), "268435456"});
}

// Messages send users to flags; those must exist.
TEST_F(Cli, FlagsThatMessagesNameExist) {
  std::string help = Run("--help").out;
  for (const char* command : {"logits", "plan", "eval"})
    help += Run(std::string(command) + " --help").out;
  const std::set<std::string> known = FlagsIn(help);
  const std::regex text(R"re("([^"\\\n]|\\.)*")re");
  int named = 0;
  for (const char* layer : {"kernels", "engine", "models", "server", "tools"}) {
    for (const auto& entry :
         std::filesystem::directory_iterator(std::filesystem::path(STRATA_SOURCE_DIR) / layer)) {
      if (entry.path().extension() != ".cpp") continue;
      const std::string source = ReadTextFile(entry.path());
      for (std::sregex_iterator match(source.begin(), source.end(), text), end; match != end;
           ++match) {
        for (const std::string& flag : FlagsIn(match->str())) {
          EXPECT_TRUE(known.contains(flag)) << flag << " in " << entry.path();
          ++named;
        }
      }
    }
  }
  EXPECT_GT(named, 50);
}

TEST_F(Cli, SwitchesTakeZeroOrOne) {
  setenv("STRATA_TOPK_SPLIT", "maybe", 1);
  ExpectFailure(Run("--prompt x"), 2, {"STRATA_TOPK_SPLIT=maybe"});
  setenv("STRATA_TOPK_SPLIT", "1", 1);
  EXPECT_EQ(Run("--prompt 'Who are you?' --temp 0 -n 2").code, 0);
  unsetenv("STRATA_TOPK_SPLIT");
}

TEST_F(Cli, PromptsThatDoNotFitAreRefusedWithBothNumbers) {
  std::string text;
  for (int i = 0; i < 400; ++i) text += "word ";
  ExpectFailure(Run("--max-context 300 --file '" + Write("long", text) + "'"), 1,
                {"the prompt has", "tokens", "300"});
}

TEST_F(Cli, BytesThatAreNoTextAreReadAndAnswered) {
  constexpr char kBytes[] = "\xff\xfe\x00 caf\xc3";
  const Result result = Run("--raw -n 3 --temp 0 --file '" +
                            Write("bytes", std::string(kBytes, sizeof kBytes - 1)) + "'");
  EXPECT_EQ(result.code, 0) << result.err;
}

TEST_F(Cli, StretchedPositionsStillFindTheFact) {
  const std::string text =
      (std::filesystem::path(STRATA_SOURCE_DIR) / "tools" / "examples" / "long.txt").string();
  const Result result =
      Run("--rope-scaling yarn --rope-scale 2 --max-context 200K --file '" + text +
          "' --prompt 'What is the access code for Silver Falcon?' --temp 0 -n 30");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("Silver Falcon"), std::string::npos);
}

TEST_F(Cli, DamagedModelsAreNamed) {
  const std::filesystem::path model = LinkedModel();
  const std::string flags = "--model '" + model.string() + "' --prompt x";
  Replace(model / "config.json", "{\"model_type\": \"llama\"}");
  ExpectFailure(Run(flags), 1, {"model_type", "llama", "deepseek_v32, glm_moe_dsa"});
  std::string config = ReadTextFile(kModel / "config.json");
  config.replace(config.find("\"hidden_size\": 256"), 18, "\"hidden_size\": 512");
  Replace(model / "config.json", config);
  ExpectFailure(Run(flags), 1, {"model.embed_tokens.weight is [4096, 256]", "[4096, 512]"});
  std::filesystem::remove(model / "config.json");
  ExpectFailure(Run(flags), 1, {"config.json does not exist"});
  std::filesystem::create_symlink(kModel / "config.json", model / "config.json");

  const std::string shard = ReadTextFile(kModel / "model-00002-of-00002.safetensors");
  Replace(model / "model-00002-of-00002.safetensors", shard.substr(0, shard.size() / 2));
  ExpectFailure(Run(flags), 1, {"model-00002-of-00002.safetensors", "truncated"});
  std::filesystem::remove(model / "model-00002-of-00002.safetensors");
  ExpectFailure(Run(flags), 1, {"model-00002-of-00002.safetensors", "not in"});
  std::string poisoned = shard;
  const size_t data = 8 + static_cast<size_t>(*reinterpret_cast<const uint64_t*>(poisoned.data()));
  for (size_t i = data + (data % 2); i + 1 < poisoned.size(); i += 2)
    poisoned[i] = '\xc0', poisoned[i + 1] = '\x7f';
  Replace(model / "model-00002-of-00002.safetensors", poisoned);
  ExpectFailure(Run(flags), 1, {"not numbers"});
  std::filesystem::remove(model / "model-00002-of-00002.safetensors");
  std::filesystem::create_symlink(kModel / "model-00002-of-00002.safetensors",
                                  model / "model-00002-of-00002.safetensors");

  Replace(model / "tokenizer.json", "{\"model\": {\"type\": \"WordPiece\"}}");
  ExpectFailure(Run(flags), 1, {"tokenizer.json", "WordPiece"});
  std::filesystem::remove(model / "tokenizer.json");
  std::filesystem::create_symlink(kModel / "tokenizer.json", model / "tokenizer.json");
  Replace(model / "chat_template.jinja", "{% include 'other' %}");
  ExpectFailure(Run(flags + " --chat"), 1, {"chat_template.jinja line 1", "include"});
}

}  // namespace
}  // namespace strata
