#include "espalier/base/words.h"

#include <algorithm>
#include <charconv>

#include "espalier/base/check.h"

namespace espalier {
namespace {

constexpr std::string_view kEscapes = "\"\\nrt";
constexpr std::string_view kEscaped = "\"\\\n\r\t";

bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\r';
}

// The quoted word that begins at line[i]; leaves i behind its closing quote.
Word read_quoted(std::string_view line, std::size_t& i) {
  Word word;
  word.quoted = true;
  for (++i; i < line.size(); ++i) {
    if (line[i] == '"') {
      ++i;
      return word;
    }
    if (line[i] != '\\') {
      word.text += line[i];
      continue;
    }
    const std::size_t escape = i + 1 < line.size() ? kEscapes.find(line[i + 1]) : std::string_view::npos;
    if (escape == std::string_view::npos) {
      throw InputError("a backslash in quotes stands before none of \" \\ n r t");
    }
    word.text += kEscaped[escape];
    ++i;
  }
  throw InputError("a quote is not closed: " + std::string(line.substr(0, 60)));
}

}  // namespace

std::vector<Word> split_words(std::string_view line, std::string_view punctuation) {
  std::vector<Word> words;
  for (std::size_t i = 0; i < line.size();) {
    if (is_blank(line[i])) {
      ++i;
    } else if (line[i] == '"') {
      words.push_back(read_quoted(line, i));
    } else if (punctuation.find(line[i]) != std::string_view::npos) {
      words.push_back({std::string(1, line[i++]), false});
    } else {
      std::size_t end = i;
      while (end < line.size() && !is_blank(line[end]) && line[end] != '"' &&
             punctuation.find(line[end]) == std::string_view::npos) {
        ++end;
      }
      words.push_back({std::string(line.substr(i, end - i)), false});
      i = end;
    }
  }
  return words;
}

std::string quote_word(std::string_view text, std::string_view punctuation,
                       std::initializer_list<std::string_view> reserved) {
  const bool plain = !text.empty() && text.front() != '#' &&
                     std::find(reserved.begin(), reserved.end(), text) == reserved.end() &&
                     std::none_of(text.begin(), text.end(), [&](char c) {
                       return static_cast<unsigned char>(c) <= ' ' || c == '"' || c == '\\' ||
                              punctuation.find(c) != std::string_view::npos;
                     });
  if (plain) return std::string(text);
  std::string quoted = "\"";
  for (const char c : text) {
    if (const std::size_t escape = kEscaped.find(c); escape != std::string_view::npos) {
      quoted += '\\';
      quoted += kEscapes[escape];
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

std::vector<std::pair<std::size_t, std::vector<Word>>> split_lines(std::string_view text,
                                                                   std::string_view punctuation) {
  std::vector<std::pair<std::size_t, std::vector<Word>>> lines;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const std::size_t start = line.find_first_not_of(" \t\r");
    if (start == std::string_view::npos || line[start] == '#') continue;
    if (!is_utf8(line)) throw InputError("line " + std::to_string(number) + ": is not UTF-8");
    try {
      lines.emplace_back(number, split_words(line, punctuation));
    } catch (const InputError& error) {
      throw InputError("line " + std::to_string(number) + ": " + error.what());
    }
  }
  return lines;
}

bool is_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto byte = [&](std::size_t at) -> std::uint32_t {
      return at < text.size() ? static_cast<unsigned char>(text[at]) : 0;
    };
    const std::uint32_t first = byte(i);
    const std::size_t length = first < 0x80       ? 1
                               : first >> 5 == 6  ? 2
                               : first >> 4 == 14 ? 3
                               : first >> 3 == 30 ? 4
                                                  : 0;
    if (length == 0) return false;
    std::uint32_t code = length == 1 ? first : first & (0x7fU >> length);
    for (std::size_t k = 1; k < length; ++k) {
      if (byte(i + k) >> 6 != 2) return false;
      code = code << 6 | (byte(i + k) & 0x3f);
    }
    constexpr std::uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
    if (code < kLeast[length] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) return false;
    i += length;
  }
  return true;
}

std::int64_t parse_integer(std::string_view text, std::int64_t min, std::int64_t max) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < min || value > max) {
    throw InputError("'" + std::string(text.substr(0, 60)) + "' is not a whole number from " +
                     std::to_string(min) + " to " + std::to_string(max));
  }
  return value;
}

}  // namespace espalier
