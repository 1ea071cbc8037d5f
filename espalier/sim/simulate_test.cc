#include "espalier/sim/simulate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "espalier/base/check.h"
#include "espalier/base/rng.h"
#include "testing/random_staged_model.h"
#include "testing/reference_simulator.h"

namespace espalier {
namespace {

using espalier::testing::random_staged_model;
using espalier::testing::RandomModel;
using espalier::testing::RandomModelOptions;
using espalier::testing::reference_simulate;

// Spans of equal (device, stream, start, end) may stand in any order: sort them fully.
Trace canonical(Trace trace) {
  std::sort(trace.spans.begin(), trace.spans.end(), [](const Span& a, const Span& b) {
    const auto key = [](const Span& s) {
      return std::tuple(s.device, s.stream, s.start, s.end, s.kind, s.action, s.message, s.peer);
    };
    return key(a) < key(b);
  });
  return trace;
}

// The first difference between two traces, in words; empty if they are equal.
std::string difference(const Trace& a, const Trace& b) {
  if (a == b) return "";
  const auto describe = [](const Span& s) {
    return "device " + std::to_string(s.device.index()) + " kind " +
           std::to_string(static_cast<int>(s.kind)) + " " + letter(s.action.kind) +
           std::to_string(s.action.stage.index()) + "." + std::to_string(s.action.micro_batch) + " " +
           std::to_string(s.start.count()) + "-" + std::to_string(s.end.count()) + " posted " +
           (s.posted ? std::to_string(s.posted->count()) : "-");
  };
  for (std::size_t i = 0; i < std::min(a.spans.size(), b.spans.size()); ++i) {
    if (a.spans[i] != b.spans[i]) return "span " + describe(a.spans[i]) + " against " + describe(b.spans[i]);
  }
  for (std::size_t i = 0; i < std::min(a.memory.size(), b.memory.size()); ++i) {
    if (a.memory[i] != b.memory[i]) {
      std::string text = "memory of device " + std::to_string(a.memory[i].device.index()) + " at " +
                         std::to_string(a.memory[i].time.count()) + " and " +
                         std::to_string(b.memory[i].time.count());
      for (std::size_t c = 0; c < kMemoryCategories; ++c) {
        text += " " + std::to_string(a.memory[i].held.bytes[c].count()) + "/" +
                std::to_string(b.memory[i].held.bytes[c].count());
      }
      return text;
    }
  }
  return "numbers of spans, samples, or something else";
}

// Simulates, compares with the reference, checks by check_trace's rules. False if the schedule is refused.
bool agrees(const StagedModel& model, const Cluster& cluster, const Schedule& schedule) {
  if (!check_schedule(model, schedule).empty()) return false;
  const Trace trace = simulate(model, cluster, schedule);
  EXPECT_EQ(difference(canonical(trace), canonical(reference_simulate(model, cluster, schedule))), "");
  EXPECT_EQ(check_trace(model, cluster, schedule, trace), std::vector<std::string>());
  return true;
}

// What a small case may have, all combinations of which are tried.
struct Features {
  bool gpipe = false, contention = false, endpoints = false, shared_devices = false, split_halves = false,
       recompute = false, unequal = false, replicas = false;
  explicit Features(unsigned bits)
      : gpipe(bits & 1),
        contention(bits & 2),
        endpoints(bits & 4),
        shared_devices(bits & 8),
        split_halves(bits & 16),
        recompute(bits & 32),
        unequal(bits & 64),
        replicas(bits & 128) {}
  static constexpr unsigned kAll = 256;
};

// A DAG of stages with these features; times and sizes are small numbers, so that ties are common.
class SmallCase {
 public:
  // `edges`: bit x + y (y - 1) / 2 says whether stage y reads from stage x < y.
  SmallCase(std::size_t stages, unsigned edges, Features features, std::uint64_t seed)
      : features_(features), rng_(seed), cluster_(make_cluster(2 * stages)) {
    model_.schedule = features.gpipe ? ScheduleKind::kGPipe : ScheduleKind::kOneFOneB;
    model_.tokens = static_cast<TokenRule>(pick(4));
    for (std::size_t s = 0; s < stages; ++s) add_stage(s);
    for (std::size_t x = 0; x < stages; ++x) add_crossings(x, edges);
    set_limits();
    if (stages > 1 && pick(3) == 0)
      model_.ties.push_back({"w", Bytes(30), {StageId(0), StageId(stages - 1)}});
    schedule_ = make_schedule(model_, cluster_.devices().size());
    if (features.split_halves) split_halves();
  }

