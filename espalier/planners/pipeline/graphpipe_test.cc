#include "espalier/planners/pipeline/graphpipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "espalier/base/rng.h"
#include "espalier/cost/work.h"
#include "espalier/planners/pipeline/graphpipe_bisection.h"
#include "espalier/planners/pipeline/graphpipe_search.h"
#include "espalier/planners/pipeline/pipedream.h"
#include "espalier/planners/repeated.h"
#include "espalier/planners/toy_for_tests.h"
#include "espalier/sim/simulate.h"
#include "testing/brute_force.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using namespace internal;  // NOLINT(google-build-using-namespace): the parts of this planner

const PipelinePlan& pipeline_of(const Outcome& outcome) {
  return std::get<PipelinePlan>(*outcome.plan);
}

// The whole way, through every checker.
Duration checked_iteration(const Toy& toy, const Outcome& outcome) {
  const PipelinePlan& plan = pipeline_of(outcome);
  EXPECT_THAT(check_plan(toy.graph, toy.cluster, plan), IsEmpty());
  const StagedModel model = stage_model(toy.graph, toy.cluster, toy.costs, toy.training, plan);
  const Schedule schedule = make_schedule(model, toy.cluster.devices().size());
  EXPECT_THAT(check_schedule(model, schedule), IsEmpty());
  const Trace trace = simulate(model, toy.cluster, schedule);
  EXPECT_THAT(check_trace(model, toy.cluster, schedule, trace), IsEmpty());
  return trace.iteration;
}

Outcome planned(const Toy& toy, const GraphPipeOptions& options = {}, Pins pins = {}) {
  Context context;
  return graphpipe(toy.problem(std::move(pins)), options, context);
}

std::size_t depth_of(const PipelinePlan& plan) {
  std::vector<std::size_t> depth(plan.stages.size(), 1);
  std::size_t most = 0;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    for (const StageId before : plan.stages[s].after) {
      depth[s] = std::max(depth[s], depth[before.index()] + 1);
    }
    most = std::max(most, depth[s]);
  }
  return most;
}

Bisection bisected(PipeSearch& search, std::int64_t slack_per_mille = 0) {
  Bisection bisection(search, slack_per_mille);
  while (!bisection.ended()) bisection.step();
  return bisection;
}

std::string equal_devices(std::size_t count, const std::string& memory = "1GiB",
                          const std::string& latency = "0ns") {
  std::string text = "kind gpu " + memory + " f32=1e12 f16=1e12 mem=100GB launch=0ns sms=1\n" +
                     "group network latency=" + latency + " lanes=unlimited\n";
  for (std::size_t d = 0; d < count; ++d) text += "device dev" + std::to_string(d) + " gpu in network\n";
  return text;
}

// Branches of layers of class `layer`, each with its own input, and a loss of class c0 that reads their ends.
// With buffers each layer writes one of its own, so that no stage has replicas.
enum class Layers { kPlain, kWithBuffers };
std::string towers(std::size_t branches, std::size_t layers, const std::string& layer = "c1",
                   Layers kind = Layers::kPlain) {
  std::string text = "w = parameter(w) : f32[1]\n", ends;
  for (std::size_t b = 0; b < branches; ++b) {
    const std::string input = "x" + std::to_string(b);
    text += input + " = input() : f32[b]\n";
    std::string previous = input;
    for (std::size_t l = 0; l < layers; ++l) {
      const std::string name = "t" + std::to_string(b) + "_" + std::to_string(l);
      if (kind == Layers::kWithBuffers) {
        text += "m" + name + " = buffer(" + name + ") : f32[1]\n" + name + " = f(" + previous + ", m" + name +
                ", w) : f32[b] @mutates=m" + name + " @class=" + layer + "\n";
      } else {
        text += name + " = f(" + previous + ", w) : f32[b] @class=" + layer + "\n";
      }
      previous = name;
    }
    ends += (b == 0 ? "" : ", ") + previous;
  }
  return text + "loss = head(" + ends + ") : f32[] @class=c0\nreturn loss\n";
}

// The rule of in-flight samples: the paper's Fig. 5, where stages with micro-batches of 1, 2 and 4 hold 10, 8
// and 4 samples, and with 4 everywhere 12, 8 and 4.
TEST(GraphPipeInFlight, SmallerMicroBatchesInFrontHoldTenSamplesInsteadOfTwelve) {
  const auto samples = [](std::int64_t b, std::int64_t held, std::int64_t b_next) {
    return b * in_flight_before(1, 1, b, held, b_next);
  };
  EXPECT_EQ(samples(2, 4, 4), 8);
  EXPECT_EQ(samples(1, 8, 2), 10);
  EXPECT_EQ(samples(4, 4, 4), 8);
  EXPECT_EQ(samples(4, 8, 4), 12);
}

