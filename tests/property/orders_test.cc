// Any order that check_schedule accepts is planned, printed, read back and simulated; any other is refused by
// a rule. Small cases are exhausted; random orders and mutations of them are tried on random models.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>

#include "espalier/schedule/order_file.h"
#include "espalier/sim/simulate.h"
#include "testing/random_orders.h"
#include "testing/random_staged_model.h"
#include "testing/reference_simulator.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using testing::random_orders;
using testing::random_staged_model;
using testing::RandomModel;
using testing::reference_simulate;

// The rule that refuses the model's orders; empty if they are accepted. Then they are simulated as the
// reference does, the trace obeys its rules, and lists, text and files bring back the same schedule.
std::string verdict(const StagedModel& model, const Cluster& cluster) {
  const Schedule schedule = make_schedule(model, cluster.devices().size());
  const std::vector<std::string> problems = check_schedule(model, schedule);
  if (!problems.empty()) {
    std::string rule = problems.front().substr(0, problems.front().find(':'));
    if (rule == "deadlock") {
      EXPECT_NE(testing::refusal<InternalError>([&] { reference_simulate(model, cluster, schedule); }),
                "(nothing was refused)")
          << problems.front() << "\n"
          << print_schedule(model, cluster, schedule);
    }
    return rule;
  }
  const Trace trace = simulate(model, cluster, schedule);
  const Trace reference = reference_simulate(model, cluster, schedule);
  EXPECT_EQ(trace.iteration, reference.iteration);
  EXPECT_EQ(peak_memory(trace), peak_memory(reference));
  EXPECT_EQ(check_trace(model, cluster, schedule, trace), std::vector<std::string>());

  const OrderNames names = order_names(model, cluster);
  const OrderLists lists = lists_of(model, schedule);
  EXPECT_EQ(parse_order_lists(print_order_lists(lists, names), names), lists);
  const auto read = [&](const std::string& text) { return parse_order_file(text, "orders", model, cluster); };
  for (const std::string& text :
       {print_order_lists(lists, names), print_schedule(model, cluster, schedule)}) {
    const StagedModel again = with_orders(model, read(text));
    EXPECT_EQ(make_schedule(again, cluster.devices().size()), schedule) << text;
  }
  return "";
}

using Verdicts = std::map<std::string, std::size_t>;

// Two stages, two micro-batches, each with its own or on one device; every order of the steps of each list.
class AllOrders {
 public:
  AllOrders(bool shared, bool split, bool returns) : cluster_(parse_cluster("2xV100-16GB")) {
    for (std::size_t s = 0; s < 2; ++s) {
      StagedStage stage;
      stage.name = s == 0 ? "a" : "b";
      if (s == 1) stage.after = {StageId(0)};
      stage.micro_batches = 2;
      const StageTimes times{Duration(3), Duration(5), Duration(split ? 4 : 0), {}, {}, Duration(1)};
      stage.replicas = {{{DeviceId(shared ? 0 : s)}, {0, 1}, times}};
      stage.memory.saved = Bytes(7);
      stage.memory.saved_for_input = Bytes(3);
      stage.memory.between_halves = Bytes(2);
      model_.stages.push_back(stage);
    }
    Crossing crossing;
    crossing.tensor = "t";
    crossing.readers = {{StageId(1), true, Bytes(10), Bytes(returns ? 10 : 0), true}};
    crossing.output = Bytes(10);
    crossing.returns = returns;
    model_.crossings = {crossing};
    const std::string own = split ? "FFIIWW" : "FFBB";
    lists_.resize(shared ? 1 : 2);
    for (std::size_t s = 0; s < 2; ++s) {
      for (const char c : own) {
        lists_[shared ? 0 : s].emplace_back(static_cast<ActionKind>(std::string("FBIW").find(c)), StageId(s));
      }
    }
  }

  Verdicts run() {
    Verdicts verdicts;
    for (std::vector<Step>& list : lists_) std::sort(list.begin(), list.end());
    permute(0, verdicts);
    return verdicts;
  }

 private:
  void permute(std::size_t device, Verdicts& verdicts) {
    if (device == lists_.size()) {
      OrderLists lists = lists_;
      lists.resize(cluster_.devices().size());
      ++verdicts[verdict(with_orders(model_, Orders(std::move(lists))), cluster_)];
      return;
    }
    std::vector<Step>& list = lists_[device];
    do permute(device + 1, verdicts);
    while (std::next_permutation(list.begin(), list.end()) && !::testing::Test::HasFailure());
  }

  StagedModel model_;
  Cluster cluster_;
  OrderLists lists_;
};

TEST(AllOrders, OfTwoStagesOnTheirOwnDevices) {
  // 6 lists each. By hand: "F before B" leaves FFBB and FBFB; a's FBFB waits for b's B0 before its F1, so b
  // must be FBFB, too: 3 of 4 run.
  EXPECT_EQ(AllOrders(false, false, true).run(), (Verdicts{{"", 3}, {"deadlock", 1}, {"order", 32}}));
  // Without a gradient b waits for nobody: 4.
  EXPECT_EQ(AllOrders(false, false, false).run(), (Verdicts{{"", 4}, {"order", 32}}));
}

