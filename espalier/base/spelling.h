#pragma once

// Names that people type: the nearest known word to one that is not known, and patterns with '*'.

#include <optional>
#include <span>
#include <string_view>

namespace espalier {

// Fewest single-character insertions, deletions and substitutions (Levenshtein). O(|a| · |b|).
std::size_t edit_distance(std::string_view a, std::string_view b);

// The candidate with the least distance to `word` (its first 100 characters), the first of equals; none if
// there is no candidate. Upper and lower case count as equal.
std::optional<std::string_view> nearest_word(std::string_view word,
                                             std::span<const std::string_view> candidates);

// Whether the whole text matches: '*' stands for any characters, also none and dots; all others for
// themselves. O(pattern · text).
bool matches_pattern(std::string_view pattern, std::string_view text);

}  // namespace espalier
