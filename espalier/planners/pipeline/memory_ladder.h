#pragma once

// Where nothing fits: which plan comes closest, as a planner's own estimate sees it.

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "espalier/base/units.h"
#include "espalier/planners/context.h"

namespace espalier {

inline constexpr std::array<std::int64_t, 20> kMemoryPercents = {
    110,  120,  140,  160,  200,  250,   300,   400,   600,    800,
    1200, 1600, 2400, 3200, 6400, 12800, 25600, 51200, 102400, 204800};

// So many percent of a device's memory.
inline Bytes percent_of(Bytes memory, std::int64_t percent) {
  return Bytes(memory.count() / 100 * percent + memory.count() % 100 * percent / 100);
}

// What `search(percent)`, which returns a list, finds with the least of the percents with which it finds
// anything; empty where it finds nothing with any of them, or was to end. At most six calls: what fits into
// some memory fits into more.
template <class Search>
auto closest_by_memory(const Search& search, const Context& context) -> decltype(search(100)) {
  std::size_t first = 0, last = kMemoryPercents.size() - 1;  // the least that will do is in [first, last]
  auto found = search(kMemoryPercents[last]);
  while (!found.empty() && first < last) {
    const std::size_t middle = (first + last) / 2;
    auto with = search(kMemoryPercents[middle]);
    if (context.budget_spent || context.stop()) return found;
    if (with.empty()) {
      first = middle + 1;
    } else {
      found = std::move(with);
      last = middle;
    }
  }
  return found;
}

}  // namespace espalier
