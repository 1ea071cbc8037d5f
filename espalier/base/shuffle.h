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

// Draws `count` items, or all where there are fewer, each as likely, to the front. O(count).
template <class T>
void draw_to_front(std::span<T> items, std::size_t count, Rng& rng) {
  for (std::size_t i = 0; i < count && i < items.size(); ++i) {
    std::swap(items[i], items[i + rng.below(items.size() - i)]);
  }
}

}  // namespace espalier
