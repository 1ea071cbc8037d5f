#pragma once

// Plans of which none is better than another in time, memory and depth at once: what a search would lose that
// keeps the fastest alone.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "espalier/base/units.h"

namespace espalier {

// What people pay with a plan; less is better in each.
struct PlanPrice {
  Duration iteration;
  Bytes peak;             // of the fullest device
  std::size_t depth = 0;  // stages on the longest way
  friend auto operator<=>(const PlanPrice&, const PlanPrice&) = default;
};

// Whether `a` is at least as good in each and better in one.
inline bool dominates(const PlanPrice& a, const PlanPrice& b) {
  return a != b && a.iteration <= b.iteration && a.peak <= b.peak && a.depth <= b.depth;
}

// Of items with about the same price (1/64 in time and memory, the same depth) it keeps that of the least
// rank. So what it holds does not depend on the order in which items come, and is small: a few hundred of a
// million. Adding O(log size).
template <class Item, class Rank>
class ParetoSet {
 public:
  struct Entry {
    PlanPrice price;
    Rank rank;
    Item item;
  };

  // `item` makes the item, where it is kept.
  template <class Make>
  void add(const PlanPrice& price, const Rank& rank, Make&& item) {
    const Cell cell{step_of(price.iteration.count()), step_of(price.peak.count()), price.depth};
    const auto at = of_cell_.find(cell);
    if (at == of_cell_.end()) {
      of_cell_.emplace(cell, Entry{price, rank, item()});
    } else if (rank < at->second.rank) {
      at->second = Entry{price, rank, item()};
    }
  }

  // Those that no other dominates, by rank. Good until the next is added. O(size²).
  std::vector<const Entry*> front() const {
    std::vector<const Entry*> entries;
    for (const auto& [cell, entry] : of_cell_) entries.push_back(&entry);
    std::sort(entries.begin(), entries.end(), [](const Entry* a, const Entry* b) {
      return std::tie(a->price, a->rank) < std::tie(b->price, b->rank);
    });
    std::vector<const Entry*> result;
    for (const Entry* entry : entries) {  // what dominates it stands before it
      const bool good = std::none_of(result.begin(), result.end(), [&](const Entry* other) {
        return other->price == entry->price || dominates(other->price, entry->price);
      });
      if (good) result.push_back(entry);
    }
    return result;
  }

 private:
  using Cell = std::tuple<std::uint64_t, std::uint64_t, std::size_t>;

  // Ascending with the figure, 64 steps to each doubling.
  static std::uint64_t step_of(std::int64_t figure) {
    const auto value = static_cast<std::uint64_t>(std::max<std::int64_t>(figure, 0));
    const auto bits = static_cast<std::uint64_t>(std::bit_width(value));
    return bits <= 7 ? value : (static_cast<std::uint64_t>(bits - 7) << 6) + (value >> (bits - 7));
  }

  std::map<Cell, Entry> of_cell_;
};

}  // namespace espalier
