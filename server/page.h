// The page at /, one file of HTML with its script and style.
#pragma once

#include <string_view>

namespace strata {

extern const std::string_view kPage;

}  // namespace strata