TEST(GraphPipeInFlight, TwoForwardsTwoBackwardsInFrontAsInThePublishedPrototype) {
  // Eight stages, the first 2F2B with b = 1, the others 1F1B with b = 2: 16, 14 … 2.
  std::int64_t held = 2;
  for (int stage = 7; stage > 1; --stage) held = 2 * in_flight_before(1, 1, 2, held, 2);
  EXPECT_EQ(held, 14);
  EXPECT_EQ(in_flight_before(1, 2, 1, held, 2), 16);
}

TEST(GraphPipe, PlansTheWorkedExampleAsAGraphPipeline) {
  const Toy toy(kTowers, kThreeDevices, 4);
  const Outcome outcome = planned(toy);
  ASSERT_EQ(outcome.status, Status::kFeasible) << outcome.why;
  EXPECT_EQ(checked_iteration(toy, outcome), milliseconds(26));  // docs/semantics.md
  // Its own figure: a tower computes 4 × 6 ms in a step.
  EXPECT_EQ(outcome.estimate, milliseconds(24));
}

// GraphPipe's case study (§7.5): two branches of four, eight devices. A chain has eight stages; here the loss
// stands in the last stage of one branch, so the other is one deeper: (m + 5 - 1) against (m + 8 - 1).
TEST(GraphPipe, TheCaseStudyIsHalfAsDeepAsAChain) {
  const Toy toy(towers(2, 4, "c1", Layers::kWithBuffers), equal_devices(8), 16);
  const Outcome outcome = planned(toy);
  ASSERT_EQ(outcome.status, Status::kFeasible) << outcome.why;
  EXPECT_THAT(pipeline_of(outcome).stages, SizeIs(8));
  EXPECT_EQ(depth_of(pipeline_of(outcome)), 5);
  EXPECT_EQ(checked_iteration(toy, outcome), milliseconds(3 * (16 + 5 - 1)));
  Context context;
  const Outcome chain = pipedream(toy.problem(), {}, context);
  EXPECT_GE(checked_iteration(toy, chain), milliseconds(3 * 16 + 3 * 4));
}

TEST(GraphPipe, AChainIsTheSequentialSpecialCase) {
  const Toy toy(
      "x = input() : f32[b]\nw = parameter(w) : f32[1]\na = f(x, w) : f32[b] @class=c1\n"
      "b = f(a, w) : f32[b] @class=c2\nc = f(b, w) : f32[b] @class=c1\n"
      "loss = f(c, w) : f32[] @class=c2\n",
      kThreeDevices, 6);
  Context context;
  const Outcome chain = pipedream(toy.problem(), {}, context), graph = planned(toy);
  EXPECT_LE(checked_iteration(toy, graph), checked_iteration(toy, chain));
}

// ---- The whole space, enumerated without any table.

struct Counted {  // a way to plan some part
  std::size_t devices = 0;
  std::int64_t samples = 0, bottleneck = 0;
};

// All that PipeSearch may answer, for devices that are alike and one micro-batch size, one by one.
class Everything {
 public:
  Everything(const PipeTree& tree, PipeSize& size, const Hop& hop, WrittenBuffers written)
      : tree_(tree), size_(size), hop_(hop), written_(written), devices_(size.row.size()) {}

  std::optional<std::int64_t> least_bottleneck() {
    std::optional<std::int64_t> least;
    for (const Counted& way : run(0, 0, tree_.runs[0].items.size(), 0)) {
      if (!least || way.bottleneck < *least) least = way.bottleneck;
    }
    return least;
  }

 private:
  using Ways = std::vector<Counted>;
  struct Cut {  // of a fork: the beginning of one branch, the end of one
    std::size_t front = kNone, front_cut = 0, tail = kNone, tail_cut = 0;
    static constexpr std::size_t kNone = 99;
  };

  // The stage before what holds `samples`.
  void put(const PlaceRanges& places, const Counted& rest, Ways& ways) {
    const StageNeeds& needs = size_.prices.needs(places);
    for (std::size_t r = 1; r + rest.devices <= devices_ && r <= size_.row.longest_run(); ++r) {
      if (std::find(size_.degrees.begin(), size_.degrees.end(), r) == size_.degrees.end()) continue;
      if (r > 1 && needs.writes_buffers && written_ == WrittenBuffers::kOneReplica) continue;
      const RunClass& on = size_.row.classes()[size_.row.class_of(0, r)];
      const auto replicas = static_cast<std::int64_t>(r), b = size_.samples();
      const std::int64_t wanted = rest.samples == 0 ? 1 : in_flight_before(replicas, 1, b, rest.samples, b);
      const std::int64_t w = std::min(on.share, wanted);
      if (needs.memory.memory(w) > on.memory) continue;
      const auto time = size_.prices.step_time(needs, on, hop_);
      if (!time) continue;
      ways.push_back({rest.devices + r, replicas * w * b, std::max(*time, rest.bottleneck)});
    }
  }

