// How drafts are reported.
#pragma once

#include <nlohmann/json.hpp>

#include "engine/speculation.h"

namespace strata {

// {"windows", "drafted": [per place], "accepted": [per place]}
nlohmann::ordered_json DraftJson(const DraftCounts& drafts);

}  // namespace strata
