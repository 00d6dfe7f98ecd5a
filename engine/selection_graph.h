// Exact top-k of a step's rows, replayed as a captured graph on devices that have them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/device.h"
#include "kernels/topk_select.h"

namespace strata {

// One per model; all layers share it. On CUDA the first call with a given set of views captures the
// selection, later calls with the same views replay it: lengths are read on the device, so a
// captured graph serves every length. Steps of one row count get the same views from their arena,
// hence one graph per row bucket. On the CPU the op just runs.
class SelectionGraph {
 public:
  explicit SelectionGraph(Backend& backend) : backend_(&backend) {}

  void Run(const TopkSelect& op, Stream stream);

  int64_t captured_graphs() const { return static_cast<int64_t>(captured_.size()); }

 private:
  struct Captured {
    TopkSelect op;
    std::unique_ptr<Graph> graph;
  };

  Backend* backend_;
  std::vector<Captured> captured_;
};

}  // namespace strata
