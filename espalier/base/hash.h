#pragma once

// Fingerprints of values (FNV-1a) and of large contents (XXH64), 64 bits: to notice that something changed or
// broke, not to resist attack.

#include <array>
#include <cstdint>
#include <optional>
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

// XXH64 with seed 0 (Collet, xxHash specification 0.1.1) of bytes that come piece by piece; any cut gives the
// same value. Several gigabytes a second: weights are hashed while they are written and read.
class ContentHash {
 public:
  ContentHash();
  void add(std::string_view bytes);
  std::uint64_t value() const;

 private:
  std::array<std::uint64_t, 4> lanes_;
  std::array<unsigned char, 32> rest_{};  // bytes that do not fill a stripe of 32 yet
  std::size_t rest_size_ = 0;
  std::uint64_t length_ = 0;
};
std::uint64_t content_hash(std::string_view bytes);

std::string hex_text(std::uint64_t value);  // 16 lower-case digits
std::optional<std::uint64_t> parse_hex_text(std::string_view text);

}  // namespace espalier
