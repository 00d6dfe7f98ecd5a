#include "models/output_parser.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "models/tool_arguments.h"

namespace strata {

namespace {

constexpr size_t kNameBytes = 256;  // longer names, and the white space around them, are text
constexpr size_t kKeyBytes = 1024;
constexpr size_t kKeepBytes = 4096;  // given out, yet not moved away
constexpr const char* kSpace = " \t\r\n";

constexpr std::string_view kThink = "<think>";
constexpr std::string_view kEndThink = "</think>";

constexpr int kNone = -1;
constexpr int kMore = -2;  // the text ends inside what may become a tag

// Which tag stands at `at`.
template <class Tags, class Text>
int TagAt(std::string_view buffer, size_t at, const Tags& tags, Text text_of) {
  const std::string_view rest = buffer.substr(at);
  bool more = false;
  int index = 0;
  for (const auto& tag : tags) {
    const std::string_view text = text_of(tag);
    if (rest.starts_with(text)) return index;
    more |= text.starts_with(rest);
    ++index;
  }
  return more ? kMore : kNone;
}

int TagAt(std::string_view buffer, size_t at, std::initializer_list<std::string_view> tags) {
  return TagAt(buffer, at, tags, [](std::string_view tag) { return tag; });
}

// A name as APIs allow them, also with the separators that tool servers put into theirs.
bool LooksLikeName(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("_-.:/").find(c) != std::string_view::npos;
  });
}

enum class State {
  kText,       // reasoning or content
  kBlock,      // behind block_open
  kName,       // behind call_open
  kAfterName,  // nothing given out yet: another part of a call must follow
  kKey,        // from here on the call is one
  kValueOpen,
  kValue,
  kAfterValue,  // behind value_close, which ends the value if another part of a call follows
  kJunk,        // what no call has here: passed over up to the next part
};

enum class Meaning { kThink, kEndThink, kBlock, kEndBlock, kCall, kPart };

struct Tag {
  std::string_view text;
  Meaning meaning;
};

}  // namespace

struct OutputParser::Impl {
  Impl(OutputFormat format, const OutputOptions& options) : arguments(options.tools) {
    if (format == OutputFormat::kPlain) return;
    reasoning = options.in_reasoning;
    tags = {{kThink, Meaning::kThink}, {kEndThink, Meaning::kEndThink}};
    if (arguments.empty()) return;
    syntax = CallSyntaxOf(format);
    if (syntax == nullptr) return;
    if (!syntax->block_open.empty()) {
      tags.push_back({syntax->block_open, Meaning::kBlock});
      tags.push_back({syntax->block_close, Meaning::kEndBlock});
    }
    tags.push_back({syntax->call_open, Meaning::kCall});
    for (const std::string_view part : {syntax->key_open, syntax->value_close, syntax->call_close})
      tags.push_back({part, Meaning::kPart});
    // Of a name's and a key's end only those that are tags.
    if (syntax->key_close.starts_with('<')) tags.push_back({syntax->key_close, Meaning::kPart});
    for (const ValueOpening& opening : syntax->value_open)
      if (opening.tag.starts_with('<')) tags.push_back({opening.tag, Meaning::kPart});
  }

  void Run() {
    while (Step()) {
    }
  }

  // False: more text is needed.
  bool Step() {
    switch (state) {
      case State::kText:
        return Text();
      case State::kBlock:
        return Expect({syntax->call_open}, [this](int) { Enter(State::kName); });
      case State::kName:
        return Name();
      case State::kAfterName:
        return Expect({syntax->key_open, syntax->call_close}, [this](int part) {
          BeginCall();
          if (part == 0) {
            Enter(State::kKey);
          } else {
            EndCall();
          }
        });
      case State::kKey:
        return Key();
      case State::kValueOpen:
        return OpenValue();
      case State::kValue:
        return Value();
      case State::kAfterValue:
        return AfterValue();
      case State::kJunk:
        return Junk();
    }
    return false;
  }

  // --- text ---

  bool Text() {
    if (tags.empty()) {
      start = scan = solid = buffer.size();
      Give(OutputDelta::Kind::kContent, buffer);
      return false;
    }
    const size_t at = std::min(buffer.find('<', scan), buffer.size());
    const size_t last = std::string_view(buffer).substr(scan, at - scan).find_last_not_of(kSpace);
    if (last != std::string_view::npos) solid = scan + last + 1;
    scan = at;
    const int tag = at == buffer.size() ? kMore : TagAt(buffer, at, tags, [](const Tag& candidate) {
      return candidate.text;
    });
    if (tag == kNone) {
      solid = scan = at + 1;
      return true;
    }
    GiveText();
    if (tag == kMore) return false;
    Markup(tags[tag]);
    return true;
  }

