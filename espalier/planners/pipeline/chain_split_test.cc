#include "espalier/planners/pipeline/chain_split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "espalier/base/rng.h"
#include "espalier/cluster/text.h"
#include "espalier/graph/text.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A chain of operators of random times, weights and outputs, on random devices and links.
struct RandomChain {
  Graph graph;
  Cluster cluster;
  CostTable costs;
  Training training;
  Pins pins;
  WrittenBuffers written = WrittenBuffers::kOneReplica;

  explicit RandomChain(Rng& rng, std::size_t operators, bool pinned)
      : graph(parse_graph(graph_text(rng, operators))),
        cluster(parse_cluster_lines(cluster_text(rng))),
        costs(cost_table(rng, graph, cluster)) {
    training.batch = BatchSize(static_cast<std::int64_t>(1 + rng.below(5)));
    training.micro_batches = {BatchSize(1)};
    training.optimizer.kind = OptimizerKind::kSgd;
    for (std::size_t i = 0; pinned && i < operators; ++i) {
      if (rng.below(3) != 0) continue;
      pins.push_back({"h" + std::to_string(i), DeviceId(rng.below(cluster.devices().size()))});
    }
  }

  Problem problem() const {
    Problem problem{graph, cluster, costs, training, pins};
    problem.written_buffers = written;
    return problem;
  }

  static std::string graph_text(Rng& rng, std::size_t operators) {
    std::string text = "x = input() : f32[b]\n", previous = "x", skip;
    const std::size_t norm = rng.below(3 * operators);
    for (std::size_t i = 0; i < operators; ++i) {
      const std::string n = std::to_string(i), size = std::to_string(1 + rng.below(4000));
      const std::string weight = rng.below(3) == 0 ? "w0" : "w" + n;  // some are shared
      if (weight == "w" + n || i == 0) {
        text += "w" + n + " = parameter(w" + n + ") : f32[" + (i == 0 ? "700" : size) + "]\n";
      }
      const bool last = i + 1 == operators;
      if (i == norm) text += "m = buffer(running) : f32[4]\n";
      text += "h" + n + " = f(" + previous + (skip.empty() ? "" : ", " + skip) + ", " +
              (i == 0 ? "w0" : weight) + (i == norm ? ", m" : "") + ") : f32[" +
              (last ? "" : "b," + std::to_string(1 + rng.below(3000))) + "] @class=c" + n +
              (i == norm ? " @mutates=m" : "") + "\n";
      skip = rng.below(3) == 0 ? previous : "";
      if (skip == "x") skip.clear();
      previous = "h" + n;
    }
    return text;
  }

  // Two or three hosts of unequal size, devices of two kinds, listed host by host.
  static std::string cluster_text(Rng& rng) {
    std::string text =
        "kind fast 1MiB f32=1e12 f16=1e12 mem=100GB launch=0ns sms=1\n"
        "kind slow 1MiB f32=1e12 f16=1e12 mem=100GB launch=0ns sms=1\n"
        "group network " +
        std::to_string(1 + rng.below(20)) + "MB latency=10us\n";
    const std::size_t devices = 2 + rng.below(3);
    std::size_t host = 0;
    for (std::size_t d = 0; d < devices; ++d) {
      if (d == 0 || rng.below(3) == 0) {
        host = d;
        text += "group host" + std::to_string(d) + " in network " + std::to_string(10 + rng.below(90)) +
                "MB latency=2us" + (rng.below(2) == 0 ? " send=3us+900ps/B receive=1us" : "") + "\n";
      }
      text += "device dev" + std::to_string(d) + (rng.below(3) == 0 ? " slow" : " fast") + " in host" +
              std::to_string(host) + " memory=" + std::to_string(8 + rng.below(90)) + "KiB\n";
    }
    return text;
  }

