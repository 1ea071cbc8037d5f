#include "espalier/frontend/number_lines.h"

#include <algorithm>
#include <charconv>

#include "espalier/base/check.h"
#include "espalier/frontend/decode.h"

namespace espalier {
namespace {

bool is_word(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); });
}

}  // namespace

bool consists_of(std::string_view line, std::string_view allowed, std::string_view needed) {
  return line.find_first_not_of(allowed) == std::string_view::npos &&
         line.find_first_of(needed) != std::string_view::npos;
}

NumberLine NumberLines::next(bool word) {
  while (!text_.empty()) {
    ++line_;
    const auto end = std::min(text_.find('\n'), text_.size());
    const std::string_view line = text_.substr(0, end);
    text_.remove_prefix(std::min(end + 1, text_.size()));
    const auto* const first =
        std::find_if_not(line.begin(), line.end(), [&](char c) { return separates(c); });
    if (first == line.end()) continue;
    if (*first == '#') break;
    return read(line, word);
  }
  text_ = {};
  return {};
}

void NumberLines::fail(const std::string& problem) const {
  throw InputError(file_ + ":" + std::to_string(line_) + ": " + problem);
}

NumberLine NumberLines::read(std::string_view line, bool word) const {
  NumberLine result;
  const char *at = line.data(), *end = at + line.size();
  while (true) {
    at = std::find_if_not(at, end, [&](char c) { return separates(c); });
    if (at == end) return result;
    const char* const behind = std::find_if(at, end, [&](char c) { return separates(c); });
    const std::string_view text(at, static_cast<std::size_t>(behind - at));
    std::int64_t value = 0;
    const auto [stop, error] = std::from_chars(at, behind, value);
    if (error == std::errc() && stop == behind && value >= 0 && result.word.empty()) {
      result.numbers.push_back(value);
    } else if (word && result.word.empty() && is_word(text)) {
      result.word = text;
    } else {
      fail("has " + quote(text) + "; expected whole numbers from 0 on" + (word ? ", then one word" : ""));
    }
    at = behind;
  }
}

}  // namespace espalier
