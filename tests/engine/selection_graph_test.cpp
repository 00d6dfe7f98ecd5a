#include "engine/selection_graph.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace strata {
namespace {

// A device whose graphs count their replays and run nothing.
class CountingBackend : public Backend {
 public:
  struct Counted : Graph {
    explicit Counted(int* replays) : replays(replays) {}
    void Replay(Stream) override { ++*replays; }
    int* replays;
  };
  Buffer Allocate(size_t) override { return {}; }
  Stream DefaultStream() override { return {Device{DeviceKind::kCuda, 0}, nullptr, nullptr}; }
  std::unique_ptr<Graph> Capture(Stream, const std::function<void(Stream)>&) override {
    ++captures;
    return std::make_unique<Counted>(&replays);
  }
  void Synchronize(Stream) override {}
  const DeviceInfo& Info() const override { return info; }

  int captures = 0, replays = 0;
  DeviceInfo info;
};

class SelectionGraphTest : public testing::Test {
 protected:
  TopkSelect Op(int64_t rows) {
    TopkSelect op;
    op.scores = MakeView<const float>(scores_.data(), {rows, 16});
    op.lengths = MakeView<const int32_t>(lengths_.data(), {rows});
    op.k = 4;
    op.ids = MakeView(ids_.data(), {rows, 4});
    op.counts = MakeView(counts_.data(), {rows});
    return op;
  }
  void Run(const TopkSelect& op) { graph_.Run(op, backend_.DefaultStream()); }

  std::vector<float> scores_ = std::vector<float>(64);
  std::vector<int32_t> lengths_ = std::vector<int32_t>(4), ids_ = std::vector<int32_t>(16),
                       counts_ = std::vector<int32_t>(4);
  CountingBackend backend_;
  SelectionGraph graph_{backend_};
};

TEST_F(SelectionGraphTest, EqualOpsShareOneGraph) {
  for (int step = 0; step < 3; ++step) Run(Op(2));
  EXPECT_EQ(backend_.captures, 1);
  EXPECT_EQ(backend_.replays, 3);
}

TEST_F(SelectionGraphTest, WhatAGraphHoldsMakesItAnother) {
  std::vector<TopkSelect> ops(7, Op(2));
  ops[1] = Op(3);
  ops[2].k = 2;
  ops[3].variant = TopkVariant::kWide;
  ops[4].variant = TopkVariant::kSplit;
  ops[5].tail = PoolTail::kForce;
  ops[6].behind_scan = true;
  for (int step = 0; step < 2; ++step) {
    for (const TopkSelect& op : ops) Run(op);
  }
  EXPECT_EQ(backend_.captures, static_cast<int>(ops.size()));
  EXPECT_EQ(graph_.captured_graphs(), static_cast<int64_t>(ops.size()));
  EXPECT_EQ(backend_.replays, 2 * static_cast<int>(ops.size()));
}

}  // namespace
}  // namespace strata