  static CostTable cost_table(Rng& rng, const Graph& graph, const Cluster& cluster) {
    CostTableParts parts;
    std::set<std::string> classes;
    for (const Operator& op : graph.operators()) classes.insert(op.op_class);
    for (const std::string& name : classes) {
      for (const DeviceKind& kind : cluster.kinds()) {
        OperatorCost cost;
        cost.forward = microseconds(static_cast<std::int64_t>(1 + rng.below(900)));
        cost.input_gradient = microseconds(static_cast<std::int64_t>(1 + rng.below(900)));
        cost.weight_gradient = microseconds(static_cast<std::int64_t>(rng.below(900)));
        if (rng.below(2) == 0) cost.saved = {{SavedTensor::Side::kInput, 0}};
        cost.private_bytes = Bytes(static_cast<std::int64_t>(rng.below(500)));
        parts.rows.push_back({name, kind.name, {}, {{BatchSize(1), cost}}});
      }
    }
    for (const DeviceKind& kind : cluster.kinds()) {
      KindOverhead overhead;
      overhead.kind = kind.name;
      overhead.per_action = microseconds(static_cast<std::int64_t>(rng.below(30)));
      overhead.neighbour_per_mille = static_cast<std::int32_t>(rng.below(100));
      overhead.updates = {{OptimizerKind::kSgd, microseconds(5), static_cast<std::int64_t>(rng.below(9000))}};
      parts.overheads.push_back(overhead);
    }
    return CostTable(parts);
  }
};

// One with all that a search of its splits takes.
struct Whole {
  RandomChain random;
  Problem problem = random.problem();
  Linearization line{problem, chain_order(random.graph)};
  Chain chain{line, BatchSize(1)};
  DeviceTable table{problem};

  Whole(Rng& rng, std::size_t operators, bool pinned) : random(rng, operators, pinned) {}
};

// Every split that chain_split.h speaks of, its bottleneck from first principles.
class AllSplits {
 public:
  AllSplits(const Problem& problem, const Chain& chain, std::vector<DeviceId> row, std::int64_t m)
      : problem_(problem), chain_(chain), row_(std::move(row)), m_(m) {
    extend(0, 0);
  }

  // Those that no other beats, as (nanoseconds, stages).
  std::vector<std::pair<std::int64_t, std::size_t>> front() const {
    std::vector<std::pair<std::int64_t, std::size_t>> result;
    for (const auto& [bottleneck, stages] : found_) {
      if (result.empty() || stages < result.back().second) result.emplace_back(bottleneck, stages);
    }
    return result;
  }
  std::size_t tried() const { return tried_; }
  bool contains(const ChainSplit& split) const { return legal_.contains(key(split)); }

 private:
  static std::string key(const ChainSplit& split) {
    std::string text = std::to_string(split.bottleneck.count());
    for (const ChainStage& stage : split.stages) {
      text += " " + std::to_string(stage.last_block) + ":";
      for (const DeviceId device : stage.devices) text += std::to_string(device.index()) + ",";
    }
    return text;
  }

  void extend(std::size_t block, std::size_t free) {
    if (block == chain_.blocks()) return judge();
    for (std::size_t last = block + 1; last <= chain_.blocks(); ++last) {
      std::set<DeviceId> pins;
      for (std::size_t b = block; b < last; ++b) {
        if (chain_.pin(b).torn) return;
        if (chain_.pin(b).device) pins.insert(*chain_.pin(b).device);
      }
      if (pins.size() > 1) return;
      if (pins.size() == 1) {
        if (!stages_.empty() && stages_.back().devices.front() == *pins.begin()) continue;
        stages_.push_back({block, last, {*pins.begin()}});
        extend(last, free);
        stages_.pop_back();
        continue;
      }
      for (std::size_t begin = free; begin < row_.size(); ++begin) {
        std::vector<DeviceId> devices;
        for (std::size_t end = begin; end < row_.size() && devices.size() < static_cast<std::size_t>(m_);
             ++end) {
          devices.push_back(row_[end]);
          if (devices.size() > 1 && chain_.writes_buffers(block, last) &&
              problem_.written_buffers == WrittenBuffers::kOneReplica) {
            break;
          }
          stages_.push_back({block, last, devices});
          extend(last, end + 1);
          stages_.pop_back();
        }
      }
    }
  }

