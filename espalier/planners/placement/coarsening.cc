#include "espalier/planners/placement/coarsening.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <queue>
#include <tuple>

#include "espalier/base/check.h"
#include "espalier/base/union_find.h"
#include "espalier/planners/placement/list_clock.h"
#include "espalier/planners/placement/memory_ledger.h"

namespace espalier::placement {
namespace {

constexpr std::size_t kPairsLookedAt = 64;  // in the search for a cycle; a longer one counts as one
constexpr std::size_t kReadersPaired = 64;  // of one value, with each other

constexpr std::uint32_t kAlone = ~std::uint32_t{0};

// Which tasks become one.
class Pairing {
 public:
  Pairing(const Instance& fine, const CoarseningLimits& limits)
      : fine_(fine),
        limits_(limits),
        mean_(fine),
        level_(fine.tasks()),
        partner_(fine.tasks(), kAlone),
        units_(fine.units()),
        time_(fine.units()),
        bytes_(fine.units()),
        allowed_(fine.units()) {
    const MemoryLedger ledger(fine);
    for (std::size_t t = 0; t < fine.tasks(); ++t) {
      for (const ValueId value : fine.reads[t]) {
        level_[t] = std::max(level_[t], level_[fine.producer[value.index()].index()] + 1);
      }
      time_[fine.unit[t].index()] += mean_.time[t];
    }
    for (std::size_t u = 0; u < fine.units(); ++u) {
      bytes_[u] = ledger.alone(UnitId(u));
      allowed_[u].assign(fine.allowed[u].begin(), fine.allowed[u].end());
    }
  }

  void run() {
    std::vector<Candidate> candidates = edges();
    const std::vector<Candidate> more = siblings();
    candidates.insert(candidates.end(), more.begin(), more.end());
    std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
      return std::tuple(a.rank, -a.weight, a.first, a.second) <
             std::tuple(b.rank, -b.weight, b.first, b.second);
    });
    for (const Candidate& each : candidates) join(each);
  }

  std::uint32_t partner(std::size_t task) const { return partner_[task]; }
  UnionFind& units() { return units_; }
  const std::vector<DeviceId>& allowed(std::uint32_t root) const { return allowed_[root]; }

 private:
  struct Candidate {
    std::uint8_t rank;  // 0: of one unit; 1: an edge; 2: readers of one value
    Duration weight;
    TaskId first, second;  // ascending levels
  };

  bool together(TaskId a, TaskId b) const { return fine_.unit[a.index()] == fine_.unit[b.index()]; }

  std::vector<Candidate> edges() const {
    std::vector<Candidate> result;
    for (std::size_t t = 0; t < fine_.tasks(); ++t) {
      const std::size_t begin = result.size();
      for (const ValueId value : fine_.produces[t]) {
        for (const TaskId reader : fine_.readers[value.index()]) {
          if (level_[reader.index()] != level_[t] + 1) continue;
          const std::uint8_t rank = together(TaskId(t), reader) ? 0 : 1;
          result.push_back({rank, mean_.message[value.index()], TaskId(t), reader});
        }
      }
      // Several values between two tasks weigh together.
      const auto first = result.begin() + static_cast<std::ptrdiff_t>(begin);
      std::sort(first, result.end(),
                [](const Candidate& a, const Candidate& b) { return a.second < b.second; });
      auto last = first;
      for (auto each = first; each != result.end(); ++each) {
        if (each != first && each->second == last->second) {
          last->weight += each->weight;
        } else if (each != first) {
          *++last = *each;
        }
      }
      if (first != result.end()) result.erase(last + 1, result.end());
    }
    return result;
  }

  // Tasks of one level that read one value: neighbours in its list.
  std::vector<Candidate> siblings() const {
    std::vector<Candidate> result;
    for (std::size_t v = 0; v < fine_.values(); ++v) {
      const std::span<const TaskId> readers = fine_.readers[v];
      for (std::size_t i = 1; i < std::min(readers.size(), kReadersPaired); ++i) {
        if (level_[readers[i - 1].index()] != level_[readers[i].index()]) continue;
        result.push_back({2, mean_.message[v], readers[i - 1], readers[i]});
      }
    }
    return result;
  }

