#pragma once

// Fingerprints of values and files (FNV-1a, 64 bits): to notice that something changed, not to resist attack.

#include <cstdint>
#include <string>
#include <string_view>

namespace espalier {

class Fingerprint {
 public:
  void add(std::string_view text);  // length first, so ("ab", "c") differs from ("a", "bc")
  void add(std::uint64_t value);
  std::uint64_t value() const { return state_; }
  std::string hex() const;  // 16 lower-case digits

 private:
  std::uint64_t state_ = 0xcbf29ce484222325;
};

}  // namespace espalier
