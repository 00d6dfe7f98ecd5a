#include "models/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <unordered_map>

#include "kernels/status.h"
#include "models/bpe.h"
#include "models/json.h"
#include "models/pretokenizer.h"
#include "models/utf8.h"

namespace strata {

namespace {

using nlohmann::ordered_json;

constexpr int64_t kMaxVocabulary = 1 << 24;
// Guard's sign: U+FDD0, which stands for no character. Where the text itself has one, it is
// doubled.
constexpr std::string_view kSign = "\xEF\xB7\x90";

struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool special = false;
  bool strip_left = false;  // takes the white space before it along
  bool strip_right = false;
  bool single_word = false;  // only between characters that are no letters or digits

  // Some vocabularies do not flag the tokens around their turns as special.
  bool IsMark() const {
    return special || content.starts_with('<') || content.find("｜") != std::string::npos;
  }
};

// GPT-2's printable stand-ins for bytes: the code point that a vocabulary writes for each byte.
std::array<uint32_t, 256> ByteCodePoints() {
  std::array<uint32_t, 256> points{};
  uint32_t next = 256;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) ||
                           (byte >= 0xAE && byte <= 0xFF);
    points[byte] = printable ? byte : next++;
  }
  return points;
}

// Vocabulary spelling to raw bytes; false when a character stands for no byte.
class ByteSpelling {
 public:
  ByteSpelling() {
    const std::array<uint32_t, 256> points = ByteCodePoints();
    for (uint32_t byte = 0; byte < 256; ++byte) bytes_[points[byte]] = static_cast<char>(byte);
  }
  bool ToBytes(const std::string& spelling, std::string& bytes) const {
    bytes.clear();
    for (size_t i = 0; i < spelling.size();) {
      const unsigned char lead = static_cast<unsigned char>(spelling[i]);
      uint32_t point = lead;
      size_t length = 1;
      if (lead >= 0xC0 &&
          i + 1 < spelling.size()) {  // every stand-in has at most two bytes of UTF-8
        point = (lead & 0x1Fu) << 6 | (static_cast<unsigned char>(spelling[i + 1]) & 0x3Fu);
        length = 2;
      }
      const auto found = bytes_.find(point);
      if (lead >= 0xE0 || found == bytes_.end()) return false;
      bytes += found->second;
      i += length;
    }
    return true;
  }

 private:
  std::unordered_map<uint32_t, char> bytes_;
};

bool IsSpace(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v';
}
bool IsWordByte(char c) {
  const unsigned char byte = static_cast<unsigned char>(c);
  return byte >= 0x80 || (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'z') ||
         (byte >= 'A' && byte <= 'Z') || byte == '_';
}

}  // namespace

struct Tokenizer::Impl {
  std::string file_name;
  BytePairEncoder encoder;
  std::unique_ptr<PreTokenizer> pre_tokenizer;
  std::vector<std::string> bytes;  // [vocabulary]
  std::vector<bool> special;       // [vocabulary]
  std::unordered_map<std::string, int32_t> by_text;
  std::vector<AddedToken> added;
  std::array<std::vector<size_t>, 256> added_by_first_byte;  // indices into `added`, longest first
  std::optional<int32_t> bos, eos;
  bool adds_bos = false;

  void Put(int64_t id, const std::string& text, const std::string& raw) {
    if (id < 0 || id >= kMaxVocabulary) {
      Fail(ErrorCode::kModelFile,
           fmt::format("{}: token '{}' has the id {}, 0 to {} is accepted", file_name,
                       ReplaceInvalidUtf8(text), id, kMaxVocabulary - 1));
    }
    if (static_cast<size_t>(id) >= bytes.size()) {
      bytes.resize(static_cast<size_t>(id) + 1);
      special.resize(static_cast<size_t>(id) + 1, false);
    }
    bytes[static_cast<size_t>(id)] = raw;
    by_text[text] = static_cast<int32_t>(id);
  }