  Ways run(std::uint32_t of, std::size_t begin, std::size_t end, std::int64_t after) {
    if (begin >= end) return {{0, after, 0}};
    Ways ways;
    for (std::size_t j = begin + 1; j <= end; ++j) {
      for (const Counted& rest : run(of, j, end, after)) put(tree_.places(of, begin, j), rest, ways);
    }
    std::size_t fork_item = begin;
    while (fork_item < end && !tree_.runs[of].items[fork_item].fork) ++fork_item;
    if (fork_item == end) return ways;
    if (fork_item == begin) {
      for (const Counted& way : from_fork(of, begin, end, after, Cut())) ways.push_back(way);
      return ways;
    }
    const std::vector<std::uint32_t>& branches = tree_.forks[*tree_.runs[of].items[fork_item].fork].branches;
    for (std::size_t b = 0; b < branches.size(); ++b) {
      for (std::size_t cut = 1; cut <= tree_.runs[branches[b]].items.size(); ++cut) {
        PlaceRanges places = tree_.places(of, begin, fork_item);
        for (const Places& each : tree_.places(branches[b], 0, cut)) append_places(places, each);
        for (const Counted& rest : from_fork(of, fork_item, end, after, {.front = b, .front_cut = cut})) {
          put(places, rest, ways);
        }
      }
    }
    return ways;
  }

  Ways from_fork(std::uint32_t of, std::size_t item, std::size_t end, std::int64_t after, Cut cut) {
    Ways ways;
    const auto before = [&](const Cut& cuts, const Counted& rest) {
      for (const Counted& way : fork(*tree_.runs[of].items[item].fork, cuts, rest)) ways.push_back(way);
    };
    for (const Counted& rest : run(of, item + 1, end, after)) before(cut, rest);
    const std::vector<std::uint32_t>& branches = tree_.forks[*tree_.runs[of].items[item].fork].branches;
    for (std::size_t j = item + 2; j <= end; ++j) {
      for (std::size_t b = 0; b < branches.size(); ++b) {
        const std::size_t least = cut.front == b ? cut.front_cut : 0;
        for (std::size_t c = least; c < tree_.runs[branches[b]].items.size(); ++c) {
          PlaceRanges places = tree_.places(of, item + 1, j);
          for (const Places& each : tree_.places(branches[b], c, tree_.runs[branches[b]].items.size())) {
            append_places(places, each);
          }
          Ways joined;
          for (const Counted& rest : run(of, j, end, after)) put(places, rest, joined);
          Cut both = cut;
          both.tail = b;
          both.tail_cut = c;
          for (const Counted& rest : joined) before(both, rest);
        }
      }
    }
    return ways;
  }

  // Every partition of the branches: one by itself, or several whole ones one behind the other.
  Ways fork(std::uint32_t of, const Cut& cut, const Counted& rest) {
    const PipeFork& fork = tree_.forks[of];
    const std::vector<std::uint32_t>& branches = fork.branches;
    Ways ways;
    std::vector<std::size_t> group(branches.size(), 0);
    const std::function<void(std::size_t, std::size_t)> deal = [&](std::size_t b, std::size_t groups) {
      if (b == branches.size()) return deal_groups(fork, group, groups, cut, rest, ways);
      for (std::size_t g = 0; g <= groups; ++g) {
        group[b] = g;
        deal(b + 1, std::max(groups, g + 1));
      }
    };
    deal(0, 0);
    return ways;
  }

  void deal_groups(const PipeFork& fork, const std::vector<std::size_t>& group, std::size_t groups,
                   const Cut& cut, const Counted& rest, Ways& ways) {
    const std::vector<std::uint32_t>& branches = fork.branches;
    Ways all{{rest.devices, rest.samples, rest.bottleneck}};
    for (std::size_t g = 0; g < groups; ++g) {
      std::vector<std::uint16_t> members;
      for (std::size_t b = 0; b < branches.size(); ++b) {
        if (group[b] == g) members.push_back(static_cast<std::uint16_t>(b));
      }
      Ways own;
      if (members.size() == 1) {
        const std::size_t b = members.front(), items = tree_.runs[branches[b]].items.size();
        own = run(branches[b], cut.front == b ? cut.front_cut : 0, cut.tail == b ? cut.tail_cut : items,
                  rest.samples);
      } else {
        for (const std::uint16_t b : members) {
          if (b == cut.front || b == cut.tail) return;  // only whole branches
        }
        const auto together = fork.groups.find(members);
        if (together == fork.groups.end()) return;
        own = run(together->second, 0, tree_.runs[together->second].items.size(), rest.samples);
      }
      Ways next;
      for (const Counted& a : all) {
        for (const Counted& b : own) {
          if (a.devices + b.devices > devices_) continue;
          next.push_back(
              {a.devices + b.devices, std::max(a.samples, b.samples), std::max(a.bottleneck, b.bottleneck)});
        }
      }
      all = std::move(next);
    }
    ways.insert(ways.end(), all.begin(), all.end());
  }

