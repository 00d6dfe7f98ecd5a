// Byte-pair merging over token ids.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace strata {

// Thread-safe once filled.
class BytePairEncoder {
 public:
  // `bytes` are the token's raw bytes.
  void AddToken(const std::string& bytes, int32_t id) { ids_.emplace(bytes, id); }
  // Merges have ranks in the order they are added. False when one of the three tokens is unknown.
  bool AddMerge(const std::string& left, const std::string& right);
  void set_ignore_merges(bool ignore) { ignore_merges_ = ignore; }

  // Whether every byte has a token of its own, so that any input can be encoded.
  bool CoversAllBytes() const;
  // Appends the ids of one pre-token. O(n log n) in its length.
  void Encode(std::string_view word, std::vector<int32_t>& out) const;

 private:
  struct Merge {
    int32_t rank;
    int32_t result;
  };
  static uint64_t Key(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }

  std::unordered_map<std::string, int32_t> ids_;
  std::unordered_map<uint64_t, Merge> merges_;
  bool ignore_merges_ = false;
};

}  // namespace strata
