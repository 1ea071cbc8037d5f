#pragma once

// Small instances of tests, written task by task: every device a kind of its own, messages of one nanosecond
// a byte between any two devices, a link out of each device and one into it.

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "espalier/base/rng.h"
#include "espalier/placement/instance.h"
#include "espalier/planners/placement/memory_ledger.h"
#include "espalier/planners/placement/placer.h"

namespace espalier::placement {

struct TaskForTests {
  std::vector<std::int64_t> time;  // on each device, ns
  std::vector<std::pair<std::size_t, std::int64_t>>
      reads;  // from whom, ns of the message: each its own value
  std::size_t unit = 0;
  std::int64_t resident = 0;  // bytes of the unit's own, added up over its tasks
};

struct InstanceForTests {
  std::vector<TaskForTests> tasks;
  std::vector<std::int64_t> memory;
  std::vector<std::vector<std::size_t>> allowed = {};  // by unit; empty: all

  Instance build() const {
    Instance instance;
    const std::size_t devices = memory.size();
    std::size_t units = 0;
    for (const TaskForTests& task : tasks) units = std::max(units, task.unit + 1);
    std::vector<std::vector<std::pair<std::size_t, std::int64_t>>> readers(tasks.size());
    for (std::size_t t = 0; t < tasks.size(); ++t) {
      for (const auto& [from, bytes] : tasks[t].reads) readers[from].emplace_back(t, bytes);
    }
    std::vector<std::vector<ValueId>> reads(tasks.size());
    std::vector<std::vector<TaskId>> of_unit(units);
    std::vector<std::int64_t> resident(units);
    for (std::size_t t = 0; t < tasks.size(); ++t) {
      instance.unit.emplace_back(tasks[t].unit);
      instance.op.emplace_back(t);
      instance.pass.push_back(Pass::kForward);
      for (const std::int64_t time : tasks[t].time) instance.time.emplace_back(time);
      instance.workspace.emplace_back();
      instance.duplicates.close();
      for (const auto& [to, bytes] : readers[t]) {
        const ValueId value(instance.values());
        instance.produces.items.push_back(value);
        instance.producer.emplace_back(t);
        instance.bytes.emplace_back(bytes);
        instance.readers.items.emplace_back(to);
        instance.readers.close();
        reads[to].push_back(value);
      }
      instance.produces.close();
      of_unit[tasks[t].unit].emplace_back(t);
      resident[tasks[t].unit] += tasks[t].resident;
    }
    for (std::vector<ValueId>& of : reads) {
      std::sort(of.begin(), of.end());
      instance.reads.items.insert(instance.reads.items.end(), of.begin(), of.end());
      instance.reads.close();
    }
    for (std::size_t u = 0; u < units; ++u) {
      instance.tasks_of.items.insert(instance.tasks_of.items.end(), of_unit[u].begin(), of_unit[u].end());
      instance.tasks_of.close();
      instance.resident.items.push_back(narrow(u));
      instance.resident.close();
      instance.resident_bytes.emplace_back(resident[u]);
      for (std::size_t d = 0; d < devices; ++d) {
        const bool may = allowed.empty() || allowed[u].empty() ||
                         std::find(allowed[u].begin(), allowed[u].end(), d) != allowed[u].end();
        if (may) instance.allowed.items.emplace_back(d);
      }
      instance.allowed.close();
    }
    add_devices(instance);
    return instance;
  }

