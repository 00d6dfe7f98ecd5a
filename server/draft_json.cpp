#include "server/draft_json.h"

namespace strata {

nlohmann::ordered_json DraftJson(const DraftCounts& drafts) {
  return {{"windows", drafts.windows}, {"drafted", drafts.drafted}, {"accepted", drafts.accepted}};
}

}  // namespace strata
