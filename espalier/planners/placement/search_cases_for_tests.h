#pragma once

// Small random instances for tests of searches and bounds, and the best of all assignments by trying all.

#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <vector>

#include "espalier/base/rng.h"
#include "espalier/placement/engine.h"
#include "espalier/planners/placement/placer.h"

namespace espalier::placement {

struct CaseOptions {
  std::size_t tasks = 5, devices = 2, kinds = 1;
  std::size_t readers = 2;               // values that a task reads, at most
  std::int64_t bandwidth = 100'000'000;  // a byte in ten nanoseconds
  std::int64_t memory = 1'000;           // bytes of a device
  std::size_t together = 6;              // of so many tasks one shares the unit of the task before it
};

inline Instance random_case(const CaseOptions& options, Rng& rng) {
  Instance made;
  made.kinds = options.kinds;
  made.links = 2 * options.devices;
  std::vector<std::vector<TaskId>> readers(options.tasks);
  std::vector<std::vector<TaskId>> tasks_of;
  for (std::size_t t = 0; t < options.tasks; ++t) {
    if (tasks_of.empty() || rng.below(options.together) != 0) tasks_of.emplace_back();
    tasks_of.back().emplace_back(t);
    made.unit.emplace_back(tasks_of.size() - 1);
    made.op.emplace_back(t);
    made.pass.push_back(Pass::kForward);
    for (std::size_t k = 0; k < options.kinds; ++k)
      made.time.push_back(nanoseconds(static_cast<std::int64_t>(rng.below(40))));
    made.workspace.emplace_back(static_cast<std::int64_t>(rng.below(4)));
    made.produces.items.emplace_back(t);
    made.produces.close();
    std::vector<std::size_t> reads;
    for (std::size_t i = 0; t > 0 && i < options.readers; ++i) {
      if (rng.below(4) != 0) reads.push_back(t - 1 - rng.below(std::min<std::size_t>(t, 6)));
    }
    std::sort(reads.begin(), reads.end());
    reads.erase(std::unique(reads.begin(), reads.end()), reads.end());
    for (const std::size_t from : reads) {
      made.reads.items.emplace_back(from);
      readers[from].emplace_back(t);
    }
    made.reads.close();
    made.duplicates.close();
    made.producer.emplace_back(t);
    made.bytes.emplace_back(static_cast<std::int64_t>(rng.below(4)));
  }
  for (const std::vector<TaskId>& all : readers) {
    made.readers.items.insert(made.readers.items.end(), all.begin(), all.end());
    made.readers.close();
  }
  for (const std::vector<TaskId>& tasks : tasks_of) {
    made.tasks_of.items.insert(made.tasks_of.items.end(), tasks.begin(), tasks.end());
    made.tasks_of.close();
    made.resident.items.push_back(narrow(made.resident_bytes.size()));
    made.resident_bytes.emplace_back(static_cast<std::int64_t>(rng.below(10)));
    made.resident.close();
    const std::size_t not_on = rng.below(4 * options.devices);
    for (std::size_t d = 0; d < options.devices; ++d) {
      if (d != not_on || options.devices == 1) made.allowed.items.emplace_back(d);
    }
    made.allowed.close();
  }
  for (std::size_t d = 0; d < options.devices; ++d) {
    made.kind.emplace_back(d % options.kinds);
    made.memory.emplace_back(options.memory);
    for (std::size_t to = 0; to < options.devices; ++to) {
      Route way;
      if (to != d) {
        way.links = {narrow(2 * d), narrow(2 * to + 1)};
        way.bandwidth = options.bandwidth;
        way.latency = nanoseconds(3);
      }
      made.ways.push_back(way);
    }
  }
  return made;
}

// The least step of all assignments that fit; nothing where none does.
inline std::optional<Duration> least_of_all(const Engine& engine) {
  const Instance& instance = engine.instance();
  std::optional<Duration> least;
  std::vector<std::size_t> choice(instance.units());
  Scratch scratch;
  for (;;) {
    Assignment assignment;
    for (std::size_t u = 0; u < choice.size(); ++u) assignment.push_back(instance.allowed[u][choice[u]]);
    const Evaluated seen = engine.evaluate(assignment, scratch);
    if (seen.fits && (!least || seen.time < *least)) least = seen.time;
    std::size_t u = 0;
    while (u < choice.size() && ++choice[u] == instance.allowed[u].size()) choice[u++] = 0;
    if (u == choice.size()) return least;
  }
}

// Rules of all sorts, by number.
inline Rules some_rules(std::uint64_t number) {
  Rules rules;
  rules.sends = static_cast<Rules::Sends>(number % 3);
  rules.order = static_cast<Rules::Order>(number / 3 % 2);
  rules.copies = static_cast<Rules::Copies>(number / 6 % 2);
  rules.memory = static_cast<Rules::Memory>(number / 12 % 2);
  if (number / 24 % 2 == 1) rules.busy_after = nanoseconds(4), rules.bus_busy_after = nanoseconds(2);
  return rules;
}

// Sixty cases so small that all assignments can be tried: what the search finds is what the engine says, and
// never better than the best; where it finds nothing it says why. How many it answered, and with the best.
struct SmallCases {
  int answered = 0, best = 0;
};
inline SmallCases search_small_cases(const std::function<Placed(const Instance&, const Rules&)>& search) {
  SmallCases cases;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Rng rng(seed);
    const CaseOptions options{
        .tasks = 4 + rng.below(4),
        .devices = 2 + rng.below(2),
        .kinds = 1 + rng.below(2),
        .memory = static_cast<std::int64_t>(rng.below(3) == 0 ? 20 + rng.below(40) : 1'000)};
    const Instance instance = random_case(options, rng);
    const Rules rules = some_rules(seed);
    const Engine engine(instance, rules);
    const Placed placed = search(instance, rules);
    if (!placed.assignment) {
      EXPECT_NE(placed.why, "");
      continue;
    }
    const std::optional<Duration> best = least_of_all(engine);
    const Timeline line = timeline(engine, *placed.assignment);
    EXPECT_THAT(check_timeline(instance, rules, *placed.assignment, line), ::testing::IsEmpty());
    EXPECT_TRUE(line.evaluated.fits);
    EXPECT_EQ(line.evaluated.time, placed.estimate);
    EXPECT_TRUE(best && *placed.estimate >= *best) << seed;
    ++cases.answered;
    cases.best += placed.estimate == best ? 1 : 0;
  }
  return cases;
}

}  // namespace espalier::placement