  void judge() {
    ++tried_;
    if (!fits()) return;
    Duration worst;
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      worst = std::max(worst, stage_time(stages_[s]));
      if (s + 1 < stages_.size()) worst = std::max(worst, link_time(stages_[s], stages_[s + 1]));
    }
    found_.insert({worst.count(), stages_.size()});
    legal_.insert(key({stages_, worst}));
  }

  // By what the whole chain takes on each device.
  std::vector<std::uint32_t> shares(const ChainStage& stage) const {
    std::vector<Duration> times;
    for (const DeviceId device : stage.devices) {
      const KindId kind = problem_.cluster.device(device).kind;
      times.push_back(work(device, 0, chain_.blocks()) +
                      2 * problem_.costs.overhead(problem_.cluster.kind(kind).name).per_action);
    }
    std::vector<std::uint32_t> shares = even_shares(m_, times);
    for (std::size_t r = 0; shares.size() < stage.devices.size(); ++r) {
      shares.push_back(
          narrow(round_robin(narrow(static_cast<std::size_t>(m_)), r, stage.devices.size()).size()));
    }
    return shares;
  }
  std::int64_t largest_share(const ChainStage& stage) const {
    const std::vector<std::uint32_t> all = shares(stage);
    return *std::max_element(all.begin(), all.end());
  }

  // In-flight limits as in docs/semantics.md, from the last stage on.
  bool fits() const {
    std::int64_t held = 0;
    for (std::size_t s = stages_.size(); s-- > 0;) {
      const auto replicas = static_cast<std::int64_t>(stages_[s].devices.size());
      std::int64_t in_flight = 1;
      if (s + 1 < stages_.size()) {
        in_flight = std::min(largest_share(stages_[s]), (replicas + held + replicas - 1) / replicas);
      }
      for (const DeviceId device : stages_[s].devices) {
        const Bytes needed = chain_.price(stages_[s].first_block, stages_[s].last_block).memory(in_flight);
        if (needed > problem_.cluster.device(device).memory) return false;
      }
      held = replicas * in_flight;
    }
    return true;
  }

  Duration stage_time(const ChainStage& stage) const {
    const std::size_t first = stage.first_block, last = stage.last_block;
    const auto replicas = static_cast<std::int64_t>(stage.devices.size());
    const Bytes trainable = chain_.price(first, last).trainable;
    Duration worst;
    for (std::int64_t r = 0; r < replicas; ++r) {
      const DeviceId device = stage.devices[static_cast<std::size_t>(r)];
      const std::int64_t share = shares(stage)[static_cast<std::size_t>(r)];
      const KindId kind = problem_.cluster.device(device).kind;
      const KindOverhead overhead = problem_.costs.overhead(problem_.cluster.kind(kind).name);
      const Group& host = problem_.cluster.group(problem_.cluster.device(device).group);
      Duration each = work(device, first, last) + 2 * overhead.per_action;
      if (first > 0) {
        each += host.receive.of(chain_.forward_bytes(first)) + host.send.of(chain_.backward_bytes(first));
      }
      if (last < chain_.blocks()) {
        each += host.send.of(chain_.forward_bytes(last)) + host.receive.of(chain_.backward_bytes(last));
      }
      worst = std::max(worst, share * each + update_time(overhead, OptimizerKind::kSgd, trainable));
    }
    for (std::size_t b = 0; b < chain_.blocks(); ++b) {  // what is pinned there and stands elsewhere
      const bool mine = chain_.pin(b).device == stage.devices.front();
      if (mine && (b < first || b >= last)) worst += m_ * work(stage.devices.front(), b, b + 1);
    }
    const CollectiveCost reduce = all_reduce_cost(problem_.cluster, stage.devices, trainable);
    return worst + reduce.hold + reduce.latency;
  }

  Duration work(DeviceId device, std::size_t first, std::size_t last) const {
    std::size_t neighbours = 0;
    for (const Device& other : problem_.cluster.devices()) {
      neighbours += other.group == problem_.cluster.device(device).group;
    }
    return chain_.work(problem_.cluster.device(device).kind, neighbours > 1 ? Crowd::kCrowded : Crowd::kAlone,
                       first, last);
  }

  Duration link_time(const ChainStage& a, const ChainStage& b) const {
    const DeviceId from = a.devices.back(), to = b.devices.front();
    const Duration there = problem_.cluster.route(from, to).hold(chain_.forward_bytes(a.last_block));
    const Duration back = problem_.cluster.route(to, from).hold(chain_.backward_bytes(a.last_block));
    return largest_share(a) * std::max(there, back);
  }

  const Problem& problem_;
  const Chain& chain_;
  std::vector<DeviceId> row_;
  std::int64_t m_;
  std::vector<ChainStage> stages_;
  std::set<std::pair<std::int64_t, std::size_t>> found_;
  std::set<std::string> legal_;
  std::size_t tried_ = 0;
};

