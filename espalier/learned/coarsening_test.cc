#include "espalier/learned/coarsening.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <set>

#include "espalier/base/files.h"
#include "espalier/base/rng.h"
#include "espalier/learned/gdp.h"
#include "espalier/learned/learner.h"
#include "espalier/learned/rollout_objective.h"
#include "espalier/learned/towers_for_tests.h"
#include "testing/refusal.h"

namespace espalier::placement {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::refusal;

const PlacementTask& towers_in_groups() {
  static const PlacementTask kTask(two_towers().graph, two_towers().instance, {.clusters = {.clusters = 32}});
  return kTask;
}

PolicyShape coarsening_shape(Coarsening coarsening = Coarsening::kLearned) {
  PolicyShape shape{.width = 16, .heads = 2, .segment = 16};
  shape.coarsening = coarsening;
  return shape;
}

std::string coarsening_file() {
  return (std::filesystem::temp_directory_path() / "espalier_coarsening_test.safetensors").string();
}

// Whom nodes join, and the choices that say so.
struct Joined {
  std::vector<std::uint32_t> target;
  NodeChoices choices;
};
Joined joined(const std::vector<std::uint32_t>& whom) {
  Joined made;
  for (std::uint32_t n = 0; n < whom.size(); ++n) {
    made.target.resize((n + 1) * kJoinEntries, n);
    made.target[n * kJoinEntries + 1] = whom[n];
    made.choices.push_back(whom[n] == n ? 0 : 1);
  }
  return made;
}
Grouping grouping_of(const std::vector<std::uint32_t>& whom) {
  const Joined made = joined(whom);
  return groups_of(made.target, made.choices);
}

// ---- Groups

TEST(Groups, AreTheComponentsOfWhatNodesChose) {
  EXPECT_THAT(grouping_of({0, 1, 2}), ElementsAre(0, 1, 2));              // each by itself
  EXPECT_THAT(grouping_of({0, 2, 2, 2, 3}), ElementsAre(0, 1, 1, 1, 1));  // the header's picture
  EXPECT_THAT(grouping_of({1, 0, 2, 2}), ElementsAre(0, 0, 1, 1));        // two that chose each other
  EXPECT_THAT(grouping_of({1, 2, 0}), ElementsAre(0, 0, 0));              // a circle
  EXPECT_THAT(grouping_of({4, 3, 2, 3, 4}), ElementsAre(0, 1, 2, 1, 0));  // numbered by their first nodes
}

TEST(Groups, EqualANaiveUnionOnRandomChoices) {
  Rng rng(5);
  for (int round = 0; round < 200; ++round) {
    const std::size_t nodes = 1 + rng.below(30);
    std::vector<std::uint32_t> whom;
    for (std::size_t n = 0; n < nodes; ++n)
      whom.push_back(static_cast<std::uint32_t>(rng.below(3) == 0 ? n : rng.below(nodes)));
    std::vector<std::uint32_t> label(nodes);
    for (std::uint32_t n = 0; n < nodes; ++n) label[n] = n;
    for (std::size_t again = 0; again < nodes; ++again) {
      for (std::size_t n = 0; n < nodes; ++n) label[n] = label[whom[n]] = std::min(label[n], label[whom[n]]);
    }
    const Grouping grouping = grouping_of(whom);
    std::set<std::uint32_t> seen;
    for (std::size_t n = 0; n < nodes; ++n) {
      // Numbers are given in the order of first nodes.
      seen.insert(grouping[n]);
      ASSERT_EQ(*seen.rbegin() + 1, seen.size());
      for (std::size_t m = 0; m < nodes; ++m)
        ASSERT_EQ(grouping[n] == grouping[m], label[n] == label[m]) << n << " and " << m;
    }
  }
}

TEST(Groups, NodesJoinNeighboursWithLongMessagesThatMayStandWhereTheyMay) {
  PolicyInput input = towers_in_groups().input();
  const JoinOptions options = join_options(input);
  std::size_t edges = 0;
  for (std::uint32_t n = 0; n < input.nodes; ++n) {
    const auto row = std::span(options.target).subspan(n * kJoinEntries, kJoinEntries);
    EXPECT_EQ(row[0], n);
    EXPECT_EQ(options.count[n], std::min<std::size_t>(kMostNeighbours, input.neighbours[n].size()));
    const auto known = input.neighbours[n];
    for (std::size_t i = 1; i < kJoinEntries; ++i) {
      const bool is_neighbour = std::binary_search(known.begin(), known.end(), row[i]);
      EXPECT_TRUE(i > options.count[n] ? row[i] == n : is_neighbour);
    }
    edges += options.count[n];
  }
  EXPECT_EQ(options.numbers.size(), edges * kJoinNumbers);
  // Node 0 alone may not stand on device 1.
  input.allowed[1] = 0;
  const JoinOptions barred = join_options(input);
  EXPECT_EQ(barred.count[0], 0U);
  for (std::size_t n = 1; n < input.nodes; ++n) {
    for (std::size_t i = 0; i < kJoinEntries; ++i) EXPECT_NE(barred.target[n * kJoinEntries + i], 0U);
  }
}

// Three nodes with weights 1, 3 and 2.
JoinInput three_nodes() {
  JoinInput input(towers_in_groups().input(), at::kCPU);
  input.target = joined({1, 1, 1}).target;
  input.weight = at::tensor({1.0F, 3.0F, 2.0F});
  return input;
}

TEST(Groups, PoolLogitsByTheWorkOfTheirNodes) {
  const at::Tensor logits = at::tensor({4.0F, 0.0F, 8.0F, 2.0F, 1.0F, -INFINITY}).view({3, 2});
  const Groups groups = make_groups(three_nodes(), {{0, 0, 1}, {0, 1, 2}});
  EXPECT_THAT(groups.begin, ElementsAre(0, 2, 5));
  const at::Tensor rows = pooled(logits, groups);
  // (1 · 4 + 3 · 8) / 4 and (1 · 0 + 3 · 2) / 4; then nodes as they are.
  const at::Tensor expected =
      at::tensor({7.0F, 1.5F, 1.0F, -INFINITY, 4.0F, 0.0F, 8.0F, 2.0F, 1.0F, -INFINITY}).view({5, 2});
  EXPECT_TRUE(at::allclose(rows, expected)) << rows;
  EXPECT_THAT(of_groups({0, 0, 1}, {DeviceId(1), DeviceId(1), DeviceId(0)}),
              ElementsAre(DeviceId(1), DeviceId(0)));
  const std::vector<float> certain{0, 1, 1, 0, 0, 1, 1, 0, 0, 1};
  const std::vector<NodeDevices> drawn = draw_groups(certain, 2, groups, 1);
  EXPECT_THAT(drawn[0], ElementsAre(DeviceId(1), DeviceId(1), DeviceId(0)));
  EXPECT_THAT(drawn[1], ElementsAre(DeviceId(1), DeviceId(0), DeviceId(1)));
}

// ---- What is learnt

double log_softmax_of(const std::vector<double>& row, std::size_t entry) {
  double sum = 0;
  for (const double value : row) sum += std::exp(value);
  return row[entry] - std::log(sum);
}

// Nodes 0 and 2 may join node 1. In the first sample node 0 does, so groups are {0, 1} and {2}; in the second
// nobody does. Joining has the entries 0 and 1, the others are barred.
TEST(Coarsening, TheObjectiveIsOfEachChoiceAndEachGroupsDevice) {
  struct Numbers {
    double devices[3][2], joins[3][2];
  };
  const Numbers old{{{0.5, -0.5}, {1, 0}, {0, 2}}, {{1, 0}, {0.3, 0}, {2, -1}}};
  const Numbers now{{{0.7, -0.4}, {0.8, 0.1}, {-0.2, 2}}, {{0.9, 0.2}, {0.3, 0}, {1.5, -1}}};
  const auto tensors = [](const Numbers& of) {
    HeadLogits made{at::empty({3, 2}), {}, at::full({3, static_cast<std::int64_t>(kJoinEntries)}, -INFINITY)};
    for (int n = 0; n < 3; ++n) {
      for (int i = 0; i < 2; ++i) {
        made.devices[n][i] = of.devices[n][i];
        made.joins[n][i] = of.joins[n][i];
      }
    }
    return made;
  };
  // The logarithm of each part's probability: three choices, then devices of groups.
  const auto parts = [](const Numbers& of, bool first) {
    const auto choice = [&](int n, std::size_t entry) {
      return log_softmax_of({of.joins[n][0], of.joins[n][1]}, entry);
    };
    const auto row = [&](int n) { return std::vector<double>{of.devices[n][0], of.devices[n][1]}; };
    if (!first)
      return std::vector<double>{choice(0, 0),
                                 choice(1, 0),
                                 choice(2, 0),
                                 log_softmax_of(row(0), 0),
                                 log_softmax_of(row(1), 1),
                                 log_softmax_of(row(2), 0)};
    // Weights 1 and 3.
    const std::vector<double> both{(row(0)[0] + 3 * row(1)[0]) / 4, (row(0)[1] + 3 * row(1)[1]) / 4};
    return std::vector<double>{choice(0, 1), choice(1, 0), choice(2, 0), log_softmax_of(both, 1),
                               log_softmax_of(row(2), 0)};
  };
  const JoinInput join = three_nodes();
  const DeviceId zero(0), one(1);
  const std::vector<Sample> samples{{{one, one, zero}, {}, {}, {}, {1, 0, 0}},
                                    {{zero, one, zero}, {}, {}, {}, {0, 0, 0}}};
  const std::vector<double> advantage{1, -0.5};
  const RolloutObjective objective(samples, advantage, tensors(old), &join);
  for (const double clip : {10.0, 0.1}) {
    double expected = 0;
    for (const bool first : {true, false}) {
      const std::vector<double> then = parts(old, first), today = parts(now, first);
      const double gain = first ? 1 : -0.5;
      for (std::size_t i = 0; i < then.size(); ++i) {
        const double chance = std::exp(today[i] - then[i]);
        expected += gain * (gain > 0 ? std::min(chance, 1 + clip) : std::max(chance, 1 - clip)) / (2 * 3);
      }
    }
    EXPECT_NEAR(objective.loss(tensors(now), clip, 0).item<double>(), -expected, 1e-5);
  }
}

std::vector<LearningPoint> learn_towers(Policy& policy, std::uint64_t updates, ThreadPool* pool = nullptr) {
  Learner learner(policy, {&towers_in_groups()}, {.updates = updates});
  Context context;
  context.budget.max_states = updates * 16;
  context.pool = pool;
  while (learner.update(context)) {
  }
  return learner.progress(0).curve;
}

TEST(Coarsening, SamplesGetFaster) {
  Policy policy(coarsening_shape(), 1);
  const std::vector<LearningPoint> curve = learn_towers(policy, 60);
  EXPECT_LT(curve.back().mean, 0.8 * curve.front().mean);
  EXPECT_LT(curve.back().best, 0.75);  // one device: 1; both towers at once: little over a half
}

TEST(Coarsening, AFreshNodeOftenJoinsANeighbourAndRandomChoicesStaySo) {
  for (const Coarsening which : {Coarsening::kLearned, Coarsening::kRandom}) {
    Policy policy(coarsening_shape(which), 1);
    const PolicyInput& input = towers_in_groups().input();
    const auto rows = [&] { return at::softmax(policy.parts().heads(input).joins, 1).detach(); };
    const at::Tensor before = rows();
    for (std::size_t n = 0; n < input.nodes; ++n) {
      const double own = before[static_cast<std::int64_t>(n)][0].item<double>();
      EXPECT_NEAR(own, input.neighbours[n].empty() ? 1 : kOfItself, 0.1);
    }
    learn_towers(policy, 10);
    EXPECT_EQ(at::equal(rows(), before), which == Coarsening::kRandom);
  }
}

TEST(Coarsening, ImitationKeepsApartWhatStandsApart) {
  const PolicyInput& input = towers_in_groups().input();
  NodeDevices target;
  for (std::size_t n = 0; n < input.nodes; ++n) target.emplace_back(n / 8 % 2);
  Policy policy(coarsening_shape(), 1);
  Learner learner(policy, {&towers_in_groups()}, {});
  learner.imitate({target}, 150, 0.9, 3e-3);
  EXPECT_EQ(most_probable(policy.probabilities(input), 2), target);
  const JoinInput& join = *policy.parts().join_input(input);
  std::vector<std::int64_t> label = indices(target);
  EXPECT_GT(at::exp(kept_together(policy.parts().heads(input).joins, join, label)).mean().item<double>(),
            0.9);
}

TEST(Coarsening, AnAnswerIsOfTheGroupsOfEachNodesBestChoice) {
  Policy policy(coarsening_shape(), 1);
  learn_towers(policy, 20);
  Policy::Parts& parts = policy.parts();
  const PolicyInput& input = towers_in_groups().input();
  const HeadLogits heads = parts.heads(input);
  const Grouping grouping = groups_of(parts.join_input(input)->target, best_choices(heads.joins));
  const NodeDevices answer = most_probable(policy.probabilities(input), 2);
  for (std::size_t n = 0; n < input.nodes; ++n) {
    const auto first = std::find(grouping.begin(), grouping.end(), grouping[n]) - grouping.begin();
    EXPECT_EQ(answer[n], answer[static_cast<std::size_t>(first)]);
  }
}

TEST(Coarsening, GoesWithEveryOtherOption) {
  PolicyShape shape = coarsening_shape();
  shape.refinements = 1;
  shape.spectral = 4;
  shape.priorities = 3;
  Context context;
  context.budget.max_states = 200;
  const Placed placed =
      gdp({two_towers().graph, two_towers().instance}, {.shape = shape, .updates = 5}, context);
  EXPECT_TRUE(placed.assignment.has_value());
}

TEST(Coarsening, IsLearntToTheSameBytesByAnyThreadsAndFromACheckpoint) {
  const std::string file = coarsening_file();
  ThreadPool two(2);
  Policy whole(coarsening_shape(), 1), broken(coarsening_shape(), 1), other(coarsening_shape(), 77);
  const LearningOptions options{.updates = 6, .repeat_best = true};
  const auto run = [](Learner& learner, std::uint64_t updates, ThreadPool* pool) {
    Context context;
    context.budget.max_states = updates * 16;
    context.pool = pool;
    while (learner.update(context)) {
    }
  };
  Learner through(whole, {&towers_in_groups()}, options);
  run(through, 6, nullptr);
  Learner first(broken, {&towers_in_groups()}, options);
  run(first, 3, &two);
  first.save(file);
  Learner second(other, {&towers_in_groups()}, options);
  second.restore(file);
  EXPECT_EQ(second.progress(0).best->choices, first.progress(0).best->choices);
  run(second, 3, &two);
  EXPECT_EQ(second.progress(0).curve, through.progress(0).curve);
  EXPECT_EQ(other.probabilities(towers_in_groups().input()), whole.probabilities(towers_in_groups().input()));
  std::remove(file.c_str());
}

TEST(Coarsening, APolicysFileSaysHowItCoarsens) {
  const std::string file = coarsening_file();
  const PolicyInput& input = towers_in_groups().input();
  for (const Coarsening which : {Coarsening::kNone, Coarsening::kLearned, Coarsening::kRandom}) {
    const Policy policy(coarsening_shape(which), 4);
    policy.write(file);
    // As files were before there was any.
    EXPECT_EQ(read_file(file).find("coarsening") == std::string::npos, which == Coarsening::kNone);
    const Policy read = Policy::read(file);
    EXPECT_EQ(read.shape(), policy.shape());
    EXPECT_EQ(read.probabilities(input), policy.probabilities(input));
    EXPECT_EQ(policy.clone().probabilities(input), policy.probabilities(input));
    EXPECT_EQ(parse_coarsening(to_text(which)), which);
  }
  std::string bytes = read_file(file);
  bytes.replace(bytes.find("random"), 6, "rundom");
  EXPECT_THAT(refusal([&] { Policy::parse(bytes, "p"); }), HasSubstr("expected none, learned or random"));
  std::remove(file.c_str());
}

}  // namespace
}  // namespace espalier::placement
