// Texts with planted facts and questions about them, in the wordings the shipped model was trained
// for.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "models/tokenizer.h"

namespace strata {

struct TokenRange {
  int64_t begin = 0, end = 0;
};

// One chat prompt with its questions and answers appended: <|user|> text, question <|assistant|>
// answer, <|user|> question ...
struct LookupText {
  std::vector<int32_t> tokens;
  std::vector<TokenRange> answers;  // the tokens of each answer's value
};

// The filler is plain English prose made from sentence patterns, different in every text; facts
// (access codes, phone numbers, owners, cities ...) stand between its sentences at even depths,
// with near-miss names among them. The same seed makes the same texts on every machine.
class LookupTask {
 public:
  LookupTask(const Tokenizer& tokenizer, uint64_t seed) : tokenizer_(&tokenizer), random_(seed) {}

  // About `length` tokens with `facts` facts, of which `questions` are asked for at the end.
  LookupText Make(int64_t length, int64_t facts, int64_t questions, bool numbers_only);

 private:
  struct Fact {
    std::string statement, question, before_value, value, after_value;
  };

  size_t Pick(size_t count) { return static_cast<size_t>(random_() % count); }
  std::string PickWord(const std::vector<std::string>& words) { return words[Pick(words.size())]; }
  Fact MakeFact(bool numbers_only);
  std::string MakeValue(const std::string& kind);
  std::string MakeSentence();

  const Tokenizer* tokenizer_;
  std::mt19937_64 random_;
  std::string last_adjective_, last_noun_;
  std::vector<std::string> used_;
};

}  // namespace strata
