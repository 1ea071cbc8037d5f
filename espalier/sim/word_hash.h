#pragma once

// The hash of what an answer or a structure is remembered by. Whoever looks something up compares the words.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "espalier/base/rng.h"

namespace espalier::internal {

inline std::uint64_t hash_of(const std::vector<std::uint32_t>& words) {
  std::uint64_t hash = words.size();
  for (std::size_t i = 0; i + 1 < words.size(); i += 2) {
    hash = mix64(hash ^ (std::uint64_t{words[i]} << 32 | words[i + 1]));
  }
  return words.size() % 2 == 1 ? mix64(hash ^ words.back()) : hash;
}

}  // namespace espalier::internal
