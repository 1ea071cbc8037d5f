#include "espalier/sim/list_engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <string>

#include "espalier/base/rng.h"
#include "espalier/schedule/order_file.h"
#include "espalier/sim/list_builder.h"
#include "espalier/sim/simulate.h"
#include "testing/random_orders.h"
#include "testing/random_staged_model.h"
#include "testing/small_cases.h"

namespace espalier::internal {
namespace {

using espalier::testing::add_halves_and_slots;
using espalier::testing::Features;
using espalier::testing::kOneIn;
using espalier::testing::random_orders;
using espalier::testing::random_staged_model;
using espalier::testing::RandomModel;
using espalier::testing::small_case;
using espalier::testing::SmallCase;

// "26 ns; dev0 100 + 20" with buffers and activations of each device that has actions.
std::string text_of(const ListEngine& engine, const ListStructure& structure,
                    std::span<const ListPeak> peaks) {
  std::ostringstream out;
  out << engine.iteration() << " ns";
  for (std::size_t lane = 0; lane < peaks.size(); ++lane) {
    out << "; dev" << structure.devices[lane].index() << ' ' << peaks[lane].buffers << " + "
        << peaks[lane].activations;
  }
  return out.str();
}

std::string text_of(const Trace& trace, const Schedule& schedule) {
  std::ostringstream out;
  out << trace.iteration.count() << " ns";
  const std::vector<MemoryByCategory> peaks = peak_memory(trace);
  for (std::size_t d = 0; d < schedule.devices.size(); ++d) {
    if (schedule.devices[d].empty()) continue;
    out << "; dev" << d << ' ' << peaks[d].bytes[static_cast<std::size_t>(MemoryCategory::kBuffers)].count()
        << " + " << peaks[d].bytes[static_cast<std::size_t>(MemoryCategory::kActivations)].count();
  }
  return out.str();
}

bool deadlocks(const std::vector<std::string>& violations) {
  return !violations.empty() && violations[0].rfind("deadlock", 0) == 0;
}

struct Tally {
  std::size_t runs = 0, deadlocks = 0;
};

// A schedule that breaks no rule but perhaps `deadlock`, in the engine and in the full simulation.
void compare(const StagedModel& model, const Cluster& cluster, const Schedule& schedule, ListEngine& engine,
             Tally& tally) {
  const std::vector<std::string> violations = check_schedule(model, schedule);
  ASSERT_TRUE(violations.empty() || deadlocks(violations)) << violations[0];
  RouteTable routes(cluster);
  const ListStructure structure = make_list_structure(model, schedule, routes, cluster.link_count());
  const ListCosts costs = costs_of(model);
  const bool done = engine.run(structure, costs);
  ASSERT_EQ(done, violations.empty()) << (violations.empty() ? "" : violations[0]) << "\n"
                                      << print_schedule(model, cluster, schedule);
  if (!done) {
    ++tally.deadlocks;
    return;
  }
  ++tally.runs;
  const std::string expected = text_of(simulate(model, cluster, schedule), schedule);
  ASSERT_EQ(text_of(engine, structure, engine.measure_memory()), expected);
  for (const auto way : {ListBuilder::Way::kByLists, ListBuilder::Way::kByChannels}) {
    ListStructure longer;
    ListBuilder(routes, schedule.devices.size(), cluster.link_count())
        .build(model, schedule.devices, longer, way);
    ASSERT_TRUE(engine.run(longer, costs));
    ASSERT_EQ(text_of(engine, longer, engine.measure_memory()), expected);
  }
}

// I in the place of B, W anywhere between it and the stage's collectives.
Schedule split_some(const StagedModel& model, const Schedule& schedule, Rng& rng) {
  std::vector<std::vector<Action>> devices(schedule.devices.size());
  std::vector<bool> split;
  for (std::size_t s = 0; s < model.stages.size(); ++s) split.push_back(rng.below(3) > 0);
  for (std::size_t d = 0; d < devices.size(); ++d) {
    std::vector<Action> late;
    for (const Action& action : schedule.devices[d]) {
      if (once_per_step(action.kind) || rng.below(3) == 0) {
        devices[d].insert(devices[d].end(), late.begin(), late.end());
        late.clear();
      }
      devices[d].push_back(action);
      if (action.kind != ActionKind::kBackward || !split[action.stage().index()]) continue;
      devices[d].back().kind = ActionKind::kInputGradient;
      late.push_back({ActionKind::kWeightGradient, action.stage(), action.micro_batch});
    }
    devices[d].insert(devices[d].end(), late.begin(), late.end());
  }
  return with_channels(model, std::move(devices));
}

// Moves one action of a device's list to another place, if no rule but `deadlock` minds.
bool mutate(const StagedModel& model, Schedule& schedule, Rng& rng) {
  std::vector<std::vector<Action>> devices = schedule.devices;
  std::vector<Action>& list = devices[rng.below(devices.size())];
  if (list.size() < 2) return false;
  const auto from = static_cast<std::ptrdiff_t>(rng.below(list.size()));
  const auto last = static_cast<std::ptrdiff_t>(list.size()) - 1;
  const auto near = static_cast<std::ptrdiff_t>(1 + rng.below(3));
  const auto to = std::clamp<std::ptrdiff_t>(rng.below(2) ? from + near : from - near, 0, last);
  if (from < to) {
    std::rotate(list.begin() + from, list.begin() + from + 1, list.begin() + to + 1);
  } else {
    std::rotate(list.begin() + to, list.begin() + from, list.begin() + from + 1);
  }
  Schedule changed = with_channels(model, std::move(devices));
  const std::vector<std::string> violations = check_schedule(model, changed);
  if (!violations.empty() && !deadlocks(violations)) return false;
  schedule = std::move(changed);
  return true;
}

TEST(ListEngine, EqualsTheFullSimulationOnAllDagsOfUpToFourStages) {
  ListEngine engine;
  Tally tally;
  for (std::size_t stages = 1; stages <= 4; ++stages) {
    const unsigned every = stages == 4 ? 3 * kOneIn : 1;
    for (unsigned edges = 0; edges < 1u << (stages * (stages - 1) / 2); ++edges) {
      for (unsigned bits = edges % every; bits < Features::kAll; bits += every) {
        SCOPED_TRACE(std::to_string(stages) + " stages, edges " + std::to_string(edges) + ", features " +
                     std::to_string(bits));
        const std::uint64_t seed = (std::uint64_t{edges} << 8) + bits;
        SmallCase small = small_case(stages, edges, Features(bits), seed);
        Rng rng(seed);
        add_halves_and_slots(rng, small.model);
        ASSERT_NO_FATAL_FAILURE(compare(small.model, small.cluster, small.schedule, engine, tally));
      }
    }
  }
  EXPECT_GT(tally.runs, 5'000u / kOneIn);
}

// Any rule, or lists that none makes. Limits are those of the model or, for lists, what they hold.
void set_orders(RandomModel& random, Rng& rng) {
  StagedModel& model = random.model;
  if (rng.below(3) == 0) {
    OrderLists lists = random_orders(
        rng, model, random.cluster.devices().size(),
        {.split = rng.below(2) == 0, .early_ends = rng.below(2) == 0, .depth_first = rng.below(3) > 0});
    model = with_orders(std::move(model), Orders(std::move(lists)));
    return;
  }
  OrderRule rule = *model.orders.rule();
  if (rng.below(2)) rule.backward = OrderRule::Backward::kSplit;
  if (rule.kind == ScheduleKind::kOneFOneB && rng.below(2)) {
    rule.group = {static_cast<std::uint32_t>(2 + rng.below(3))};
  }
  model.orders = rule;
}

// Such orders, and others: each is a few moves away from the last.
Tally compare_mutations(std::uint64_t seeds, int moves, espalier::testing::RandomModelOptions options) {
  ListEngine engine;
  Tally tally;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    RandomModel random = random_staged_model(rng, options);
    add_halves_and_slots(rng, random.model);
    set_orders(random, rng);
    Schedule schedule = make_schedule(random.model, random.cluster.devices().size());
    if (rng.below(2)) schedule = split_some(random.model, schedule, rng);
    const std::vector<std::string> violations = check_schedule(random.model, schedule);
    if (!violations.empty() && !deadlocks(violations)) continue;  // W comes too late for the limit
    compare(random.model, random.cluster, schedule, engine, tally);
    for (int i = 0; i < moves; ++i) {
      Schedule moved = schedule;
      if (!mutate(random.model, moved, rng)) continue;
      compare(random.model, random.cluster, moved, engine, tally);
      if (::testing::Test::HasFatalFailure()) return tally;
      if (rng.below(4) > 0 && check_schedule(random.model, moved).empty()) schedule = moved;
    }
  }
  return tally;
}

TEST(ListEngine, EqualsTheFullSimulationOnRandomOrders) {
  const Tally tally = compare_mutations(250, 20, {});
  EXPECT_GT(tally.runs, 800u);
  EXPECT_GT(tally.deadlocks, 30u);
}

TEST(ListEngine, EqualsTheFullSimulationOnRandomOrdersOfUnequalMicroBatches) {
  const Tally tally = compare_mutations(250, 8, {.unequal_sizes = true});
  EXPECT_GT(tally.runs, 500u);
}

TEST(ListEngine, EqualsTheFullSimulationWithAnyLimits) {
  const Tally tally = compare_mutations(350, 8, {.random_limits = true});
  EXPECT_GT(tally.runs, 500u);
}

TEST(ListEngine, EqualsTheFullSimulationWhereLinksAreNotShared) {
  const Tally tally = compare_mutations(150, 12, {.max_micro_batches = 9, .contention = false});
  EXPECT_GT(tally.runs, 200u);
}

}  // namespace
}  // namespace espalier::internal
