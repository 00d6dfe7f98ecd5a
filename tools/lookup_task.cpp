#include "tools/lookup_task.h"

#include <algorithm>

#include "tools/lookup_words.h"

namespace strata {

namespace {

// {E} is the name asked for, {V} the value. `entity` names are things (adjective and noun), others
// are persons.
struct FactKind {
  bool entity;
  const char* value;  // "num", "city", "person", "color", "job", "word", "month"
  std::vector<const char*> statements, questions;
  const char* answer;
};

const std::vector<FactKind>& Kinds() {
  static const std::vector<FactKind> kinds = {
      {true,
       "num",
       {"The access code for {E} is {V}.", "Please note that the access code for {E} is {V}.",
        "Remember that the access code for {E} is {V}."},
       {"What is the access code for {E}?", "Which access code belongs to {E}?"},
       "The access code for {E} is {V}."},
      {true,
       "num",
       {"The serial number of the {E} is {V}.",
        "On the label of the {E} one reads the serial number {V}."},
       {"What is the serial number of the {E}?"},
       "The serial number of the {E} is {V}."},
      {false,
       "num",
       {"The phone number of {E} is {V}.", "You can call {E} at {V}."},
       {"What is the phone number of {E}?"},
       "The phone number of {E} is {V}."},
      {true,
       "num",
       {"The price of the {E} is {V} dollars.", "The {E} was sold for {V} dollars."},
       {"What is the price of the {E}?", "How much does the {E} cost?"},
       "The price of the {E} is {V} dollars."},
      {false,
       "num",
       {"{E} has badge number {V}.", "The badge number of {E} is {V}."},
       {"What is the badge number of {E}?"},
       "The badge number of {E} is {V}."},
      {false,
       "city",
       {"{E} lives in {V}.", "Since last year {E} has lived in {V}."},
       {"Where does {E} live?", "In which city does {E} live?"},
       "{E} lives in {V}."},
      {true,
       "city",
       {"The {E} is kept in {V}.", "You will find the {E} in {V}."},
       {"Where is the {E} kept?", "In which city is the {E}?"},
       "The {E} is kept in {V}."},
      {true,
       "person",
       {"The owner of the {E} is {V}.", "The {E} belongs to {V}."},
       {"Who is the owner of the {E}?", "Who owns the {E}?"},
       "The owner of the {E} is {V}."},
      {false,
       "color",
       {"The favorite color of {E} is {V}."},
       {"What is the favorite color of {E}?"},
       "The favorite color of {E} is {V}."},
      {false,
       "job",
       {"{E} works as a {V}.", "For many years {E} has worked as a {V}."},
       {"What is the job of {E}?", "What does {E} work as?"},
       "{E} works as a {V}."},
      {true,
       "word",
       {"The secret word for {E} is {V}.", "The password of {E} is the word {V}."},
       {"What is the secret word for {E}?"},
       "The secret word for {E} is {V}."},
      {true,
       "month",
       {"The {E} opens in {V}.", "The opening of the {E} is planned for {V}."},
       {"When does the {E} open?"},
       "The {E} opens in {V}."},
  };
  return kinds;
}
constexpr size_t kNumberKinds = 5;  // the first ones

std::string Fill(std::string pattern, const std::string& name, const std::string& value) {
  for (const auto& [mark, text] :
       {std::pair<std::string, std::string>{"{E}", name}, {"{V}", value}}) {
    const size_t at = pattern.find(mark);
    if (at != std::string::npos) pattern.replace(at, mark.size(), text);
  }
  return pattern;
}

// Parts of filler sentences: technical prose that says nothing about any planted name.
const std::vector<std::string> kSubjects = {"The program",
                                            "A configuration file",
                                            "The package manager",
                                            "This option",
                                            "The default setting",
                                            "Each process",
                                            "The kernel",
                                            "A shell script",
                                            "The documentation",
                                            "The server",
                                            "A user",
                                            "The compiler",
                                            "An administrator",
                                            "The file system",
                                            "The network interface",
                                            "This command",
                                            "The library",
                                            "A regular expression",
                                            "The installer",
                                            "The system clock"};
const std::vector<std::string> kVerbs = {
    "reads",    "writes",   "describes", "changes",  "removes",    "replaces", "checks",
    "starts",   "lists",    "converts",  "installs", "copies",     "displays", "creates",
    "requires", "supports", "updates",   "selects",  "compresses", "ignores"};
const std::vector<std::string> kObjects = {"the input file",
                                           "a list of names",
                                           "the current directory",
                                           "all temporary files",
                                           "the output of the previous step",
                                           "a set of rules",
                                           "the contents of the archive",
                                           "the first line of the table",
                                           "several environment variables",
                                           "a copy of the database",
                                           "the result of the search",
                                           "an empty string",
                                           "the header of the message",
                                           "every entry in the index",
                                           "a small number of options",
                                           "the log of the last session",
                                           "the old version",
                                           "a block of memory",
                                           "the name of the host",
                                           "the end of the document"};
const std::vector<std::string> kTails = {"before it exits",
                                         "when no argument is given",
                                         "in the order of their size",
                                         "unless it is told otherwise",
                                         "as the manual explains",
                                         "each time it is called",
                                         "on most modern systems",
                                         "without asking the user",
                                         "if the disk is full",
                                         "after a short delay",
                                         "so that errors can be found",
                                         "in the same way as before",
                                         "because the format has changed",
                                         "while other programs are running",
                                         "for reasons of speed",
                                         "at the end of the day",
                                         "with very few exceptions",
                                         "to keep the system safe",
                                         "when the machine is started",
                                         "which is rarely needed"};

}  // namespace

std::string LookupTask::MakeSentence() {
  std::string sentence = PickWord(kSubjects) + " " + PickWord(kVerbs) + " " + PickWord(kObjects);
  if (Pick(3) > 0) sentence += " " + PickWord(kTails);
  if (Pick(5) == 0) {
    std::string other = PickWord(kSubjects);
    other[0] = static_cast<char>(other[0] | 0x20);
    sentence += ", and " + other + " " + PickWord(kVerbs) + " " + PickWord(kObjects);
  }
  return sentence + ".";
}

std::string LookupTask::MakeValue(const std::string& kind) {
  if (kind == "num") {
    std::string digits;
    const size_t length = 4 + std::min<size_t>(2, Pick(5) / 2 + Pick(2));
    for (size_t i = 0; i < length; ++i) digits += static_cast<char>('0' + Pick(10));
    return digits;
  }
  if (kind == "person") return PickWord(FirstNames()) + " " + PickWord(LastNames());
  if (kind == "city") return PickWord(Cities());
  if (kind == "color") return PickWord(Colours());
  if (kind == "job") return PickWord(Jobs());
  if (kind == "word") return PickWord(SecretWords());
  return PickWord(Months());
}

LookupTask::Fact LookupTask::MakeFact(bool numbers_only) {
  const FactKind& kind = Kinds()[Pick(numbers_only ? kNumberKinds : Kinds().size())];
  std::string name;
  do {
    if (kind.entity) {
      std::string adjective = PickWord(Adjectives()), noun = PickWord(Nouns());
      // Near misses: a name that shares a word with the one before.
      if (!last_noun_.empty() && Pick(10) < 3) {
        if (Pick(2) == 0) {
          adjective = last_adjective_;
        } else {
          noun = last_noun_;
        }
      }
      last_adjective_ = adjective, last_noun_ = noun;
      name = adjective + " " + noun;
    } else {
      name = PickWord(FirstNames()) + " " + PickWord(LastNames());
    }
  } while (std::find(used_.begin(), used_.end(), name) != used_.end());
  used_.push_back(name);
  const std::string value = MakeValue(kind.value);
  Fact fact;
  fact.statement = Fill(kind.statements[Pick(kind.statements.size())], name, value);
  fact.question = Fill(kind.questions[Pick(kind.questions.size())], name, value);
  const std::string answer = Fill(kind.answer, name, "\x01");
  const size_t at = answer.find('\x01');
  fact.before_value = answer.substr(0, at);
  fact.value = value;
  fact.after_value = answer.substr(at + 1);
  return fact;
}

LookupText LookupTask::Make(int64_t length, int64_t facts, int64_t questions, bool numbers_only) {
  used_.clear();
  last_adjective_.clear();
  last_noun_.clear();
  std::vector<Fact> planted;
  for (int64_t i = 0; i < facts; ++i) planted.push_back(MakeFact(numbers_only));

  // The questions first, so that the whole comes out at the wanted length.
  std::vector<size_t> order(planted.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  for (size_t i = order.size() - 1; i > 0; --i) std::swap(order[i], order[Pick(i + 1)]);
  LookupText tail;
  for (int64_t q = 0; q < questions; ++q) {
    const Fact& fact = planted[order[static_cast<size_t>(q)]];
    const auto append = [&](const std::string& text) {
      const std::vector<int32_t> ids = tokenizer_->Encode(text);
      tail.tokens.insert(tail.tokens.end(), ids.begin(), ids.end());
    };
    append((q == 0 ? "\n\n" : "<|user|>\n") + fact.question + "<|assistant|>\n");
    // The answer is cut where its value begins; a space before the value belongs to the value's
    // first token.
    const std::vector<int32_t> head = tokenizer_->Encode(fact.before_value + fact.value);
    const bool spaced = fact.before_value.ends_with(' ');
    const size_t common =
        tokenizer_
            ->Encode(spaced ? fact.before_value.substr(0, fact.before_value.size() - 1)
                            : fact.before_value)
            .size();
    const int64_t begin = static_cast<int64_t>(tail.tokens.size() + common);
    tail.tokens.insert(tail.tokens.end(), head.begin(), head.end());
    tail.answers.push_back({begin, static_cast<int64_t>(tail.tokens.size())});
    append(fact.after_value);
  }

  LookupText text;
  const std::vector<int32_t> opening = tokenizer_->Encode("<|endoftext|><|user|>\n");
  text.tokens = opening;
  const int64_t body = std::max<int64_t>(
      facts * 16, length - static_cast<int64_t>(tail.tokens.size() + opening.size()));
  size_t next = 0;
  int64_t in_paragraph = 0;
  while (static_cast<int64_t>(text.tokens.size()) < body || next < planted.size()) {
    // Fact i stands at the depth (i + 1/2) / facts of the text.
    const double depth = static_cast<double>(text.tokens.size()) / static_cast<double>(body);
    const bool due = next < planted.size() &&
                     depth >= (static_cast<double>(next) + 0.5) / static_cast<double>(facts);
    std::string sentence = due ? planted[next++].statement : MakeSentence();
    sentence =
        (in_paragraph == 0 ? (text.tokens.size() == opening.size() ? "" : "\n\n") : " ") + sentence;
    in_paragraph = (in_paragraph + 1) % 6;
    const std::vector<int32_t> ids = tokenizer_->Encode(sentence);
    text.tokens.insert(text.tokens.end(), ids.begin(), ids.end());
  }
  const int64_t offset = static_cast<int64_t>(text.tokens.size());
  text.tokens.insert(text.tokens.end(), tail.tokens.begin(), tail.tokens.end());
  for (const TokenRange& answer : tail.answers)
    text.answers.push_back({answer.begin + offset, answer.end + offset});
  return text;
}

}  // namespace strata
