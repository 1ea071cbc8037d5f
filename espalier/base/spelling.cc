#include "espalier/base/spelling.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <utility>
#include <vector>

namespace espalier {
namespace {

constexpr std::size_t kMostDigits = 9;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// How many digits stand at the beginning.
std::size_t digits_of(std::string_view text) {
  std::size_t count = 0;
  while (count < text.size() && is_digit(text[count])) ++count;
  return count;
}

std::int64_t number_of(std::string_view digits) {
  std::int64_t value = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return value;
}

// "[0,2,4-7]" at the beginning of a pattern.
struct Ranges {
  std::size_t length = 0;  // of the text, with its brackets; 0: these are no ranges
  std::vector<std::pair<std::int64_t, std::int64_t>> ranges = {};

  bool hold(std::int64_t number) const {
    return std::any_of(ranges.begin(), ranges.end(), [number](const auto& range) {
      return range.first <= number && number <= range.second;
    });
  }
};

Ranges read_ranges(std::string_view pattern) {
  Ranges read;
  std::size_t at = 1;
  const auto take_number = [&]() -> std::optional<std::int64_t> {
    const std::size_t count = digits_of(pattern.substr(std::min(at, pattern.size())));
    if (count == 0 || count > kMostDigits) return std::nullopt;
    at += count;
    return number_of(pattern.substr(at - count, count));
  };
  while (true) {
    const auto first = take_number();
    if (!first || at >= pattern.size()) return {};
    auto last = first;
    if (pattern[at] == '-') {
      ++at;
      last = take_number();
      if (!last || at >= pattern.size()) return {};
    }
    read.ranges.emplace_back(*first, *last);
    const char end = pattern[at++];
    if (end == ']') break;
    if (end != ',') return {};
  }
  read.length = at;
  return read;
}

}  // namespace

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, substitute}));
    }
  }
  return row.back();
}

std::optional<std::string_view> nearest_word(std::string_view word,
                                             std::span<const std::string_view> candidates) {
  const auto lower = [](std::string_view text) {
    std::string result(text);
    for (char& c : result) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    return result;
  };
  const std::string wanted = lower(word.substr(0, 100));
  std::optional<std::string_view> best;
  std::size_t least = 0;
  for (const std::string_view candidate : candidates) {
    const std::size_t distance = edit_distance(wanted, lower(candidate));
    if (!best || distance < least) {
      best = candidate;
      least = distance;
    }
  }
  return best;
}

// The last '*' alone is tried again: what stands between two of them matches best where it ends first, and of
// two places where it matches the earlier one ends first, since a range takes a whole number of the text.
bool matches_pattern(std::string_view pattern, std::string_view text) {
  std::size_t p = 0, t = 0, star = std::string_view::npos, resume = 0;
  const auto take = [&] {  // what stands in the pattern for itself, or a range
    if (p == pattern.size()) return false;
    if (pattern[p] == '[') {
      if (const Ranges ranges = read_ranges(pattern.substr(p)); ranges.length > 0) {
        const std::size_t digits = digits_of(text.substr(t));
        const bool whole = t == 0 || !is_digit(text[t - 1]);
        if (!whole || digits == 0 || digits > kMostDigits) return false;
        if (!ranges.hold(number_of(text.substr(t, digits)))) return false;
        p += ranges.length, t += digits;
        return true;
      }
    }
    if (pattern[p] != text[t]) return false;
    ++p, ++t;
    return true;
  };
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
    } else if (!take()) {
      if (star == std::string_view::npos) return false;
      p = star + 1;
      t = ++resume;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

std::optional<std::string> wrong_range(std::string_view pattern) {
  for (std::size_t p = 0; p < pattern.size(); ++p) {
    if (pattern[p] == ']') return "']' ends no range";
    if (pattern[p] != '[') continue;
    const Ranges ranges = read_ranges(pattern.substr(p));
    const std::size_t end = pattern.find(']', p);
    if (end == std::string_view::npos) return "'" + std::string(pattern.substr(p, 40)) + "' has no end";
    const std::string text(pattern.substr(p, end + 1 - p));
    if (ranges.length == 0) return "'" + text + "': expected numbers, such as [0-5] or [0,2,4-7]";
    for (const auto& [first, last] : ranges.ranges) {
      if (first > last) {
        return "'" + text + "': " + std::to_string(first) + " is above " + std::to_string(last);
      }
    }
    p = end;
  }
  return std::nullopt;
}

}  // namespace espalier
