#include "espalier/planners/joint/space.h"

#include <algorithm>
#include <array>

#include "espalier/base/check.h"
#include "espalier/base/rng.h"
#include "espalier/cost/cost_table.h"
#include "espalier/planners/cuts.h"

namespace espalier::joint {
namespace {

// Of all operators before each.
struct Sums {
  std::vector<Duration> work{Duration()}, forward{Duration()};
  bool guessed = false;  // halves of backward
  bool weights = false;  // some operator has the second half
};

Sums sums_of(const Graph& graph, const KindCosts& costs) {
  Sums sums;
  for (std::size_t i = 0; i < graph.operators().size(); ++i) {
    const OperatorCost* cost = graph.operators()[i].duplicable ? nullptr : costs.of(OperatorId(i));
    sums.work.push_back(sums.work.back() + (cost ? cost->forward + cost->backward() : Duration()));
    sums.forward.push_back(sums.forward.back() + (cost ? cost->forward : Duration()));
    const bool halved = cost && cost->weight_gradient > Duration();
    sums.weights = sums.weights || halved;
    sums.guessed = sums.guessed || (cost && halves_are_guessed(*cost));
  }
  return sums;
}

// Pairs of stages with an edge between them.
std::vector<std::pair<std::size_t, std::size_t>> stage_edges(const Space& space,
                                                             const std::vector<StageDraft>& stages) {
  const std::vector<std::size_t> stage_of = stages_of_operators(space, stages);
  std::vector<std::pair<std::size_t, std::size_t>> edges;
  for (const Link& link : space.links()) {
    const std::size_t from = stage_of[link.from], to = stage_of[link.to];
    if (from != to && (edges.empty() || edges.back() != std::pair(from, to))) edges.emplace_back(from, to);
  }
  std::sort(edges.begin(), edges.end());
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  return edges;
}

std::uint64_t hash_of(const StageDraft& stage) {
  std::uint64_t hash = mix64(stage.operators.runs().size());
  const auto add = [&](std::uint64_t value) { hash = mix64(hash ^ value); };
  for (const OperatorRun& run : stage.operators.runs()) add(std::uint64_t{run.first} << 32 | run.last);
  for (const DeviceId device : stage.devices) add(device.index() + 1);
  add(0);
  if (stage.degree > 1) add(stage.degree);
  for (const std::uint32_t weight : stage.weights) add(weight);
  add(static_cast<std::uint64_t>(std::int64_t{stage.more_in_flight}));
  if (stage.recompute.empty()) return hash;
  const OperatorSet again = common(stage.operators, stage.recompute);
  for (const OperatorRun& run : again.runs()) add(std::uint64_t{run.first} << 32 | run.last);
  return hash;
}

}  // namespace

Space::Space(const Problem& problem)
    : problem_(problem),
      sizes_(usable_micro_batches(problem)),
      degrees_(tensor_parallel_degrees(problem.costs, problem.cluster.devices().size())),
      crossing_(crossing_bytes(problem.graph)),
      repeatable_(repeatable_operators(problem.graph)) {
  std::sort(sizes_.begin(), sizes_.end());
  bool guessed = false, weights = false;
  for (const BatchSize size : sizes_) {
    for (const std::uint32_t degree : degrees_) {
      for (const DeviceKind& kind : problem.cluster.kinds()) {
        Sums sums =
            sums_of(problem.graph, KindCosts(problem.graph, kind, problem.costs, size, {degree, false}));
        work_.push_back(std::move(sums.work));
        forward_.push_back(std::move(sums.forward));
        guessed = guessed || sums.guessed;
        weights = weights || sums.weights;
      }
    }
  }
  if (weights && !guessed) halves_ = Halves::kMay;
  for (std::size_t i = 0; i < operators(); ++i) {
    const Operator& op = problem.graph.operators()[i];
    own_.push_back(op.duplicable ? 0 : 1);
    if (op.duplicable) continue;
    for (const OperatorId reader : problem.graph.successors(OperatorId(i))) {
      if (!problem.graph.op(reader).duplicable) links_.push_back({narrow(i), narrow(reader.index())});
    }
  }
}

std::size_t Space::table(KindId kind, BatchSize micro_batch, std::uint32_t degree) const {
  const auto at = std::lower_bound(sizes_.begin(), sizes_.end(), micro_batch);
  ESP_CHECK(at != sizes_.end() && *at == micro_batch, micro_batch.count());
  const auto of = std::lower_bound(degrees_.begin(), degrees_.end(), degree);
  ESP_CHECK(of != degrees_.end() && *of == degree, degree);
  const std::size_t row = static_cast<std::size_t>(at - sizes_.begin()) * degrees_.size() +
                          static_cast<std::size_t>(of - degrees_.begin());
  return row * problem_.cluster.kinds().size() + kind.index();
}

Duration Space::work(OperatorRun run, KindId kind, BatchSize micro_batch) const {
  const std::vector<Duration>& sums = work_[table(kind, micro_batch, 1)];
  return sums[run.last + 1] - sums[run.first];
}

Duration Space::work(const OperatorSet& set, KindId kind, BatchSize micro_batch) const {
  return sum_over(work_[table(kind, micro_batch, 1)], set);
}

Duration Space::work(const StageDraft& stage, KindId kind, BatchSize micro_batch) const {
  const std::size_t costs = table(kind, micro_batch, stage.degree);
  const Duration once = sum_over(work_[costs], stage.operators);
  if (stage.recompute.empty()) return once;
  return once + sum_over(forward_[costs], common(stage.operators, stage.recompute));
}

Duration Space::forward(const StageDraft& stage, KindId kind, BatchSize micro_batch) const {
  return sum_over(forward_[table(kind, micro_batch, stage.degree)], stage.operators);
}

Duration Space::work_of_replica(const StageDraft& stage, std::size_t replica, BatchSize micro_batch) const {
  Duration slowest;
  for (const DeviceId device : stage.group(replica)) {
    slowest = std::max(slowest, work(stage, problem_.cluster.device(device).kind, micro_batch));
  }
  return slowest;
}

bool Space::has_writer(const OperatorSet& set) const {
  return problem_.written_buffers == WrittenBuffers::kOneReplica &&
         problem_.oracle->rules().first_writer(set.runs()).has_value();
}

std::vector<std::size_t> stages_of_operators(const Space& space, const std::vector<StageDraft>& stages) {
  std::vector<std::size_t> stage_of(space.operators(), stages.size());
  for (std::size_t s = 0; s < stages.size(); ++s) {
    for (const OperatorRun& run : stages[s].operators.runs()) {
      for (std::size_t op = run.first; op <= run.last; ++op) stage_of[op] = s;
    }
  }
  return stage_of;
}

Duration Load::most() const {
  return of_device.empty() ? Duration() : *std::max_element(of_device.begin(), of_device.end());
}

double Load::unevenness() const {
  double sum = 0;
  for (const Duration load : of_device) {
    const double seconds = static_cast<double>(load.count()) * 1e-9;
    sum += seconds * seconds;
  }
  return sum;
}

Load load_of(const Space& space, const Proposal& plan) {
  const Cluster& cluster = space.problem().cluster;
  const auto micro_batches =
      static_cast<std::uint32_t>(space.problem().training.batch.count() / plan.micro_batch.count());
  Load load{std::vector<Duration>(plan.stages.size()), std::vector<Duration>(cluster.devices().size())};
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const StageDraft& stage = plan.stages[s];
    std::vector<std::uint32_t> shares;
    if (!stage.weights.empty()) shares = share_sizes(micro_batches, stage.weights);
    const std::size_t replicas = stage.replicas();
    for (std::size_t r = 0; r < replicas; ++r) {
      const std::size_t share =
          shares.empty() ? micro_batches / replicas + (r < micro_batches % replicas) : shares[r];
      const Duration all =
          static_cast<std::int64_t>(share) * space.work_of_replica(stage, r, plan.micro_batch);
      load.of_stage[s] = std::max(load.of_stage[s], all);
      for (const DeviceId device : stage.group(r)) load.of_device[device.index()] += all;
    }
  }
  return load;
}

