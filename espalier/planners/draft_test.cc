#include "espalier/planners/draft.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <set>

#include "espalier/base/check.h"
#include "espalier/base/rng.h"
#include "espalier/cost/analytic.h"
#include "espalier/graph/text.h"
#include "espalier/planners/oracle.h"
#include "testing/random_graphs.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::StartsWith;

TEST(OperatorSet, ListsAndRunsThatHoldTheSameAreEqual) {
  const OperatorSet listed{OperatorId(5), OperatorId(1), OperatorId(2), OperatorId(5), OperatorId(3)};
  const OperatorSet run(std::vector<OperatorRun>{{5, 5}, {2, 3}, {1, 2}});
  EXPECT_EQ(listed, run);
  EXPECT_THAT(listed.runs(), ElementsAre(OperatorRun{1, 3}, OperatorRun{5, 5}));
  EXPECT_EQ(listed.size(), 4U);
  EXPECT_TRUE(listed.contains(OperatorId(3)));
  EXPECT_FALSE(listed.contains(OperatorId(4)));
  EXPECT_FALSE(OperatorSet().contains(OperatorId(0)));
  EXPECT_THAT(listed.operators(), ElementsAre(OperatorId(1), OperatorId(2), OperatorId(3), OperatorId(5)));
}

// All ways to deal so many, one at least to each.
void for_each_deal(std::int64_t left, std::size_t replicas, std::vector<std::int64_t>& deal,
                   const std::function<void()>& visit) {
  if (deal.size() + 1 == replicas) {
    deal.push_back(left);
    visit();
    deal.pop_back();
    return;
  }
  const auto others = static_cast<std::int64_t>(replicas - deal.size() - 1);
  for (std::int64_t mine = 1; mine + others <= left; ++mine) {
    deal.push_back(mine);
    for_each_deal(left - mine, replicas, deal, visit);
    deal.pop_back();
  }
}

TEST(EvenShares, EndAsEarlyAsAnyDealOfRandomReplicas) {
  Rng rng(5);
  int uneven = 0;
  for (int trial = 0; trial < 400; ++trial) {
    std::vector<Duration> times;
    const std::size_t replicas = 1 + rng.below(4);
    for (std::size_t r = 0; r < replicas; ++r)
      times.push_back(nanoseconds(static_cast<std::int64_t>(1 + rng.below(7))));
    const auto m = static_cast<std::int64_t>(replicas + rng.below(12));
    const auto end_of = [&](const auto& shares) {
      Duration end;
      for (std::size_t r = 0; r < replicas; ++r) end = std::max(end, std::int64_t{shares[r]} * times[r]);
      return end;
    };
    Duration least = Duration::max();
    std::vector<std::int64_t> deal;
    for_each_deal(m, replicas, deal, [&] { least = std::min(least, end_of(deal)); });
    const std::vector<std::uint32_t> shares = even_shares(m, times);
    if (shares.empty()) {
      EXPECT_TRUE(std::ranges::adjacent_find(times, std::ranges::not_equal_to()) == times.end());
      continue;
    }
    ++uneven;
    ASSERT_EQ(shares.size(), replicas);
    EXPECT_EQ(std::accumulate(shares.begin(), shares.end(), std::int64_t{0}), m);
    EXPECT_GT(*std::ranges::min_element(shares), 0U);
    EXPECT_EQ(end_of(shares), least) << ::testing::PrintToString(times) << m;
    const auto dealt = deal_micro_batches(narrow(static_cast<std::size_t>(m)), shares);
    for (std::size_t r = 0; r < replicas; ++r) EXPECT_EQ(dealt[r].size(), shares[r]);
  }
  EXPECT_GT(uneven, 200);
}

TEST(EvenShares, ALongStepIsNoTrouble) {
  const std::vector<Duration> times{Duration(std::int64_t{1} << 40), Duration(std::int64_t{1} << 41)};
  EXPECT_THAT(even_shares(std::int64_t{3} << 18, times),
              ElementsAre(std::uint32_t{1} << 19, std::uint32_t{1} << 18));
}

struct RandomDrafts {
  Graph graph;
  std::vector<std::vector<OperatorId>> own;  // by draft: not duplicable
  std::vector<StageDraft> drafts;
};

