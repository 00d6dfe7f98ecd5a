// The one place that checks the dense ops' shapes and picks their implementation.
#include <fmt/format.h>

#include <limits>

#include "kernels/elementwise.h"
#include "kernels/linear.h"
#include "kernels/moe.h"
#include "kernels/norm.h"
#include "kernels/rope.h"
#include "kernels/sample.h"
#include "kernels/status.h"

namespace strata {

namespace {

void NeedCpu(const char* op, Stream stream) {
  if (stream.device.kind != DeviceKind::kCpu) {
    Fail(ErrorCode::kDevice, fmt::format("{} runs on the CPU only", op));
  }
}

void MatchMatrix(const char* op, const char* name, const Matrix& w, Dim* rows, Dim* cols) {
  const int64_t shape[2] = {w.rows, w.cols};
  MatchShape(op, name, shape, {rows, cols});
  if (w.dtype != DType::kF32 && w.dtype != DType::kBf16 && w.dtype != DType::kFp8E4M3) {
    Fail(ErrorCode::kShape,
         fmt::format("{}: {} is {}, weights are fp32, bf16 or fp8", op, name, DTypeName(w.dtype)));
  }
  if (w.rows > 1 && w.row_stride < w.cols) {
    Fail(ErrorCode::kShape, fmt::format("{}: {} has a row_stride of {}, its rows hold {}", op, name,
                                        w.row_stride, w.cols));
  }
  if (w.dtype != DType::kFp8E4M3) return;
  if (w.scales == nullptr)
    Fail(ErrorCode::kShape, fmt::format("{}: {} is fp8 but has no block scales", op, name));
  const int64_t blocks = (w.cols + kWeightScaleBlock - 1) / kWeightScaleBlock;
  if (w.rows > kWeightScaleBlock && w.scale_stride < blocks) {
    Fail(ErrorCode::kShape, fmt::format("{}: {} has a scale_stride of {}, a row holds {} blocks",
                                        op, name, w.scale_stride, blocks));
  }
}

// The loops walk the last dimension with plain pointers.
template <class T, int R>
void NeedContiguous(const char* op, const char* name, const View<T, R>& view) {
  if (view.stride[R - 1] != 1 && view.shape[R - 1] > 1) {
    Fail(ErrorCode::kShape, fmt::format("{}: the last dimension of {} has stride {}, 1 is needed",
                                        op, name, view.stride[R - 1]));
  }
}

void NeedWorkspace(const char* op, const View<std::byte, 1>& workspace, size_t needed) {
  if (static_cast<size_t>(workspace.dim(0)) < needed) {
    Fail(ErrorCode::kShape,
         fmt::format("{}: workspace of {} bytes, {} are needed", op, workspace.dim(0), needed));
  }
}

}  // namespace

void Run(const Linear& op, Stream stream) {
  Dim rows{"rows"}, in{"inputs"}, out{"outputs"};
  Match("Linear", "x", op.x, {&rows, &in});
  Match("Linear", "y", op.y, {&rows, &out});
  MatchMatrix("Linear", "w", op.w, &out, &in);
  NeedContiguous("Linear", "x", op.x);
  NeedContiguous("Linear", "y", op.y);
  NeedCpu("Linear", stream);
  if (op.y.empty()) return;
  cpu::Run(op, stream);
}

void Run(const BatchedLinear& op, Stream stream) {
  Dim batch{"batch"}, rows{"rows"}, in{"inputs"}, out{"outputs"};
  Match("BatchedLinear", "x", op.x, {&batch, &rows, &in});
  Match("BatchedLinear", "y", op.y, {&batch, &rows, &out});
  MatchMatrix("BatchedLinear", "w", op.w, &out, &in);
  if (op.w.dtype == DType::kFp8E4M3)
    Fail(ErrorCode::kShape, "BatchedLinear: w is fp8, fp32 and bf16 are served");
  NeedContiguous("BatchedLinear", "x", op.x);
  NeedContiguous("BatchedLinear", "y", op.y);
  NeedCpu("BatchedLinear", stream);
  if (op.y.empty()) return;
  cpu::Run(op, stream);
}

void Run(const RmsNorm& op, Stream stream) {
  Dim rows{"rows"}, width{"width"};
  Match("RmsNorm", "x", op.x, {&rows, &width});
  Match("RmsNorm", "weight", op.weight, {&width});
  Match("RmsNorm", "y", op.y, {&rows, &width});
  NeedContiguous("RmsNorm", "x", op.x);
  NeedContiguous("RmsNorm", "weight", op.weight);
  NeedContiguous("RmsNorm", "y", op.y);
  NeedCpu("RmsNorm", stream);
  if (op.y.empty()) return;
  cpu::Run(op, stream);
}

void Run(const LayerNorm& op, Stream stream) {
  Dim rows{"rows"}, width{"width"};
  Match("LayerNorm", "x", op.x, {&rows, &width});
  Match("LayerNorm", "weight", op.weight, {&width});
  Match("LayerNorm", "bias", op.bias, {&width});
  Match("LayerNorm", "y", op.y, {&rows, &width});
  NeedContiguous("LayerNorm", "x", op.x);
  NeedContiguous("LayerNorm", "weight", op.weight);
  NeedContiguous("LayerNorm", "bias", op.bias);
  NeedContiguous("LayerNorm", "y", op.y);
  NeedCpu("LayerNorm", stream);
  if (op.y.empty()) return;
  cpu::Run(op, stream);
}

void Run(const RopeTable& op, Stream stream) {
  Dim rows{"rows"}, half{"half"};
  Match("RopeTable", "positions", op.positions, {&rows});
  Match("RopeTable", "frequencies", op.frequencies, {&half});
  Match("RopeTable", "cosines", op.cosines, {&rows, &half});
  Match("RopeTable", "sines", op.sines, {&rows, &half});
  NeedCpu("RopeTable", stream);
  cpu::Run(op, stream);
}

void Run(const Rope& op, Stream stream) {
  Dim rows{"rows"}, heads{"heads"}, half{"half"}, width{"width", 2 * op.cosines.dim(1)};
  Match("Rope", "cosines", op.cosines, {&rows, &half});
  Match("Rope", "sines", op.sines, {&rows, &half});
  Match("Rope", "x", op.x, {&rows, &heads, &width});
  NeedContiguous("Rope", "x", op.x);
  NeedContiguous("Rope", "cosines", op.cosines);
  NeedContiguous("Rope", "sines", op.sines);
  NeedCpu("Rope", stream);
  if (op.x.empty()) return;
  cpu::Run(op, stream);
}

void Run(const EmbedRows& op, Stream stream) {
  Dim rows{"rows"}, width{"width"}, vocabulary{"vocabulary"};
  Match("EmbedRows", "ids", op.ids, {&rows});
  Match("EmbedRows", "y", op.y, {&rows, &width});
  MatchMatrix("EmbedRows", "table", op.table, &vocabulary, &width);
  if (op.table.dtype == DType::kFp8E4M3)
    Fail(ErrorCode::kShape, "EmbedRows: the table is fp8, fp32 and bf16 are served");
  NeedContiguous("EmbedRows", "y", op.y);
  NeedCpu("EmbedRows", stream);
  cpu::Run(op, stream);
}

void Run(const SiluMul& op, Stream stream) {
  Dim rows{"rows"}, width{"width"};
  Match("SiluMul", "gate", op.gate, {&rows, &width});
  Match("SiluMul", "up", op.up, {&rows, &width});
  Match("SiluMul", "y", op.y, {&rows, &width});
  NeedContiguous("SiluMul", "gate", op.gate);
  NeedContiguous("SiluMul", "up", op.up);
  NeedContiguous("SiluMul", "y", op.y);
  NeedCpu("SiluMul", stream);
  cpu::Run(op, stream);
}

void Run(const AddRows& op, Stream stream) {
  Dim rows{"rows"}, width{"width"};
  Match("AddRows", "x", op.x, {&rows, &width});
  Match("AddRows", "y", op.y, {&rows, &width});
  NeedContiguous("AddRows", "x", op.x);
  NeedContiguous("AddRows", "y", op.y);
  NeedCpu("AddRows", stream);
  cpu::Run(op, stream);
}

void Run(const RouteExperts& op, Stream stream) {
  Dim rows{"rows"}, experts{"experts"}, top_k{"top_k"};
  Match("RouteExperts", "logits", op.logits, {&rows, &experts});
  if (op.bias.data != nullptr) Match("RouteExperts", "bias", op.bias, {&experts});
  Match("RouteExperts", "experts", op.experts, {&rows, &top_k});
  Match("RouteExperts", "weights", op.weights, {&rows, &top_k});
  if (experts.value > kMaxRoutedExperts || top_k.value > experts.value || op.groups < 1 ||
      experts.value % op.groups != 0 || op.kept_groups < 1 || op.kept_groups > op.groups ||
      top_k.value > experts.value / op.groups * op.kept_groups) {
    Fail(ErrorCode::kShape,
         fmt::format("RouteExperts: top {} of {} experts in {} groups, {} kept, is not possible "
                     "(at most {} experts)",
                     top_k.value, experts.value, op.groups, op.kept_groups, kMaxRoutedExperts));
  }
  NeedContiguous("RouteExperts", "logits", op.logits);
  NeedCpu("RouteExperts", stream);
  cpu::Run(op, stream);
}

void Run(const MoeExperts& op, Stream stream) {
  Dim rows{"rows"}, hidden{"hidden"}, top_k{"top_k"}, experts{"experts"}, inner{"inner"};
  Match("MoeExperts", "x", op.x, {&rows, &hidden});
  Match("MoeExperts", "y", op.y, {&rows, &hidden});
  Match("MoeExperts", "experts", op.experts, {&rows, &top_k});
  Match("MoeExperts", "weights", op.weights, {&rows, &top_k});
  Match("MoeExperts", "gate", op.gate, {&experts});
  Match("MoeExperts", "up", op.up, {&experts});
  Match("MoeExperts", "down", op.down, {&experts});
  if (experts.value < 1 || experts.value > kMaxRoutedExperts || top_k.value > experts.value) {
    Fail(ErrorCode::kShape,
         fmt::format("MoeExperts: top {} of {} experts, 1 to {} experts are served", top_k.value,
                     experts.value, kMaxRoutedExperts));
  }
  NeedContiguous("MoeExperts", "x", op.x);
  NeedContiguous("MoeExperts", "y", op.y);
  NeedCpu("MoeExperts", stream);
  if (op.y.empty()) return;
  for (int64_t e = 0; e < experts.value; ++e) {
    MatchMatrix("MoeExperts", "gate", op.gate(e), &inner, &hidden);
    MatchMatrix("MoeExperts", "up", op.up(e), &inner, &hidden);
    MatchMatrix("MoeExperts", "down", op.down(e), &hidden, &inner);
  }
  NeedWorkspace("MoeExperts", op.workspace,
                MoeExperts::WorkspaceBytes(rows.value, top_k.value, experts.value, hidden.value,
                                           inner.value));
  cpu::Run(op, stream);
}

void Run(const SampleTokens& op, Stream stream) {
  Dim rows{"rows"}, vocabulary{"vocabulary"};
  Match("SampleTokens", "logits", op.logits, {&rows, &vocabulary});
  Match("SampleTokens", "temperature", op.temperature, {&rows});
  Match("SampleTokens", "top_k", op.top_k, {&rows});
  Match("SampleTokens", "top_p", op.top_p, {&rows});
  Match("SampleTokens", "min_p", op.min_p, {&rows});
  Match("SampleTokens", "uniform", op.uniform, {&rows});
  Match("SampleTokens", "tokens", op.tokens, {&rows});
  Match("SampleTokens", "logprobs", op.logprobs, {&rows});
  NeedContiguous("SampleTokens", "logits", op.logits);
  NeedCpu("SampleTokens", stream);
  if (rows.value == 0) return;
  if (vocabulary.value < 1 || vocabulary.value > std::numeric_limits<int32_t>::max()) {
    Fail(ErrorCode::kShape,
         fmt::format("SampleTokens: a vocabulary of {} tokens, 1 to 2^31 - 1 are served",
                     vocabulary.value));
  }
  NeedWorkspace("SampleTokens", op.workspace,
                SampleTokens::WorkspaceBytes(rows.value, vocabulary.value));
  cpu::Run(op, stream);
}

}  // namespace strata
