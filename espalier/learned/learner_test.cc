#include "espalier/learned/learner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <optional>

#include "espalier/base/files.h"
#include "espalier/learned/gdp.h"
#include "espalier/learned/towers_for_tests.h"
#include "espalier/learned/workload.h"
#include "espalier/planners/placement/memory_ledger.h"
#include "espalier/planners/placement/ranks.h"
#include "testing/refusal.h"

namespace espalier::placement {
namespace {

using ::testing::HasSubstr;
using testing::refusal;

const PlacementTask& task() {
  static const PlacementTask kTask(two_towers().graph, two_towers().instance, {.clusters = {.clusters = 16}});
  return kTask;
}
constexpr PolicyShape kSmall{.width = 16, .heads = 2, .segment = 16};

Context calls(std::uint64_t most) {
  Context context;
  context.budget.max_states = most;
  return context;
}

std::string temporary(const std::string& name) {
  return (std::filesystem::temp_directory_path() / ("espalier_learner_test_" + name)).string();
}

TEST(Draws, FollowTheirProbabilities) {
  const std::vector<float> rows{0.7F, 0.2F, 0.1F, 0, 1, 0};
  std::vector<int> counts(3);
  for (const NodeDevices& drawn : draw(rows, 3, 20'000, 1)) {
    ++counts[drawn[0].index()];
    ASSERT_EQ(drawn[1], DeviceId(1));
  }
  EXPECT_NEAR(counts[0], 14'000, 400);
  EXPECT_NEAR(counts[1], 4'000, 400);
  EXPECT_EQ(draw(rows, 3, 5, 9), draw(rows, 3, 5, 9));
}

TEST(Learner, SamplesGetFasterWithANetAndWithATable) {
  for (const bool table : {false, true}) {
    Policy policy = table ? Policy::table() : Policy(kSmall, 1);
    Learner learner(policy, {&task()}, {.updates = 60});
    Context context = calls(60 * 16);
    while (learner.update(context)) {
    }
    const std::vector<LearningPoint>& curve = learner.progress(0).curve;
    ASSERT_EQ(curve.size(), 60U);
    EXPECT_LT(curve.back().mean, 0.8 * curve.front().mean);
    EXPECT_LE(curve.back().best, curve.back().mean);
    EXPECT_LT(curve.back().best, 0.75);  // one device: 1; both towers at once: little over a half
  }
}

TEST(Learner, ThreadsDoNotChangeWhatIsLearnt) {
  const auto learnt = [](ThreadPool* pool) {
    Policy policy(kSmall, 1);
    Learner learner(policy, {&task()}, {.updates = 5});
    Context context = calls(5 * 16);
    context.pool = pool;
    while (learner.update(context)) {
    }
    return learner.progress(0).curve;
  };
  ThreadPool two(2);
  EXPECT_EQ(learnt(nullptr), learnt(&two));
}

// Until its learning rate rises again a learner is one that ends there.
TEST(Learner, TheLearningRateFallsAndFallsAnew) {
  const auto rows = [](const LearningOptions& options, std::uint64_t updates) {
    Policy policy(kSmall, 1);
    Learner learner(policy, {&task()}, options);
    Context context = calls(updates * options.rollouts);
    while (learner.update(context)) {
    }
    return policy.probabilities(task().input());
  };
  const LearningOptions again{.updates = 10, .restart = 4}, four{.updates = 4}, ten{.updates = 10};
  EXPECT_EQ(rows(again, 4), rows(four, 4));
  EXPECT_NE(rows(again, 4), rows(ten, 4));
  EXPECT_NE(rows(again, 6), rows(four, 6));  // where the rate stays at its end
}

TEST(Learner, ACurveOfTwoTasksHasTheCallsForBothAndTheMeanOfTheirBest) {
  const PlacementTask by_rank(task(), upward_priorities(two_towers().instance));
  Policy policy(kSmall, 1);
  Learner learner(policy, {&task(), &by_rank}, {});
  Context context = calls(6 * 16);
  while (learner.update(context)) {
  }
  const std::vector<LearningPoint> curve = learner.curve();
  ASSERT_EQ(curve.size(), 6U);
  for (std::size_t i = 0; i < curve.size(); ++i) {
    EXPECT_EQ(curve[i].update, i + 1);
    EXPECT_EQ(curve[i].calls, 16 * (i + 1));
  }
  const double bests = learner.progress(0).curve.back().best + learner.progress(1).curve.back().best;
  EXPECT_DOUBLE_EQ(curve.back().best, bests / 2);
}

TEST(Learner, GoesOnFromACheckpointToTheSameBytes) {
  const std::string file = temporary("checkpoint.safetensors");
  const LearningOptions options{.updates = 8, .restart = 2, .repeat_best = true};
  Policy whole(kSmall, 1);
  Learner through(whole, {&task()}, options);
  Context context = calls(8 * 16);
  while (through.update(context)) {
  }
  Policy broken(kSmall, 1);
  std::vector<LearningPoint> first_curve;
  {
    Learner first(broken, {&task()}, options);
    Context part = calls(3 * 16);
    while (first.update(part)) {
    }
    first.save(file);
    first_curve = first.curve();
    EXPECT_EQ(first_curve, first.progress(0).curve);
  }
  Policy other(kSmall, 77);  // whose weights do not matter
  Learner second(other, {&task()}, options);
  second.restore(file);
  Context rest = calls(5 * 16);
  while (second.update(rest)) {
  }
  EXPECT_EQ(second.progress(0).curve, through.progress(0).curve);
  EXPECT_EQ(other.probabilities(task().input()), whole.probabilities(task().input()));
  EXPECT_EQ(read_learning_curve(file).size(), 3U);
  EXPECT_EQ(read_learning_curve(file), first_curve);

  Learner elsewhere(other, {&task(), &task()}, options);
  EXPECT_THAT(refusal([&] { elsewhere.restore(file); }), HasSubstr("expected 2 graphs"));
  Learner seeded(other, {&task()}, {.updates = 8, .seed = 5});
  EXPECT_THAT(refusal([&] { seeded.restore(file); }), HasSubstr("expected 5"));
  std::remove(file.c_str());
}

// The same code where a GPU is.
TEST(CudaLearner, LearnsAndGoesOnThereAndHere) {
  std::optional<Policy> policy;
  try {
    policy.emplace(kSmall, 1, "cuda");
  } catch (const InputError& none) {
    GTEST_SKIP() << none.what();
  }
  const std::string file = temporary("gpu.safetensors");
  const LearningOptions options{.updates = 60};
  {
    Learner learner(*policy, {&task()}, options);
    Context context = calls(40 * 16);
    while (learner.update(context)) {
    }
    learner.save(file);
  }
  for (const std::string device : {"cuda", "cpu"}) {
    Policy other(kSmall, 77, device);
    Learner learner(other, {&task()}, options);
    learner.restore(file);
    Context rest = calls(20 * 16);
    while (learner.update(rest)) {
    }
    const std::vector<LearningPoint>& curve = learner.progress(0).curve;
    ASSERT_EQ(curve.size(), 60U) << device;
    EXPECT_LT(curve.back().mean, 0.8 * curve.front().mean) << device;
  }
  std::filesystem::remove(file);
}

TEST(Learner, ImitatesAPlacement) {
  NodeDevices target;
  for (std::size_t n = 0; n < task().input().nodes; ++n) target.emplace_back(n % 2);
  Policy policy(kSmall, 1);
  Learner learner(policy, {&task()}, {.tables = true});
  learner.imitate({target}, 150, 0.9, 3e-3);
  EXPECT_EQ(learner.imitated(), 150U);
  const std::vector<float> rows = policy.probabilities(task().input());
  EXPECT_EQ(most_probable(rows, 2), target);
}

// ---- Levels of schedule priority

TEST(Levels, DecideBeforeTheOrderOfTheGraph) {
  const Instance& instance = two_towers().instance;
  NodeLevels levels(task().input().nodes, 1);
  levels.front() = 2;
  levels.back() = 0;
  const DeviceOrders orders = orders_of(task(), levels);
  for (std::size_t t = 0; t < instance.tasks(); ++t) {
    const std::uint32_t node = task().clusters().of_unit[instance.unit[t].index()];
    EXPECT_EQ(orders.priority[t], levels[node]);
  }
  // Where the task has an order of its own it decides among those of one level.
  const std::vector<std::uint32_t> upward = upward_priorities(instance);
  TaskOptions options;
  options.clusters.clusters = 16;
  options.priority = upward;
  const PlacementTask by_rank(two_towers().graph, instance, options);
  const std::vector<std::uint32_t> both = orders_of(by_rank, levels).priority;
  for (std::size_t t = 1; t < instance.tasks(); ++t) {
    const bool same = orders.priority[t] == orders.priority[t - 1];
    EXPECT_EQ(both[t - 1] < both[t],
              same ? upward[t - 1] < upward[t] : orders.priority[t - 1] < orders.priority[t]);
  }
  const NodeDevices alone(levels.size(), DeviceId(0));
  // All of one level is the order of the graph.
  const NodeLevels even(levels.size(), 3);
  const std::vector<Sample> samples =
      judge(task(), {alone, alone, alone}, {{}, even, levels}, Repairs::kNone, nullptr);
  EXPECT_EQ(samples[0].evaluated, samples[1].evaluated);
  const Engine engine(instance, task().engine().rules(), orders);
  Scratch scratch;
  EXPECT_EQ(samples[2].evaluated, engine.evaluate(samples[2].assignment, scratch));
}

// Four nodes on two devices with three levels: all 16 · 81 choices are judged.
TEST(Levels, ALearnerFindsWhatAllChoicesHaveBest) {
  const PlacementTask small(
      two_towers().graph, two_towers().instance,
      {.clusters = {.clusters = 4, .most_time = 1e9, .most_memory = 1e9, .most_bound = 1e9}});
  const std::size_t nodes = small.input().nodes;
  ASSERT_EQ(nodes, 4U);
  std::vector<NodeDevices> placements;
  std::vector<NodeLevels> levels;
  for (std::size_t choice = 0; choice < 16 * 81; ++choice) {
    placements.emplace_back();
    levels.emplace_back();
    std::size_t device = choice % 16, level = choice / 16;
    for (std::size_t n = 0; n < nodes; ++n, device /= 2, level /= 3) {
      placements.back().emplace_back(device % 2);
      levels.back().push_back(static_cast<std::uint32_t>(level % 3));
    }
  }
  Duration best = Duration::max();
  for (const Sample& sample : judge(small, placements, levels, Repairs::kNone, nullptr)) {
    if (sample.evaluated.fits) best = std::min(best, sample.evaluated.time);
  }
  PolicyShape shape = kSmall;
  shape.priorities = 3;
  Policy policy(shape, 1);
  Learner learner(policy, {&small}, {.updates = 30});
  Context context = calls(30 * 16);
  while (learner.update(context)) {
  }
  ASSERT_TRUE(learner.progress(0).best.has_value());
  EXPECT_EQ(learner.progress(0).best->levels.size(), nodes);
  EXPECT_EQ(learner.progress(0).best->evaluated.time, best);
}

TEST(Levels, AreLearntToTheSameBytesByAnyThreadsAndFromACheckpoint) {
  const std::string file = temporary("levels.safetensors");
  PolicyShape shape = kSmall;
  shape.priorities = 4;
  const LearningOptions options{.updates = 6, .repeat_best = true};
  ThreadPool two(2);
  Policy whole(shape, 1), broken(shape, 1), other(shape, 77);
  Learner through(whole, {&task()}, options);
  Context context = calls(6 * 16);
  while (through.update(context)) {
  }
  Learner first(broken, {&task()}, options);
  Context part = calls(3 * 16), rest = calls(3 * 16);
  part.pool = rest.pool = &two;
  while (first.update(part)) {
  }
  first.save(file);
  Learner second(other, {&task()}, options);
  second.restore(file);
  EXPECT_EQ(second.progress(0).best->levels, first.progress(0).best->levels);
  while (second.update(rest)) {
  }
  EXPECT_EQ(other.probabilities(task().input()), whole.probabilities(task().input()));
  whole.write(file);
  EXPECT_EQ(Policy::read(file).shape(), shape);
  EXPECT_EQ(Policy::read(file).clone().weights(), whole.weights());
  std::remove(file.c_str());
}

TEST(Levels, APlacerSaysTheOrderThatItsStepIsOf) {
  PolicyShape shape = kSmall;
  shape.priorities = 4;
  Context context = calls(1'000);
  const Placed placed =
      gdp({two_towers().graph, two_towers().instance}, {.shape = shape, .updates = 10}, context);
  ASSERT_TRUE(placed.assignment.has_value());
  const Engine engine(two_towers().instance, {.memory = Rules::Memory::kAllHeld}, placed.orders);
  Scratch scratch;
  EXPECT_EQ(engine.evaluate(*placed.assignment, scratch).time, *placed.estimate);
}

TEST(Policies, WrittenOnesReadBack) {
  const std::string file = temporary("policy.safetensors");
  const PolicyShape shape{.width = 24,
                          .sage_layers = 1,
                          .attention_layers = 2,
                          .heads = 3,
                          .segment = 8,
                          .refinements = 1,
                          .gate = Gate::kNode,
                          .centred = false};
  const Policy policy(shape, 4);
  policy.write(file, {{"remark", "of a test"}});
  const Policy read = Policy::read(file);
  EXPECT_EQ(read.shape(), shape);
  EXPECT_EQ(read.probabilities(task().input()), policy.probabilities(task().input()));
  EXPECT_EQ(policy.clone().probabilities(task().input()), policy.probabilities(task().input()));
  // As files were before there were any.
  EXPECT_EQ(read_file(file).find("spectral"), std::string::npos);
  EXPECT_EQ(read_file(file).find("priorities"), std::string::npos);

  EXPECT_EQ(read_file(file).find("told_order"), std::string::npos);

  PolicyShape with_positions = kSmall;
  with_positions.spectral = 8;
  with_positions.told_order = true;
  const Policy seeing(with_positions, 4);
  seeing.write(file);
  const Policy read_too = Policy::read(file);
  EXPECT_EQ(read_too.shape(), with_positions);
  EXPECT_EQ(read_too.probabilities(task().input()), seeing.probabilities(task().input()));

  EXPECT_THAT(refusal([] { Policy(kSmall, 1, "tpu:3"); }), HasSubstr("tpu:3"));
  write_file_atomically(file, "no policy");
  EXPECT_THAT(refusal([&] { Policy::read(file); }), HasSubstr(file));
  std::remove(file.c_str());
}

TEST(Policies, GetHeadsThatTheyLackAndKeepWhatTheyHave) {
  const Policy policy(kSmall, 4);
  const Policy with_levels = policy.with_heads({.priorities = 5}, 9);
  EXPECT_EQ(with_levels.shape().priorities, 5);
  EXPECT_EQ(with_levels.shape().width, kSmall.width);
  EXPECT_EQ(with_levels.probabilities(task().input()), policy.probabilities(task().input()));
  const PolicyShape more{.priorities = 7, .coarsening = Coarsening::kLearned};
  const Policy both = with_levels.with_heads(more, 9), other = with_levels.with_heads(more, 10);
  EXPECT_EQ(both.shape().priorities, 5);
  EXPECT_EQ(both.shape().coarsening, Coarsening::kLearned);
  EXPECT_GT(both.weights(), with_levels.weights());
  EXPECT_EQ(both.with_heads(more, 11).probabilities(task().input()), both.probabilities(task().input()));
  EXPECT_NE(both.probabilities(task().input()), other.probabilities(task().input()));  // fresh groups differ
}

// ---- The placer

TEST(Gdp, AnswersFitAndFineTuningIsNoSlower) {
  const PlacerInput input{two_towers().graph, two_towers().instance};
  const Policy policy(kSmall, 2);
  GdpOptions options{.policy = &policy, .updates = 0};
  Context zero_shot = calls(1'000), tuned = calls(1'000);
  const Placed first = gdp(input, options, zero_shot);
  ASSERT_TRUE(first.assignment.has_value());
  EXPECT_EQ(zero_shot.states, 66U);  // by each of the two usual orders
  options.updates = 20;
  const Placed second = gdp(input, options, tuned);
  ASSERT_TRUE(second.assignment.has_value());
  EXPECT_EQ(tuned.states, 66U + 20 * 16 + 33U);
  EXPECT_LE(*second.estimate, *first.estimate);
  Scratch scratch;
  for (const Placed* placed : {&first, &second}) {
    const Engine engine(two_towers().instance, {}, placed->orders);
    EXPECT_EQ(engine.evaluate(*placed->assignment, scratch).time, *placed->estimate);
  }
  EXPECT_TRUE(check_memory(two_towers().instance, *second.assignment).empty());
}

// A quarter of the updates by each of the two orders, and what is left by one of them; few are not parted.
TEST(Gdp, FineTuningForLongTriesBothOrders) {
  const Policy policy(kSmall, 2);
  for (const std::uint64_t affordable : {120, 104, 40}) {
    std::vector<std::uint64_t> updates;
    GdpOptions options;
    options.policy = &policy;
    options.updates = 120;
    options.told = [&](const LearningPoint& point) { updates.push_back(point.update); };
    Context context = calls(66 + affordable * 16);
    gdp({two_towers().graph, two_towers().instance}, options, context);
    std::vector<std::uint64_t> expected;
    const std::uint64_t trial = affordable >= kLongTuning ? affordable / 4 : 0;
    for (int order = 0; order < 2; ++order) {
      for (std::uint64_t i = 1; i <= trial; ++i) expected.push_back(i);
    }
    for (std::uint64_t i = trial + 1; i <= affordable - trial; ++i) expected.push_back(i);
    EXPECT_EQ(updates, expected);
  }
}

TEST(Gdp, SearchFromItsAnswerIsNoSlowerUnderTheSearchsRules) {
  const PlacerInput input{two_towers().graph, two_towers().instance};
  const Policy policy(kSmall, 2);
  Context of_answer = calls(2'000), of_search = calls(2'000);
  const Placed answer = gdp(input, {.policy = &policy, .updates = 0}, of_answer);
  const Placed searched = gdp_search(input, {.policy = &policy, .updates = 0}, of_search);
  ASSERT_TRUE(searched.assignment.has_value());
  EXPECT_LE(*searched.estimate, *answer.estimate);
  EXPECT_LE(of_search.states, 2'000U);
}

TEST(Gdp, RepairsWhereMemoryBinds) {
  const Workload tight =
      make_workload({"tight", "mmt", {{"branches", 2}, {"layers", 1}}, BatchSize(16), "2xP100-16GB", {}});
  Instance instance = tight.instance;
  MemoryLedger ledger(instance);
  for (std::size_t u = 0; u < instance.units(); ++u) ledger.place(UnitId(u), DeviceId(0));
  std::fill(instance.memory.begin(), instance.memory.end(),
            Bytes(ledger.needs(DeviceId(0)).count() * 65 / 100));
  Context context = calls(1'000);
  const Policy policy(kSmall, 2);
  const Placed placed = gdp({tight.graph, instance}, {.policy = &policy, .updates = 0}, context);
  ASSERT_TRUE(placed.assignment.has_value()) << placed.why;
  EXPECT_TRUE(check_memory(instance, *placed.assignment).empty());
}

}  // namespace
}  // namespace espalier::placement