  // Text up to `solid`; the white space behind it waits for what follows.
  void GiveText() {
    if (solid <= start) return;
    std::string_view text = std::string_view(buffer).substr(start, solid - start);
    bool& begun = reasoning ? reasoning_begun : content_begun;
    if (fresh && (begun || !reasoning)) {
      const size_t lines = text.substr(0, text.find_first_not_of(kSpace)).rfind('\n');
      if (lines != std::string_view::npos) text.remove_prefix(lines + 1);
    }
    const auto kind = reasoning ? OutputDelta::Kind::kReasoning : OutputDelta::Kind::kContent;
    if (fresh && begun) Give(kind, "\n");
    Give(kind, text);
    begun = true;
    fresh = false;
    answered |= !reasoning;
    start = solid;
  }

  // The tag at `scan`; all text in front of it has been given out, the white space has not.
  void Markup(const Tag& tag) {
    switch (tag.meaning) {
      case Meaning::kThink:
        if (reasoning ? fresh : !answered) {
          reasoning = true;
          return Drop(tag.text.size());
        }
        break;
      case Meaning::kEndThink:
        if (reasoning) {
          if (!fresh) Give(OutputDelta::Kind::kReasoning, buffer.substr(start, scan - start));
          reasoning = false;
          return Drop(tag.text.size());
        }
        if (!answered) return Drop(tag.text.size());
        break;
      case Meaning::kBlock:
      case Meaning::kCall:
        call_begin = scan;
        opening = tag.text.size();
        scan += opening;
        return Enter(tag.meaning == Meaning::kBlock ? State::kBlock : State::kName);
      case Meaning::kEndBlock:
        if (reasoning || in_block) {
          in_block = false;
          return Drop(tag.text.size());
        }
        break;
      case Meaning::kPart:
        if (reasoning) return Drop(tag.text.size());
        break;
    }
    solid = scan = scan + tag.text.size();  // text after all
  }

  // Passes over the white space and `bytes` at `scan`: markup, behind which text starts anew.
  void Drop(size_t bytes) {
    start = solid = scan = scan + bytes;
    fresh = true;
  }

  // --- calls ---

  void Enter(State next) {
    state = next;
    part_begin = scan;
  }

  // White space, then one of the tags: passes over it and calls `then` with its index. Anything
  // else makes the candidate text.
  template <class Then>
  bool Expect(std::initializer_list<std::string_view> parts, Then then) {
    const int part = Next(parts);
    if (part == kMore) return false;
    if (part == kNone) {
      NoCall();
    } else {
      scan += std::data(parts)[part].size();
      then(part);
    }
    return true;
  }

  // Moves `scan` over white space; which tag stands behind it.
  int Next(std::initializer_list<std::string_view> parts) {
    SkipSpace();
    return scan == buffer.size() ? kMore : TagAt(buffer, scan, parts);
  }

  void SkipSpace() { scan = std::min(buffer.find_first_not_of(kSpace, scan), buffer.size()); }

  // What started like a call is text; in the reasoning, its opening tag is left out.
  void NoCall() {
    state = State::kText;
    scan = call_begin;
    if (reasoning) {
      Drop(opening);
    } else {
      solid = scan = scan + opening;
    }
  }

  // The name or key up to `end`, without white space around it.
  std::string Part(size_t end) const {
    std::string part = buffer.substr(part_begin, end - part_begin);
    part.erase(0, part.find_first_not_of(kSpace));
    return part.erase(part.find_last_not_of(kSpace) + 1);
  }

  bool Name() {
    const char end = syntax->name_close.empty() ? '<' : syntax->name_close[0];
    const size_t at = buffer.find(end, scan);
    if (std::min(at, buffer.size()) - part_begin > kNameBytes) {
      NoCall();
      return true;
    }
    scan = std::min(at, buffer.size());
    if (at == std::string::npos) return false;
    const int close = TagAt(buffer, at, {syntax->name_close});
    if (close == kMore) return false;
    name = Part(at);
    if (close == kNone || !(LooksLikeName(name) || arguments.Has(name))) {
      NoCall();
      return true;
    }
    scan += syntax->name_close.size();
    Enter(State::kAfterName);
    return true;
  }

