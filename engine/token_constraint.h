// What a sequence may say next, when a request limits it: JSON, or JSON of a schema.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace strata {

// Follows one answer token by token. Owned by its sequence and used by the engine's thread alone.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  // Sets bit t % 32 of word t / 32 for every token t that may come next, and clears all others.
  // `mask` has (vocabulary + 31) / 32 words. End tokens are allowed exactly where the text may end.
  // At least one bit is set as long as only allowed tokens were accepted.
  virtual void Allowed(std::vector<uint32_t>& mask) const = 0;
  // Takes a token that Allowed would give.
  virtual void Accept(int32_t token) = 0;
  // The same state, to be advanced apart: drafts are tried on a copy.
  virtual std::unique_ptr<TokenConstraint> Clone() const = 0;
};

}  // namespace strata