struct Tally {
  int feasible = 0, infeasible = 0, several = 0, on_shared_device = 0;
};

void compare_with_all_splits(Rng& rng, int trials, bool pinned, Tally& tally) {
  for (int trial = 0; trial < trials; ++trial) {
    RandomChain random(rng, 1 + rng.below(6), pinned);
    if (rng.below(4) == 0) random.written = WrittenBuffers::kReplicated;
    const Problem problem = random.problem();
    const Linearization line(problem, chain_order(random.graph));
    const Chain chain(line, BatchSize(1));
    const DeviceTable table(problem);
    const std::vector<DeviceId> row = unpinned_devices(problem);
    const std::int64_t m = random.training.batch.count();
    const AllSplits all(problem, chain, row, m);
    Context context;
    const auto splits = min_max_splits(chain, table, row, m, {}, context);
    std::vector<std::pair<std::int64_t, std::size_t>> found;
    for (const ChainSplit& split : splits) {
      found.emplace_back(split.bottleneck.count(), split.stages.size());
      EXPECT_TRUE(all.contains(split));
      std::set<DeviceId> devices;
      std::size_t used = 0;
      for (const ChainStage& stage : split.stages) {
        devices.insert(stage.devices.begin(), stage.devices.end());
        used += stage.devices.size();
      }
      tally.on_shared_device += used > devices.size();
    }
    EXPECT_EQ(found, all.front()) << print_graph(random.graph) << print_cluster(random.cluster);
    ++(splits.empty() ? tally.infeasible : tally.feasible);
    tally.several += splits.size() > 1;
    const auto least =
        min_max_splits(chain, table, row, m, {.keep = SplitOptions::Keep::kLeastBottleneck}, context);
    ASSERT_EQ(least.empty(), splits.empty());
    if (least.empty()) continue;
    ASSERT_THAT(least, SizeIs(1));
    EXPECT_EQ(least.front().bottleneck, splits.front().bottleneck);
    EXPECT_EQ(least.front().stages.size(), splits.front().stages.size());
  }
}

TEST(MinMaxSplits, EqualAllSplitsOfRandomChainsOnUnequalDevicesAndLinks) {
  Rng rng(7);
  Tally tally;
  compare_with_all_splits(rng, 150, false, tally);
  EXPECT_GT(tally.feasible, 60);
  EXPECT_GT(tally.infeasible, 5);
  EXPECT_GT(tally.several, 20);
}

TEST(MinMaxSplits, EqualAllSplitsThatObeyPins) {
  Rng rng(8);
  Tally tally;
  compare_with_all_splits(rng, 400, true, tally);
  EXPECT_GT(tally.feasible, 60);
  EXPECT_GT(tally.on_shared_device, 0);
}