  void BeginCall() {
    out.push_back({OutputDelta::Kind::kCall, name, calls});
    ++calls;
    keys.clear();
    in_block = true;
    answered |= !reasoning;
    start = scan;
  }

  void EndCall() {
    Give(OutputDelta::Kind::kArguments, keys.empty() ? "{}" : "}", calls - 1);
    ++finished;
    state = State::kText;
    Drop(0);
  }

  bool Key() {
    const size_t at = buffer.find(syntax->key_close[0], scan);
    scan = std::min(at, buffer.size());
    if (scan - part_begin > kKeyBytes) {
      Enter(State::kJunk);
      return true;
    }
    if (at == std::string::npos) return false;
    const int close = TagAt(buffer, at, {syntax->key_close});
    if (close == kMore) return false;
    if (close == kNone) {
      Enter(State::kJunk);
      return true;
    }
    key = Part(at);
    scan += syntax->key_close.size();
    Enter(State::kValueOpen);
    return true;
  }

  bool OpenValue() {
    SkipSpace();
    const int tag = scan == buffer.size()
                        ? kMore
                        : TagAt(buffer, scan, syntax->value_open,
                                [](const ValueOpening& value) { return value.tag; });
    if (tag == kMore) return false;
    if (tag == kNone) {
      Enter(State::kJunk);
      return true;
    }
    rule = syntax->value_open[tag].rule;
    scan += syntax->value_open[tag].tag.size();
    Enter(State::kValue);
    return true;
  }

  bool Value() {
    const std::string_view close = syntax->value_close;
    const size_t at = buffer.find(close, scan);
    if (at == std::string::npos) {
      const size_t partial = std::min(buffer.size(), close.size() - 1);
      scan = std::max(scan, buffer.size() - partial);
      return false;
    }
    value_end = at;
    scan = at + close.size();
    state = State::kAfterValue;
    return true;
  }

  bool AfterValue() {
    const int part = Next({syntax->key_open, syntax->call_close, syntax->call_open});
    if (part == kMore) return false;
    if (part == kNone) {
      state = State::kValue;
      scan = value_end + 1;
      return true;
    }
    GiveArgument();
    GoOn(part);
    return true;
  }

  bool Junk() {
    const size_t at = buffer.find('<', scan);
    scan = std::min(at, buffer.size());
    start = scan;
    if (at == std::string::npos) return false;
    const int part = Next({syntax->key_open, syntax->call_close, syntax->call_open});
    if (part == kMore) return false;
    if (part == kNone) {
      ++scan;
    } else {
      GoOn(part);
    }
    return true;
  }

  // With the next argument, the end of the call, or the next call where the end is missing.
  void GoOn(int part) {
    if (part == 0) {
      scan += syntax->key_open.size();
      Enter(State::kKey);
    } else {
      if (part == 1) scan += syntax->call_close.size();
      EndCall();
    }
  }

  void GiveArgument() {
    if (keys.insert(key).second) {
      const std::string_view text =
          std::string_view(buffer).substr(part_begin, value_end - part_begin);
      std::string json = keys.size() == 1 ? "{" : ",";
      json += JsonString(key) + ":";
      if (rule == ValueRule::kString) json += JsonString(text);
      if (rule == ValueRule::kJson) json += JsonOrString(text);
      if (rule == ValueRule::kSchema) json += arguments.Json(name, key, text);
      Give(OutputDelta::Kind::kArguments, json, calls - 1);
    }
    start = scan;
  }

  // --- the end ---

  void Finish(bool at_limit) {
    Run();
    while (!at_limit &&
           (state == State::kBlock || state == State::kName || state == State::kAfterName)) {
      NoCall();
      Run();
    }
    if (state == State::kText) {
      const std::string_view rest = std::string_view(buffer).substr(scan);
      const bool call = syntax != nullptr && rest.find(syntax->mark) != std::string_view::npos;
      // The start of a call's tag: of a call that was cut, or of none.
      if (!call || !(at_limit || reasoning)) {
        if (!rest.empty()) solid = buffer.size();
        GiveText();
        if (!fresh)
          Give(reasoning ? OutputDelta::Kind::kReasoning : OutputDelta::Kind::kContent,
               std::string_view(buffer).substr(start));
      }
    } else if (!at_limit && (state == State::kAfterValue || state == State::kJunk)) {
      if (state == State::kAfterValue) GiveArgument();
      EndCall();
    }
    buffer.clear();
    start = scan = solid = 0;
  }

