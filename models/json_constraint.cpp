#include "models/json_constraint.h"

namespace strata {

void JsonLanguage::Find(const JsonVocabulary& vocabulary, const State& state,
                        std::vector<State>& walk, std::vector<uint32_t>& mask) const {
  const int64_t plain = automaton_.AnyCharacters(state);
  if (plain < 0) return WalkTokens(vocabulary.all(), automaton_, state, walk, mask);
  vocabulary.AddPlain(plain, mask);
  WalkTokens(vocabulary.not_plain(), automaton_, state, walk, mask);
  if (plain >= vocabulary.longest()) return;
  // A plain token that is too long for the string may still be part of a literal.
  const JsonState literals = automaton_.LiteralsOf(state);
  if (!literals.active.empty()) WalkTokens(vocabulary.all(), automaton_, literals, walk, mask);
}

}  // namespace strata
