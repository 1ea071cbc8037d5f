#pragma once

// Names that people type: the nearest known word to one that is not known, and patterns.

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace espalier {

// Fewest single-character insertions, deletions and substitutions (Levenshtein). O(|a| · |b|).
std::size_t edit_distance(std::string_view a, std::string_view b);

// The candidate with the least distance to `word` (its first 100 characters), the first of equals; none if
// there is no candidate. Upper and lower case count as equal.
std::optional<std::string_view> nearest_word(std::string_view word,
                                             std::span<const std::string_view> candidates);

// Whether the whole text matches: '*' stands for any characters, also none and dots; "[0-5]" and "[0,2,4-7]"
// for a whole number in one of these ranges, with no digit on either side of it ("h.[0-5]" does not match
// "h.12"); all others for themselves, a bracket that holds no ranges as well. O(pattern · text).
bool matches_pattern(std::string_view pattern, std::string_view text);

// What is wrong with the brackets of a pattern, for those who take no bracket for itself: "'[0-' has no end",
// "'[a-c]': expected numbers, such as [0-5] or [0,2,4-7]", "'[5-0]': 5 is above 0".
std::optional<std::string> wrong_range(std::string_view pattern);

}  // namespace espalier
