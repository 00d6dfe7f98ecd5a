// What the benches share: one entry per subcommand, medians, and a table or JSON lines.
#pragma once

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace strata::bench {

// A subcommand: takes the arguments behind its name, returns the exit code.
struct Command {
  const char* name;
  const char* summary;
  int (*run)(int argc, const char* const* argv);
};

int RunCpu(int argc, const char* const* argv);
int RunStep(int argc, const char* const* argv);
int RunSpeculation(int argc, const char* const* argv);
int RunServe(int argc, const char* const* argv);
// The CUDA build only.
int RunIndexer(int argc, const char* const* argv);
int RunSelect(int argc, const char* const* argv);
int RunFused(int argc, const char* const* argv);

// Rows of named cells. The text table is printed on Finish(), JSON lines as they come; both hold
// the same values.
class Report {
 public:
  explicit Report(bool json) : json_(json) {}

  class Row {
   public:
    Row& Text(const char* column, const std::string& value);
    Row& Number(const char* column, double value, int decimals);

   private:
    friend class Report;
    struct Cell {
      std::string column;
      std::string value;
      bool text;
    };
    std::vector<Cell> cells_;
  };
  // A line above the table: what was measured on, the floors of the run.
  void Note(const std::string& line);
  void Add(const Row& row);
  // Prints the rows since the last Finish().
  void Finish();

 private:
  bool json_;
  std::vector<Row> rows_;
};

// Median seconds of calls of `body`, at least 5 of them, until `budget_seconds` are spent.
template <class Body>
double MedianSeconds(double budget_seconds, const Body& body) {
  using Clock = std::chrono::steady_clock;
  const auto seconds = [](Clock::duration d) { return std::chrono::duration<double>(d).count(); };
  body();  // warms caches and page tables
  std::vector<double> times;
  const Clock::time_point start = Clock::now();
  while (times.size() < 5 ||
         (seconds(Clock::now() - start) < budget_seconds && times.size() < 20000)) {
    const Clock::time_point begin = Clock::now();
    body();
    times.push_back(seconds(Clock::now() - begin));
  }
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

}  // namespace strata::bench
