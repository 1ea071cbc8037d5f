#pragma once

#include <cstdint>
#include <vector>

namespace espalier::internal {

// The largest value of a range, by blocks and a sparse table over them. O(n) room, O(1) a question.
class RangeMaximum {
 public:
  RangeMaximum() = default;
  explicit RangeMaximum(std::vector<std::int64_t> values);
  std::int64_t of(std::size_t first, std::size_t last) const;  // both included
  void prefetch(std::size_t at) const { __builtin_prefetch(&values_[at]); }

 private:
  static constexpr std::size_t kBlock = 8;
  std::vector<std::int64_t> values_;
  std::vector<std::vector<std::int64_t>> blocks_;  // [k][i]: of 2^k blocks from i
};

}  // namespace espalier::internal
