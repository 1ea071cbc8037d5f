#include "testing/small_cases.h"

#include <algorithm>
#include <string>
#include <utility>

#include "espalier/base/rng.h"

namespace espalier::testing {
namespace {

class CaseMaker {
 public:
  CaseMaker(std::size_t stages, unsigned edges, Features features, std::uint64_t seed)
      : features_(features), rng_(seed), cluster_(make_cluster(2 * stages)) {
    model_.orders = features.gpipe ? ScheduleKind::kGPipe : ScheduleKind::kOneFOneB;
    model_.tokens = static_cast<TokenRule>(pick(4));
    for (std::size_t s = 0; s < stages; ++s) add_stage(s);
    for (std::size_t x = 0; x < stages; ++x) add_crossings(x, edges);
    set_limits();
    if (stages > 1 && pick(3) == 0)
      model_.ties.push_back({"w", Bytes(30), {StageId(0), StageId(stages - 1)}});
    schedule_ = make_schedule(model_, cluster_.devices().size());
    if (features.split_halves) split_halves();
  }

  SmallCase result() && { return {std::move(model_), std::move(cluster_), std::move(schedule_)}; }

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
    replicas = std::min(replicas, cluster_.devices().size());  // none twice within a stage
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
    memory.update_workspace = size();
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
    plan.orders = model_.orders;
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
        const bool backward =
            action.kind == ActionKind::kBackward && can_split(model_.stages[action.stage().index()]);
        if (!backward && action.kind != ActionKind::kRecompute) {
          split.insert(split.end(), late.begin(), late.end());
          late.clear();
        }
        split.push_back(action);
        if (!backward) continue;
        split.back().kind = ActionKind::kInputGradient;
        split.insert(split.end(), late.begin(), late.end());
        late = {{ActionKind::kWeightGradient, action.stage(), action.micro_batch}};
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

}  // namespace

SmallCase small_case(std::size_t stages, unsigned edges, Features features, std::uint64_t seed) {
  return CaseMaker(stages, edges, features, seed).result();
}

}  // namespace espalier::testing
