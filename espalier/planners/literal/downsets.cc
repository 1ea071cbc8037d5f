#include "espalier/planners/literal/downsets.h"

#include <algorithm>
#include <functional>
#include <queue>

#include "espalier/base/rng.h"

namespace espalier::literal {
namespace {

// A set of rows of a Downsets, found again by content: open addressing over their numbers.
class RowIndex {
 public:
  explicit RowIndex(const Downsets& sets) : sets_(sets), slots_(1024, kEmpty), hashes_() {}

  // Whether a row equal to `row` stands there already; if not, it becomes number `sets.size()`.
  bool find_or_add(const std::uint64_t* row, std::uint64_t hash) {
    if ((hashes_.size() + 1) * 2 > slots_.size()) grow();
    for (std::size_t at = hash & (slots_.size() - 1);; at = (at + 1) & (slots_.size() - 1)) {
      const std::uint32_t number = slots_[at];
      if (number == kEmpty) {
        slots_[at] = static_cast<std::uint32_t>(hashes_.size());
        hashes_.push_back(hash);
        return false;
      }
      if (hashes_[number] == hash && std::equal(row, row + sets_.words(), sets_.row(number))) return true;
    }
  }

 private:
  static constexpr std::uint32_t kEmpty = 0xffffffff;

  void grow() {
    std::vector<std::uint32_t> slots(slots_.size() * 2, kEmpty);
    for (std::size_t number = 0; number < hashes_.size(); ++number) {
      std::size_t at = hashes_[number] & (slots.size() - 1);
      while (slots[at] != kEmpty) at = (at + 1) & (slots.size() - 1);
      slots[at] = static_cast<std::uint32_t>(number);
    }
    slots_ = std::move(slots);
  }

  const Downsets& sets_;
  std::vector<std::uint32_t> slots_;
  std::vector<std::uint64_t> hashes_;
};

}  // namespace

std::optional<Downsets> enumerate_downsets(const ItemLists& before, std::size_t limit) {
  const std::size_t items = before.size(), words = (items + 63) / 64;
  Downsets sets(items, words);
  RowIndex index(sets);
  std::vector<std::uint64_t> row(words);
  index.find_or_add(row.data(), 0);
  sets.push_back(row.data());
  std::vector<std::uint64_t> hashes{0};
  // A row's hash is the sum of its items'. A set's successors have one item more, so that a queue leaves them
  // by size.
  for (std::size_t at = 0; at < sets.size() && words > 0; ++at) {
    std::copy_n(sets.row(at), words, row.begin());
    const auto holds = [&](std::uint32_t item) { return (row[item / 64] >> (item % 64) & 1) != 0; };
    for (std::uint32_t item = 0; item < items; ++item) {
      if (holds(item) || !std::all_of(before[item].begin(), before[item].end(), holds)) continue;
      row[item / 64] |= std::uint64_t{1} << (item % 64);
      const std::uint64_t hash = hashes[at] + mix64(item);
      if (!index.find_or_add(row.data(), hash)) {
        if (sets.size() == limit) return std::nullopt;
        sets.push_back(row.data());
        hashes.push_back(hash);
      }
      row[item / 64] &= ~(std::uint64_t{1} << (item % 64));
    }
  }
  return sets;
}

Downsets prefixes(const std::vector<std::uint32_t>& order) {
  const std::size_t words = (order.size() + 63) / 64;
  Downsets sets(order.size(), words);
  std::vector<std::uint64_t> row(words);
  sets.push_back(row.data());
  for (const std::uint32_t item : order) {
    row[item / 64] |= std::uint64_t{1} << (item % 64);
    sets.push_back(row.data());
  }
  return sets;
}

std::vector<std::uint32_t> topological_order(const ItemLists& before) {
  ItemLists after(before.size());
  std::vector<std::size_t> waits(before.size());
  std::priority_queue<std::uint32_t, std::vector<std::uint32_t>, std::greater<>> ready;
  for (std::uint32_t item = 0; item < before.size(); ++item) {
    for (const std::uint32_t other : before[item]) after[other].push_back(item);
    waits[item] = before[item].size();
    if (waits[item] == 0) ready.push(item);
  }
  std::vector<std::uint32_t> order;
  while (!ready.empty()) {
    order.push_back(ready.top());
    ready.pop();
    for (const std::uint32_t next : after[order.back()]) {
      if (--waits[next] == 0) ready.push(next);
    }
  }
  return order;
}

}  // namespace espalier::literal