  const PipeTree& tree_;
  PipeSize& size_;
  Hop hop_;
  WrittenBuffers written_;
  std::size_t devices_;
};

// Operators that read earlier ones, of any shape; the last reads all that is unread.
std::string random_text(Rng& rng, std::size_t operators, const std::string& type) {
  std::string text = "x = input() : " + type + "\nw = parameter(w) : f32[1]\n";
  std::vector<std::string> names{"x"}, unread;
  for (std::size_t i = 0; i < operators; ++i) {
    const bool last = i + 1 == operators;
    std::string inputs;
    if (last) {
      for (const std::string& each : unread) inputs += each + ", ";
    } else {
      for (std::size_t reads = 1 + rng.below(2); reads > 0; --reads) {
        const std::string read = names[rng.below(names.size())];
        if (inputs.find(read + ",") != std::string::npos) continue;
        std::erase(unread, read);
        inputs += read + ", ";
      }
    }
    const std::string name = last ? "loss" : "h" + std::to_string(i);
    text += name + " = f(" + inputs + "w) : " + (last ? "f32[]" : type) + " @class=c" +
            std::to_string(1 + rng.below(6)) + "\n";
    names.push_back(name);
    if (!last) unread.push_back(name);
  }
  return text;
}

// A problem's parts for one micro-batch size, as the planner makes them.
struct Parts {
  Parts(const Problem& problem, BatchSize b, PipeTreeOptions::Tangles tangles, std::size_t most_items = 64)
      : costs(problem.graph, problem.cluster, problem.costs, b),
        structure(make_structure(problem.graph, work_weights(problem.graph, costs, b))),
        line(problem, structure.operators),
        table(problem),
        prices(line, table, b, MemoryRule::kAll) {
    sizes.push_back(std::make_unique<PipeSize>(prices, unpinned_devices(problem), false));
    before.push_back(Weight());
    for (std::uint32_t place = 0; place < line.size(); ++place) {
      before.push_back(before.back() + Weight(sizes[0]->prices.micro_batches() *
                                              sizes[0]->prices.compute_alone(0, {{place, place + 1}})));
    }
    tree = make_pipe_tree(structure, before,
                          {.tangles = tangles, .most_items = most_items, .devices = sizes[0]->row.size()});
  }
  Hop slowest_hop() const {
    Hop slowest;
    const DeviceRow& row = sizes[0]->row;
    for (std::size_t d = 1; d < row.size(); ++d) {
      const Hop& hop = table.hops()[table.hop_of(row[d - 1], row[d])];
      if (d == 1 || hop.hold(mebibytes(1)) > slowest.hold(mebibytes(1))) slowest = hop;
    }
    return slowest;
  }

  OperatorCosts costs;
  Structure structure;
  Linearization line;
  DeviceTable table;
  PlacePrices prices;
  std::vector<std::unique_ptr<PipeSize>> sizes;
  std::vector<Weight> before;
  PipeTree tree;
};

