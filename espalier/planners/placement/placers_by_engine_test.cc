// Placers against the engine: estimates, the optimum of small cases, the multilevel scheme, and as planners.

#include <gmock/gmock.h>

#include <set>

#include "espalier/planners/placement/baechi.h"
#include "espalier/planners/placement/heft.h"
#include "espalier/planners/placement/instance_for_tests.h"
#include "espalier/planners/placement/max_load.h"
#include "espalier/planners/placement/multilevel.h"
#include "espalier/planners/placement/objective_search.h"
#include "espalier/planners/placement/placement_planner.h"
#include "espalier/planners/placement/search_placer.h"
#include "espalier/planners/placement/simple.h"
#include "espalier/planners/toy_for_tests.h"
#include "testing/refusal.h"

namespace espalier::placement {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr Rules kAllHeld{.memory = Rules::Memory::kAllHeld};

Evaluated evaluated(const Instance& instance, const Rules& rules, const Assignment& assignment,
                    DeviceOrders orders = {}) {
  Scratch scratch;
  return Engine(instance, rules, std::move(orders)).evaluate(assignment, scratch);
}

std::vector<Placed> by_all(const Instance& instance) {
  Context context;
  std::vector<Placed> all{m_etf(instance), m_sct(instance),          heft(instance), cpop(instance),
                          peft(instance),  heft_lookahead(instance), dpos(instance), one_device(instance)};
  all.push_back(random_best(instance, {.samples = 5, .rules = kAllHeld}, context));
  all.push_back(multilevel(instance, {}, context));
  all.push_back(max_load_placement(instance, literal::MaxLoadSpace::kDownsets));
  all.push_back(max_load_placement(instance, literal::MaxLoadSpace::kLinear));
  return all;
}

// Three to five tasks on two or three devices; memory for 1.5 times of all.
Instance few_tasks(std::uint64_t seed) {
  Rng rng(seed);
  return layered_instance(rng, {.tasks = 3 + rng.below(3),
                                .width = 1 + rng.below(3),
                                .devices = 2 + rng.below(2),
                                .slack_percent = 50});
}

TEST(PlacersByEngine, NeverBeatTheBestOfAllAssignments) {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(seed);
    const Instance instance = few_tasks(seed);
    const Engine engine(instance, kAllHeld);
    Scratch scratch;
    std::optional<Duration> best;
    Assignment assignment(instance.units(), DeviceId(0));
    while (true) {
      const Evaluated each = engine.evaluate(assignment, scratch);
      EXPECT_EQ(each.fits, check_memory(instance, assignment).empty()) << "one account of memory";
      if (each.fits && (!best || each.time < *best)) best = each.time;
      std::size_t u = 0;
      for (; u < assignment.size(); ++u) {
        assignment[u] = DeviceId((assignment[u].index() + 1) % instance.devices());
        if (assignment[u].index() > 0) break;
      }
      if (u == assignment.size()) break;
    }
    for (const Placed& placed : by_all(instance)) {
      if (!placed.assignment) continue;
      expect_fits(instance, placed);
      ASSERT_TRUE(best.has_value());
      EXPECT_GE(evaluated(instance, kAllHeld, *placed.assignment).time, *best);
    }
  }
}

TEST(PlacersByEngine, AListScheduleWithoutContentionIsAtMostItsEstimate) {
  // Devices that run the same tasks in the same order, each as early as it can.
  Rng rng(4);
  for (int i = 0; i < 20; ++i) {
    const Instance instance = layered_instance(rng, {.tasks = 60, .width = 6, .devices = 3});
    constexpr auto kFree = Rules::Sends::kUnlimited;
    for (const Placed& placed : {m_etf(instance, {kFree}), m_sct(instance, {.sends = kFree}),
                                 heft(instance, {kFree}), cpop(instance, {kFree}), peft(instance, {kFree}),
                                 heft_lookahead(instance, {kFree}), dpos(instance, {kFree})}) {
      Rules rules = kAllHeld;
      rules.order = Rules::Order::kListed;
      rules.sends = kFree;
      const Evaluated listed = evaluated(instance, rules, *placed.assignment, placed.orders);
      EXPECT_FALSE(listed.deadlock);
      EXPECT_TRUE(listed.fits);
      EXPECT_LE(listed.time, *placed.estimate);
    }
  }
}

