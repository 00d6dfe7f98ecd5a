#include "kernels/view.h"

#include <fmt/format.h>

#include "kernels/status.h"

namespace strata {

void MatchShape(const char* op, const char* view, const int64_t* shape,
                std::initializer_list<Dim*> dims) {
  int index = 0;
  for (Dim* dim : dims) {
    const int64_t found = shape[index];
    if (dim->value < 0) dim->value = found;
    if (dim->value != found) {
      Fail(ErrorCode::kShape,
           fmt::format("{}: {} has {} {} in dimension {}, the call's other views have {}", op, view,
                       found, dim->name, index, dim->value));
    }
    ++index;
  }
}

}  // namespace strata
