#include "engine/model.h"

#include "kernels/status.h"

namespace strata {

StepOutput Model::RunDraft(const StepInput&, const DraftInput&, StepContext&) const {
  Fail(ErrorCode::kInternal, "a draft was asked of a network without a prediction layer");
}

}  // namespace strata