// Each operator goes to the draft of the one before it, or to any; with `in_order` to none before those that
// it reads from.
RandomDrafts random_drafts(Rng& rng, bool in_order) {
  RandomDrafts random{
      testing::random_graph(rng,
                            {.operators = 4 + rng.below(60), .mutations = true, .unread_duplicables = true}),
      {},
      {}};
  const Graph& graph = random.graph;
  const std::size_t count = 1 + rng.below(6);
  std::vector<std::size_t> draft_of(graph.operators().size());
  std::vector<std::vector<OperatorId>> held(count);
  std::size_t current = 0;
  for (std::size_t i = 0; i < draft_of.size(); ++i) {
    if (graph.operators()[i].duplicable) continue;
    if (rng.below(4) == 0) current = rng.below(count);
    std::size_t mine = current;
    for (const OperatorId p : graph.predecessors(OperatorId(i))) {
      if (in_order && !graph.op(p).duplicable) mine = std::max(mine, draft_of[p.index()]);
    }
    draft_of[i] = mine;
    held[mine].push_back(OperatorId(i));
  }
  for (std::size_t d = 0; d < count; ++d) {
    if (held[d].empty()) continue;
    StageDraft draft{held[d], {DeviceId(random.drafts.size())}, {}};
    if (rng.below(3) == 0 && !random.drafts.empty()) draft.after = {rng.below(random.drafts.size())};
    random.own.push_back(held[d]);
    random.drafts.push_back(std::move(draft));
  }
  return random;
}

// What header and docs say, word by word: no run, no table.
std::optional<PipelinePlan> by_definition(const RandomDrafts& random, BatchSize batch,
                                          BatchSize micro_batch) {
  const Graph& graph = random.graph;
  const std::size_t count = random.drafts.size();
  std::map<OperatorId, std::size_t> holder;
  for (std::size_t d = 0; d < count; ++d) {
    for (const OperatorId op : random.own[d]) holder[op] = d;
  }
  std::vector<std::set<std::size_t>> before(count);
  for (const auto& [op, d] : holder) {
    for (const OperatorId p : graph.predecessors(op)) {
      if (!graph.op(p).duplicable && holder[p] != d) before[d].insert(holder[p]);
    }
  }
  for (std::size_t d = 0; d < count; ++d) {
    before[d].insert(random.drafts[d].after.begin(), random.drafts[d].after.end());
  }
  std::vector<std::size_t> order;
  std::map<std::size_t, std::size_t> place;
  while (order.size() < count) {
    std::optional<std::size_t> next;
    for (std::size_t d = 0; d < count && !next; ++d) {
      if (place.contains(d)) continue;
      bool ready = true;
      for (const std::size_t b : before[d]) ready = ready && place.contains(b);
      if (ready) next = d;
    }
    if (!next) return std::nullopt;
    place.emplace(*next, order.size());
    order.push_back(*next);
  }
  PipelinePlan plan;
  plan.batch = batch;
  plan.orders = OrderRule(ScheduleKind::kOneFOneB);
  std::set<OperatorId> placed;
  const auto add_what_is_read = [&](std::set<OperatorId>& mine) {
    for (bool grown = true; grown;) {
      grown = false;
      for (const OperatorId op : std::set<OperatorId>(mine)) {
        for (const OperatorId p : graph.predecessors(op)) {
          if (graph.op(p).duplicable) grown = mine.insert(p).second || grown;
        }
      }
    }
  };
  for (const std::size_t d : order) {
    std::set<OperatorId> mine(random.own[d].begin(), random.own[d].end());
    add_what_is_read(mine);
    placed.insert(mine.begin(), mine.end());
    Stage stage;
    stage.operators.assign(mine.begin(), mine.end());
    for (const std::size_t b : before[d]) stage.after.push_back(StageId(place[b]));
    std::sort(stage.after.begin(), stage.after.end());
    stage.micro_batch = micro_batch;
    const auto micro_batches = static_cast<std::uint32_t>(batch.count() / micro_batch.count());
    for (const DeviceId device : random.drafts[d].devices) {
      stage.replicas.push_back({{device}, round_robin(micro_batches, 0, 1)});
    }
    plan.stages.push_back(std::move(stage));
  }
  std::set<OperatorId> last(plan.stages.back().operators.begin(), plan.stages.back().operators.end());
  for (std::size_t i = 0; i < graph.operators().size(); ++i) {
    if (!placed.contains(OperatorId(i))) last.insert(OperatorId(i));
  }
  add_what_is_read(last);
  plan.stages.back().operators.assign(last.begin(), last.end());
  const auto limits = in_flight_limits(plan);
  for (std::size_t s = 0; s < count; ++s) plan.stages[s].in_flight = limits[s];
  return plan;
}

Cluster six_devices() {
  ClusterParts parts;
  DeviceKind kind;
  kind.name = "gpu";
  kind.memory = Bytes(1 << 20);
  kind.flops_f32 = kind.flops_f16 = 1e12;
  kind.memory_bandwidth = 1'000'000'000;
  parts.kinds.push_back(kind);
  Group group;
  group.name = "net";
  group.latency = microseconds(3);
  parts.groups.push_back(group);
  for (int d = 0; d < 6; ++d)
    parts.devices.push_back({"d" + std::to_string(d), KindId(0), GroupId(0), kind.memory});
  return Cluster(std::move(parts));
}