TEST(LongMinMaxSplits, EqualAllSplitsOfManyRandomChains) {
  Rng rng(9);
  Tally tally;
  compare_with_all_splits(rng, 1500, false, tally);
  compare_with_all_splits(rng, 1500, true, tally);
}

// What a coarser chain found first bounds the search of the finer one: with more blocks than the coarsest.
TEST(MinMaxSplits, RefinementLosesNothing) {
  Rng rng(12);
  for (int trial = 0; trial < 6; ++trial) {
    const Whole whole(rng, 19, false);
    const auto& [random, problem, line, chain, table] = whole;
    if (chain.blocks() < 18) continue;
    const std::vector<DeviceId> row{DeviceId(0), DeviceId(1)};
    const std::int64_t m = random.training.batch.count();
    Context context;
    std::vector<std::pair<std::int64_t, std::size_t>> found;
    for (const ChainSplit& split : min_max_splits(chain, table, row, m, {}, context)) {
      found.emplace_back(split.bottleneck.count(), split.stages.size());
    }
    EXPECT_EQ(found, AllSplits(problem, chain, row, m).front());
  }
}

// The tightest limits leave out most stages.
TEST(MinMaxSplits, ALimitAtTheLeastBottleneckLosesNothingAndOneBelowItAll) {
  Rng rng(13);
  int feasible = 0;
  for (int trial = 0; trial < 200; ++trial) {
    const Whole whole(rng, 1 + rng.below(9), trial % 3 == 0);
    const auto& [random, problem, line, chain, table] = whole;
    const std::vector<DeviceId> row = unpinned_devices(problem);
    const std::int64_t m = random.training.batch.count();
    Context context;
    const auto all = min_max_splits(chain, table, row, m, {}, context);
    if (all.empty()) continue;
    ++feasible;
    const Duration least = all.front().bottleneck;
    const auto limited = min_max_splits(chain, table, row, m, {.limit = least}, context);
    ASSERT_THAT(limited, SizeIs(1));
    EXPECT_EQ(limited.front().bottleneck, least);
    EXPECT_EQ(limited.front().stages.size(), all.front().stages.size());
    EXPECT_THAT(min_max_splits(chain, table, row, m, {.limit = least - Duration(1)}, context), IsEmpty());
  }
  EXPECT_GT(feasible, 60);
}

// What ends the search for longer stages at one that is too long.
TEST(MinMaxSplits, LongerStagesHaveNoFewerParameters) {
  Rng rng(14);
  for (int trial = 0; trial < 40; ++trial) {
    const Whole whole(rng, 12, false);
    const auto& [random, problem, line, chain, table] = whole;
    for (std::size_t first = 0; first < chain.blocks(); ++first) {
      for (std::size_t last = first + 1; last < chain.blocks(); ++last) {
        EXPECT_LE(chain.price(first, last).trainable, chain.price(first, last + 1).trainable);
      }
    }
  }
}

TEST(MinMaxSplits, ASpentBudgetGivesNothingOrWhatACoarserChainGave) {
  Rng rng(3);
  const Whole whole(rng, 5, false);
  const auto& [random, problem, line, chain, table] = whole;
  Context context;
  context.budget.max_states = 1;
  const auto splits =
      min_max_splits(chain, table, unpinned_devices(problem), random.training.batch.count(), {}, context);
  EXPECT_THAT(splits, IsEmpty());
  EXPECT_TRUE(context.budget_spent);
}

