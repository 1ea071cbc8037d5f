#include "espalier/base/hash.h"

#include <cstdio>

namespace espalier {

void Fingerprint::add(std::uint64_t value) {
  for (int shift = 0; shift < 64; shift += 8) {
    state_ = (state_ ^ ((value >> shift) & 0xff)) * 0x100000001b3;
  }
}

void Fingerprint::add(std::string_view text) {
  add(text.size());
  for (const char c : text) state_ = (state_ ^ static_cast<unsigned char>(c)) * 0x100000001b3;
}

std::string Fingerprint::hex() const {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(state_));
  return text;
}

}  // namespace espalier
