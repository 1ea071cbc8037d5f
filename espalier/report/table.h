#pragma once

// One small table for every report: typed cells, printed for people (text, Markdown) or machines (CSV;
// table_json.h).
//
// People see units ("26.0 ms", "1.5 GiB", "12.5 %"); machines see the plain number, and the column's key says
// its unit: iteration_ns, peak_bytes, bubble (a fraction).

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "espalier/base/units.h"

namespace espalier {

struct Percentage {  // a fraction, shown as a percentage with one decimal
  double fraction = 0;
  friend bool operator==(const Percentage&, const Percentage&) = default;
};
struct Factor {  // a ratio, shown as "1.31x"
  double ratio = 1;
  friend bool operator==(const Factor&, const Factor&) = default;
};

// Nothing is shown as "-", and is empty in CSV and null in JSON.
using Cell = std::variant<std::monostate, std::string, bool, std::int64_t, double, Duration, Bytes,
                          Percentage, Factor>;

std::string to_text(const Cell& cell);  // for people

struct Table {
  struct Column {
    std::string key;    // for machines; the unit's suffix (_ns, _bytes) is added from the cells
    std::string title;  // for people
  };
  std::vector<Column> columns;
  std::vector<std::vector<Cell>> rows;  // each as long as `columns`
};

// Only these columns, by key, in that order. Throws InputError naming an unknown one and those there are.
Table select_columns(const Table& table, const std::vector<std::string>& keys);

// Aligned columns, two spaces between, numbers to the right. `indent` stands before each line.
std::string print_text(const Table& table, std::string_view indent = "");
std::string print_markdown(const Table& table);  // '|' in cells is escaped
std::string print_csv(const Table& table);  // RFC 4180: a header line, quotes where needed, \n at line ends
// Columns that a terminal needs for UTF-8 text: code points, less ANSI colour sequences. Enough for what this
// program prints; East Asian wide characters are counted as one.
std::size_t display_width(std::string_view utf8);

}  // namespace espalier