 private:
  void add_devices(Instance& instance) const {
    const std::size_t devices = memory.size();
    for (std::size_t d = 0; d < devices; ++d) {
      instance.kind.emplace_back(d);
      instance.memory.emplace_back(memory[d]);
    }
    for (std::size_t a = 0; a < devices; ++a) {
      for (std::size_t b = 0; b < devices; ++b) {
        Route way;
        if (a != b) {
          way.links = {narrow(2 * a), narrow(2 * b + 1)};
          way.bandwidth = 1'000'000'000;
        }
        instance.ways.push_back(std::move(way));
      }
    }
    instance.kinds = devices;
    instance.links = 2 * devices;
  }
};

inline constexpr std::int64_t kPlenty = std::int64_t{1} << 40;

// The application of Topcuoglu, Hariri, Wu (TPDS'02), figure 2 and table 1: 10 tasks, 3 processors. One unit
// of time is `scale` ns.
inline Instance topcuoglu_example(std::int64_t scale = 1) {
  const std::vector<std::vector<std::int64_t>> times{{14, 16, 9},  {13, 19, 18}, {11, 13, 19}, {13, 8, 17},
                                                     {12, 13, 10}, {13, 16, 9},  {7, 15, 11},  {5, 11, 14},
                                                     {18, 12, 20}, {21, 7, 16}};
  const std::vector<std::vector<std::pair<std::size_t, std::int64_t>>> reads{{},
                                                                             {{0, 18}},
                                                                             {{0, 12}},
                                                                             {{0, 9}},
                                                                             {{0, 11}},
                                                                             {{0, 14}},
                                                                             {{2, 23}},
                                                                             {{1, 19}, {3, 27}, {5, 15}},
                                                                             {{1, 16}, {3, 23}, {4, 13}},
                                                                             {{6, 17}, {7, 11}, {8, 13}}};
  InstanceForTests text{{}, {kPlenty, kPlenty, kPlenty}};
  for (std::size_t t = 0; t < times.size(); ++t) {
    TaskForTests task{{}, {}, t, 0};
    for (const std::int64_t time : times[t]) task.time.push_back(time * scale);
    for (const auto& [from, message] : reads[t]) task.reads.emplace_back(from, message * scale);
    text.tasks.push_back(std::move(task));
  }
  return text.build();
}

// Layers of tasks that read two or three of the layer before, with residents; `tightness` is how much memory
// there is in all beyond one even share each, in percent (30: 1.3 times).
struct LayeredForTests {
  std::size_t tasks = 200, width = 10, devices = 4;
  std::int64_t slack_percent = 100;
};
inline Instance layered_instance(Rng& rng, const LayeredForTests& options) {
  InstanceForTests text;
  for (std::size_t t = 0; t < options.tasks; ++t) {
    const auto time = static_cast<std::int64_t>(10 + rng.below(90));
    TaskForTests task{
        std::vector<std::int64_t>(options.devices, time), {}, t, static_cast<std::int64_t>(rng.below(200))};
    const std::size_t layer = t / options.width;
    for (std::size_t i = 0; layer > 0 && i < 1 + rng.below(3); ++i) {
      const std::size_t from = (layer - 1) * options.width + rng.below(options.width);
      const bool known = std::any_of(task.reads.begin(), task.reads.end(),
                                     [&](const auto& each) { return each.first == from; });
      if (!known) task.reads.emplace_back(from, static_cast<std::int64_t>(1 + rng.below(40)));
    }
    text.tasks.push_back(std::move(task));
  }
  text.memory.assign(options.devices, kPlenty);
  Instance instance = text.build();
  Bytes all;
  for (const Bytes bytes : instance.bytes) all += bytes;
  for (const Bytes bytes : instance.resident_bytes) all += bytes;
  const std::int64_t each =
      all.count() * (100 + options.slack_percent) / 100 / static_cast<std::int64_t>(options.devices);
  instance.memory.assign(options.devices, Bytes(each));
  return instance;
}

// Units stand where they may and devices hold what stands there.
inline void expect_fits(const Instance& instance, const Placed& placed) {
  ASSERT_TRUE(placed.assignment.has_value()) << placed.why;
  ASSERT_EQ(placed.assignment->size(), instance.units());
  for (std::size_t u = 0; u < instance.units(); ++u) {
    EXPECT_THAT(instance.allowed[u], ::testing::Contains((*placed.assignment)[u]));
  }
  EXPECT_THAT(check_memory(instance, *placed.assignment), ::testing::IsEmpty());
}

}  // namespace espalier::placement
