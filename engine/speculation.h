// Speculative decoding: what a request or an engine may ask for, and what is counted.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

namespace strata {

constexpr int64_t kMaxDrafts = 7;  // a verify window has at most 8 rows: the known token and these

// Who guesses the tokens that a window verifies.
enum class DrafterKind : uint8_t {
  kOff,
  kAuto,   // ngram where a long stretch repeats, else mtp where it is loaded, else ngram
  kMtp,    // the checkpoint's own prediction layer
  kNgram,  // what followed the last tokens when the sequence had them before
};
const char* DrafterName(DrafterKind kind);                  // "off", "auto", "mtp", "ngram"
std::optional<DrafterKind> ParseDrafter(const char* name);  // none when unknown

// No choice here changes a token of any answer, only how many steps it takes.
struct SpeculationOptions {
  int64_t drafts = 0;  // tokens to draft per step at most, 0 to kMaxDrafts
  // Drafting stops before a token to which the prediction layer gives less than this, 0 to 1.
  float min_probability = 0.0f;
  DrafterKind drafter = DrafterKind::kAuto;
  // Fewer drafts, down to none, where they are measured to cost more than they save.
  bool adaptive = true;
};

// Fail(kUsage) names the field, its value and the accepted range.
void ValidateSpeculation(const SpeculationOptions& options);

// Drafts by their place in the window.
struct DraftCounts {
  int64_t windows = 0;  // steps of a sequence that verified drafts
  std::array<int64_t, kMaxDrafts> drafted = {};
  std::array<int64_t, kMaxDrafts> accepted = {};

  int64_t drafted_tokens() const { return Sum(drafted); }
  int64_t accepted_tokens() const { return Sum(accepted); }
  void AddWindow(int64_t drafts) {
    ++windows;
    for (int64_t place = 0; place < drafts; ++place) ++drafted[static_cast<size_t>(place)];
  }
  void Add(const DraftCounts& other) {
    windows += other.windows;
    for (size_t place = 0; place < drafted.size(); ++place) {
      drafted[place] += other.drafted[place];
      accepted[place] += other.accepted[place];
    }
  }
  void AddAccepted(int64_t place) { ++accepted[static_cast<size_t>(place)]; }

 private:
  static int64_t Sum(const std::array<int64_t, kMaxDrafts>& counts) {
    int64_t sum = 0;
    for (int64_t count : counts) sum += count;
    return sum;
  }
};

}  // namespace strata
