#pragma once

// All downsets of a small directed acyclic graph, each a row of bits.
//
// A downset holds, with each item, everything that comes before it. Chains of downsets ∅ = D0 ⊂ D1 ⊂ … are
// the contiguous partitions of the graph with their orders, so planners that are exact over them enumerate
// downsets first. How many there are depends on the graph's width: n + 1 for a chain, 2ⁿ without edges.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace espalier::literal {

using ItemLists = std::vector<std::vector<std::uint32_t>>;  // by item

class Downsets {
 public:
  Downsets(std::size_t items, std::size_t words) : items_(items), words_(words) {}

  std::size_t items() const { return items_; }
  std::size_t words() const { return words_; }  // of 64 bits in a row
  std::size_t size() const { return words_ == 0 ? 1 : bits_.size() / words_; }
  const std::uint64_t* row(std::size_t set) const { return bits_.data() + set * words_; }
  bool has(std::size_t set, std::size_t item) const { return (row(set)[item / 64] >> (item % 64) & 1) != 0; }
  void push_back(const std::uint64_t* row) { bits_.insert(bits_.end(), row, row + words_); }

 private:
  std::size_t items_, words_;
  std::vector<std::uint64_t> bits_;
};

// Whether `small` lies in `large`: rows of `words` words.
inline bool is_subset(const std::uint64_t* small, const std::uint64_t* large, std::size_t words) {
  for (std::size_t w = 0; w < words; ++w) {
    if ((small[w] & ~large[w]) != 0) return false;
  }
  return true;
}

// Every downset, by ascending number of items: the empty one first, the full one last. before[v]: the items
// that v needs; without cycles. Nothing where there are more than `limit`. O(downsets · (items + edges)).
std::optional<Downsets> enumerate_downsets(const ItemLists& before, std::size_t limit);

// The n + 1 prefixes of an order of all items.
Downsets prefixes(const std::vector<std::uint32_t>& order);

// The items that are on no cycle and behind none, inputs first, of several the lowest number; all of them
// where the graph has no cycle.
std::vector<std::uint32_t> topological_order(const ItemLists& before);

}  // namespace espalier::literal
