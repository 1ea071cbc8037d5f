// A graph of the Standard Task Graph Set (Kasahara Laboratory, Waseda University), without communication
// costs:
//
//            10            the tasks, without the two that only begin and end
//             0          0          0            number, time, how many it follows, those
//             1         20          1          0
//             …
//            11          0          1         10
//   # what the graph is, for people
//
// - A unit of time is read as a millisecond. No message has bytes, so links cost their latency alone.
// - The first and the last task take no time and are kept: the graph has one begin and one end.
// - Files with communication costs have more numbers in a line than it says, and are refused by that line.

#include <algorithm>
#include <charconv>

#include "espalier/base/check.h"
#include "espalier/frontend/decode.h"
#include "espalier/frontend/imported.h"
#include "espalier/frontend/profile.h"

namespace espalier {
namespace {

constexpr std::int64_t kMostStgTasks = 1'000'000, kMostStgTime = 10'000'000;

// The lines of numbers, one after the other.
class StgLines {
 public:
  StgLines(std::string_view text, const std::string& file) : text_(text), file_(file) {}

  // The numbers of the next line that has any; nothing at the end or before what is for people.
  std::vector<std::int64_t> next() {
    while (!text_.empty()) {
      ++line_;
      const auto end = std::min(text_.find('\n'), text_.size());
      const std::string_view line = text_.substr(0, end);
      text_.remove_prefix(std::min(end + 1, text_.size()));
      const auto first = line.find_first_not_of(" \t\r");
      if (first == std::string_view::npos) continue;
      if (line[first] == '#') break;
      return numbers(line);
    }
    text_ = {};
    return {};
  }

  [[noreturn]] void fail(const std::string& problem) const {
    throw InputError(file_ + ":" + std::to_string(line_) + ": " + problem);
  }

 private:
  std::vector<std::int64_t> numbers(std::string_view line) const {
    std::vector<std::int64_t> result;
    const char *at = line.data(), *end = at + line.size();
    while (true) {
      while (at != end && (*at == ' ' || *at == '\t' || *at == '\r')) ++at;
      if (at == end) return result;
      std::int64_t value = 0;
      const auto [stop, error] = std::from_chars(at, end, value);
      const bool whole = stop == end || *stop == ' ' || *stop == '\t' || *stop == '\r';
      if (error != std::errc() || !whole || value < 0) {
        fail("has " + quote(std::string_view(at, static_cast<std::size_t>(end - at))) +
             "; expected whole numbers from 0 on");
      }
      result.push_back(value);
      at = stop;
    }
  }

  std::string_view text_;
  const std::string& file_;
  std::size_t line_ = 0;
};

ProfileNode stg_task(std::int64_t number, std::int64_t time) {
  ProfileNode node;
  node.name = "t" + std::to_string(number);
  node.target = "task";
  node.output = Bytes();
  OperatorCost cost;
  cost.forward = milliseconds(time);
  cost.origin = Origin::kProfile;
  CostRow row;
  row.kind = kProfiledKind;
  row.points.push_back({BatchSize(1), cost});
  node.costs.push_back(std::move(row));
  return node;
}

}  // namespace

bool is_stg(std::string_view text) {
  const auto only_numbers = [&](std::string_view line) {
    return line.find_first_not_of(" \t\r0123456789") == std::string_view::npos &&
           line.find_first_of("0123456789") != std::string_view::npos;
  };
  const auto first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return false;
  const auto end = std::min(text.find('\n', first), text.size());
  const std::string_view rest = text.substr(std::min(end + 1, text.size()));
  return only_numbers(text.substr(first, end - first)) && only_numbers(rest.substr(0, rest.find('\n')));
}

Imported import_stg(std::string_view text, const std::string& name, const ImportOptions&) {
  StgLines lines(text, name);
  const std::vector<std::int64_t> head = lines.next();
  if (head.size() != 1 || head[0] > kMostStgTasks)
    lines.fail("expected the number of tasks, at most " + std::to_string(kMostStgTasks));
  const auto tasks = static_cast<std::size_t>(head[0]) + 2;
  Profile profile;
  profile.file = name;
  profile.name = file_stem(name);
  for (std::size_t t = 0; t < tasks; ++t) {
    const std::vector<std::int64_t> line = lines.next();
    const auto number = static_cast<std::int64_t>(t);
    if (line.empty()) {
      throw InputError(name + ": has " + std::to_string(t) + " tasks; expected " + std::to_string(tasks) +
                       ", those that begin and end counted");
    }
    if (line.size() < 3 || line[0] != number) {
      lines.fail("expected task " + std::to_string(t) +
                 ": its number, its time, how many it follows and which");
    }
    if (line[1] > kMostStgTime) lines.fail("its time is above " + std::to_string(kMostStgTime));
    if (static_cast<std::size_t>(line[2]) != line.size() - 3) {
      lines.fail("task " + std::to_string(t) + " follows " + std::to_string(line[2]) + " tasks and names " +
                 std::to_string(line.size() - 3) + " (files with communication costs are not read)");
    }
    profile.nodes.push_back(stg_task(number, line[1]));
    std::vector<std::int64_t> before(line.begin() + 3, line.end());
    std::sort(before.begin(), before.end());
    if (std::adjacent_find(before.begin(), before.end()) != before.end())
      lines.fail("task " + std::to_string(t) + " follows one task twice");
    if (!before.empty() && before.back() >= static_cast<std::int64_t>(tasks))
      lines.fail("there is no task " + std::to_string(before.back()));
    for (const std::int64_t from : before)
      profile.edges.push_back({static_cast<std::size_t>(from), t, Bytes()});
  }
  if (!lines.next().empty()) lines.fail("expected no further task");
  BuiltProfile built = build_profile(std::move(profile));
  Imported result{.graph = std::move(built.graph)};
  result.costs = std::move(built.costs);
  result.batch = BatchSize(1);
  return result;
}

}  // namespace espalier
