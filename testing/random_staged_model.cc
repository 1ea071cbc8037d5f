#include "testing/random_staged_model.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <string>

namespace espalier::testing {
namespace {

class ModelMaker {
 public:
  ModelMaker(Rng& rng, const RandomModelOptions& options) : rng_(rng), options_(options) {}

  RandomModel make() {
    const std::size_t stages = 1 + pick(options_.max_stages);
    const auto micro_batches = static_cast<std::uint32_t>(1 + pick(options_.max_micro_batches));
    model_.orders = chance(4) ? ScheduleKind::kGPipe : ScheduleKind::kOneFOneB;
    model_.tokens = static_cast<TokenRule>(pick(4));
    for (std::size_t s = 0; s < stages; ++s) add_stage(s, micro_batches);
    for (std::size_t s = 0; s < stages; ++s) add_crossings(s);
    for (StagedStage& stage : model_.stages) sort_unique(stage.after);
    set_limits();
    if (stages > 1 && chance(3)) add_tie();
    return {std::move(model_), cluster()};
  }

 private:
  std::size_t pick(std::size_t bound) { return static_cast<std::size_t>(rng_.below(bound)); }
  bool chance(std::size_t one_in) { return pick(one_in) == 0; }
  Duration time() { return microseconds(static_cast<std::int64_t>(pick(40))); }
  Bytes size() { return Bytes(static_cast<std::int64_t>(pick(4) * (1 + pick(1000)))); }
  template <class T>
  static void sort_unique(std::vector<T>& values) {
    std::sort(values.begin(), values.end());
    values.erase(std::unique(values.begin(), values.end()), values.end());
  }

  // A device that the stage does not have yet: a new one, or one of another stage.
  DeviceId device(const std::set<DeviceId>& taken) {
    if (options_.shared_devices && chance(3)) {
      const DeviceId other(pick(devices_ + 1));
      if (other.index() < devices_ && !taken.count(other)) return other;
    }
    return DeviceId(devices_++);
  }

  void add_stage(std::size_t s, std::uint32_t micro_batches) {
    StagedStage stage;
    stage.name = "s" + std::to_string(s);
    stage.micro_batches = options_.unequal_sizes && chance(2) ? 2 * micro_batches : micro_batches;
    std::size_t replicas = options_.replicas && chance(3) ? 2 + pick(2) : 1;
    replicas = std::min<std::size_t>(replicas, stage.micro_batches);
    const std::size_t group = options_.replicas && chance(8) ? 2 : 1;
    stage.replicas.resize(replicas);
    std::set<DeviceId> taken;
    for (StagedReplica& replica : stage.replicas) {
      for (std::size_t i = 0; i < group; ++i) {
        replica.devices.push_back(device(taken));
        taken.insert(replica.devices.back());
      }
      replica.times = {time(), time(), time(), Duration(), time()};
    }
    share_out(stage);
    if (chance(4)) {
      stage.memory.recomputed = Bytes(64);
      for (StagedReplica& replica : stage.replicas) replica.times.recompute = time();
    }
    fill_memory(stage);
    model_.stages.push_back(std::move(stage));
  }

  void share_out(StagedStage& stage) {
    const bool odd = chance(2);
    for (std::uint32_t j = 0; j < stage.micro_batches; ++j) {
      const std::size_t n = stage.replicas.size();
      const std::size_t r = j < n || !odd ? j % n : pick(n);
      stage.replicas[r].micro_batches.push_back(j);
    }
  }

  void fill_memory(StagedStage& stage) {
    StageMemory& m = stage.memory;
    m.parameters = size();
    m.buffers = size();
    m.gradients = m.parameters;
    m.optimizer_state = 2 * m.parameters;
    m.saved = size();
    m.between_halves = size();
    m.forward_workspace = size();
    m.backward_workspace = size();
    m.update_workspace = size();
    if (stage.replicas.size() > 1) stage.reduced = m.gradients;
  }

  // Tensors of stage s that later stages read, then perhaps a token.
  void add_crossings(std::size_t s) {
    const std::size_t later = model_.stages.size() - s - 1;
    if (later == 0) return;
    const std::size_t tensors = 1 + pick(2);
    for (std::size_t t = 0; t < tensors; ++t) {
      Crossing crossing;
      crossing.tensor = "t" + std::to_string(s) + "." + std::to_string(t);
      crossing.from = StageId(s);
      crossing.output = size();
      crossing.saved_by_producer = chance(2);
      crossing.returns = !chance(5);
      add_readers(crossing, chance(3) ? 2 : 1, [&](StageId stage) {
        const Bytes bytes = size();
        return Crossing::Reader{stage, chance(2), bytes, crossing.returns ? bytes : Bytes()};
      });
      crossing.returns = std::any_of(crossing.readers.begin(), crossing.readers.end(),
                                     [](const auto& reader) { return reader.gradient > Bytes(); });
      model_.crossings.push_back(std::move(crossing));
    }
    if (model_.tokens != TokenRule::kNone && chance(3)) {
      Crossing token;
      token.tensor = "after";
      token.from = StageId(s);
      token.token = true;
      token.returns = model_.tokens != TokenRule::kForwardOnly;
      add_readers(token, 1, [](StageId stage) { return Crossing::Reader{stage, false, {}, {}}; });
      model_.crossings.push_back(std::move(token));
    }
  }

