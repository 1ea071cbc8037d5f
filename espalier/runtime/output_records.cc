#include "espalier/runtime/output_records.h"

#include <charconv>

namespace espalier {
namespace {

// The next number of a line, and what ends it; false where there is none.
template <class Number>
bool take(std::string_view& text, char end, Number& value) {
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || rest == text.data() + text.size() || *rest != end) return false;
  text.remove_prefix(static_cast<std::size_t>(rest - text.data()) + 1);
  return true;
}

template <class Number>
void put(std::string& text, Number value, char end) {
  char digits[32];
  text.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr) += end;
}

}  // namespace

std::string print_records(const std::vector<OutputRecord>& records) {
  std::string text;
  for (const OutputRecord& record : records) {
    put(text, record.op.index(), ' ');
    put(text, record.micro_batch, ' ');
    put(text, record.bits, ' ');
    put(text, record.norm, '\n');
  }
  return text;
}

std::vector<OutputRecord> parse_records(std::string_view text, const std::string& worker) {
  std::vector<OutputRecord> records;
  while (!text.empty()) {
    std::uint32_t op = 0;
    OutputRecord record;
    if (!take(text, ' ', op) || !take(text, ' ', record.micro_batch) || !take(text, ' ', record.bits) ||
        !take(text, '\n', record.norm)) {
      throw WorkerError(worker + " told a record of an output that cannot be read (record " +
                        std::to_string(records.size()) + ")");
    }
    record.op = OperatorId(op);
    records.push_back(record);
  }
  return records;
}

}  // namespace espalier
