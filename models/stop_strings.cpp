#include "models/stop_strings.h"

#include <algorithm>

#include "kernels/status.h"

namespace strata {

namespace {

std::vector<uint32_t> Borders(const std::string& text) {
  std::vector<uint32_t> border(text.size() + 1, 0);
  uint32_t length = 0;
  for (size_t i = 1; i < text.size(); ++i) {
    while (length > 0 && text[i] != text[length]) length = border[length];
    if (text[i] == text[length]) ++length;
    border[i + 1] = length;
  }
  return border;
}

}  // namespace

StopStrings::StopStrings(std::vector<std::string> stops) {
  for (std::string& stop : stops) {
    if (stop.empty()) Fail(ErrorCode::kUsage, "a stop string is empty; leave it out");
    std::vector<uint32_t> border = Borders(stop);
    stops_.push_back({std::move(stop), std::move(border), 0});
  }
}

void StopStrings::Read(char byte) {
  ++read_;
  int64_t open = read_;  // where the earliest stop string that may still be completed starts
  for (size_t i = 0; i < stops_.size(); ++i) {
    Stop& stop = stops_[i];
    while (stop.depth > 0 && stop.text[stop.depth] != byte) stop.depth = stop.border[stop.depth];
    if (stop.text[stop.depth] == byte) ++stop.depth;
    if (stop.depth == stop.text.size()) {
      const int64_t start = read_ - static_cast<int64_t>(stop.depth);
      if (!found_ || start < found_->start) found_ = Match{i, start};
      stop.depth = stop.border[stop.depth];
    }
    open = std::min(open, read_ - static_cast<int64_t>(stop.depth));
  }
  if (found_ && found_->start <= open) matched_ = found_->stop;
}

std::string StopStrings::Take(int64_t until, int64_t piece_start, std::string_view piece) {
  std::string text;
  if (given_ < piece_start) {
    const int64_t held = std::min(until, piece_start) - given_;
    text = stops_[held_stop_].text.substr(0, static_cast<size_t>(held));
  }
  if (until > piece_start) text += piece.substr(0, static_cast<size_t>(until - piece_start));
  given_ = until;
  return text;
}

std::string StopStrings::Push(std::string_view text) {
  if (matched()) return "";
  const int64_t piece_start = read_;
  for (size_t i = 0; i < text.size() && !matched(); ++i) Read(text[i]);
  if (matched()) return Take(found_->start, piece_start, text);
  size_t longest = 0;
  int64_t depth = 0;
  for (size_t i = 0; i < stops_.size(); ++i) {
    if (stops_[i].depth > depth) {
      longest = i;
      depth = stops_[i].depth;
    }
  }
  std::string front = Take(read_ - depth, piece_start, text);
  held_stop_ = longest;
  return front;
}

std::string StopStrings::Finish() {
  if (matched()) return "";
  if (found_) matched_ = found_->stop;
  return Take(found_ ? found_->start : read_, read_, "");
}

}  // namespace strata
