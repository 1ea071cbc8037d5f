#include "espalier/planners/placement/objective_search.h"

#include <gmock/gmock.h>

#include <optional>

#include "espalier/base/check.h"
#include "espalier/planners/placement/search_cases_for_tests.h"

namespace espalier::placement {
namespace {

using ::testing::HasSubstr;

ObjectiveOptions some_objective(Objective objective, std::uint64_t number, std::size_t devices) {
  ObjectiveOptions options{.objective = objective, .noise = {.samples = 5, .seed = number}};
  if (number % 2 == 1) options.communication = Communication::kAdded;
  for (std::size_t d = 0; d < devices; ++d) options.price_per_hour.push_back(1 + static_cast<double>(d));
  return options;
}

// The least of all feasible assignments.
std::optional<double> least_by(ObjectiveJudge& judge) {
  const Instance& instance = judge.instance();
  std::optional<double> least;
  std::vector<std::size_t> choice(instance.units());
  for (;;) {
    Assignment assignment;
    for (std::size_t u = 0; u < choice.size(); ++u) assignment.push_back(instance.allowed[u][choice[u]]);
    const ObjectiveValue value = judge.judge(assignment);
    if (value.feasible() && (!least || value.value < *least)) least = value.value;
    std::size_t u = 0;
    while (u < choice.size() && ++choice[u] == instance.allowed[u].size()) choice[u++] = 0;
    if (u == choice.size()) return least;
  }
}

class EveryObjective : public ::testing::TestWithParam<Objective> {};
INSTANTIATE_TEST_SUITE_P(All, EveryObjective, ::testing::ValuesIn(objectives()), [](const auto& objective) {
  std::string name(to_text(objective.param));
  std::erase(name, '-');
  return name;
});

TEST_P(EveryObjective, SearchFindsTheLeastOfAllAndNoBoundIsAboveIt) {
  int found = 0, hits = 0, exact = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    Rng rng(seed);
    const Instance instance =
        random_case({.tasks = 4 + rng.below(3),
                     .devices = 2 + rng.below(2),
                     .kinds = 1 + rng.below(2),
                     .memory = static_cast<std::int64_t>(rng.below(3) == 0 ? 20 + rng.below(40) : 1'000)},
                    rng);
    const Rules rules = some_rules(seed);
    const ObjectiveOptions options = some_objective(GetParam(), seed, instance.devices());
    ObjectiveJudge judge(instance, rules, {}, options);
    const std::optional<double> least = least_by(judge);
    Context context;
    context.budget.max_states = 400;
    const ObjectivePlaced placed = objective_search({&judge, 1}, {}, 1, context);
    EXPECT_LE(context.states, 400U);
    if (!least) {
      EXPECT_FALSE(placed.assignment);
      EXPECT_NE(placed.why, "");
      continue;
    }
    EXPECT_LE(objective_bound(instance, rules, options).value, *least) << seed;
    double all = 1;
    for (std::size_t u = 0; u < instance.units(); ++u) all *= static_cast<double>(instance.allowed[u].size());
    if (all + static_cast<double>(2 + instance.devices()) < 390) {  // the budget, less that of starts
      ASSERT_TRUE(placed.assignment) << seed;
      EXPECT_EQ(placed.value.value, *least) << seed;
      ++exact;
    }
    if (!placed.assignment) continue;
    EXPECT_EQ(judge.judge(*placed.assignment), placed.value);
    EXPECT_GE(placed.value.value, *least) << seed;
    ++found;
    hits += placed.value.value == *least ? 1 : 0;
  }
  EXPECT_GT(found, 25);
  EXPECT_GT(exact, 15);
  EXPECT_GT(10 * hits, 8 * found) << hits << " of " << found;
}

TEST(ObjectiveSearch, OfTwoOrdersTheBetterOneCounts) {
  int forwards_wins = 0, backwards_wins = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    Rng rng(seed);
    const Instance instance = random_case({.tasks = 9, .devices = 2}, rng);
    const ObjectiveOptions options = some_objective(Objective::kLatency, seed, instance.devices());
    std::vector<ObjectiveJudge> judges;
    std::optional<double> least;
    std::vector<std::uint32_t> backwards(instance.tasks());
    for (std::size_t t = 0; t < backwards.size(); ++t) backwards[t] = narrow(backwards.size() - t);
    for (const DeviceOrders& orders : {DeviceOrders{}, DeviceOrders{backwards, {}}}) {
      const std::optional<double> own = least_by(judges.emplace_back(instance, Rules(), orders, options));
      if (own && (!least || *own < *least)) least = own;
    }
    Context context;
    context.budget.max_states = 8'000;
    const ObjectivePlaced placed = objective_search(judges, {}, 1, context);
    EXPECT_LE(context.states, 8'000U);
    ASSERT_EQ(placed.assignment.has_value(), least.has_value());
    if (!least) continue;
    EXPECT_EQ(placed.value.value, *least) << seed;
    EXPECT_EQ(judges[placed.by].judge(*placed.assignment), placed.value);
    const double other = judges[1 - placed.by].judge(*placed.assignment).value;
    if (other > *least) ++(placed.by == 0 ? forwards_wins : backwards_wins);
  }
  EXPECT_GT(forwards_wins, 0);
  EXPECT_GT(backwards_wins, 0);
}

// 0 → 1 → 2 on two devices; all take 10 ns, values of 2 bytes take 20 ns and wait 3 ns.
Instance chain_of_three() {
  Rng rng(1);
  Instance chain = random_case({.tasks = 3, .devices = 2, .readers = 0, .together = 1'000'000}, rng);
  chain.time.assign(3, nanoseconds(10));
  chain.reads = {{0, 0, 1, 2}, {ValueId(0), ValueId(1)}};
  chain.readers = {{0, 1, 2, 2}, {TaskId(1), TaskId(2)}};
  chain.bytes.assign(3, Bytes(2));
  chain.workspace.assign(3, Bytes());
  for (Lists<DeviceId> allowed; allowed.size() < 3;) {
    allowed.items.insert(allowed.items.end(), {DeviceId(0), DeviceId(1)});
    allowed.close();
    if (allowed.size() == 3) chain.allowed = allowed;
  }
  return chain;
}

TEST(PipelineLoads, CountEachMessageOnceOnItsLinksOrAtBothEnds) {
  const Instance chain = chain_of_three();
  const Assignment there_and_back = {DeviceId(0), DeviceId(1), DeviceId(0)};
  // Devices work 20 and 10; each of the four links carries one message of 20.
  const PipelineLoads links = pipeline_loads(chain, {}, Communication::kOverlapped, there_and_back);
  EXPECT_THAT(links.device, ::testing::ElementsAre(nanoseconds(20), nanoseconds(10)));
  EXPECT_THAT(links.link, ::testing::Each(nanoseconds(20)));
  // Each device sends one and receives one.
  const PipelineLoads added = pipeline_loads(chain, {}, Communication::kAdded, there_and_back);
  EXPECT_THAT(added.device, ::testing::ElementsAre(nanoseconds(60), nanoseconds(50)));
  EXPECT_EQ(added.largest(), nanoseconds(60));
}

TEST(Contiguous, IsWhatNeverComesBack) {
  const Instance chain = chain_of_three();
  const std::vector<char> all(3, 1);
  EXPECT_TRUE(is_contiguous(chain, all, Assignment{DeviceId(1), DeviceId(1), DeviceId(0)}));
  EXPECT_FALSE(is_contiguous(chain, all, Assignment{DeviceId(0), DeviceId(1), DeviceId(0)}));
  const std::vector<char> first(3, 0);
  EXPECT_TRUE(is_contiguous(chain, first, Assignment{DeviceId(0), DeviceId(1), DeviceId(0)}));
}

TEST(Price, IsTheStepOnAllDevicesInUse) {
  const Instance chain = chain_of_three();
  ObjectiveJudge judge(chain, {}, {}, {.objective = Objective::kPrice, .price_per_hour = {3.6e12, 7.2e12}});
  // 30 ns on one device; 10 + 23 + 20 on both.
  EXPECT_DOUBLE_EQ(judge.judge(Assignment(3, DeviceId(0))).value, 30);
  EXPECT_DOUBLE_EQ(judge.judge(Assignment(3, DeviceId(1))).value, 60);
  EXPECT_DOUBLE_EQ(judge.judge(Assignment{DeviceId(0), DeviceId(1), DeviceId(1)}).value, 53 * 3.0);
}

TEST(Noise, WithoutDeviationIsTheStepAndWithItTheTailIsLonger) {
  Rng rng(3);
  const Instance instance = random_case({.tasks = 40, .devices = 3}, rng);
  Assignment assignment;
  for (std::size_t u = 0; u < instance.units(); ++u) assignment.push_back(instance.allowed[u].front());
  const auto value = [&](Objective objective, double deviation, std::uint32_t samples) {
    ObjectiveJudge judge(instance, {}, {},
                         {.objective = objective, .noise = {.deviation = deviation, .samples = samples}});
    return judge.judge(assignment).value;
  };
  const double step = value(Objective::kLatency, 0, 1);
  EXPECT_EQ(value(Objective::kExpected, 0, 3), step);
  EXPECT_EQ(value(Objective::kTail, 0, 3), step);
  EXPECT_GT(value(Objective::kTail, 0.5, 100), value(Objective::kExpected, 0.5, 100));
  EXPECT_EQ(value(Objective::kTail, 0.5, 1), value(Objective::kExpected, 0.5, 1));
}

TEST(Objectives, RefuseWhatIsNotTheirs) {
  const Instance chain = chain_of_three();
  const auto says = [&](ObjectiveOptions options) {
    try {
      ObjectiveJudge(chain, {}, {}, std::move(options));
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(says({.price_per_hour = {1}}), HasSubstr("1 prices for 2 devices"));
  EXPECT_THAT(says({.price_per_hour = {1, -1}}), HasSubstr("a number from 0 on"));
  EXPECT_THAT(says({.noise = {.deviation = -1}}), HasSubstr("from 0 to 10"));
  EXPECT_THAT(says({.noise = {.samples = 0}}), HasSubstr("samples"));
  EXPECT_THROW(parse_objective("max-lod"), InputError);
  for (const Objective objective : objectives()) EXPECT_EQ(parse_objective(to_text(objective)), objective);
}

}  // namespace
}  // namespace espalier::placement