  const StagedModel& model() const { return model_; }
  const Cluster& cluster() const { return cluster_; }
  const Schedule& schedule() const { return schedule_; }

 private:
  std::size_t pick(std::size_t bound) { return static_cast<std::size_t>(rng_.below(bound)); }
  Duration time() { return Duration(static_cast<std::int64_t>(pick(4))); }
  Bytes size() { return Bytes(static_cast<std::int64_t>(pick(4))); }

  Cluster make_cluster(std::size_t devices) {
    ClusterParts parts;
    DeviceKind kind;
    kind.name = "worker";
    kind.memory = Bytes(1000);
    kind.flops_f32 = kind.flops_f16 = 1e12;
    kind.memory_bandwidth = 1'000'000'000;
    parts.kinds = {kind};
    Group network;
    network.name = "network";
    network.bandwidth = 1'000'000'000;  // a byte is a nanosecond
    network.latency = Duration(static_cast<std::int64_t>(pick(3)));
    network.contention = features_.contention;
    if (features_.endpoints) {
      network.send = {Duration(static_cast<std::int64_t>(pick(2))), static_cast<std::int64_t>(500 * pick(3))};
      network.receive = {Duration(static_cast<std::int64_t>(pick(2))),
                         static_cast<std::int64_t>(500 * pick(3))};
    }
    Group host = network;
    host.name = "host";
    host.parent = GroupId(0);
    host.bandwidth = 2'000'000'000;
    parts.groups = {network, host};
    for (std::size_t d = 0; d < devices; ++d) {
      parts.devices.push_back(
          {"dev" + std::to_string(d), KindId(0), GroupId(d < devices / 2 ? 1 : 0), Bytes(1000)});
    }
    return Cluster(std::move(parts));
  }

  void add_stage(std::size_t s) {
    StagedStage stage;
    stage.name = "s" + std::to_string(s);
    stage.micro_batches = features_.unequal && pick(2) ? 6 : 3;
    std::size_t replicas = features_.replicas ? 1 + pick(3) : 1;
    for (std::size_t r = 0; r < replicas; ++r) {
      const std::size_t device = features_.shared_devices ? (s / 2 + r) : next_device_++;
      StagedReplica replica;
      replica.devices = {DeviceId(device % cluster_.devices().size())};
      replica.micro_batches = round_robin(stage.micro_batches, r, replicas);
      replica.times = {time(), time(), time(), Duration(), time()};
      if (features_.recompute) replica.times.recompute = time();
      stage.replicas.push_back(replica);
    }
    if (next_device_ > cluster_.devices().size()) {  // too many replicas for devices of their own
      stage.replicas.resize(1);
      stage.replicas[0].micro_batches = round_robin(stage.micro_batches, 0, 1);
    }
    StageMemory& memory = stage.memory;
    memory = {size(), size(), size(), size(), size(), Bytes(), size(), size(), size()};
    if (features_.recompute) memory.recomputed = Bytes(2);
    if (replicas > 1) stage.reduced = memory.gradients;
    model_.stages.push_back(stage);
  }

  // Each edge is a tensor of its own, part of a tensor that several stages read, or a token.
  void add_crossings(std::size_t x, unsigned edges) {
    Crossing shared, token;
    shared.tensor = "t" + std::to_string(x);
    shared.from = token.from = StageId(x);
    shared.output = size();
    shared.saved_by_producer = pick(2);
    shared.returns = false;
    token.tensor = "after";
    token.token = true;
    token.returns = model_.tokens != TokenRule::kForwardOnly;
    std::vector<Crossing> own;
    for (std::size_t y = x + 1; y < model_.stages.size(); ++y) {
      if (!(edges >> (x + y * (y - 1) / 2) & 1)) continue;
      model_.stages[y].after.push_back(StageId(x));
      const Bytes bytes = size();
      const Crossing::Reader reader{StageId(y), pick(2) == 0, bytes, pick(4) ? bytes : Bytes()};
      if (pick(4) == 0 && model_.tokens != TokenRule::kNone) {
        token.readers.push_back({StageId(y), false, Bytes(), Bytes()});
      } else if (pick(2)) {
        shared.readers.push_back(reader);
        shared.returns |= reader.gradient > Bytes();
      } else {
        Crossing single = shared;
        single.tensor += "." + std::to_string(y);
        single.readers = {reader};
        single.returns = reader.gradient > Bytes();
        own.push_back(single);
      }
    }
    if (!shared.readers.empty()) model_.crossings.push_back(shared);
    model_.crossings.insert(model_.crossings.end(), own.begin(), own.end());
    if (!token.readers.empty()) model_.crossings.push_back(token);
  }

