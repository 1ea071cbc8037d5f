#include "espalier/sim/range_maximum.h"

#include <algorithm>
#include <cstddef>

namespace espalier::internal {

RangeMaximum::RangeMaximum(std::vector<std::int64_t> values) : values_(std::move(values)) {
  std::vector<std::int64_t> row;
  for (std::size_t i = 0; i < values_.size(); i += kBlock) {
    row.push_back(*std::max_element(
        values_.begin() + static_cast<std::ptrdiff_t>(i),
        values_.begin() + static_cast<std::ptrdiff_t>(std::min(i + kBlock, values_.size()))));
  }
  for (std::size_t width = 1; !row.empty(); width *= 2) {
    blocks_.push_back(row);
    const std::size_t next = row.size() > width ? row.size() - width : 0;
    for (std::size_t i = 0; i < next; ++i) row[i] = std::max(row[i], row[i + width]);
    row.resize(next);
  }
}

std::int64_t RangeMaximum::of(std::size_t first, std::size_t last) const {
  const auto scan = [&](std::size_t from, std::size_t to, std::int64_t most) {
    for (std::size_t i = from; i < to; ++i) most = std::max(most, values_[i]);
    return most;
  };
  const std::size_t begin = first / kBlock + 1, end = last / kBlock;  // whole blocks between
  if (begin >= end + 1) return scan(first, last + 1, values_[first]);
  std::int64_t most = scan(first, begin * kBlock, values_[first]);
  most = scan(end * kBlock, last + 1, most);
  if (begin == end) return most;
  std::size_t level = 0;
  while (std::size_t{2} << level <= end - begin) ++level;
  const std::vector<std::int64_t>& row = blocks_[level];
  return std::max({most, row[begin], row[end - (std::size_t{1} << level)]});
}

}  // namespace espalier::internal
