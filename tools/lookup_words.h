// Word lists of the look-up task: the ones the shipped model's training used.
#pragma once

#include <string>
#include <vector>

namespace strata {

const std::vector<std::string>& Adjectives();
const std::vector<std::string>& Nouns();
const std::vector<std::string>& FirstNames();
const std::vector<std::string>& LastNames();
const std::vector<std::string>& Cities();
const std::vector<std::string>& Colours();
const std::vector<std::string>& Jobs();
const std::vector<std::string>& Months();
const std::vector<std::string>& SecretWords();

}  // namespace strata
