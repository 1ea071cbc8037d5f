// A graph of the Standard Task Graph Set (Kasahara Laboratory, Waseda University; Tobita and Kasahara, 2002),
// without communication costs or with them:
//
//   10                        10                 the tasks
//    0   0   0                 0   0   0         number, time, how many it follows
//    1  20   1   0             1  20   1         … and those, or a line for each: which, and how long
//    …                             0   3         what it sends takes
//   11   0   1  10             …
//   # what the graph is, for people
//
// - A unit of time is read as a millisecond. Without communication costs no message has bytes, so links cost
//   their latency alone; with them a message has the bytes that take its time at kTimedBytesPerSecond.
// - The first and the last task take no time and are kept: the graph has one begin and one end. The count in
//   the first line leaves them out; with communication costs it may have them.

#include <algorithm>

#include "espalier/base/check.h"
#include "espalier/frontend/decode.h"
#include "espalier/frontend/imported.h"
#include "espalier/frontend/number_lines.h"
#include "espalier/frontend/profile.h"

namespace espalier {
namespace {

constexpr std::int64_t kMostStgTasks = 1'000'000, kMostStgTime = 10'000'000;

class StgReader {
 public:
  StgReader(std::string_view text, const std::string& file) : lines_(text, file) {
    profile_.file = file;
    profile_.name = file_stem(file);
  }

  Profile read() {
    const std::vector<std::int64_t> head = lines_.next().numbers;
    if (head.size() != 1 || head[0] > kMostStgTasks)
      lines_.fail("expected the number of tasks, at most " + std::to_string(kMostStgTasks));
    most_ = static_cast<std::size_t>(head[0]) + 2;
    std::vector<std::int64_t> line;
    while (line = lines_.next().numbers, !line.empty()) {
      if (tasks_ == most_) lines_.fail("expected no further task");
      add_task(line);
    }
    if (tasks_ != most_ && !(timed_ && tasks_ + 2 == most_)) {
      throw InputError(profile_.file + ": has " + std::to_string(tasks_) + " tasks; expected " +
                       std::to_string(most_) + ", those that begin and end counted");
    }
    for (const ProfileEdge& edge : profile_.edges) {
      if (edge.from >= tasks_) lines_.fail("there is no task " + std::to_string(edge.from));
    }
    return std::move(profile_);
  }

  bool is_timed() const { return timed_; }

 private:
  void add_task(const std::vector<std::int64_t>& line) {
    const std::string task = std::to_string(tasks_);
    if (line.size() < 3 || line[0] != static_cast<std::int64_t>(tasks_))
      lines_.fail("expected task " + task + ": its number, its time, how many it follows and which");
    if (line[1] > kMostStgTime) lines_.fail("its time is above " + std::to_string(kMostStgTime));
    const auto count = static_cast<std::size_t>(line[2]);
    profile_.nodes.push_back(
        {.name = "t" + task, .target = "task", .costs = {task_time(milliseconds(line[1]))}});
    std::vector<std::int64_t> met;
    if (line.size() == 3) {
      for (std::size_t i = 0; i < count; ++i) {
        timed_ = true;
        const std::vector<std::int64_t> message = lines_.next().numbers;
        if (message.size() != 2 || message[1] > kMostStgTime) {
          lines_.fail("task " + task + " follows " + std::to_string(count) +
                      " tasks: expected one of them and how long its message takes, at most " +
                      std::to_string(kMostStgTime));
        }
        follow(message[0], bytes_that_take(milliseconds(message[1])));
        met.push_back(message[0]);
      }
    } else if (count == line.size() - 3) {
      met.assign(line.begin() + 3, line.end());
      for (const std::int64_t from : met) follow(from, Bytes());
    } else {
      lines_.fail("task " + task + " follows " + std::to_string(count) + " tasks and names " +
                  std::to_string(line.size() - 3));
    }
    std::sort(met.begin(), met.end());
    if (std::adjacent_find(met.begin(), met.end()) != met.end())
      lines_.fail("task " + task + " follows one task twice");
    ++tasks_;
  }

  // Of the task that is being read.
  void follow(std::int64_t from, Bytes bytes) {
    const auto task = static_cast<std::size_t>(from);
    if (task >= most_) lines_.fail("there is no task " + std::to_string(from));
    profile_.edges.push_back({task, tasks_, bytes});
  }

  NumberLines lines_;
  Profile profile_;
  std::size_t tasks_ = 0, most_ = 0;
  bool timed_ = false;  // messages have times
};

}  // namespace

bool is_stg(std::string_view text) {
  const auto only_numbers = [&](std::string_view line) {
    return consists_of(line, " \t\r0123456789", "0123456789");
  };
  const auto first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return false;
  const auto end = std::min(text.find('\n', first), text.size());
  const std::string_view rest = text.substr(std::min(end + 1, text.size()));
  return only_numbers(text.substr(first, end - first)) && only_numbers(rest.substr(0, rest.find('\n')));
}

Imported import_stg(std::string_view text, const std::string& name, const ImportOptions&) {
  StgReader reader(text, name);
  Profile profile = reader.read();
  return task_graph_of(std::move(profile), reader.is_timed());
}

}  // namespace espalier