std::optional<Proposal> proposal_of(const Space& space, const PipelinePlan& plan) {
  if (!plan.orders.rule() || plan.tokens != TokenRule::kBothWays || plan.stages.empty()) return std::nullopt;
  Proposal proposal{.stages = {},
                    .micro_batch = plan.stages.front().micro_batch,
                    .schedule = *plan.orders.rule(),
                    .estimate = std::nullopt};
  if (proposal.schedule.group.size() > 1) return std::nullopt;
  const std::vector<BatchSize>& sizes = space.sizes();
  if (!std::binary_search(sizes.begin(), sizes.end(), proposal.micro_batch)) return std::nullopt;
  const std::vector<std::uint32_t> limits = in_flight_limits(plan);
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const Stage& stage = plan.stages[s];
    if (stage.micro_batch != proposal.micro_batch || stage.slots) return std::nullopt;
    StageDraft draft{.operators = stage.operators, .devices = {}, .after = {}};
    draft.recompute = stage.recompute;
    if (!stage.recompute.empty() && draft.recompute == common(draft.operators, space.repeatable())) {
      draft.recompute = space.repeatable();
    }
    const auto locked =
        std::find_if(space.problem().locked.begin(), space.problem().locked.end(),
                     [&](const LockedStage& each) { return each.stage.operators == stage.operators; });
    if (locked != space.problem().locked.end()) draft.locked_as = locked->stage.name;
    draft.more_in_flight = static_cast<std::int32_t>(stage.in_flight) - static_cast<std::int32_t>(limits[s]);
    draft.degree = narrow(stage.replicas.front().devices.size());
    if (!std::binary_search(space.degrees().begin(), space.degrees().end(), draft.degree))
      return std::nullopt;
    bool equal = true;
    for (std::size_t r = 0; r < stage.replicas.size(); ++r) {
      const Replica& replica = stage.replicas[r];
      draft.devices.insert(draft.devices.end(), replica.devices.begin(), replica.devices.end());
      draft.weights.push_back(narrow(replica.micro_batches.size()));
      equal = equal &&
              replica.micro_batches == round_robin(plan.micro_batches(StageId(s)), r, stage.replicas.size());
    }
    if (equal) draft.weights.clear();
    proposal.stages.push_back(std::move(draft));
  }
  const auto edges = stage_edges(space, proposal.stages);
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    for (const StageId before : plan.stages[s].after) {
      if (!std::binary_search(edges.begin(), edges.end(), std::pair(before.index(), s))) {
        proposal.stages[s].after.push_back(before.index());
      }
    }
  }
  return proposal;
}

