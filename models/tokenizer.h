// Byte-level BPE from tokenizer.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace strata {

enum class SpecialTokens {
  kParse,    // text such as "<|user|>" becomes its special token
  kAsText,   // special tokens' text is encoded as ordinary text: for untrusted content
  kGuarded,  // as kParse, but text that Guard went over stays text: for a prompt around such
             // content
};

// Thread-safe after loading.
class Tokenizer {
 public:
  // Reads tokenizer.json and, when present, tokenizer_config.json. Fail(kModelFile) names the file,
  // the field and the value: unknown model type, a merge of unknown tokens, a split pattern PCRE2
  // refuses (with its position).
  static Tokenizer Load(const std::filesystem::path& directory);
  static Tokenizer FromJson(const std::string& tokenizer_json,
                            const std::string& tokenizer_config_json, const std::string& file_name);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // `text` is UTF-8; invalid bytes are kept as they are (byte-level) so that Decode(Encode(x)) ==
  // x. Adds no BOS.
  std::vector<int32_t> Encode(std::string_view text,
                              SpecialTokens special = SpecialTokens::kParse) const;
  // Untrusted text on its way into a prompt that is encoded as kGuarded: whoever writes "<|user|>"
  // in a message must not be able to begin a turn. A sign inside each mark keeps it from becoming a
  // token; marks are the special tokens and other added ones that look like markup ("<...", "｜"),
  // but for those of `allowed`. The text between the signs stays what a template expects.
  std::string Guard(std::string_view text,
                    std::initializer_list<std::string_view> allowed = {}) const;
  // Takes the signs away again.
  static std::string Unguard(std::string_view text);
  // A bare text as a prompt: with the start token in front when this tokenizer adds one.
  std::vector<int32_t> EncodePrompt(std::string_view text) const;
  // The bytes of the tokens, concatenated; may end inside a UTF-8 sequence.
  std::string Decode(const std::vector<int32_t>& ids, bool skip_special = false) const;
  // The bytes of one token: none for an id beyond the vocabulary, which a model with more logits
  // than tokens may choose. A negative one: Fail(kUsage).
  const std::string& TokenBytes(int32_t id) const;

  bool IsSpecial(int32_t id) const;
  std::optional<int32_t> TokenId(
      std::string_view token) const;  // by its literal text, special tokens included
  int64_t vocabulary() const;         // largest id + 1
  // The id that tokenizer_config.json / the post-processor says must start a sequence, if any.
  std::optional<int32_t> bos() const;
  std::optional<int32_t> eos() const;
  bool adds_bos() const;  // add_bos_token, or a template post-processor that puts it in front

  // Streaming: Push returns the text that is complete; bytes of an unfinished UTF-8 sequence are
  // held back. Finish() returns what is left with U+FFFD for an unfinished sequence. Concatenation
  // equals Decode of all tokens with every invalid sequence replaced.
  class Stream {
   public:
    explicit Stream(const Tokenizer& tokenizer, bool skip_special = true);
    std::string Push(int32_t id);
    std::string Finish();

   private:
    const Tokenizer* tokenizer_;
    bool skip_special_;
    std::string pending_;
  };

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace strata