TEST(Draft, PlansAreThoseOfTheDefinitionAndAreJudgedAsTheyAreSpelled) {
  const Cluster cluster = six_devices();
  int circles = 0, planned = 0, with_duplicables = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Rng rng(seed);
    const RandomDrafts random = random_drafts(rng, seed % 3 != 0);
    const DraftRules rules(random.graph);
    const BatchSize batch(8), micro_batch(2);
    const auto expected = by_definition(random, batch, micro_batch);
    const auto plan = rules.complete(random.drafts, batch, micro_batch, OrderRule(ScheduleKind::kOneFOneB));
    ASSERT_EQ(plan.has_value(), expected.has_value()) << print_graph(random.graph);
    if (!plan) {
      ++circles;
      continue;
    }
    ++planned;
    PipelinePlan spelled = spelled_out(random.graph, *plan);
    for (const std::string& violation : check_plan(random.graph, cluster, spelled)) {
      EXPECT_THAT(violation, StartsWith("colocation")) << print_graph(random.graph);
    }
    Training training;
    training.batch = batch;
    training.micro_batches = {micro_batch};
    const CostTable costs =
        complete_costs(random.graph, cluster, CostTable(CostTableParts{}), training.micro_batches);
    const Oracle oracle(random.graph, cluster, costs, training);
    std::vector<StageRuns> runs;
    for (std::size_t s = 0; s < plan->runs.size(); ++s) {
      EXPECT_EQ(plan->runs[s].operators, runs_of(spelled.stages[s].operators));
      with_duplicables += spelled.stages[s].operators.size() > random.own[s].size();
      runs.push_back({plan->runs[s].operators, plan->runs[s].recompute});
    }
    const Oracle::Loan scratch(oracle);
    EXPECT_EQ(oracle.evaluator().evaluate(plan->frame, runs, *scratch),
              oracle.evaluator().evaluate(spelled, *scratch));
    for (Stage& stage : spelled.stages) stage.name.clear();
    EXPECT_EQ(spelled, *expected) << print_graph(random.graph);
  }
  EXPECT_GT(planned, 150);
  EXPECT_GT(circles, 20);
  EXPECT_GT(with_duplicables, 100);
}

TEST(Draft, WhatIsTornApartWritesOrIsPinnedElsewhereIsFound) {
  int torn = 0, writing = 0, broken = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Rng rng(seed);
    const RandomDrafts random = random_drafts(rng, true);
    const Graph& graph = random.graph;
    const DraftRules rules(graph);
    std::vector<std::optional<DeviceId>> pins(graph.operators().size());
    for (auto& pin : pins) {
      if (rng.below(6) == 0) pin = DeviceId(rng.below(2));
    }
    const PinTable table(graph, pins);
    for (const std::vector<OperatorId>& own : random.own) {
      const std::vector<OperatorRun> runs = runs_of(own);
      const std::set<OperatorId> mine(own.begin(), own.end());
      std::optional<OperatorId> first_torn, first_writer, first_broken;
      const std::vector<DeviceId> devices(1 + rng.below(2), DeviceId(rng.below(2)));
      for (const OperatorId op : own) {
        for (std::size_t i = 0; i < graph.operators().size(); ++i) {
          const auto& group = graph.operators()[i].colocation;
          if (group && group == graph.op(op).colocation && !graph.operators()[i].duplicable &&
              !mine.contains(OperatorId(i)) && !first_torn)
            first_torn = op;
        }
        if (writes_buffer(graph, op) && !first_writer) first_writer = op;
        if (pins[op.index()] && devices != std::vector{*pins[op.index()]} && !first_broken) first_broken = op;
      }
      EXPECT_EQ(rules.first_torn(runs), first_torn) << print_graph(graph);
      EXPECT_EQ(rules.first_writer(runs), first_writer);
      EXPECT_EQ(table.first_broken(runs, devices), first_broken);
      torn += first_torn.has_value();
      writing += first_writer.has_value();
      broken += first_broken.has_value();
    }
  }
  EXPECT_GT(torn, 20);
  EXPECT_GT(writing, 20);
  EXPECT_GT(broken, 20);
}

TEST(Draft, OperatorsThatStandInTwoDraftsOrInNoneAreOurMistake) {
  const Graph graph = parse_graph("x = input() : f32[b]\na = f(x)\nb = f(a)\nloss = f(b) : f32[]\n");
  const DraftRules rules(graph);
  const auto complete = [&](const std::vector<StageDraft>& drafts) {
    return rules.complete(drafts, BatchSize(2), BatchSize(1), OrderRule(ScheduleKind::kOneFOneB));
  };
  const OperatorSet first{OperatorId(0), OperatorId(1)}, second{OperatorId(1), OperatorId(2)};
  EXPECT_THROW(complete({{first, {DeviceId(0)}, {}}, {second, {DeviceId(1)}, {}}}), InternalError);
  EXPECT_THROW(complete({{first, {DeviceId(0)}, {}}}), InternalError);
}

}  // namespace
}  // namespace espalier
