#include "models/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include "kernels/status.h"
#include "models/json.h"

namespace strata {

namespace {

using nlohmann::ordered_json;

// The split of GPT-2, which ByteLevel applies by itself when use_regex is set.
constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr uint32_t kMatchLimit = 10'000'000;
constexpr uint32_t kDepthLimit = 100'000;

enum class Behaviour { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };

Behaviour ParseBehaviour(const JsonFields& fields) {
  const std::string name = fields.String("behavior").value_or("Isolated");
  if (name == "Isolated") return Behaviour::kIsolated;
  if (name == "Removed") return Behaviour::kRemoved;
  if (name == "MergedWithPrevious") return Behaviour::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behaviour::kMergedWithNext;
  if (name == "Contiguous") return Behaviour::kContiguous;
  fields.Refuse("behavior",
                "Isolated, Removed, MergedWithPrevious, MergedWithNext and Contiguous are known");
}

struct Range {
  size_t begin, end;
  bool match;
};

// A compiled pattern with its limits. Thread-safe: match data is made per call.
class Pattern {
 public:
  Pattern(const std::string& pattern, const std::string& file_name) {
    int code = 0;
    PCRE2_SIZE offset = 0;
    code_.reset(
        pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                      PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF | PCRE2_NEVER_BACKSLASH_C,
                      &code, &offset, nullptr));
    if (code_ == nullptr) {
      PCRE2_UCHAR message[160] = {};
      pcre2_get_error_message(code, message, sizeof(message));
      Fail(ErrorCode::kModelFile, fmt::format("{}: split pattern, character {}: {}", file_name,
                                              offset, reinterpret_cast<const char*>(message)));
    }
    pcre2_jit_compile(code_.get(),
                      PCRE2_JIT_COMPLETE);  // where there is no JIT the interpreter runs
    context_.reset(pcre2_match_context_create(nullptr));
    pcre2_set_match_limit(context_.get(), kMatchLimit);
    pcre2_set_depth_limit(context_.get(), kDepthLimit);
  }

  // Matches and the gaps between them, covering the text.
  std::vector<Range> Find(std::string_view text) const {
    std::vector<Range> ranges;
    const std::unique_ptr<pcre2_match_data, MatchFree> match(pcre2_match_data_create(1, nullptr));
    const PCRE2_SPTR subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    size_t at = 0, covered = 0;
    while (at < text.size()) {
      const int found =
          pcre2_match(code_.get(), subject, text.size(), at, 0, match.get(), context_.get());
      if (found == PCRE2_ERROR_NOMATCH) break;
      if (found < 0) {
        PCRE2_UCHAR message[160] = {};
        pcre2_get_error_message(found, message, sizeof(message));
        Fail(ErrorCode::kModelFile,
             fmt::format("the tokenizer's split pattern gave up on a text of {} bytes: {}",
                         text.size(), reinterpret_cast<const char*>(message)));
      }
      const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(match.get());
      const size_t begin = bounds[0], end = bounds[1];
      if (end <= begin) {  // an empty match cuts nothing; go on behind the next character
        at = begin + 1;
        while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) ++at;
        continue;
      }
      if (begin > covered) ranges.push_back({covered, begin, false});
      ranges.push_back({begin, end, true});
      at = covered = end;
    }
    if (covered < text.size()) ranges.push_back({covered, text.size(), false});
    return ranges;
  }

 private:
  struct CodeFree {
    void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  };
  struct MatchFree {
    void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  };
  struct ContextFree {
    void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
  };
  std::unique_ptr<pcre2_code, CodeFree> code_;
  std::unique_ptr<pcre2_match_context, ContextFree> context_;
};

std::string EscapeRegex(const std::string& text) {
  std::string escaped;
  for (char c : text) {
    if (std::string_view("\\^$.|?*+()[]{}-#").find(c) != std::string_view::npos) escaped += '\\';
    escaped += c;
  }
  return escaped;
}

}  // namespace

class PreTokenizer::Step {
 public:
  Step(const std::string& pattern, Behaviour behaviour, bool invert, bool prefix_space,
       const std::string& file_name)
      : behaviour_(behaviour), invert_(invert), prefix_space_(prefix_space) {
    if (!pattern.empty()) pattern_ = std::make_unique<Pattern>(pattern, file_name);
  }

