// A computation graph of Doppler (Yao et al., ICLR 2026), which is also what its ports of Placeto and GDP
// read:
//
//   112                           operators, those counted that only hold inputs
//   0, 1, …, 35,                  those that hold inputs: of the graph they came from, left out here
//   0, 1, 2, …                    edges: from
//   16, 16, 17, …                 edges: to
//   1000000000000,4000000000000   an operator each: how long it takes, how long its output takes to another
//   4096,16384,formation          device; perhaps its kind
//
// - 10^10 units are one unit of what its simulator prints, read as a millisecond here. Times are rounded to
//   nanoseconds.
// - Messages disturb nobody there: the file's own cluster has links for all. An output has the bytes that
//   take its time at kTimedBytesPerSecond, and goes once to each device that reads it.
// - An edge that stands there twice counts once.

#include <algorithm>
#include <set>

#include "espalier/base/check.h"
#include "espalier/frontend/decode.h"
#include "espalier/frontend/imported.h"
#include "espalier/frontend/number_lines.h"
#include "espalier/frontend/profile.h"

namespace espalier {
namespace {

constexpr std::int64_t kMostDopplerOperators = 1'000'000;
constexpr std::int64_t kMostDopplerUnits = 100'000'000'000'000'000;  // 10^7 ms
constexpr std::int64_t kUnitsPerNanosecond = 10'000;

class DopplerReader {
 public:
  DopplerReader(std::string_view text, const std::string& file) : lines_(text, file, true) {
    profile_.file = file;
    profile_.name = file_stem(file);
  }

  Profile read() {
    const std::vector<std::int64_t> head = lines_.next().numbers;
    if (head.size() != 1 || head[0] > kMostDopplerOperators)
      lines_.fail("expected the number of operators, at most " + std::to_string(kMostDopplerOperators));
    const auto all = static_cast<std::size_t>(head[0]), inputs = lines_.next().numbers.size();
    if (inputs >= all) {
      lines_.fail("names " + std::to_string(inputs) + " inputs; expected fewer than the " +
                  std::to_string(all) + " operators");
    }
    operators_ = all - inputs;
    read_edges();
    for (std::size_t i = 0; i < operators_; ++i) add_operator(i);
    if (!lines_.next(true).empty()) {
      lines_.fail("expected no further operator than " + std::to_string(operators_) +
                  ": those of the first line without the inputs");
    }
    return std::move(profile_);
  }

 private:
  void read_edges() {
    const std::vector<std::int64_t> from = ends(), to = ends();
    if (from.size() != to.size()) {
      lines_.fail("names " + std::to_string(to.size()) + " readers; expected " + std::to_string(from.size()) +
                  ", one for each edge of the line before");
    }
    std::set<std::pair<std::int64_t, std::int64_t>> met;
    for (std::size_t e = 0; e < from.size(); ++e) {
      if (!met.emplace(from[e], to[e]).second) continue;
      profile_.edges.push_back({static_cast<std::size_t>(from[e]), static_cast<std::size_t>(to[e]), Bytes()});
    }
  }

  std::vector<std::int64_t> ends() {
    std::vector<std::int64_t> numbers = lines_.next().numbers;
    for (const std::int64_t number : numbers) {
      if (static_cast<std::size_t>(number) >= operators_) {
        lines_.fail("there is no operator " + std::to_string(number) + "; expected less than " +
                    std::to_string(operators_) + ": those of the first line without the inputs");
      }
    }
    return numbers;
  }

  void add_operator(std::size_t i) {
    const NumberLine line = lines_.next(true);
    if (line.empty()) {
      throw InputError(profile_.file + ": has " + std::to_string(i) + " operators; expected " +
                       std::to_string(operators_) + ": those of the first line without the inputs");
    }
    if (line.numbers.size() != 2)
      lines_.fail("expected how long operator " + std::to_string(i) + " takes and how long its output takes");
    profile_.nodes.push_back({.name = "op" + std::to_string(i),
                              .target = line.word.empty() ? "operator" : line.word,
                              .output = bytes_that_take(time(line.numbers[1])),
                              .costs = {task_time(time(line.numbers[0]))}});
  }

  Duration time(std::int64_t units) const {
    if (units > kMostDopplerUnits) lines_.fail("has a time above " + std::to_string(kMostDopplerUnits));
    return nanoseconds((units + kUnitsPerNanosecond / 2) / kUnitsPerNanosecond);
  }

  NumberLines lines_;
  Profile profile_;
  std::size_t operators_ = 0;
};

}  // namespace

bool is_doppler(std::string_view text) {
  const auto first = text.find('\n');
  if (first == std::string_view::npos) return false;
  const std::string_view rest = text.substr(first + 1);
  return consists_of(text.substr(0, first), " \t\r0123456789", "0123456789") &&
         consists_of(rest.substr(0, rest.find('\n')), " \t\r,0123456789", ",");
}

Imported import_doppler(std::string_view text, const std::string& name, const ImportOptions&) {
  return task_graph_of(DopplerReader(text, name).read(), true);
}

}  // namespace espalier