TEST(GraphPipeSearch, FindsTheLeastBottleneckOfItsWholeSpace) {
  Rng rng(11);
  int compared = 0, forks = 0, infeasible = 0;
  for (int trial = 0; trial < 150; ++trial) {
    const std::string memory = std::to_string(rng.below(3) == 0 ? 4 + rng.below(12) : 4000) + "MiB";
    const std::string cluster = "kind gpu " + memory + " f32=1e12 f16=1e12 mem=100GB launch=0ns sms=1\n" +
                                "group network " + std::to_string(200 + 400 * rng.below(3)) +
                                "MB latency=0ns\n";
    std::string devices;
    const std::size_t count = 1 + rng.below(4);
    for (std::size_t d = 0; d < count; ++d) devices += "device dev" + std::to_string(d) + " gpu in network\n";
    const std::string text = random_text(rng, 2 + rng.below(5), "f32[b, 262144]");
    const Toy toy(text, cluster + devices, static_cast<std::int64_t>(1 + rng.below(6)));
    const Problem problem = toy.problem();
    const auto tangles =
        rng.below(2) == 0 ? PipeTreeOptions::Tangles::kAddedEdges : PipeTreeOptions::Tangles::kConvexCuts;
    Parts parts(problem, BatchSize(1), tangles);
    Context context;
    const PipeSearchOptions options{.schedule = ScheduleKind::kOneFOneB, .most_joined_branches = 99};
    PipeSearch search(parts.tree, parts.sizes, options, context);
    const std::optional<PipePlan> found = bisected(search).best();
    const auto least = Everything(parts.tree, *parts.sizes[0], parts.slowest_hop(), problem.written_buffers)
                           .least_bottleneck();
    ASSERT_EQ(found.has_value(), least.has_value()) << text << cluster << devices << trial;
    infeasible += least ? 0 : 1;
    if (!least) continue;
    EXPECT_EQ(found->bottleneck, *least) << text << cluster << devices;
    PipeSearch again(parts.tree, parts.sizes, options, context);
    const Bisection near = bisected(again, 100);
    EXPECT_LE(near.low(), *least) << text << cluster << devices;
    EXPECT_LE(near.best()->bottleneck - *least, near.best()->bottleneck / 10) << text << cluster << devices;
    ++compared;
    forks += parts.tree.forks.empty() ? 0 : 1;
  }
  EXPECT_GT(compared, 90);
  EXPECT_GT(forks, 40);
  EXPECT_GT(infeasible, 3);
}

TEST(GraphPipeSearch, TheShortcutForLongRunsLosesNothingWhereMessagesAreFree) {
  Rng rng(3);
  for (int trial = 0; trial < 20; ++trial) {
    const Toy toy(random_text(rng, 14, "f32[b]"), equal_devices(5), 6);
    const Problem problem = toy.problem();
    std::vector<std::int64_t> found;
    for (const std::size_t exact : {std::size_t{1}, std::size_t{99}}) {
      Parts parts(problem, BatchSize(1), PipeTreeOptions::Tangles::kAddedEdges);
      Context context;
      const PipeSearchOptions options{
          .schedule = ScheduleKind::kOneFOneB, .exact_items = exact, .most_joined_branches = 99};
      PipeSearch search(parts.tree, parts.sizes, options, context);
      found.push_back(bisected(search).best()->bottleneck);
    }
    EXPECT_EQ(found[0], found[1]);
  }
}

TEST(GraphPipe, NeverBeatsTheOptimumAndPassesEveryChecker) {
  Rng rng(5);
  int best = 0, all = 0;
  for (int trial = 0; trial < 40; ++trial) {
    const std::string text = random_text(rng, 2 + rng.below(3), "f32[b]");
    const Toy toy(text, kThreeDevices, static_cast<std::int64_t>(1 + rng.below(4)));
    const auto optimum = ::espalier::testing::brute_force(toy.problem());
    const Outcome outcome = planned(toy);
    ASSERT_EQ(outcome.status, Status::kFeasible) << outcome.why << text;
    const Duration iteration = checked_iteration(toy, outcome);
    EXPECT_GE(iteration, optimum.iteration) << text;
    EXPECT_LE(iteration, 13 * optimum.iteration / 10) << text;
    ++all;
    best += iteration == optimum.iteration ? 1 : 0;
    const Outcome literal = planned(toy, {.choice = GraphPipeOptions::Choice::kLiteral});
    EXPECT_GE(checked_iteration(toy, literal), optimum.iteration) << text;
  }
  EXPECT_GT(2 * best, all);
}

TEST(GraphPipe, MemoryThatBindsLeavesFewerInFlight) {
  // Two towers of six layers; what a stage holds for each micro-batch in flight is 2 MiB or more, and the one
  // with the loss needs 8 MiB whatever it holds. With room the longest path has seven stages.
  std::string text = towers(2, 6, "c1", Layers::kWithBuffers);
  for (std::size_t at; (at = text.find("f32[b]")) != std::string::npos;) {
    text.replace(at, 6, "f32[b, 262144]");
  }
  const auto most_in_flight = [&](const std::string& memory) {
    const Toy toy(text, equal_devices(12, memory), 24);
    const Outcome outcome = planned(toy);
    EXPECT_EQ(outcome.status, Status::kFeasible) << memory << ": " << outcome.why;
    if (!outcome.plan) return std::uint32_t{99};
    checked_iteration(toy, outcome);
    std::uint32_t most = 0;
    for (const Stage& stage : pipeline_of(outcome).stages) most = std::max(most, stage.in_flight);
    return most;
  };
  EXPECT_EQ(most_in_flight("1GiB"), 7);
  EXPECT_LE(most_in_flight("11MiB"), 5);
}