  void LoadModel(const ordered_json& section) {
    const JsonFields fields(section, file_name + ": model", ErrorCode::kModelFile);
    const std::string type = fields.String("type").value_or("BPE");
    if (type != "BPE") fields.Refuse("type", "byte-level BPE is served");
    if (fields.Boolean("byte_fallback").value_or(false))
      fields.Refuse("byte_fallback", "false is served");
    for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (!fields.String(name).value_or("").empty()) fields.Refuse(name, "null is served");
    }
    encoder.set_ignore_merges(fields.Boolean("ignore_merges").value_or(false));
    const ordered_json* vocabulary = fields.Find("vocab");
    const ordered_json* merges = fields.Find("merges");
    if (vocabulary == nullptr || !vocabulary->is_object())
      fields.Refuse("vocab", "an object of token ids is needed");
    if (merges == nullptr || !merges->is_array())
      fields.Refuse("merges", "a list of pairs is needed");
    const ByteSpelling spelling;
    std::string raw;
    for (const auto& [text, id] : vocabulary->items()) {
      if (!id.is_number_integer()) {
        Fail(ErrorCode::kModelFile,
             fmt::format("{}: the id of token '{}' is {}, a number is needed", file_name, text,
                         ShortJson(id)));
      }
      const bool spelled = spelling.ToBytes(text, raw);
      Put(id.get<int64_t>(), text, spelled ? raw : text);
      if (spelled) encoder.AddToken(raw, static_cast<int32_t>(id.get<int64_t>()));
    }
    size_t index = 0;
    for (const ordered_json& merge : *merges) AddMerge(merge, index++, spelling);
    if (!encoder.CoversAllBytes()) {
      Fail(ErrorCode::kModelFile,
           fmt::format("{}: the vocabulary lacks some of the 256 byte tokens; it is not a "
                       "byte-level BPE tokenizer",
                       file_name));
    }
  }

  void AddMerge(const ordered_json& merge, size_t index, const ByteSpelling& spelling) {
    std::string left, right;
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      left = merge[0].get<std::string>();
      right = merge[1].get<std::string>();
    } else if (merge.is_string()) {
      const std::string pair = merge.get<std::string>();
      const size_t space = pair.find(' ');
      if (space != std::string::npos) left = pair.substr(0, space), right = pair.substr(space + 1);
    }
    std::string left_bytes, right_bytes;
    if (left.empty() || right.empty() || !spelling.ToBytes(left, left_bytes) ||
        !spelling.ToBytes(right, right_bytes) || !encoder.AddMerge(left_bytes, right_bytes)) {
      Fail(ErrorCode::kModelFile,
           fmt::format("{}: merge {} is {}: two known tokens whose union is a token are needed",
                       file_name, index, ShortJson(merge)));
    }
  }

  void LoadAdded(const ordered_json* section) {
    if (section == nullptr || section->is_null()) return;
    if (!section->is_array())
      Fail(ErrorCode::kModelFile, fmt::format("{}: added_tokens is not a list", file_name));
    for (const ordered_json& entry : *section) {
      const JsonFields fields(entry, file_name + ": added_tokens", ErrorCode::kModelFile);
      AddedToken token;
      token.content = fields.String("content").value_or("");
      if (token.content.empty()) fields.Refuse("content", "the token's text is needed");
      token.id = static_cast<int32_t>(fields.NeedInteger("id", 0, kMaxVocabulary - 1));
      token.special = fields.Boolean("special").value_or(false);
      token.strip_left = fields.Boolean("lstrip").value_or(false);
      token.strip_right = fields.Boolean("rstrip").value_or(false);
      token.single_word = fields.Boolean("single_word").value_or(false);
      Put(token.id, token.content, token.content);
      special[static_cast<size_t>(token.id)] = token.special;
      added.push_back(token);
    }
    for (size_t i = 0; i < added.size(); ++i) {
      added_by_first_byte[static_cast<unsigned char>(added[i].content[0])].push_back(i);
    }
    for (std::vector<size_t>& list : added_by_first_byte) {
      std::stable_sort(list.begin(), list.end(), [&](size_t a, size_t b) {
        return added[a].content.size() > added[b].content.size();
      });
    }
  }

  // The token a TemplateProcessing puts in front of a single sequence; ByteLevel only moves
  // offsets.
  void LoadPostProcessor(const ordered_json* section, int depth = 0) {
    if (section == nullptr || section->is_null()) return;
    const JsonFields fields(*section, file_name + ": post_processor", ErrorCode::kModelFile);
    const std::string type = fields.String("type").value_or("");
    if (type == "ByteLevel") return;
    if (type == "Sequence" && depth < 4) {
      const ordered_json* steps = fields.Find("processors");
      if (steps == nullptr || !steps->is_array()) fields.Refuse("processors", "a list is needed");
      for (const ordered_json& step : *steps) LoadPostProcessor(&step, depth + 1);
      return;
    }
    if (type != "TemplateProcessing")
      fields.Refuse("type", "TemplateProcessing, ByteLevel and Sequence are known");
    const ordered_json* single = fields.Find("single");
    if (single == nullptr || !single->is_array())
      fields.Refuse("single", "a list of pieces is needed");
    for (const ordered_json& piece : *single) {
      if (!piece.is_object() || piece.contains("Sequence"))
        return;  // what follows the text is not a start token
      const auto token = piece.find("SpecialToken");
      if (token == piece.end() || !token->is_object() || !token->contains("id") ||
          !(*token)["id"].is_string())
        return;
      const auto found = by_text.find((*token)["id"].get<std::string>());
      if (found == by_text.end())
        fields.Refuse("single", "its special tokens must be added tokens");
      bos = found->second;
      adds_bos = true;
      return;
    }
  }

  std::optional<int32_t> NamedToken(const ordered_json& config, const char* name) const {
    const auto entry = config.find(name);
    if (entry == config.end()) return std::nullopt;
    std::string text;
    if (entry->is_string()) text = entry->get<std::string>();
    if (entry->is_object() && entry->contains("content") && (*entry)["content"].is_string()) {
      text = (*entry)["content"].get<std::string>();
    }
    const auto found = by_text.find(text);
    return found == by_text.end() ? std::nullopt : std::optional<int32_t>(found->second);
  }

  // The added token that starts at `at`, or null.
  const AddedToken* MatchAdded(std::string_view text, size_t at, SpecialTokens mode) const {
    for (size_t index : added_by_first_byte[static_cast<unsigned char>(text[at])]) {
      const AddedToken& token = added[index];
      if (token.special && mode == SpecialTokens::kAsText) continue;
      if (text.compare(at, token.content.size(), token.content) != 0) continue;
      const size_t end = at + token.content.size();
      if (token.single_word &&
          ((at > 0 && IsWordByte(text[at - 1])) || (end < text.size() && IsWordByte(text[end])))) {
        continue;
      }
      return &token;
    }
    return nullptr;
  }

  bool IsMarkAt(std::string_view text, std::initializer_list<std::string_view> allowed) const {
    const std::vector<size_t>& list = added_by_first_byte[static_cast<unsigned char>(text[0])];
    return std::any_of(list.begin(), list.end(), [&](size_t index) {
      const AddedToken& token = added[index];
      return token.IsMark() && text.starts_with(token.content) &&
             std::find(allowed.begin(), allowed.end(), token.content) == allowed.end();
    });
  }

  void EncodeText(std::string_view text, SpecialTokens mode, std::vector<int32_t>& ids) const {
    if (text.empty()) return;
    if (mode == SpecialTokens::kGuarded && text.find(kSign) != std::string_view::npos)
      return EncodeText(Tokenizer::Unguard(text), SpecialTokens::kParse, ids);
    for (const std::string& piece : pre_tokenizer->Split(text)) encoder.Encode(piece, ids);
  }
};

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::Load(const std::filesystem::path& directory) {
  const std::filesystem::path file = directory / "tokenizer.json";
  const std::filesystem::path config = directory / "tokenizer_config.json";
  std::error_code error;
  const std::string config_text =
      std::filesystem::exists(config, error) ? ReadTextFile(config) : "";
  return FromJson(ReadTextFile(file), config_text, file.string());
}

