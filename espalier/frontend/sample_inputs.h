#pragma once

// The sample inputs that torch.export stores beside a program: a pickle. Read by a small interpreter of the
// opcodes that plain tensors in tuples, lists and dicts need; nothing is ever executed or looked up. Internal
// to the frontend.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace espalier {

struct ValueRange {
  std::int64_t min = 0;
  std::int64_t max = 0;
};

// Smallest and largest element of each leaf, in the order of the model's arguments: positional ones, then
// named. Of floating-point tensors those have one whose elements all lie between 0 and 1: the whole numbers
// around them. An empty list if anything in the file is not as expected: the samples are only a hint.
std::vector<std::optional<ValueRange>> read_sample_ranges(std::string_view file, const std::string& name);

}  // namespace espalier
