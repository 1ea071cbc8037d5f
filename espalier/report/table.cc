#include "espalier/report/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "espalier/base/check.h"
#include "espalier/base/json.h"
#include "espalier/report/table_json.h"

namespace espalier {
namespace {

template <class... Fs>
struct Overloaded : Fs... {
  using Fs::operator()...;
};
template <class... Fs>
Overloaded(Fs...) -> Overloaded<Fs...>;

bool is_number(const Cell& cell) {
  return !std::holds_alternative<std::monostate>(cell) && !std::holds_alternative<std::string>(cell) &&
         !std::holds_alternative<bool>(cell);
}

// A column stands to the right if it has numbers and nothing but numbers and gaps.
bool right_aligned(const Table& table, std::size_t column) {
  bool any = false;
  for (const auto& row : table.rows) {
    const Cell& cell = row[column];
    if (is_number(cell)) {
      any = true;
    } else if (!std::holds_alternative<std::monostate>(cell)) {
      return false;
    }
  }
  return any;
}

Json to_json(const Cell& cell) {
  return std::visit(
      Overloaded{[](std::monostate) { return Json(); },  //
                 [](const std::string& text) { return Json(text); }, [](bool value) { return Json(value); },
                 [](std::int64_t value) { return Json(value); }, [](double value) { return Json(value); },
                 [](Duration value) { return Json(value.count()); },
                 [](Bytes value) { return Json(value.count()); },
                 [](Percentage value) { return Json(value.fraction); },
                 [](Factor value) { return Json(value.ratio); }},
      cell);
}

std::string machine_key(const Table& table, std::size_t column) {
  for (const auto& row : table.rows) {
    if (std::holds_alternative<Duration>(row[column])) return table.columns[column].key + "_ns";
    if (std::holds_alternative<Bytes>(row[column])) return table.columns[column].key + "_bytes";
  }
  return table.columns[column].key;
}

std::string csv_field(const Cell& cell) {
  if (std::holds_alternative<std::monostate>(cell)) return "";
  const auto* text = std::get_if<std::string>(&cell);
  if (!text) return to_json(cell).dump();
  if (text->find_first_of(",\"\n\r") == std::string::npos) return *text;
  std::string quoted = "\"";
  for (const char c : *text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + '"';
}

void check_shape(const Table& table) {
  for (const auto& row : table.rows) {
    ESP_CHECK(row.size() == table.columns.size(), row.size(), table.columns.size());
  }
}

}  // namespace

std::string to_text(const Cell& cell) {
  return std::visit(
      Overloaded{[](std::monostate) { return std::string("-"); },  //
                 [](const std::string& text) { return text; },
                 [](bool value) { return std::string(value ? "yes" : "no"); },
                 [](std::int64_t value) { return std::to_string(value); },
                 [](double value) { return fmt::format("{:.4g}", value); },
                 [](Duration value) { return to_text(value); }, [](Bytes value) { return to_text(value); },
                 [](Percentage value) { return fmt::format("{:.1f} %", 100 * value.fraction); },
                 [](Factor value) { return fmt::format("{:.2f}x", value.ratio); }},
      cell);
}

std::size_t display_width(std::string_view utf8) {
  std::size_t width = 0;
  for (std::size_t i = 0; i < utf8.size(); ++i) {
    if (utf8[i] == '\x1b') {  // ESC [ … letter
      while (i < utf8.size() && utf8[i] != 'm') ++i;
    } else if ((static_cast<unsigned char>(utf8[i]) & 0xc0) != 0x80) {
      ++width;
    }
  }
  return width;
}

Table select_columns(const Table& table, const std::vector<std::string>& keys) {
  Table result;
  result.rows.resize(table.rows.size());
  for (const std::string& key : keys) {
    const auto found = std::find_if(table.columns.begin(), table.columns.end(),
                                    [&key](const Table::Column& column) { return column.key == key; });
    if (found == table.columns.end()) {
      std::string all;
      for (const Table::Column& column : table.columns) all += (all.empty() ? "" : ", ") + column.key;
      throw InputError("there is no column '" + key + "'; there are " + all);
    }
    result.columns.push_back(*found);
    const auto at = static_cast<std::size_t>(found - table.columns.begin());
    for (std::size_t r = 0; r < table.rows.size(); ++r) result.rows[r].push_back(table.rows[r][at]);
  }
  return result;
}

std::string print_text(const Table& table, std::string_view indent) {
  check_shape(table);
  std::vector<std::size_t> width(table.columns.size());
  std::vector<bool> right(table.columns.size());
  for (std::size_t c = 0; c < width.size(); ++c) {
    width[c] = display_width(table.columns[c].title);
    for (const auto& row : table.rows) width[c] = std::max(width[c], display_width(to_text(row[c])));
    right[c] = right_aligned(table, c);
  }
  const auto line = [&](auto&& text_of) {
    std::string out(indent);
    for (std::size_t c = 0; c < width.size(); ++c) {
      const std::string text = text_of(c);
      const std::string gap(width[c] - display_width(text), ' ');
      if (c > 0) out += "  ";
      out += right[c] ? gap + text : text + gap;
    }
    while (!out.empty() && out.back() == ' ') out.pop_back();
    return out + '\n';
  };
  std::string out = line([&](std::size_t c) { return table.columns[c].title; });
  for (const auto& row : table.rows) out += line([&](std::size_t c) { return to_text(row[c]); });
  return out;
}

std::string print_markdown(const Table& table) {
  check_shape(table);
  const auto escaped = [](const std::string& text) {
    std::string out;
    for (const char c : text) out += c == '|' ? "\\|" : std::string(1, c);
    return out;
  };
  std::string out = "|", rule = "|";
  for (std::size_t c = 0; c < table.columns.size(); ++c) {
    out += ' ' + escaped(table.columns[c].title) + " |";
    rule += right_aligned(table, c) ? "---:|" : "---|";
  }
  out += '\n' + rule + '\n';
  for (const auto& row : table.rows) {
    out += '|';
    for (const Cell& cell : row) out += ' ' + escaped(to_text(cell)) + " |";
    out += '\n';
  }
  return out;
}

std::string print_csv(const Table& table) {
  check_shape(table);
  std::string out;
  for (std::size_t c = 0; c < table.columns.size(); ++c) {
    out += (c > 0 ? "," : "") + csv_field(machine_key(table, c));
  }
  out += '\n';
  for (const auto& row : table.rows) {
    for (std::size_t c = 0; c < row.size(); ++c) out += (c > 0 ? "," : "") + csv_field(row[c]);
    out += '\n';
  }
  return out;
}

Json to_json(const Table& table) {
  check_shape(table);
  Json rows = Json::array();
  for (const auto& row : table.rows) {
    Json object = Json::object();
    for (std::size_t c = 0; c < row.size(); ++c) object[machine_key(table, c)] = to_json(row[c]);
    rows.push_back(std::move(object));
  }
  return rows;
}

}  // namespace espalier