  void join(const Candidate& candidate) {
    const std::size_t a = candidate.first.index(), b = candidate.second.index();
    if (partner_[a] != kAlone || partner_[b] != kAlone) return;
    const std::uint32_t unit_a = units_.find(narrow(fine_.unit[a].index()));
    const std::uint32_t unit_b = units_.find(narrow(fine_.unit[b].index()));
    std::vector<DeviceId> both;
    if (unit_a != unit_b) {
      if (limits_.unit_time < time_[unit_a] + time_[unit_b]) return;
      if (limits_.unit_bytes < bytes_[unit_a] + bytes_[unit_b]) return;
      std::set_intersection(allowed_[unit_a].begin(), allowed_[unit_a].end(), allowed_[unit_b].begin(),
                            allowed_[unit_b].end(), std::back_inserter(both));
      if (both.empty()) return;
    }
    if (level_[a] < level_[b] && closes_a_cycle(candidate.first, candidate.second)) return;
    partner_[a] = narrow(b);
    partner_[b] = narrow(a);
    if (unit_a == unit_b) return;
    const Duration time = time_[unit_a] + time_[unit_b];
    const Bytes bytes = bytes_[unit_a] + bytes_[unit_b];
    units_.join(unit_a, unit_b);
    const std::uint32_t root = units_.find(unit_a);
    time_[root] = time;
    bytes_[root] = bytes;
    allowed_[root] = std::move(both);
  }

  // Whether the pairs between the levels of `lower` and `upper`, entered above and left below, lead from this
  // one back to it: from `lower` to some pair's upper task, on from its lower one, and at last to `upper`.
  bool closes_a_cycle(TaskId lower, TaskId upper) const {
    std::vector<TaskId> open{lower}, seen;
    std::size_t looked = 0;
    while (!open.empty()) {
      const TaskId task = open.back();
      open.pop_back();
      for (const ValueId value : fine_.produces[task.index()]) {
        for (const TaskId reader : fine_.readers[value.index()]) {
          if (reader == upper && task != lower) return true;
          const std::uint32_t partner = partner_[reader.index()];
          if (partner == kAlone || level_[reader.index()] != level_[upper.index()]) continue;
          if (level_[partner] != level_[lower.index()]) continue;
          const TaskId next(partner);
          if (std::find(seen.begin(), seen.end(), next) != seen.end()) continue;
          if (++looked > kPairsLookedAt) return true;
          seen.push_back(next);
          open.push_back(next);
        }
      }
    }
    return false;
  }

  const Instance& fine_;
  const CoarseningLimits limits_;
  const MeanCosts mean_;
  std::vector<std::uint32_t> level_;    // by task
  std::vector<std::uint32_t> partner_;  // by task
  UnionFind units_;
  std::vector<Duration> time_;  // by root
  std::vector<Bytes> bytes_;
  std::vector<std::vector<DeviceId>> allowed_;
};

// Numbers of the coarse tasks: a legal order, of what is ready the smallest fine task first.
struct Numbering {
  std::vector<TaskId> task_of;
  std::size_t tasks = 0;
};

