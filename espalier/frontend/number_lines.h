#pragma once

// Text whose lines are whole numbers, as the task graphs of others are written. Internal to the frontend.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace espalier {

struct NumberLine {
  std::vector<std::int64_t> numbers;  // from 0 on
  std::string word;                   // what stands behind them, where that is allowed
  bool empty() const { return numbers.empty() && word.empty(); }
};

// Whether a line has no other characters than those allowed, and one at least of those needed.
bool consists_of(std::string_view line, std::string_view allowed, std::string_view needed);

// The lines that hold something, one after the other, up to one that begins with '#'.
class NumberLines {
 public:
  // Refers to both. White space stands between numbers, and commas where they are allowed.
  NumberLines(std::string_view text, const std::string& file, bool commas = false)
      : text_(text), file_(file), commas_(commas) {}

  // Empty behind the last. Throws InputError with file and line where something else than numbers from 0 on
  // stands there, or, if `word` allows it, behind them a word of letters and '_'.
  NumberLine next(bool word = false);

  // Throws InputError at the line that was read last.
  [[noreturn]] void fail(const std::string& problem) const;

 private:
  bool separates(char c) const { return c == ' ' || c == '\t' || c == '\r' || (commas_ && c == ','); }
  NumberLine read(std::string_view line, bool word) const;

  std::string_view text_;
  const std::string& file_;
  bool commas_;
  std::size_t line_ = 0;
};

}  // namespace espalier