TEST(DeviceRow, ClassesOfRunsAllReduceAsTheClusterSays) {
  Rng rng(4);
  for (int trial = 0; trial < 40; ++trial) {
    const RandomChain random(rng, 2, false);
    const Problem problem = random.problem();
    const DeviceTable table(problem);
    std::vector<DeviceId> devices;
    for (std::size_t d = 0; d < random.cluster.devices().size(); ++d) devices.push_back(DeviceId(d));
    const DeviceRow row(table, devices, 8);
    for (std::size_t begin = 0; begin < row.size(); ++begin) {
      for (std::size_t end = begin + 1; end <= row.size(); ++end) {
        const Bytes bytes(static_cast<std::int64_t>(rng.below(1 << 20)));
        const CollectiveCost cost = all_reduce_cost(random.cluster, row.run(begin, end), bytes);
        const RunClass& run = row.classes()[row.class_of(begin, end - begin)];
        EXPECT_EQ(run.all_reduce(table, bytes), cost.hold + cost.latency);
      }
    }
  }
}

TEST(DeviceRow, EqualRunsOnEqualHostsAreOneClass) {
  const Cluster cluster = parse_cluster("2x4xV100-16GB");
  Rng rng(4);
  RandomChain random(rng, 2, false);
  random.cluster = cluster;
  random.costs = RandomChain::cost_table(rng, random.graph, cluster);
  const Problem problem = random.problem();
  const DeviceTable table(problem);
  std::vector<DeviceId> devices;
  for (std::size_t d = 0; d < 8; ++d) devices.push_back(DeviceId(d));
  const DeviceRow row(table, devices, 8);
  EXPECT_EQ(row.class_of(0, 2), row.class_of(5, 2));
  EXPECT_NE(row.class_of(0, 2), row.class_of(3, 2));
  // One device; 2, 3 or 4 within a host, and 2 to 8 across.
  EXPECT_THAT(row.classes(), SizeIs(1 + 3 + 7));
}

TEST(DeviceRows, MixedClustersAreTriedInSeveralOrdersWithHostsTogether) {
  const Cluster cluster = parse_cluster("2xV100-16GB+2xA100-80GB");
  std::vector<DeviceId> devices;
  for (std::size_t d = 0; d < 4; ++d) devices.push_back(DeviceId(d));
  const std::vector<Duration> work{milliseconds(4), milliseconds(2)};  // V100, A100
  const auto ids = [](std::vector<std::size_t> places) {
    std::vector<DeviceId> result;
    for (const std::size_t place : places) result.push_back(DeviceId(place));
    return result;
  };
  EXPECT_THAT(device_rows(cluster, devices, work), ElementsAre(ids({0, 1, 2, 3}), ids({2, 3, 0, 1})));
  EXPECT_THAT(device_rows(parse_cluster("2x2xV100-16GB"), devices, work), ElementsAre(ids({0, 1, 2, 3})));
}

TEST(Chain, CutsStandWherePinsChange) {
  // b weighs nothing, yet its pin ends before c's begins.
  Rng rng(1);
  RandomChain random(rng, 2, false);
  random.graph = parse_graph(
      "x = input() : f32[b]\na = f(x) : f32[b] @class=c0\nb = view(a) : f32[b] @class=v\n"
      "c = f(b) : f32[b] @class=c0\nd = f(c) : f32[b] @class=c0\n");
  CostTableParts parts = RandomChain::cost_table(rng, random.graph, random.cluster).parts();
  for (CostRow& row : parts.rows) {
    OperatorCost& cost = row.points.front().cost;
    if (row.op_class == "v") cost.forward = cost.input_gradient = cost.weight_gradient = Duration();
  }
  random.costs = CostTable(parts);
  random.pins = {{"a", DeviceId(0)}, {"b", DeviceId(0)}, {"c", DeviceId(1)}, {"d", DeviceId(1)}};
  const Problem problem = random.problem();
  const Linearization line(problem, chain_order(random.graph));
  const Chain chain(line, BatchSize(1), {.max_blocks = 1});
  ASSERT_EQ(chain.blocks(), 2U);
  EXPECT_EQ(chain.pin(0).device, DeviceId(0));
  EXPECT_EQ(chain.pin(1).device, DeviceId(1));
  EXPECT_THAT(chain.operators(0, 1), ElementsAre(OperatorId(0), OperatorId(1)));
}

}  // namespace
}  // namespace espalier
