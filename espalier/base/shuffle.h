#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "espalier/base/rng.h"

namespace espalier {

// Every order is as likely (Fisher, Yates; Durstenfeld, CACM'64). O(items).
template <class T>
void shuffle(std::span<T> items, Rng& rng) {
  for (std::size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[rng.below(i)]);
}

}  // namespace espalier
