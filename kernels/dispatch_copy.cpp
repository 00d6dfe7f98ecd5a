#include "kernels/copy.h"
#include "kernels/status.h"

namespace strata {

void Run(const CopyRows& op, Stream stream) {
  Dim rows{"rows"}, heads{"heads"}, width{"width"};
  Match("CopyRows", "x", op.x, {&rows, &heads, &width});
  Match("CopyRows", "y", op.y, {&rows, &heads, &width});
  if (op.x.empty()) return;
  if (stream.device.kind != DeviceKind::kCpu)
    Fail(ErrorCode::kDevice, "CopyRows runs on the CPU only");
  cpu::Run(op, stream);
}

void Run(const GatherRows& op, Stream stream) {
  Dim width{"width"}, count{"count"};
  Match("GatherRows", "rows", op.rows, {&count});
  Match("GatherRows", "y", op.y, {&count, &width});
  if (op.x.dim(1) != width.value) Fail(ErrorCode::kShape, "GatherRows: x and y differ in width");
  if (op.y.empty()) return;
  if (stream.device.kind != DeviceKind::kCpu)
    Fail(ErrorCode::kDevice, "GatherRows runs on the CPU only");
  cpu::Run(op, stream);
}

}  // namespace strata