  void set_limits() {
    PipelinePlan plan;
    plan.batch = BatchSize(6);
    plan.schedule = model_.schedule;
    for (const StagedStage& staged : model_.stages) {
      Stage stage;
      stage.after = staged.after;
      stage.micro_batch = BatchSize(6 / staged.micro_batches);
      for (const StagedReplica& replica : staged.replicas)
        stage.replicas.push_back({replica.devices, replica.micro_batches});
      plan.stages.push_back(stage);
    }
    const std::vector<std::uint32_t> limits = in_flight_limits(plan);
    for (std::size_t s = 0; s < limits.size(); ++s) model_.stages[s].in_flight = limits[s];
  }

  // I in the place of B, W right after it or after the backward that follows.
  void split_halves() {
    std::vector<std::vector<Action>> devices = schedule_.devices;
    for (std::vector<Action>& actions : devices) {
      std::vector<Action> split, late;
      for (const Action& action : actions) {
        const bool backward = action.kind == ActionKind::kBackward;
        if (!backward && action.kind != ActionKind::kRecompute) {
          split.insert(split.end(), late.begin(), late.end());
          late.clear();
        }
        split.push_back(action);
        if (!backward) continue;
        split.back().kind = ActionKind::kInputGradient;
        split.insert(split.end(), late.begin(), late.end());
        late = {{ActionKind::kWeightGradient, action.stage, action.micro_batch}};
        if (pick(2)) {
          split.push_back(late[0]);
          late.clear();
        }
      }
      split.insert(split.end(), late.begin(), late.end());
      actions = split;
    }
    schedule_ = with_channels(model_, std::move(devices));
  }

  Features features_;
  Rng rng_;
  StagedModel model_;
  Cluster cluster_;
  Schedule schedule_;
  std::size_t next_device_ = 0;
};

// All DAGs of this many stages, with all combinations of features.
void try_all(std::size_t stages, unsigned every, std::size_t* agreed, std::size_t* refused) {
  const unsigned pairs = static_cast<unsigned>(stages * (stages - 1) / 2);
  for (unsigned edges = 0; edges < 1u << pairs; ++edges) {
    for (unsigned bits = edges % every; bits < Features::kAll; bits += every) {
      const SmallCase small(stages, edges, Features(bits), (std::uint64_t{edges} << 8) + bits);
      SCOPED_TRACE("stages " + std::to_string(stages) + " edges " + std::to_string(edges) + " features " +
                   std::to_string(bits));
      ++*(agrees(small.model(), small.cluster(), small.schedule()) ? agreed : refused);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

TEST(Simulate, EqualsTheReferenceOnAllDagsOfUpToThreeStages) {
  std::size_t agreed = 0, refused = 0;
  for (std::size_t stages = 1; stages <= 3; ++stages) try_all(stages, 1, &agreed, &refused);
  EXPECT_EQ(agreed + refused, (1u + 2 + 8) * Features::kAll);
  EXPECT_LE(refused, 2u);  // unequal sizes whose limits are too small for the larger
}

TEST(Simulate, EqualsTheReferenceOnAllDagsOfFourStages) {
  // Of the 256 combinations of features every fifth, another fifth for the next DAG.
  std::size_t agreed = 0, refused = 0;
  try_all(4, 5, &agreed, &refused);
  EXPECT_GE(agreed + refused, 64u * (Features::kAll / 5));
  EXPECT_LE(refused, 2u);
}

TEST(Simulate, EqualsTheReferenceOnRandomModels) {
  std::size_t agreed = 0, refused = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Rng rng(seed);
    RandomModelOptions options;
    options.unequal_sizes = seed % 3 == 1;
    options.random_limits = seed % 3 == 2;
    const RandomModel random = random_staged_model(rng, options);
    const Schedule schedule = make_schedule(random.model, random.cluster.devices().size());
    SCOPED_TRACE("seed " + std::to_string(seed));
    ++(agrees(random.model, random.cluster, schedule) ? agreed : refused);
    if (HasFailure()) return;
  }
  EXPECT_LE(refused, agreed / 10);
}

}  // namespace
}  // namespace espalier