Numbering number_tasks(const Instance& fine, const Pairing& pairs) {
  const auto head = [&](std::size_t t) {
    const std::uint32_t partner = pairs.partner(t);
    return partner == kAlone ? narrow(t) : std::min(narrow(t), partner);
  };
  std::vector<std::uint32_t> waits(fine.tasks());  // by head: reads from other coarse tasks
  for (std::size_t t = 0; t < fine.tasks(); ++t) {
    for (const ValueId value : fine.reads[t]) {
      if (head(fine.producer[value.index()].index()) != head(t)) ++waits[head(t)];
    }
  }
  std::priority_queue<std::uint32_t, std::vector<std::uint32_t>, std::greater<>> ready;
  for (std::size_t t = 0; t < fine.tasks(); ++t) {
    if (head(t) == t && waits[t] == 0) ready.push(narrow(t));
  }
  Numbering result{std::vector<TaskId>(fine.tasks()), 0};
  std::size_t numbered = 0;
  while (!ready.empty()) {
    const std::uint32_t first = ready.top();
    ready.pop();
    const TaskId number(result.tasks++);
    const std::uint32_t second = pairs.partner(first);
    result.task_of[first] = number;
    if (second != kAlone) result.task_of[second] = number;
    const auto done = [&](std::uint32_t t) {
      for (const ValueId value : fine.produces[t]) {
        for (const TaskId reader : fine.readers[value.index()]) {
          const std::uint32_t of = head(reader.index());
          if (of != first && --waits[of] == 0) ready.push(of);
        }
      }
    };
    done(first);
    if (second != kAlone) done(second);
    numbered += second == kAlone ? 1 : 2;
  }
  ESP_CHECK(numbered == fine.tasks(), numbered);  // else there was a cycle
  return result;
}

// Fills the coarse instance of given numbers.
class CoarseBuilder {
 public:
  CoarseBuilder(const Instance& fine, Pairing& pairs, const Numbering& numbering)
      : fine_(fine), task_of_(numbering.task_of) {
    Instance& coarse = result_.instance;
    coarse.kind = fine.kind;
    coarse.memory = fine.memory;
    coarse.ways = fine.ways;
    coarse.kinds = fine.kinds;
    coarse.links = fine.links;
    coarse.duplicate_time = fine.duplicate_time;
    coarse.resident_bytes = fine.resident_bytes;
    result_.task_of = numbering.task_of;
    fine_tasks_.resize(numbering.tasks);
    for (std::size_t t = 0; t < fine.tasks(); ++t) fine_tasks_[task_of_[t].index()].push_back(TaskId(t));
    number_units(pairs);
  }

  Coarse build() && {
    add_tasks();
    add_values();
    add_residents();
    return std::move(result_);
  }

 private:
  void number_units(Pairing& pairs) {
    std::vector<std::optional<UnitId>> of_root(fine_.units());
    for (std::size_t u = 0; u < fine_.units(); ++u) {
      const std::uint32_t root = pairs.units().find(narrow(u));
      if (!of_root[root]) {
        of_root[root] = UnitId(units_++);
        const std::vector<DeviceId>& allowed = pairs.allowed(root);
        Lists<DeviceId>& lists = result_.instance.allowed;
        lists.items.insert(lists.items.end(), allowed.begin(), allowed.end());
        lists.close();
      }
      result_.unit_of.push_back(*of_root[root]);
    }
  }

  void add_tasks() {
    Instance& coarse = result_.instance;
    std::vector<std::vector<TaskId>> of_unit(units_);
    for (std::size_t c = 0; c < fine_tasks_.size(); ++c) {
      const std::vector<TaskId>& some = fine_tasks_[c];
      coarse.unit.push_back(result_.unit_of[fine_.unit[some[0].index()].index()]);
      of_unit[coarse.unit.back().index()].push_back(TaskId(c));
      if (!fine_.op.empty()) coarse.op.push_back(fine_.op[some[0].index()]);
      if (!fine_.pass.empty()) coarse.pass.push_back(fine_.pass[some[0].index()]);
      Bytes workspace;
      std::vector<Duration> time(fine_.kinds);
      std::vector<std::uint32_t> copies;
      for (const TaskId task : some) {
        workspace = std::max(workspace, fine_.workspace[task.index()]);
        for (std::size_t k = 0; k < fine_.kinds; ++k) time[k] += fine_.time[task.index() * fine_.kinds + k];
        const std::span<const std::uint32_t> of = fine_.duplicates[task.index()];
        copies.insert(copies.end(), of.begin(), of.end());
      }
      std::sort(copies.begin(), copies.end());
      copies.erase(std::unique(copies.begin(), copies.end()), copies.end());
      coarse.workspace.push_back(workspace);
      coarse.time.insert(coarse.time.end(), time.begin(), time.end());
      coarse.duplicates.items.insert(coarse.duplicates.items.end(), copies.begin(), copies.end());
      coarse.duplicates.close();
    }
    for (const std::vector<TaskId>& tasks : of_unit) {
      coarse.tasks_of.items.insert(coarse.tasks_of.items.end(), tasks.begin(), tasks.end());
      coarse.tasks_of.close();
    }
  }