TEST(GraphPipe, StagesMayHaveMicroBatchesOfTheirOwn) {
  Toy toy(towers(2, 2, "c2"), equal_devices(5), 8);
  CostTableParts parts;
  for (const char* name : {"c0", "c2"}) {
    // Per sample c2 is cheaper in larger micro-batches: 2 ms for one, 2.5 ms for two, 4 ms for four.
    const auto cell = [&](std::int64_t us) {
      OperatorCost cost;
      const bool idle = std::string(name) == "c0";
      cost.forward = cost.input_gradient = cost.weight_gradient = idle ? Duration() : microseconds(us);
      cost.saved = {{SavedTensor::Side::kInput, 0}};
      return cost;
    };
    parts.rows.push_back(
        {name,
         "gpu",
         {},
         {{BatchSize(1), cell(2000)}, {BatchSize(2), cell(2500)}, {BatchSize(4), cell(4000)}}});
  }
  toy.costs = CostTable(parts);
  toy.training.micro_batches = {BatchSize(1), BatchSize(2), BatchSize(4)};
  const Outcome uniform = planned(toy);
  const Outcome each = planned(toy, {.micro_batches = GraphPipeOptions::MicroBatches::kPerStage});
  ASSERT_EQ(each.status, Status::kFeasible) << each.why;
  checked_iteration(toy, each);
  ASSERT_EQ(uniform.status, Status::kFeasible) << uniform.why;
  const Outcome literal = planned(toy, {.choice = GraphPipeOptions::Choice::kLiteral});
  EXPECT_LE(*each.estimate, *literal.estimate);  // a larger space, the same objective
}

// Searches of hopeless sizes are left: the answer is that of all of them.
TEST(GraphPipe, TheLeastBottleneckIsThatOfTheBestSizeByItself) {
  Rng rng(9);
  const std::vector<BatchSize> sizes{BatchSize(1), BatchSize(2), BatchSize(4)};
  const GraphPipeOptions literal{.choice = GraphPipeOptions::Choice::kLiteral};
  std::set<std::size_t> chosen;
  int tight = 0;
  for (int trial = 0; trial < 60; ++trial) {
    // With a GiB everything fits; with less, large micro-batches do not, or nothing does.
    const std::string memory = rng.below(3) > 0 ? "1GiB" : std::to_string(4 + rng.below(20)) + "MiB";
    Toy toy(random_text(rng, 6 + rng.below(8), "f32[b, 262144]"), equal_devices(2 + rng.below(6), memory), 8);
    CostTableParts parts;
    for (int c = 1; c <= 6; ++c) {
      CostRow row{"c" + std::to_string(c), "gpu", {}, {}};
      std::int64_t us = 1000 + 500 * static_cast<std::int64_t>(rng.below(4));
      for (const BatchSize b : sizes) {
        OperatorCost cost;
        cost.forward = cost.input_gradient = cost.weight_gradient = microseconds(us);
        cost.saved = {{SavedTensor::Side::kInput, 0}};
        row.points.push_back({b, cost});
        us = us * (11 + static_cast<std::int64_t>(rng.below(20))) / 10;
      }
      parts.rows.push_back(std::move(row));
    }
    toy.costs = CostTable(parts);
    std::optional<Duration> least;
    std::size_t of = 0;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      toy.training.micro_batches = {sizes[i]};
      const Outcome alone = planned(toy, literal);
      if (alone.plan && (!least || *alone.estimate < *least)) {
        least = alone.estimate;
        of = i;
      }
    }
    toy.training.micro_batches = sizes;
    const Outcome together = planned(toy, literal);
    ASSERT_EQ(together.plan.has_value(), least.has_value()) << trial << ": " << together.why;
    if (!least) continue;
    EXPECT_EQ(*together.estimate, *least) << trial;
    chosen.insert(of);
    tight += memory == "1GiB" ? 0 : 1;
  }
  EXPECT_EQ(chosen.size(), sizes.size());
  EXPECT_GT(tight, 3);
}

TEST(GraphPipe, GroupsAreRaisedOnlyWhereThatIsFaster) {
  // Messages take as long as half a forward: k = 2 hides some of them.
  const Toy toy(towers(2, 3, "c1", Layers::kWithBuffers), equal_devices(6, "1GiB", "1500us"), 16);
  const Outcome plain = planned(toy), grouped = planned(toy, {.most_group = 4});
  ASSERT_EQ(grouped.status, Status::kFeasible) << grouped.why;
  EXPECT_LT(checked_iteration(toy, grouped), checked_iteration(toy, plain));
  const OrderRule& rule = *pipeline_of(grouped).orders.rule();
  EXPECT_GT(rule.group_of(StageId(0)), 1);
}

