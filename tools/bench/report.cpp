#include <fmt/format.h>

#include <cmath>
#include <cstdio>

#include "tools/bench/bench.h"

namespace strata::bench {

Report::Row& Report::Row::Text(const char* column, const std::string& value) {
  cells_.push_back({column, value, true});
  return *this;
}

Report::Row& Report::Row::Number(const char* column, double value, int decimals) {
  cells_.push_back(
      {column, std::isfinite(value) ? fmt::format("{:.{}f}", value, decimals) : "", false});
  return *this;
}

void Report::Note(const std::string& line) {
  if (json_) {
    fmt::print("{{\"note\": \"{}\"}}\n", line);
  } else {
    fmt::print("{}\n", line);
  }
  std::fflush(stdout);
}

void Report::Add(const Row& row) {
  if (!json_) {
    rows_.push_back(row);
    return;
  }
  std::string line;
  for (const Row::Cell& cell : row.cells_) {
    if (!line.empty()) line += ", ";
    line += cell.text            ? fmt::format("\"{}\": \"{}\"", cell.column, cell.value)
            : cell.value.empty() ? fmt::format("\"{}\": null", cell.column)
                                 : fmt::format("\"{}\": {}", cell.column, cell.value);
  }
  fmt::print("{{{}}}\n", line);
  std::fflush(stdout);
}

void Report::Finish() {
  if (rows_.empty()) return;
  std::vector<size_t> widths;
  for (const Row::Cell& cell : rows_[0].cells_) widths.push_back(cell.column.size());
  for (const Row& row : rows_) {
    for (size_t c = 0; c < row.cells_.size(); ++c)
      widths[c] = std::max(widths[c], row.cells_[c].value.size());
  }
  const auto print = [&](const Row& row, bool header) {
    std::string line;
    for (size_t c = 0; c < row.cells_.size(); ++c) {
      const Row::Cell& cell = row.cells_[c];
      const std::string& value = header ? cell.column : cell.value;
      line += cell.text ? fmt::format("{:<{}}  ", value, widths[c])
                        : fmt::format("{:>{}}  ", value, widths[c]);
    }
    fmt::print("{}\n", line);
  };
  print(rows_[0], true);
  for (const Row& row : rows_) print(row, false);
  std::fflush(stdout);
  rows_.clear();
}

}  // namespace strata::bench