Tokenizer Tokenizer::FromJson(const std::string& tokenizer_json,
                              const std::string& tokenizer_config_json,
                              const std::string& file_name) {
  auto impl = std::make_unique<Impl>();
  impl->file_name = file_name;
  const ordered_json root = ParseJson(tokenizer_json, file_name);
  const JsonFields fields(root, file_name, ErrorCode::kModelFile);
  const ordered_json* normalizer = fields.Find("normalizer");
  const bool empty_sequence = normalizer != nullptr && normalizer->is_object() &&
                              normalizer->value("type", ordered_json()) == "Sequence" &&
                              normalizer->contains("normalizers") &&
                              (*normalizer)["normalizers"].empty();
  if (normalizer != nullptr && !empty_sequence) fields.Refuse("normalizer", "only null is served");
  const ordered_json* decoder = fields.Find("decoder");
  if (decoder != nullptr &&
      (!decoder->is_object() || decoder->value("type", ordered_json()) != "ByteLevel")) {
    fields.Refuse("decoder", "ByteLevel is served");
  }
  const ordered_json* model = fields.Find("model");
  if (model == nullptr) fields.Refuse("model", "an object is needed");
  impl->LoadModel(*model);
  impl->LoadAdded(fields.Find("added_tokens"));
  impl->pre_tokenizer = std::make_unique<PreTokenizer>(fields.Find("pre_tokenizer"), file_name);
  impl->LoadPostProcessor(fields.Find("post_processor"));
  if (!tokenizer_config_json.empty()) {
    const std::string config_name = file_name + " (tokenizer_config.json)";
    const ordered_json config = ParseJson(tokenizer_config_json, config_name);
    const JsonFields config_fields(config, config_name, ErrorCode::kModelFile);
    if (!impl->bos) impl->bos = impl->NamedToken(config, "bos_token");
    impl->eos = impl->NamedToken(config, "eos_token");
    if (const std::optional<bool> adds = config_fields.Boolean("add_bos_token"))
      impl->adds_bos = *adds && impl->bos.has_value();
  }
  return Tokenizer(std::move(impl));
}