TEST(GraphPipe, PinsAreObeyed) {
  const Toy toy(kTowers, kThreeDevices, 4);
  const Outcome outcome = planned(toy, {}, {{"img", DeviceId(2)}, {"loss", DeviceId(0)}});
  ASSERT_EQ(outcome.status, Status::kFeasible) << outcome.why;
  EXPECT_EQ(checked_iteration(toy, outcome), milliseconds(26));
  std::map<std::string, std::size_t> device;
  for (const Stage& stage : pipeline_of(outcome).stages) {
    for (const OperatorId op : stage.operators) {
      device[toy.graph.op(op).name] = stage.replicas[0].devices[0].index();
    }
  }
  EXPECT_EQ(device["img"], 2);
  EXPECT_EQ(device["loss"], 0);
}

TEST(GraphPipe, UnequalDevicesGetUnequalShares) {
  // One device of four is three times as fast; the towers together take 24 ms a micro-batch on slow ones.
  const Toy toy(towers(2, 4),
                "kind slow 1GiB f32=1e12 f16=1e12 mem=100GB launch=0ns sms=1\n"
                "kind fast 1GiB f32=1e12 f16=1e12 mem=100GB launch=0ns sms=1 speed=3\n"
                "group network latency=0ns lanes=unlimited\n"
                "device dev0 slow in network\ndevice dev1 slow in network\n"
                "device dev2 slow in network\ndevice dev3 fast in network\n",
                12);
  const Outcome outcome = planned(toy);
  ASSERT_EQ(outcome.status, Status::kFeasible) << outcome.why;
  const Duration iteration = checked_iteration(toy, outcome);
  // Four equal slow devices would need 12 × 24 / 4 ms at least; all speeds together 12 × 24 / 6.
  EXPECT_LT(iteration, milliseconds(72));
  EXPECT_GE(iteration, milliseconds(48));
}

TEST(GraphPipe, AnyDevicesAndPinsGivePlansThatPassEveryChecker) {
  Rng rng(17);
  int planned_with_pins = 0;
  for (int trial = 0; trial < 60; ++trial) {
    std::string cluster =
        "kind slow 1GiB f32=1e12 f16=1e12 mem=100GB launch=0ns sms=1\n"
        "kind fast 1GiB f32=1e12 f16=1e12 mem=100GB launch=0ns sms=1 speed=2\n"
        "group network 1GB latency=100us\n";
    const std::size_t devices = 2 + rng.below(5);
    for (std::size_t d = 0; d < devices; ++d) {
      cluster += "device dev" + std::to_string(d) + (rng.below(2) == 0 ? " slow" : " fast") + " in network\n";
    }
    const std::string text = random_text(rng, 3 + rng.below(9), "f32[b, 64]");
    const Toy toy(text, cluster, static_cast<std::int64_t>(1 + rng.below(8)));
    Pins pins;
    if (rng.below(3) == 0) pins.push_back({"h0", DeviceId(rng.below(devices))});
    if (rng.below(3) == 0) pins.push_back({"loss", DeviceId(rng.below(devices))});
    const Outcome outcome = planned(toy, {}, pins);
    ASSERT_EQ(outcome.status, Status::kFeasible) << outcome.why << text << cluster;
    EXPECT_GE(checked_iteration(toy, outcome),
              plan_bound(toy.graph, toy.cluster, toy.costs, toy.training, Bound::Scope::kOneSize).time)
        << text << cluster;
    planned_with_pins += pins.empty() ? 0 : 1;
  }
  EXPECT_GT(planned_with_pins, 15);
}

// Sixteen hosts of eight, and towers whose ends are 1 MiB a sample each: a join that stands on one host waits
// for its link. Halves of the cluster have joins of their own.
std::string hosts_of_eight(std::size_t count) {
  std::string text =
      "kind gpu 1GiB f32=1e12 f16=1e12 mem=100GB launch=0ns sms=1\ngroup network 2GB latency=10us\n";
  for (std::size_t h = 0; h < count; ++h) {
    const std::string host = "host" + std::to_string(h);
    text += "group " + host + " in network 100GB latency=5us\n";
    for (char d = 'a'; d < 'i'; ++d) text += std::string("device ") + d + host + " gpu in " + host + "\n";
  }
  return text;
}
std::string wide_towers(std::size_t count) {
  std::string text, ends;
  for (std::size_t t = 0; t < count; ++t) {
    const std::string n = std::to_string(t);
    text += "x" + n + " = input() : f32[b,262144]\nw" + n + " = parameter(w" + n + ") : f32[1]\n";
    text += "a" + n + " = layer(x" + n + ", w" + n + ") : f32[b,262144] @class=c4\n";
    text += "e" + n + " = layer(a" + n + ", w" + n + ") : f32[b,262144] @class=c4\n";
    ends += (t == 0 ? "e" : ", e") + n;
  }
  return text + "loss = head(" + ends + ") : f32[] @class=c1\nreturn loss\n";
}

