#pragma once

// Lines of the text forms, in words: what lies between blanks. A word in double quotes may hold blanks and
// anything else (\" \\ \n \r \t inside); characters of `punctuation` are words of their own outside quotes.

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace espalier {

struct Word {
  std::string text;
  bool quoted = false;

  // An unquoted word of that text: syntax, not a name.
  bool is(std::string_view syntax) const { return !quoted && text == syntax; }
};

// Throws InputError if a quote does not end or an escape is unknown.
std::vector<Word> split_words(std::string_view line, std::string_view punctuation = {});

// The text as a word that reads back, in quotes where it needs them: where it is empty, holds blanks, quotes,
// control characters or punctuation, or is one of `reserved`.
std::string quote_word(std::string_view text, std::string_view punctuation = {},
                       std::initializer_list<std::string_view> reserved = {});

// The words of each line that has any and does not begin with '#', with its number (from 1). Such a line must
// be UTF-8, since what it names may go to JSON. Errors inside become "line 3: …".
std::vector<std::pair<std::size_t, std::vector<Word>>> split_lines(std::string_view text,
                                                                   std::string_view punctuation = {});

// Whether the bytes are UTF-8 (no overlong forms, no surrogates): names must be, since JSON is.
bool is_utf8(std::string_view text);

// A whole decimal number in a range. Throws InputError naming text and range.
std::int64_t parse_integer(std::string_view text, std::int64_t min, std::int64_t max);

}  // namespace espalier
