#include "espalier/base/rng.h"

namespace espalier {

std::uint64_t Rng::below(std::uint64_t bound) {
  __extension__ using Wide = unsigned __int128;
  Wide product = static_cast<Wide>(next()) * bound;
  if (static_cast<std::uint64_t>(product) < bound) {
    const std::uint64_t threshold = (0 - bound) % bound;
    while (static_cast<std::uint64_t>(product) < threshold) product = static_cast<Wide>(next()) * bound;
  }
  return static_cast<std::uint64_t>(product >> 64);
}

}  // namespace espalier
