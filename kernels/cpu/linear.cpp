#include "kernels/linear.h"

#include "kernels/cpu/isa/dense.h"
#include "kernels/cpu/partition.h"

namespace strata::cpu {

namespace {

// Outputs are computed sixteen at a time; a share starts at such a run.
constexpr int64_t kOutputRun = 16;
// Rows are computed four at a time.
constexpr int64_t kRowRun = 4;

void RunProduct(const LinearArgs& args, int64_t rows, int64_t outputs, ThreadPool& pool) {
  const DenseLoops& loops = ChosenDenseLoops();
  // Few outputs and many rows (a router): share the rows instead.
  if (outputs < kOutputRun * pool.threads() && rows > 1) {
    pool.For(rows, EvenGrain(pool.threads(), rows, args.in * outputs, kRowRun),
             [&](int64_t begin, int64_t end, int) { loops.linear(args, begin, end, 0, outputs); });
    return;
  }
  pool.For(outputs, EvenGrain(pool.threads(), outputs, args.in * rows, kOutputRun),
           [&](int64_t begin, int64_t end, int) { loops.linear(args, 0, rows, begin, end); });
}

}  // namespace

void Run(const Linear& op, Stream stream) {
  const LinearArgs args{.x = op.x.data,
                        .x_stride = op.x.stride[0],
                        .w = op.w.data,
                        .w_dtype = op.w.dtype,
                        .w_stride = op.w.row_stride,
                        .scales = op.w.scales,
                        .scale_stride = op.w.scale_stride,
                        .y = op.y.data,
                        .y_stride = op.y.stride[0],
                        .in = op.x.dim(1),
                        .accumulate = op.accumulate};
  RunProduct(args, op.x.dim(0), op.y.dim(1), *stream.pool);
}

void Run(const BatchedLinear& op, Stream stream) {
  const DenseLoops& loops = ChosenDenseLoops();
  const int64_t rows = op.x.dim(1);
  const int64_t outputs = op.y.dim(2);
  const int64_t runs = (outputs + kOutputRun - 1) / kOutputRun;
  // Items are (matrix, run of outputs) pairs.
  const int64_t item_work = op.x.dim(2) * rows * kOutputRun;
  const int64_t items = op.x.dim(0) * runs;
  stream.pool->For(items, EvenGrain(stream.pool->threads(), items, item_work),
                   [&](int64_t begin, int64_t end, int) {
                     while (begin < end) {
                       const int64_t batch = begin / runs;
                       const int64_t last = std::min(end, (batch + 1) * runs);
                       const LinearArgs args{.x = op.x.row(batch),
                                             .x_stride = op.x.stride[1],
                                             .w = static_cast<const std::byte*>(op.w.data) +
                                                  batch * op.batch_stride * DTypeBytes(op.w.dtype),
                                             .w_dtype = op.w.dtype,
                                             .w_stride = op.w.row_stride,
                                             .scales = nullptr,
                                             .scale_stride = 0,
                                             .y = op.y.row(batch),
                                             .y_stride = op.y.stride[1],
                                             .in = op.x.dim(2),
                                             .accumulate = false};
                       loops.linear(args, 0, rows, (begin - batch * runs) * kOutputRun,
                                    std::min(outputs, (last - batch * runs) * kOutputRun));
                       begin = last;
                     }
                   });
}

}  // namespace strata::cpu
