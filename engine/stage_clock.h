// Where a step's time goes.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>

namespace strata {

enum class Stage : uint8_t { kScan, kSelect, kAttend, kRest };
constexpr int kStages = 4;
const char* StageName(Stage stage);  // "scan", "select", "attend", "rest"

// Accumulates wall time per stage; everything outside a Scope is kRest, so the stages sum to the
// total exactly. CPU steps only: ops return when they are done.
class StageClock {
 public:
  using Clock = std::chrono::steady_clock;

  void Start() { last_ = Clock::now(); }
  // Ends the running stage and books it; what follows is kRest until the next Enter().
  void Stop() { Book(Stage::kRest); }
  void Enter(Stage stage) {
    Book(current_);
    current_ = stage;
  }
  double seconds(Stage stage) const { return seconds_[static_cast<size_t>(stage)]; }
  double total_seconds() const {
    double total = 0;
    for (double value : seconds_) total += value;
    return total;
  }

  class Scope {
   public:
    Scope(StageClock* clock, Stage stage) : clock_(clock) {
      if (clock_ != nullptr) clock_->Enter(stage);
    }
    ~Scope() {
      if (clock_ != nullptr) clock_->Enter(Stage::kRest);
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    StageClock* clock_;
  };

 private:
  void Book(Stage stage) {
    const Clock::time_point now = Clock::now();
    seconds_[static_cast<size_t>(stage)] += std::chrono::duration<double>(now - last_).count();
    last_ = now;
  }

  Clock::time_point last_;
  Stage current_ = Stage::kRest;
  std::array<double, kStages> seconds_ = {};
};

inline const char* StageName(Stage stage) {
  constexpr const char* kNames[kStages] = {"scan", "select", "attend", "rest"};
  return kNames[static_cast<size_t>(stage)];
}

}  // namespace strata