  void Apply(std::string_view piece, std::vector<std::string>& out) const {
    std::string prefixed;
    if (prefix_space_ && (piece.empty() || piece.front() != ' ')) {
      prefixed.reserve(piece.size() + 1);
      prefixed.push_back(' ');
      prefixed.append(piece);
      piece = prefixed;
    }
    if (pattern_ == nullptr) {
      out.emplace_back(piece);
      return;
    }
    bool join_next = false;    // MergedWithNext: the last piece waits for what follows
    bool after_match = false;  // Contiguous: the last piece is a match
    bool appendable = false;   // MergedWithPrevious: there is a piece to append to
    for (const Range& range : pattern_->Find(piece)) {
      const bool match = range.match != invert_;
      const std::string text(piece.substr(range.begin, range.end - range.begin));
      const bool append = (join_next && !match) ||
                          (behaviour_ == Behaviour::kContiguous && match && after_match) ||
                          (behaviour_ == Behaviour::kMergedWithPrevious && match && appendable);
      if (!(behaviour_ == Behaviour::kRemoved && match)) {
        if (append) {
          out.back() += text;
        } else {
          out.push_back(text);
        }
      }
      join_next = behaviour_ == Behaviour::kMergedWithNext && match;
      appendable = !match;
      after_match = match;
    }
  }

 private:
  std::unique_ptr<Pattern> pattern_;
  Behaviour behaviour_;
  bool invert_;
  bool prefix_space_;
};

PreTokenizer::PreTokenizer(const ordered_json* section, const std::string& file_name) {
  if (section != nullptr && !section->is_null()) Add(*section, file_name, 0);
}
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer::~PreTokenizer() = default;

void PreTokenizer::Add(const ordered_json& section, const std::string& file_name, int depth) {
  const JsonFields fields(section, file_name + ": pre_tokenizer", ErrorCode::kModelFile);
  const std::string type = fields.String("type").value_or("");
  if (type == "Sequence") {
    const ordered_json* steps = fields.Find("pretokenizers");
    if (steps == nullptr || !steps->is_array() || depth > 4)
      fields.Refuse("pretokenizers", "a list of pre-tokenizers is needed");
    for (const ordered_json& step : *steps) Add(step, file_name, depth + 1);
  } else if (type == "Split") {
    const ordered_json* pattern = fields.Find("pattern");
    std::string regex;
    if (pattern != nullptr && pattern->is_object() && pattern->contains("Regex") &&
        (*pattern)["Regex"].is_string()) {
      regex = (*pattern)["Regex"].get<std::string>();
    } else if (pattern != nullptr && pattern->is_object() && pattern->contains("String") &&
               (*pattern)["String"].is_string()) {
      regex = EscapeRegex((*pattern)["String"].get<std::string>());
    }
    if (regex.empty()) fields.Refuse("pattern", "a Regex or a String is needed");
    steps_.push_back(std::make_unique<Step>(
        regex, ParseBehaviour(fields), fields.Boolean("invert").value_or(false), false, file_name));
  } else if (type == "Digits") {
    const bool individual = fields.Boolean("individual_digits").value_or(false);
    steps_.push_back(
        std::make_unique<Step>("\\p{N}", individual ? Behaviour::kIsolated : Behaviour::kContiguous,
                               false, false, file_name));
  } else if (type == "ByteLevel") {
    const bool regex = fields.Boolean("use_regex").value_or(true);
    steps_.push_back(std::make_unique<Step>(regex ? kGpt2Pattern : "", Behaviour::kIsolated, false,
                                            fields.Boolean("add_prefix_space").value_or(true),
                                            file_name));
  } else {
    fields.Refuse("type", "Split, Digits, ByteLevel and Sequence are known");
  }
}

std::vector<std::string> PreTokenizer::Split(std::string_view text) const {
  std::vector<std::string> pieces = {std::string(text)};
  for (const std::unique_ptr<Step>& step : steps_) {
    std::vector<std::string> next;
    for (const std::string& piece : pieces) step->Apply(piece, next);
    pieces = std::move(next);
  }
  return pieces;
}

}  // namespace strata