std::vector<int32_t> Tokenizer::Encode(std::string_view text, SpecialTokens special) const {
  std::vector<int32_t> ids;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const AddedToken* token = impl_->MatchAdded(text, at, special);
    if (token == nullptr) {
      ++at;
      continue;
    }
    size_t end = at;
    while (token->strip_left && end > begin && IsSpace(text[end - 1])) --end;
    impl_->EncodeText(text.substr(begin, end - begin), special, ids);
    ids.push_back(token->id);
    at += token->content.size();
    while (token->strip_right && at < text.size() && IsSpace(text[at])) ++at;
    begin = at;
  }
  impl_->EncodeText(text.substr(begin), special, ids);
  return ids;
}

std::string Tokenizer::Guard(std::string_view text,
                             std::initializer_list<std::string_view> allowed) const {
  std::string guarded;
  guarded.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const std::string_view rest = text.substr(at);
    const bool mark = impl_->IsMarkAt(rest, allowed);
    size_t length = 1;  // of the character here
    if (mark || rest.starts_with(kSign))
      while (length < rest.size() && (rest[length] & 0xC0) == 0x80) ++length;
    guarded += rest.substr(0, length);
    if (mark || rest.starts_with(kSign)) guarded += kSign;
    at += length;
  }
  return guarded;
}

std::string Tokenizer::Unguard(std::string_view text) {
  std::string plain;
  plain.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const size_t sign = std::min(text.find(kSign, at), text.size());
    plain += text.substr(at, sign - at);
    at = sign + kSign.size();
    if (sign == text.size() || !text.substr(at).starts_with(kSign)) continue;
    plain += kSign;
    at += kSign.size();
  }
  return plain;
}

const std::string& Tokenizer::TokenBytes(int32_t id) const {
  static const std::string kNone;
  if (id < 0) Fail(ErrorCode::kUsage, fmt::format("token id {} is negative", id));
  return id < vocabulary() ? impl_->bytes[static_cast<size_t>(id)] : kNone;
}

std::string Tokenizer::Decode(const std::vector<int32_t>& ids, bool skip_special) const {
  std::string text;
  for (int32_t id : ids) {
    if (!(skip_special && IsSpecial(id))) text += TokenBytes(id);
  }
  return text;
}

bool Tokenizer::IsSpecial(int32_t id) const {
  return id >= 0 && static_cast<size_t>(id) < impl_->special.size() &&
         impl_->special[static_cast<size_t>(id)];
}

std::optional<int32_t> Tokenizer::TokenId(std::string_view token) const {
  const auto found = impl_->by_text.find(std::string(token));
  return found == impl_->by_text.end() ? std::nullopt : std::optional<int32_t>(found->second);
}

int64_t Tokenizer::vocabulary() const { return static_cast<int64_t>(impl_->bytes.size()); }
std::optional<int32_t> Tokenizer::bos() const { return impl_->bos; }
std::optional<int32_t> Tokenizer::eos() const { return impl_->eos; }
std::vector<int32_t> Tokenizer::EncodePrompt(std::string_view text) const {
  std::vector<int32_t> ids = Encode(text);
  if (adds_bos() && bos() && (ids.empty() || ids.front() != *bos()))
    ids.insert(ids.begin(), *bos());
  return ids;
}

bool Tokenizer::adds_bos() const { return impl_->adds_bos; }

Tokenizer::Stream::Stream(const Tokenizer& tokenizer, bool skip_special)
    : tokenizer_(&tokenizer), skip_special_(skip_special) {}

std::string Tokenizer::Stream::Push(int32_t id) {
  if (!(skip_special_ && tokenizer_->IsSpecial(id))) pending_ += tokenizer_->TokenBytes(id);
  return TakeCompleteUtf8(pending_);
}

std::string Tokenizer::Stream::Finish() {
  std::string rest = ReplaceInvalidUtf8(pending_);
  pending_.clear();
  return rest;
}

}  // namespace strata