TEST(AllOrders, OfTwoStagesOnOneDevice) {
  // 8! / 2!^4 = 2520 lists. Legal ones are linear extensions: each micro-batch is a chain aF bF bB aB, and
  // each of the four ascends: standard Young tableaux of shape 4 × 2, 14 (Catalan). Others break `order`
  // within a stage, or wait for what stands behind them.
  Verdicts verdicts = AllOrders(true, false, true).run();
  EXPECT_EQ(verdicts[""], 14u);
  // F F B B within a stage: of its 6 orders 2 are legal, so 2520 · (2 / 6)² = 280 obey `order`.
  EXPECT_EQ(verdicts["deadlock"], 280u - 14u);
  EXPECT_EQ(verdicts["order"], 2520u - 280u);
}

TEST(AllOrders, OfTwoStagesWithSplitBackwards) {
  // 90 lists each, of which 5 obey `order` (Young tableaux of shape 3 × 2). A pair waits in a circle if a
  // wants I0 before its F1 (3 of 5) and b F1 before its I0 (2 of 5).
  Verdicts verdicts = AllOrders(false, true, true).run();
  EXPECT_EQ(verdicts["order"], 90u * 90u - 25u);
  EXPECT_EQ(verdicts[""] + verdicts["deadlock"], 25u);
  EXPECT_EQ(verdicts["deadlock"], 3u * 2u);
}

testing::RandomModelOptions options_of(std::uint64_t seed) {
  testing::RandomModelOptions options;
  options.max_stages = 4;
  options.max_micro_batches = 4;
  options.unequal_sizes = seed % 4 == 1;
  return options;
}

TEST(RandomOrders, AreAcceptedAndSimulatedOrRefusedForSlots) {
  Verdicts verdicts;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    RandomModel random = random_staged_model(rng, options_of(seed));
    const std::size_t devices = random.cluster.devices().size();
    const OrderLists lists =
        random_orders(rng, random.model, devices,
                      {.split = seed % 2 == 0, .early_ends = seed % 3 != 0, .depth_first = seed % 5 < 3});
    ++verdicts[verdict(with_orders(random.model, Orders(lists)), random.cluster)];
    if (HasFailure()) return;
  }
  EXPECT_GE(verdicts[""], 350u);
  EXPECT_EQ(verdicts[""] + verdicts["deadlock"], 400u);  // messages that wait for slots behind others
}

TEST(RandomOrders, MutationsAreRefusedByARuleOrRunToo) {
  Verdicts verdicts;
  for (std::uint64_t seed = 0; seed < 1500; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    RandomModel random = random_staged_model(rng, options_of(seed));
    OrderLists lists = random_orders(rng, random.model, random.cluster.devices().size(),
                                     {.split = seed % 2 == 0, .early_ends = seed % 3 != 0});
    for (std::size_t n = 1 + rng.below(3); n > 0; --n) testing::mutate_orders(rng, random.model, lists);
    ++verdicts[verdict(with_orders(random.model, Orders(lists)), random.cluster)];
    if (HasFailure()) return;
  }
  for (const char* rule : {"", "complete", "place", "order", "deadlock"})
    EXPECT_GE(verdicts[rule], 20u) << rule;
}

TEST(Rules, OfAnySortRunOnRandomModels) {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    Rng rng(seed);
    testing::RandomModelOptions options = options_of(4 * seed);  // equal sizes
    const bool any_limits = seed % 3 == 0;
    options.random_limits = any_limits;
    RandomModel random = random_staged_model(rng, options);
    const bool gpipe = rng.below(4) == 0 && !any_limits;  // whose limits are the shares
    OrderRule rule(gpipe ? ScheduleKind::kGPipe : ScheduleKind::kOneFOneB);
    if (rng.below(2) == 0) rule.backward = OrderRule::Backward::kSplit;
    if (rule.kind == ScheduleKind::kOneFOneB && rng.below(3) > 0) {
      for (std::size_t s = 0; s < random.model.stages.size(); ++s) {
        rule.group.push_back(static_cast<std::uint32_t>(1 + rng.below(4)));
      }
    }
    if (rng.below(2) == 0) {  // slots of any number
      for (StagedStage& stage : random.model.stages)
        stage.slots = static_cast<std::uint32_t>(1 + rng.below(3));
    }
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + to_text(rule));
    StagedModel model = any_limits ? random.model : with_orders(random.model, rule);
    model.orders = rule;
    EXPECT_EQ(verdict(model, random.cluster), "")
        << print_schedule(model, random.cluster, make_schedule(model, random.cluster.devices().size()));
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace espalier