Neighbours neighbours_of(const Space& space, const Proposal& plan) {
  Neighbours neighbours;
  neighbours.before.resize(plan.stages.size());
  neighbours.behind.resize(plan.stages.size());
  for (const auto& [from, to] : stage_edges(space, plan.stages)) {
    neighbours.behind[from].push_back(to);
    neighbours.before[to].push_back(from);
  }
  return neighbours;
}

namespace {

constexpr std::uint64_t kTasksOfAMicroBatch = 4;  // in a stage: F, B, and a message each
constexpr std::uint64_t kMessagesForThat = 8;     // as many are still taken for that

std::uint64_t micro_batches_of_all_stages(const Space& space, const Proposal& plan) {
  const std::int64_t of_stage = space.problem().training.batch.count() / plan.micro_batch.count();
  return static_cast<std::uint64_t>(of_stage) * plan.stages.size();
}

}  // namespace

std::uint64_t charge_of(const Space& space, const Proposal& plan) {
  std::uint64_t charge = 100 + kTasksOfAMicroBatch * micro_batches_of_all_stages(space, plan);
  for (const StageDraft& stage : plan.stages) charge += stage.operators.runs().size();
  return charge;
}

std::uint64_t charge_of_messages(const Space& space, const Proposal& plan, std::uint64_t messages) {
  const std::uint64_t charged = kMessagesForThat * micro_batches_of_all_stages(space, plan);
  return messages > charged ? messages - charged : 0;
}

std::uint64_t signature_of(const Proposal& plan) {
  std::vector<std::uint64_t> stages, edges;
  for (const StageDraft& stage : plan.stages) stages.push_back(hash_of(stage));
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    for (const std::size_t before : plan.stages[s].after) edges.push_back(mix64(stages[before]) ^ stages[s]);
  }
  std::sort(stages.begin(), stages.end());
  std::sort(edges.begin(), edges.end());
  std::uint64_t hash = mix64(static_cast<std::uint64_t>(plan.micro_batch.count()));
  const auto add = [&](std::uint64_t value) { hash = mix64(hash ^ value); };
  for (const std::uint64_t each : stages) add(each);
  for (const std::uint64_t each : edges) add(each);
  add(static_cast<std::uint64_t>(plan.schedule.kind) * 2 +
      static_cast<std::uint64_t>(plan.schedule.backward));
  for (const std::uint32_t k : plan.schedule.group) add(k);
  return hash;
}

}  // namespace espalier::joint