TEST(GraphPipe, PartsOfALargeClusterHaveJoinsOfTheirOwn) {
  const Toy toy(wide_towers(8), hosts_of_eight(16), 256);
  const Outcome outcome = planned(toy);
  ASSERT_EQ(outcome.status, Status::kFeasible) << outcome.why;
  const Duration step = checked_iteration(toy, outcome);
  const auto parts = equal_parts(toy.cluster, Division::kOutermost, 32);
  ASSERT_TRUE(parts.has_value());
  ASSERT_THAT(parts->copies, SizeIs(2));
  const auto of_parts = plans_of_parts(toy.problem(), *parts, [](const Problem& part) {
                          Context context;
                          return graphpipe(part, {}, context);
                        }).plans;
  ASSERT_THAT(of_parts, Not(IsEmpty()));
  for (const PipelinePlan& plan : of_parts) {
    Outcome whole = outcome;
    whole.plan = plan;
    EXPECT_LE(step, checked_iteration(toy, whole));
  }
  // Each stage has replicas in both halves, and no micro-batch leaves its half.
  for (const Stage& stage : pipeline_of(outcome).stages) {
    std::vector<bool> second_half(256);
    for (const Replica& replica : stage.replicas) {
      for (const std::uint32_t j : replica.micro_batches) {
        second_half[j] = replica.devices.front().index() >= 64;
      }
    }
    for (std::size_t j = 0; j < second_half.size(); ++j) EXPECT_EQ(second_half[j], j % 2 == 1) << stage.name;
  }
}

TEST(GraphPipe, PartsOfALargeClusterGiveNoReplicasWhereNoneAreWanted) {
  const Toy toy(wide_towers(8), hosts_of_eight(9), 144);
  const Outcome outcome = planned(toy, {.most_replicas = 1});
  ASSERT_EQ(outcome.status, Status::kFeasible) << outcome.why;
  for (const Stage& stage : pipeline_of(outcome).stages) EXPECT_THAT(stage.replicas, SizeIs(1));
}

TEST(GraphPipe, AnyNumberOfThreadsGivesTheSameOutcome) {
  Toy toy(towers(3, 3), equal_devices(6), 12);
  toy.training.micro_batches = {BatchSize(1), BatchSize(2), BatchSize(3)};
  Context alone;
  const Outcome one = graphpipe(toy.problem(), {}, alone);
  ASSERT_TRUE(one.plan.has_value()) << one.why;
  for (const std::size_t threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    Context context{.pool = &pool};
    const Outcome outcome = graphpipe(toy.problem(), {}, context);
    EXPECT_EQ(outcome.plan, one.plan) << threads;
    EXPECT_EQ(outcome.stats, one.stats) << threads;
  }
}

TEST(GraphPipe, ASmallBudgetSaysSo) {
  const Toy toy(towers(3, 4), equal_devices(8), 12);
  Context context{.budget = {.max_states = 10}};
  const Outcome outcome = graphpipe(toy.problem(), {}, context);
  EXPECT_EQ(outcome.status, Status::kBudgetSpent);
  EXPECT_THAT(outcome.why, HasSubstr("budget of 10 states"));
}

// Searches that lack states have what others leave, and never more than there are.
TEST(GraphPipe, TakesNoMoreStatesThanItsBudgetHas) {
  const Toy toy(towers(7, 6), equal_devices(16), 64,
                {BatchSize(1), BatchSize(2), BatchSize(4), BatchSize(8), BatchSize(16)});
  for (std::uint64_t states = 100; states < 300'000; states = states * 3 / 2) {
    Context context{.budget = {.max_states = states}};
    graphpipe(toy.problem(), {}, context);
    EXPECT_LE(context.states, states);
  }
}

TEST(GraphPipe, WhoEndsTheSearchIsObeyed) {
  const Toy toy(towers(3, 4), equal_devices(8), 12);
  const std::atomic<bool> cancelled = true;
  Context context{.cancelled = &cancelled};
  const Outcome outcome = graphpipe(toy.problem(), {}, context);
  EXPECT_EQ(outcome.status, Status::kInterrupted);
  EXPECT_TRUE(outcome.interrupted);
}

TEST(GraphPipe, WhatDoesNotFitSaysWhatIsShort) {
  const Toy toy(towers(2, 2), equal_devices(3, "8B"), 4);
  const Outcome outcome = planned(toy);
  EXPECT_EQ(outcome.status, Status::kInfeasible);
  EXPECT_THAT(outcome.why, HasSubstr("which has 8 B"));
  EXPECT_TRUE(outcome.closest.has_value());
}

}  // namespace
}  // namespace espalier