  // A coarse task's values, one for each set of readers; bytes that nobody else reads stay with the unit.
  void add_values() {
    Instance& coarse = result_.instance;
    kept_.resize(units_);
    std::vector<std::vector<ValueId>> reads(fine_tasks_.size());
    for (std::size_t c = 0; c < fine_tasks_.size(); ++c) {
      std::vector<std::pair<std::vector<TaskId>, Bytes>> values;
      for (const TaskId task : fine_tasks_[c]) {
        for (const ValueId value : fine_.produces[task.index()]) {
          std::vector<TaskId> readers;
          for (const TaskId reader : fine_.readers[value.index()])
            readers.push_back(task_of_[reader.index()]);
          std::sort(readers.begin(), readers.end());
          readers.erase(std::unique(readers.begin(), readers.end()), readers.end());
          std::erase(readers, TaskId(c));
          if (readers.empty()) {
            kept_[coarse.unit[c].index()] += fine_.bytes[value.index()];
          } else {
            values.emplace_back(std::move(readers), fine_.bytes[value.index()]);
          }
        }
      }
      std::sort(values.begin(), values.end());
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (i > 0 && values[i].first == values[i - 1].first) {
          coarse.bytes.back() += values[i].second;
          continue;
        }
        const ValueId value(coarse.values());
        coarse.producer.emplace_back(c);
        coarse.bytes.push_back(values[i].second);
        coarse.produces.items.push_back(value);
        for (const TaskId reader : values[i].first) {
          coarse.readers.items.push_back(reader);
          reads[reader.index()].push_back(value);
        }
        coarse.readers.close();
      }
      coarse.produces.close();
    }
    for (const std::vector<ValueId>& of : reads) {
      coarse.reads.items.insert(coarse.reads.items.end(), of.begin(), of.end());
      coarse.reads.close();
    }
  }

  void add_residents() {
    Instance& coarse = result_.instance;
    std::vector<std::vector<std::uint32_t>> of(units_);
    for (std::size_t u = 0; u < fine_.units(); ++u) {
      std::vector<std::uint32_t>& list = of[result_.unit_of[u].index()];
      list.insert(list.end(), fine_.resident[u].begin(), fine_.resident[u].end());
    }
    for (std::size_t u = 0; u < units_; ++u) {
      std::sort(of[u].begin(), of[u].end());
      of[u].erase(std::unique(of[u].begin(), of[u].end()), of[u].end());
      if (kept_[u].count() > 0) {
        of[u].push_back(narrow(coarse.resident_bytes.size()));
        coarse.resident_bytes.push_back(kept_[u]);
      }
      coarse.resident.items.insert(coarse.resident.items.end(), of[u].begin(), of[u].end());
      coarse.resident.close();
    }
  }

  const Instance& fine_;
  const std::vector<TaskId>& task_of_;
  std::vector<std::vector<TaskId>> fine_tasks_;  // by coarse task
  std::vector<Bytes> kept_;                      // by coarse unit
  std::size_t units_ = 0;
  Coarse result_;
};

}  // namespace

Coarse coarsen(const Instance& fine, const CoarseningLimits& limits) {
  Pairing pairs(fine, limits);
  pairs.run();
  const Numbering numbering = number_tasks(fine, pairs);
  return CoarseBuilder(fine, pairs, numbering).build();
}

Assignment refined(const Coarse& coarse, const Assignment& assignment) {
  Assignment fine;
  fine.reserve(coarse.unit_of.size());
  for (const UnitId unit : coarse.unit_of) fine.push_back(assignment[unit.index()]);
  return fine;
}

}  // namespace espalier::placement
