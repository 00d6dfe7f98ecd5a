#include "tools/selection_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "models/utf8.h"

namespace strata {

namespace {

constexpr int64_t kBuckets = 60;
constexpr int64_t kPlaces = 3;       // best-scored places shown per layer
constexpr int64_t kPlaceRadius = 5;  // tokens shown on either side

// One character per stretch of the context: how much of it is selected.
std::string Strip(const std::vector<double>& density, double steps) {
  constexpr const char* kShades[] = {" ", ".", ":", "-", "=", "+", "*", "#", "%", "@"};
  std::string strip;
  for (double value : density) {
    const double share = std::clamp(value / std::max(1.0, steps), 0.0, 1.0);
    strip += kShades[share == 0.0 ? 0 : 1 + static_cast<int>(share * 8.0)];
  }
  return strip;
}

std::string Words(const Tokenizer& tokenizer, const std::vector<int32_t>& tokens, int64_t centre) {
  const int64_t begin = std::max<int64_t>(0, centre - kPlaceRadius);
  const int64_t end =
      std::min<int64_t>(static_cast<int64_t>(tokens.size()), centre + kPlaceRadius + 1);
  std::string text =
      ReplaceInvalidUtf8(tokenizer.Decode({tokens.begin() + begin, tokens.begin() + end}));
  for (char& c : text) {
    if (c == '\n' || c == '\r' || c == '\t') c = ' ';
  }
  return text;
}

}  // namespace

void SelectionTrace::Observe(const ObservedSelection& selection) {
  for (int64_t row = 0; row < selection.ids.dim(0); ++row) {
    std::map<int64_t, Seen>& layers = rows_[selection.first_row + row];
    // A row of an earlier step whose draft was wrong.
    if (layers.contains(selection.layer)) layers.clear();
    Seen& seen = layers[selection.layer];
    const int32_t* ids = selection.ids.row(row);
    seen.ids.assign(ids, ids + selection.counts(row));
    seen.kpool = selection.kpool;
    seen.cells = selection.lengths(row);
    if (selection.scores.empty()) continue;
    const float* scores = selection.scores.row(row);
    seen.scores.assign(scores, scores + selection.candidates(row));
  }
}

void SelectionTrace::Keep(int64_t row) {
  for (const auto& [layer, seen] : rows_[row]) Add(layers_[layer], seen);
  rows_.erase(row);
}

void SelectionTrace::Add(Layer& layer, const Seen& seen) {
  const int64_t cells = seen.cells;
  const std::vector<int32_t>& chosen = seen.ids;
  ++layer.steps;
  layer.cells = cells;
  layer.density.resize(kBuckets, 0.0);
  std::vector<double> width(kBuckets, 0.0), hits(kBuckets, 0.0);
  for (int64_t cell = 0; cell < cells; ++cell)
    width[static_cast<size_t>(cell * kBuckets / cells)] += 1.0;
  for (int32_t id : chosen) hits[static_cast<size_t>(int64_t{id} * kBuckets / cells)] += 1.0;
  for (size_t b = 0; b < kBuckets; ++b)
    layer.density[b] += width[b] > 0.0 ? hits[b] / width[b] : 0.0;
  if (!layer.previous.empty()) {
    std::vector<int32_t> common;
    std::set_intersection(chosen.begin(), chosen.end(), layer.previous.begin(),
                          layer.previous.end(), std::back_inserter(common));
    layer.overlap_sum += static_cast<double>(common.size()) /
                         static_cast<double>(std::max<size_t>(1, chosen.size()));
    ++layer.overlap_steps;
  }
  layer.previous = chosen;

  const int64_t candidates = static_cast<int64_t>(seen.scores.size());
  if (candidates * seen.kpool <= static_cast<int64_t>(chosen.size())) return;
  ++layer.scored_steps;
  const float* scores = seen.scores.data();
  std::vector<bool> taken(static_cast<size_t>(candidates), false);
  for (int32_t id : chosen) {
    if (id / seen.kpool < candidates) taken[static_cast<size_t>(id / seen.kpool)] = true;
  }
  float last = INFINITY, next = -INFINITY;
  for (int64_t j = 0; j < candidates; ++j) {
    if (taken[static_cast<size_t>(j)]) {
      last = std::min(last, scores[j]);
    } else {
      next = std::max(next, scores[j]);
    }
  }
  int64_t ties = 0;
  for (int64_t j = 0; j < candidates; ++j)
    ties += !taken[static_cast<size_t>(j)] && scores[j] == last;
  const double margin = (last - next) / std::max(1e-30, static_cast<double>(std::fabs(last)));
  layer.margin_sum += margin;
  layer.smallest_margin =
      layer.scored_steps == 1 ? margin : std::min(layer.smallest_margin, margin);
  layer.ties += ties;
  layer.best_scores.resize(static_cast<size_t>(cells), 0.0);
  for (int64_t j = 0; j < candidates; ++j)
    layer.best_scores[static_cast<size_t>(j * seen.kpool)] += scores[j];
}

std::string SelectionTrace::Text(const Tokenizer& tokenizer,
                                 const std::vector<int32_t>& tokens) const {
  std::string text;
  for (const auto& [index, layer] : layers_) {
    const double steps = static_cast<double>(layer.steps);
    text += fmt::format("layer {:2}  start |{}| end   {} of {} cells\n", index,
                        Strip(layer.density, steps), layer.previous.size(), layer.cells);
    if (layer.scored_steps == 0) {
      text += "          every cell fits into the selection: nothing was scored\n";
      continue;
    }
    text += fmt::format(
        "          margin at the boundary {:.2e} (smallest {:.2e}), {} ties, {:.0f} % of the step "
        "before kept\n",
        layer.margin_sum / static_cast<double>(layer.scored_steps), layer.smallest_margin,
        layer.ties,
        layer.overlap_steps > 0
            ? 100.0 * layer.overlap_sum / static_cast<double>(layer.overlap_steps)
            : 100.0);
    std::vector<double> scores = layer.best_scores;
    for (int64_t place = 0; place < kPlaces; ++place) {
      const int64_t best = std::max_element(scores.begin(), scores.end()) - scores.begin();
      if (scores[static_cast<size_t>(best)] <= 0.0) break;
      text += fmt::format("          best {}: cell {:6}  \"{}\"\n", place + 1, best,
                          Words(tokenizer, tokens, best));
      const int64_t end =
          std::min<int64_t>(static_cast<int64_t>(scores.size()), best + kPlaceRadius + 1);
      for (int64_t j = std::max<int64_t>(0, best - kPlaceRadius); j < end; ++j)
        scores[static_cast<size_t>(j)] = -1.0;
    }
  }
  return text;
}

}  // namespace strata