TEST(PlacersByEngine, TheExampleOfHeftTakes80InTheEngineToo) {
  const Instance example = topcuoglu_example();
  const Placed placed = heft(example, {.sends = Rules::Sends::kUnlimited});
  const Rules rules{.order = Rules::Order::kListed, .sends = Rules::Sends::kUnlimited};
  EXPECT_EQ(evaluated(example, rules, *placed.assignment, placed.orders).time, nanoseconds(80));
}

TEST(RandomBest, MoreSamplesAreNeverWorse) {
  Rng rng(8);
  const Instance instance = layered_instance(rng, {.tasks = 50, .width = 5, .devices = 3});
  Context context;
  Duration before = Duration::max();
  for (const std::uint32_t samples : {1U, 5U, 50U}) {
    const Placed placed = random_best(instance, {.samples = samples}, context);
    expect_fits(instance, placed);
    EXPECT_LE(*placed.estimate, before);
    EXPECT_EQ(evaluated(instance, {}, *placed.assignment).time, *placed.estimate);
    before = *placed.estimate;
  }
}

TEST(Multilevel, IsNeverSlowerThanTheListMethodsThatItBeginsFrom) {
  Rng rng(12);
  for (const std::size_t tasks : {60U, 600U, 1500U}) {
    const Instance instance =
        layered_instance(rng, {.tasks = tasks, .width = 15, .devices = 4, .slack_percent = 60});
    Context context, again;
    const MultilevelOptions options{.coarsest = 100, .work = 200'000};
    const Placed placed = multilevel(instance, options, context);
    expect_fits(instance, placed);
    const auto time = [&](const Assignment& assignment) {
      return evaluated(instance, options.rules, assignment, {placed.orders.priority, {}}).time;
    };
    EXPECT_EQ(time(*placed.assignment), *placed.estimate);
    EXPECT_LE(*placed.estimate, time(*heft(instance).assignment));
    EXPECT_LE(*placed.estimate, time(*m_etf(instance).assignment));
    EXPECT_EQ(multilevel(instance, options, again).assignment, placed.assignment) << "the same twice";
    EXPECT_EQ(placed.stats.states, context.states);
  }
}

TEST(Multilevel, EndsWithTheBudget) {
  Rng rng(13);
  const Instance instance = layered_instance(rng, {.tasks = 300, .width = 10, .devices = 3});
  Context context;
  context.budget.max_states = 10;
  expect_fits(instance, multilevel(instance, {}, context));
  EXPECT_LE(context.states, 10U);
}

constexpr const char* kTwoTowers =
    "x = input() : f32[b]\nw = parameter(w) : f32[4]\nv = parameter(v) : f32[4]\n"
    "a1 = f(x, w) : f32[b] @class=c3\na2 = f(a1, w) : f32[b] @class=c2\n"
    "b1 = f(x, v) : f32[b] @class=c2\nb2 = f(b1, v) : f32[b] @class=c4\n"
    "loss = f(a2, b2) : f32[] @class=c1\n";

TEST(SearchPlacer, IsNeverSlowerThanWhatItBeginsWith) {
  const Toy toy(kTwoTowers, kThreeDevices, 4);
  const Instance instance =
      make_instance(toy.graph, toy.cluster, toy.costs, toy.training, {.micro_batch = BatchSize(4)});
  const PlacerInput input{toy.graph, instance};
  const SearchPlacerOptions options{.max_tasks = 5'000};
  Context context, again;
  const Placed placed = search_placer(input, options, context);
  expect_fits(instance, placed);
  const auto time = [&](const Assignment& assignment) {
    return evaluated(instance, options.rules, assignment, placed.orders).time;
  };
  EXPECT_EQ(time(*placed.assignment), *placed.estimate);
  for (const char* name : {"one-device", "expert", "m-etf", "heft", "multilevel"}) {
    EXPECT_LE(*placed.estimate, time(*find_placer(name).place(input, again).assignment)) << name;
  }
}

TEST(SearchPlacer, OfAnObjectiveIsNoWorseByItThanWhatItBeginsWith) {
  const Toy toy(kTwoTowers, kThreeDevices, 4);
  const Instance instance =
      make_instance(toy.graph, toy.cluster, toy.costs, toy.training, {.micro_batch = BatchSize(4)});
  const PlacerInput input{toy.graph, instance};
  for (const Objective objective : {Objective::kMaxLoad, Objective::kContiguousMaxLoad, Objective::kTail}) {
    SCOPED_TRACE(to_text(objective));
    Context context, of_starts;
    context.budget.max_states = 600;
    const Placed placed = objective_placer(input, objective, context);
    expect_fits(instance, placed);
    EXPECT_LE(context.states, 600U);
    EXPECT_THAT(placed.why, HasSubstr(std::string(to_text(objective))));
    ObjectiveJudge judge(instance, kAllHeld, placed.orders, {.objective = objective});
    const ObjectiveValue value = judge.judge(*placed.assignment);
    EXPECT_TRUE(value.feasible());
    for (const Assignment& start : placer_starts(input, kAllHeld, of_starts)) {
      const ObjectiveValue of_start = judge.judge(start);
      if (of_start.feasible()) {
        EXPECT_LE(value.value, of_start.value);
      }
    }
  }
}

TEST(SearchPlacer, OfThePriceIsTheLeastOfAllPlacements) {
  const Toy toy(kTwoTowers, kThreeDevices, 4);
  const Instance instance =
      make_instance(toy.graph, toy.cluster, toy.costs, toy.training, {.micro_batch = BatchSize(4)});
  for (const std::vector<double>& prices :
       {std::vector<double>{1, 1, 1}, {1, 2.5, 4}, {9, 3, 3}, {5, 0.5, 0}, {100, 100, 1}}) {
    SCOPED_TRACE(::testing::PrintToString(prices));
    const PlacerInput input{.graph = toy.graph, .instance = instance, .price_per_hour = prices};
    Context context;
    const Placed placed = find_placer("price").place(input, context);
    expect_fits(instance, placed);
    EXPECT_THAT(placed.why, HasSubstr("price "));
    const ObjectiveOptions options{.objective = Objective::kPrice, .price_per_hour = prices};
    ObjectiveJudge judge(instance, kAllHeld, placed.orders, options);
    std::optional<double> least;
    Assignment assignment(instance.units(), DeviceId(0));
    for (std::size_t u = 0; u < assignment.size();) {
      const ObjectiveValue value = judge.judge(assignment);
      if (value.feasible() && (!least || value.value < *least)) least = value.value;
      for (u = 0; u < assignment.size(); ++u) {
        assignment[u] = DeviceId((assignment[u].index() + 1) % instance.devices());
        if (assignment[u] != DeviceId(0)) break;
      }
    }
    EXPECT_EQ(judge.judge(*placed.assignment).value, *least);
    EXPECT_LE(objective_bound(instance, kAllHeld, options).value, *least);
  }
}

// Twelve operators of 8,000 bytes each in turn, six equal devices of 60 KiB: two hold everything, and each
// further one would cost as much again for a chain that is no faster.
TEST(SearchPlacer, OfThePriceUsesNoMoreDevicesThanMemoryAsksFor) {
  std::string text = "x = input() : f32[b]\n", cluster =
                                                   "kind gpu 60KiB f32=1e12 f16=1e12 mem=100GB launch=0ns "
                                                   "sms=1 price=3\ngroup network 1GB latency=0ns\n";
  for (int i = 0; i < 12; ++i) {
    const std::string n = std::to_string(i), before = i == 0 ? "x" : "a" + std::to_string(i - 1);
    text += "w" + n + " = parameter(w" + n + ") : f32[1000]\na" + n + " = f(" + before + ", w" + n +
            ") : f32[b] @class=c2\n";
  }
  for (int d = 0; d < 6; ++d) cluster += "device dev" + std::to_string(d) + " gpu in network\n";
  const Toy toy(text + "loss = f(a11, w11) : f32[] @class=c1\n", cluster, 4);
  Context context;
  const Outcome outcome = plan_by_placer(toy.problem(), find_placer("price"), {}, context);
  ASSERT_EQ(outcome.status, Status::kFeasible) << outcome.why;
  const std::vector<DeviceId>& device = std::get<Placement>(*outcome.plan).device;
  EXPECT_EQ(std::set<DeviceId>(device.begin(), device.end()).size(), 2U);
  EXPECT_THAT(outcome.why, HasSubstr("no placement is below price "));
}

TEST(SearchPlacer, OfThePriceAsksForPrices) {
  const Toy toy(kTwoTowers, kThreeDevices, 4);
  Context context;
  const Outcome without = plan_by_placer(toy.problem(), find_placer("price"), {}, context);
  EXPECT_EQ(without.status, Status::kUnsupported);
  EXPECT_THAT(without.why, HasSubstr("price_per_hour"));
}

TEST(SearchPlacer, BeginsWithPlacementsOfLiveMemoryThatPlacersWouldRefuse) {
  // One device that holds a step's peak but not everything that is touched all step long.
  Rng rng(5);
  Instance instance = layered_instance(rng, {.tasks = 30, .width = 2, .devices = 1, .slack_percent = 100});
  const Assignment all(instance.units(), DeviceId(0));
  const Bytes live = timeline(Engine(instance, Rules()), all).peak[0];
  ASSERT_GT(timeline(Engine(instance, kAllHeld), all).peak[0], live);
  instance.memory[0] = live;
  const Toy toy(kTwoTowers, kThreeDevices, 4);  // a graph that m-etf does not look at
  const PlacerInput input{toy.graph, instance};
  Context context;
  EXPECT_FALSE(find_placer("m-etf").place(input, context).assignment);
  EXPECT_TRUE(place_in_live_memory(input, find_placer("m-etf"), context).assignment);
}

TEST(SearchPlacer, MoreMemoryNeverOverflowsAndHelpsNobodyWhoRefusesForAnotherReason) {
  Rng rng(5);
  Instance instance = layered_instance(rng, {.tasks = 30, .width = 2, .devices = 2, .slack_percent = 100});
  std::fill(instance.memory.begin(), instance.memory.end(), Bytes(std::int64_t{1} << 62));
  const Toy toy(kTwoTowers, kThreeDevices, 4);  // a graph that nobody looks at
  const PlacerInput input{toy.graph, instance};
  std::vector<Bytes> seen;
  Placer refuses{
      .name = "refuses", .source = "", .decides = "", .place = [&](const PlacerInput& given, Context&) {
        seen.push_back(given.instance.memory[0]);
        return Placed();
      }};
  Context context;
  EXPECT_FALSE(place_in_live_memory(input, refuses, context).assignment);
  ASSERT_GT(seen.size(), 1U);
  EXPECT_GE(*std::min_element(seen.begin(), seen.end()), Bytes(std::int64_t{1} << 62));
  seen.clear();
  const auto asked = refuses.place;
  refuses.place = [&](const PlacerInput& given, Context& own) {
    Placed placed = asked(given, own);
    placed.unsupported = true;
    return placed;
  };
  EXPECT_FALSE(place_in_live_memory(input, refuses, context).assignment);
  EXPECT_EQ(seen.size(), 1U);
}

// ---- Max-load

// What the busiest device does in the paper's model: its tasks, and once each output that crosses its border.
// `per_byte`: nanoseconds of a message.
std::int64_t max_load_of(const Instance& instance, const Assignment& assignment, std::int64_t per_byte) {
  std::vector<std::int64_t> load(instance.devices());
  const auto where = [&](TaskId task) { return assignment[instance.unit[task.index()].index()]; };
  for (std::size_t t = 0; t < instance.tasks(); ++t) {
    load[where(TaskId(t)).index()] += instance.time_on(TaskId(t), where(TaskId(t))).count();
    std::vector<bool> pays(instance.devices());
    Bytes sent;
    for (const ValueId value : instance.produces[t]) {
      if (!instance.readers[value.index()].empty()) sent += instance.bytes[value.index()];
      for (const TaskId reader : instance.readers[value.index()]) {
        if (where(reader) == where(TaskId(t))) continue;
        pays[where(reader).index()] = pays[where(TaskId(t)).index()] = true;
      }
    }
    for (std::size_t d = 0; d < load.size(); ++d) load[d] += pays[d] ? per_byte * sent.count() : 0;
  }
  return *std::max_element(load.begin(), load.end());
}

// Whether no two devices read from each other in forward tasks, directly or through others.
bool is_chain(const Instance& instance, const Assignment& assignment) {
  std::vector<std::uint32_t> reaches(instance.devices());
  for (std::size_t v = 0; v < instance.values(); ++v) {
    if (instance.pass[instance.producer[v].index()] != Pass::kForward) continue;
    const auto device = [&](TaskId task) { return assignment[instance.unit[task.index()].index()].index(); };
    for (const TaskId reader : instance.readers[v]) {
      if (instance.pass[reader.index()] != Pass::kForward) continue;
      if (device(reader) != device(instance.producer[v])) {
        reaches[device(instance.producer[v])] |= 1U << device(reader);
      }
    }
  }
  for (std::size_t round = 0; round < reaches.size(); ++round) {
    for (std::uint32_t& from : reaches) {
      for (std::size_t d = 0; d < reaches.size(); ++d) from |= (from >> d & 1U) != 0 ? reaches[d] : 0;
    }
  }
  for (std::size_t d = 0; d < reaches.size(); ++d) {
    if ((reaches[d] >> d & 1U) != 0) return false;
  }
  return true;
}

TEST(MaxLoad, DpIsTheLeastOverAllChainsOfDownsetsAndDplIsOneOfThem) {
  const std::string cluster =
      "kind gpu 1GiB f32=1e12 f16=1e12 mem=100GB launch=0ns sms=1\n"
      "group network 1KB latency=0ns\ndevice dev0 gpu in network\ndevice dev1 gpu in network\n"
      "device dev2 gpu in network\n";
  const std::int64_t per_byte = 1'000'000;  // ns
  Rng rng(61);
  int divided = 0;
  for (int trial = 0; trial < 60; ++trial) {
    const Toy toy(random_graph_text(rng), cluster, 1);
    const Instance instance = make_instance(toy.graph, toy.cluster, toy.costs, toy.training, {});
    std::optional<std::int64_t> least;
    Assignment assignment(instance.units(), DeviceId(0));
    while (true) {
      const std::int64_t load = max_load_of(instance, assignment, per_byte);
      if (is_chain(instance, assignment) && (!least || load < *least)) least = load;
      std::size_t u = 0;
      for (; u < assignment.size(); ++u) {
        assignment[u] = DeviceId((assignment[u].index() + 1) % instance.devices());
        if (assignment[u] != DeviceId(0)) break;
      }
      if (u == assignment.size()) break;
    }
    const Placed dp = max_load_placement(instance, literal::MaxLoadSpace::kDownsets),
                 dpl = max_load_placement(instance, literal::MaxLoadSpace::kLinear);
    ASSERT_TRUE(dp.assignment && dpl.assignment) << dp.why << dpl.why;
    EXPECT_EQ(max_load_of(instance, *dp.assignment, per_byte), *least);
    EXPECT_TRUE(is_chain(instance, *dp.assignment) && is_chain(instance, *dpl.assignment));
    EXPECT_GE(max_load_of(instance, *dpl.assignment, per_byte), *least);
    EXPECT_THAT(check_memory(instance, *dp.assignment), IsEmpty());
    divided += dp.assignment->front() == dp.assignment->back() ? 0 : 1;
  }
  EXPECT_GT(divided, 20);
}

TEST(MaxLoad, SlowerDevicesTakeThePartOfCpus) {
  // 6 ms on the accelerators, 9 on the other: it takes the third operator's share.
  const std::string cluster =
      "kind gpu 1GiB f32=1e12 f16=1e12 mem=100GB launch=0ns sms=1\n"
      "kind cpu 1GiB f32=1e11 f16=1e11 mem=10GB launch=0ns sms=1 speed=0.5\n"
      "group network latency=0ns lanes=unlimited\ndevice dev0 cpu in network\ndevice dev1 gpu in network\n";
  const Toy toy(
      "x = input() : f32[b]\nw = parameter(w) : f32[1]\na = f(x, w) : f32[b] @class=c4\n"
      "b = f(a, w) : f32[b] @class=c4\nloss = f(b, w) : f32[] @class=c3\n",
      cluster, 1);
  const Instance instance = make_instance(toy.graph, toy.cluster, toy.costs, toy.training, {});
  const Placed placed = max_load_placement(instance, literal::MaxLoadSpace::kDownsets);
  ASSERT_TRUE(placed.assignment) << placed.why;
  // All on the accelerator 33 ms, without the loss 24 there and 18 on the other.
  EXPECT_EQ(*placed.assignment, (Assignment{DeviceId(1), DeviceId(1), DeviceId(0)}));
}

// ---- As planners

TEST(PlacementPlanner, EveryPlacerGivesAPlacementThatKeepsThePins) {
  const Toy toy(kTwoTowers, kThreeDevices, 4);
  ClusterParts parts = toy.cluster.parts();
  for (Device& device : parts.devices) device.price_per_hour = 1;
  const Cluster cluster(parts);
  const Pins pins{{"b1", DeviceId(2)}};
  for (const Placer& placer : placement_placers()) {
    SCOPED_TRACE(placer.name);
    const Problem free{.graph = toy.graph, .cluster = cluster, .costs = toy.costs, .training = toy.training};
    const Problem pinned{
        .graph = toy.graph, .cluster = cluster, .costs = toy.costs, .training = toy.training, .pins = pins};
    Context context, other;
    const Outcome outcome = plan_by_placer(free, placer, {}, context);
    ASSERT_EQ(outcome.status, Status::kFeasible) << outcome.why;
    EXPECT_THAT(check_placement(toy.graph, toy.cluster, std::get<Placement>(*outcome.plan)), IsEmpty());
    const Outcome kept = plan_by_placer(pinned, placer, {}, other);
    ASSERT_EQ(kept.status, Status::kFeasible) << kept.why;
    const std::size_t b1 = toy.graph.find_operator("b1")->index();
    EXPECT_EQ(std::get<Placement>(*kept.plan).device[b1], DeviceId(2));
  }
}

TEST(PlacementPlanner, SaysWhichDevicesLackWhat) {
  const Toy toy(kTwoTowers, kThreeDevices, 4);
  ClusterParts parts = toy.cluster.parts();
  for (Device& device : parts.devices) device.memory = Bytes(8);
  const Cluster tiny(parts);
  const Problem problem{.graph = toy.graph, .cluster = tiny, .costs = toy.costs, .training = toy.training};
  for (const char* name : {"m-etf", "one-device", "multilevel"}) {
    Context context;
    const Outcome outcome = plan_by_placer(problem, find_placer(name), {}, context);
    EXPECT_EQ(outcome.status, Status::kInfeasible);
    EXPECT_THAT(outcome.why, HasSubstr("lacks")) << name;
  }
}

TEST(Placers, AreFoundByName) {
  EXPECT_EQ(find_placer("m-etf").name, "m-etf");
  EXPECT_THAT(testing::refusal([] { find_placer("m-eft"); }), HasSubstr("did you mean 'm-etf'?"));
}

}  // namespace
}  // namespace espalier::placement