  void Give(OutputDelta::Kind kind, std::string_view text, int call = -1) {
    if (text.empty()) return;
    if (!out.empty() && out.back().kind == kind && out.back().call == call) {
      out.back().text += text;
    } else {
      out.push_back({kind, std::string(text), call});
    }
  }

  // Forgets what was given out, now and then, so that each byte is moved about once.
  void Compact() {
    if (start < buffer.size() && (start < kKeepBytes || start < buffer.size() / 2)) return;
    buffer.erase(0, start);
    for (size_t* place : {&scan, &solid, &call_begin, &part_begin, &value_end})
      *place -= std::min(*place, start);
    start = 0;
  }

  const CallSyntax* syntax = nullptr;  // null: calls are not looked for
  std::vector<Tag> tags;               // what is markup in text; empty: nothing
  ToolArguments arguments;

  State state = State::kText;
  bool reasoning = false;
  bool fresh = true;             // nothing but white space since the start or the last markup
  bool answered = false;         // content or a call has begun
  bool in_block = false;         // a call has begun since the last block_close
  bool reasoning_begun = false;  // such text has been given out
  bool content_begun = false;

  std::string buffer;
  size_t start = 0;  // what is in front of it has been given out or dropped
  size_t scan = 0;   // what is in front of it has been looked at
  size_t solid = 0;  // text: behind the last byte that is not white space

  size_t call_begin = 0;  // the candidate's opening tag
  size_t opening = 0;     // and its size
  size_t part_begin = 0;  // the name, key or value being read
  size_t value_end = 0;
  std::string name, key;
  ValueRule rule = ValueRule::kSchema;
  std::set<std::string> keys;
  int calls = 0;
  int finished = 0;

  std::vector<OutputDelta> out;
};

OutputParser::OutputParser(OutputFormat format, const OutputOptions& options)
    : impl_(std::make_unique<Impl>(format, options)) {}
OutputParser::OutputParser(OutputParser&&) noexcept = default;
OutputParser& OutputParser::operator=(OutputParser&&) noexcept = default;
OutputParser::~OutputParser() = default;

std::vector<OutputDelta> OutputParser::Push(std::string_view text) {
  impl_->buffer += text;
  impl_->Run();
  impl_->Compact();
  return std::exchange(impl_->out, {});
}

std::vector<OutputDelta> OutputParser::Finish(bool at_limit) {
  impl_->Finish(at_limit);
  return std::exchange(impl_->out, {});
}

int OutputParser::finished_calls() const { return impl_->finished; }

const CallSyntax* CallSyntaxOf(OutputFormat format) {
  if (format == OutputFormat::kGlm) return &GlmCalls();
  if (format == OutputFormat::kDeepseekV32) return &DeepseekV32Calls();
  return nullptr;
}

OutputFormat OutputFormatOf(const std::string& model_type, std::string_view template_source) {
  const auto speaks = [&](std::string_view tag) {
    return template_source.find(tag) != std::string_view::npos;
  };
  if (template_source.empty())
    return model_type == "deepseek_v32" ? OutputFormat::kDeepseekV32 : OutputFormat::kPlain;
  // Others put JSON into <tool_call>.
  if (speaks("<tool_call>") && speaks("<arg_key>")) return OutputFormat::kGlm;
  if (speaks("｜DSML｜") && speaks("function_calls>")) return OutputFormat::kDeepseekV32;
  return speaks(kThink) || speaks(kEndThink) ? OutputFormat::kReasoning : OutputFormat::kPlain;
}

ParsedOutput ParseOutput(OutputFormat format, const OutputOptions& options, std::string_view text,
                         bool at_limit) {
  OutputParser parser(format, options);
  std::vector<OutputDelta> deltas = parser.Push(text);
  for (OutputDelta& delta : parser.Finish(at_limit)) deltas.push_back(std::move(delta));
  ParsedOutput output;
  for (OutputDelta& delta : deltas) {
    switch (delta.kind) {
      case OutputDelta::Kind::kReasoning:
        output.reasoning += delta.text;
        break;
      case OutputDelta::Kind::kContent:
        output.content += delta.text;
        break;
      case OutputDelta::Kind::kCall:
        output.calls.push_back({std::move(delta.text), ""});
        break;
      case OutputDelta::Kind::kArguments:
        output.calls[delta.call].arguments += delta.text;
        break;
    }
  }
  output.calls.resize(parser.finished_calls());
  return output;
}

}  // namespace strata