  template <class MakeReader>
  void add_readers(Crossing& crossing, std::size_t count, const MakeReader& make) {
    const std::size_t first = crossing.from.index() + 1;
    std::set<StageId> stages;
    for (std::size_t i = 0; i < count; ++i)
      stages.insert(StageId(first + pick(std::min<std::size_t>(2, model_.stages.size() - first))));
    for (const StageId stage : stages) {
      crossing.readers.push_back(make(stage));
      model_.stages[stage.index()].after.push_back(crossing.from);
    }
  }

  // The rule of docs/semantics.md for equal sizes: w_x = ⌈(r_x + max r_y · w_y) / r_x⌉.
  void set_limits() {
    for (std::size_t x = model_.stages.size(); x-- > 0;) {
      StagedStage& stage = model_.stages[x];
      std::size_t share = 1;
      for (const StagedReplica& replica : stage.replicas)
        share = std::max(share, replica.micro_batches.size());
      std::size_t limit = 1;
      const std::size_t r = stage.replicas.size();
      for (std::size_t y = x + 1; y < model_.stages.size(); ++y) {
        const StagedStage& next = model_.stages[y];
        if (!std::binary_search(next.after.begin(), next.after.end(), StageId(x))) continue;
        limit = std::max(limit, (r + next.replicas.size() * next.in_flight + r - 1) / r);
      }
      if (options_.random_limits) limit = 1 + pick(share);
      if (options_.unequal_sizes || model_.orders.has_kind(ScheduleKind::kGPipe)) limit = share;
      stage.in_flight = static_cast<std::uint32_t>(std::min(limit, share));
    }
  }

  void add_tie() {
    std::set<StageId> stages;
    for (int i = 0; i < 4; ++i) stages.insert(StageId(pick(model_.stages.size())));
    if (stages.size() > 1) model_.ties.push_back({"w", Bytes(100), {stages.begin(), stages.end()}});
  }

  Cluster cluster() {
    ClusterParts parts;
    DeviceKind kind;
    kind.name = "worker";
    kind.memory = gibibytes(1);
    kind.flops_f32 = kind.flops_f16 = 1e12;
    kind.memory_bandwidth = 100'000'000'000;
    parts.kinds = {kind};
    const std::size_t hosts = 1 + pick(3);
    for (std::size_t g = 0; g <= hosts; ++g) {
      Group group;
      group.name = g == 0 ? "network" : "host" + std::to_string(g - 1);
      if (g > 0) group.parent = GroupId(0);
      if (!chance(4)) group.bandwidth = 10'000'000 * static_cast<std::int64_t>(1 + pick(20));
      group.latency = microseconds(static_cast<std::int64_t>(pick(8)));
      group.contention = options_.contention && !chance(4);
      if (options_.contention && chance(3)) {
        group.send = {microseconds(static_cast<std::int64_t>(pick(3))), static_cast<std::int64_t>(pick(900))};
        group.receive = {microseconds(static_cast<std::int64_t>(pick(3))), 0};
      }
      parts.groups.push_back(std::move(group));
    }
    for (std::size_t d = 0; d < devices_; ++d) {
      parts.devices.push_back({"dev" + std::to_string(d), KindId(0), GroupId(1 + pick(hosts)), gibibytes(1)});
    }
    return Cluster(std::move(parts));
  }

  Rng& rng_;
  const RandomModelOptions& options_;
  StagedModel model_;
  std::size_t devices_ = 0;
};

}  // namespace

RandomModel random_staged_model(Rng& rng, const RandomModelOptions& options) {
  return ModelMaker(rng, options).make();
}

void add_halves_and_slots(Rng& rng, StagedModel& model) {
  const auto chance = [&](std::uint64_t one_in) { return rng.below(one_in) == 0; };
  const auto part = [&](Bytes bytes) {
    return Bytes(static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(bytes.count()) + 1)));
  };
  for (StagedStage& stage : model.stages) {
    stage.memory.saved_for_input = part(stage.memory.saved);
    stage.memory.recomputed_for_input = part(stage.memory.recomputed);
    if (chance(3)) stage.slots = static_cast<std::uint32_t>(1 + rng.below(3));
    for (StagedReplica& replica : stage.replicas) {
      replica.times.overhead = Duration(static_cast<std::int64_t>(rng.below(3)));
    }
  }
  for (Crossing& crossing : model.crossings) {
    crossing.for_input_only = crossing.saved_by_producer && chance(2);
    for (Crossing::Reader& reader : crossing.readers) reader.for_input_only = reader.saved && chance(2);
  }
}

}  // namespace espalier::testing
