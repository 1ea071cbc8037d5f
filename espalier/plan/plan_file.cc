// Plan files and the values that they stand for.

#include "espalier/plan/plan_file.h"

#include <algorithm>

#include "espalier/base/check.h"
#include "espalier/base/hash.h"
#include "espalier/base/spelling.h"
#include "espalier/plan/fragments.h"

namespace espalier {
namespace {

std::vector<std::pair<std::string, std::string>> runs_of(const Graph& graph,
                                                         const std::vector<OperatorId>& operators) {
  std::vector<std::pair<std::string, std::string>> runs;
  for (std::size_t i = 0; i < operators.size();) {
    std::size_t last = i;
    while (last + 1 < operators.size() && operators[last + 1].index() == operators[last].index() + 1) ++last;
    runs.emplace_back(graph.op(operators[i]).name, graph.op(operators[last]).name);
    i = last + 1;
  }
  return runs;
}

OperatorId operator_named(const Graph& graph, const std::string& stage, const std::string& name) {
  if (const auto id = graph.find_operator(name)) return *id;
  throw InputError("stage '" + stage + "': operator '" + name.substr(0, 80) + "' is not in the model");
}

std::vector<OperatorId> resolve_runs(const Graph& graph, const NamedStage& stage) {
  std::vector<OperatorId> operators;
  for (const auto& [first_name, last_name] : stage.operators) {
    const OperatorId first = operator_named(graph, stage.name, first_name);
    const OperatorId last = operator_named(graph, stage.name, last_name);
    if (last < first || (!operators.empty() && !(operators.back() < first))) {
      throw InputError("stage '" + stage.name + "': the run from '" + first_name + "' to '" + last_name +
                       "' is not in the model's order");
    }
    for (std::size_t i = first.index(); i <= last.index(); ++i) operators.push_back(OperatorId(i));
  }
  return operators;
}

[[noreturn]] void refuse_model(const PlanFile& file, const Graph& graph) {
  const std::size_t count = graph.operators().size();
  std::string difference = "its tensors or parameters differ";
  if (file.operators.size() != count) {
    difference =
        "it has " + std::to_string(count) + " operators, not " + std::to_string(file.operators.size());
  }
  for (std::size_t i = 0; i < std::min(count, file.operators.size()); ++i) {
    if (operator_fingerprint(graph, OperatorId(i)) == file.operators[i]) continue;
    difference = "operator '" + graph.operators()[i].name + "' (number " + std::to_string(i) +
                 ") is the first that differs";
    break;
  }
  throw InputError("the model is not the one this plan was made for: " + difference +
                   "; plan again, or give that model");
}

}  // namespace

std::string devices_name(const Cluster& cluster, const std::vector<DeviceId>& devices) {
  std::string text;
  for (const DeviceId device : devices) text += (text.empty() ? "" : "+") + cluster.device(device).name;
  return text;
}

std::uint16_t operator_fingerprint(const Graph& graph, OperatorId id) {
  const Operator& op = graph.op(id);
  Fingerprint hash;
  hash.add(op.name);
  hash.add(op.target);
  hash.add(op.op_class);
  hash.add(static_cast<std::uint64_t>(op.role));
  for (const std::vector<TensorId>* tensors : {&op.inputs, &op.outputs, &op.mutates}) {
    hash.add(tensors->size());
    for (const TensorId tensor : *tensors) {
      const Tensor& t = graph.tensor(tensor);
      hash.add(t.name);
      hash.add(static_cast<std::uint64_t>(t.dtype));
      hash.add(t.sizes.size());
      for (const SizeExpr& size : t.sizes) hash.add(size.text());
    }
  }
  const std::uint64_t value = hash.value();
  return static_cast<std::uint16_t>(value ^ (value >> 16) ^ (value >> 32) ^ (value >> 48));
}

namespace {

PlanFile file_without_plan(const Graph& graph, const Cluster& cluster, const Training& training,
                           StagedModel staged) {
  PlanFile file;
  file.fingerprint = graph.fingerprint();
  for (std::size_t i = 0; i < graph.operators().size(); ++i) {
    file.operators.push_back(operator_fingerprint(graph, OperatorId(i)));
  }
  file.cluster = cluster.parts();
  file.training = training;
  file.staged = std::move(staged);
  return file;
}

}  // namespace

PlanFile make_plan_file(const Graph& graph, const Cluster& cluster, const Training& training,
                        const Placement& placement, BatchSize micro_batch, StagedModel staged) {
  PlanFile file = file_without_plan(graph, cluster, training, std::move(staged));
  file.placement = PlanFile::Placed{name_placement(placement, graph, cluster), micro_batch};
  return file;
}

PlanFile make_plan_file(const Graph& graph, const Cluster& cluster, const Training& training,
                        const PipelinePlan& plan, StagedModel staged) {
  PlanFile file = file_without_plan(graph, cluster, training, std::move(staged));
  for (const Stage& stage : plan.stages) {
    NamedStage named;
    named.name = stage.name;
    named.operators = runs_of(graph, stage.operators);
    for (const OperatorId op : stage.recompute) named.recompute.push_back(graph.op(op).name);
    named.micro_batch = stage.micro_batch;
    for (const Replica& replica : stage.replicas) {
      named.devices.push_back(devices_name(cluster, replica.devices));
    }
    for (const StageId before : stage.after) named.after.push_back(plan.stages[before.index()].name);
    file.stages.push_back(std::move(named));
  }
  return file;
}

Stage resolve_stage(const PlanFile& file, std::size_t number, const Graph& graph, const Cluster& cluster,
                    const std::string& where) {
  const NamedStage& named = file.stages[number];
  const std::string place = where + ": stages[" + std::to_string(number) + "]";
  const auto fail = [&](const std::string& member, std::size_t i, const std::string& problem) {
    throw InputError(place + "." + member + "[" + std::to_string(i) + "]: " + problem);
  };
  std::vector<std::string_view> names;
  for (const Operator& op : graph.operators()) names.push_back(op.name);
  const auto find = [&](const std::string& name, const std::string& member, std::size_t i) {
    const auto id = graph.find_operator(name);
    if (!id) {
      fail(member, i,
           "'" + name.substr(0, 80) + "' is no operator of the model; did you mean '" +
               std::string(nearest_word(name, names).value_or("")) + "'?");
    }
    return *id;
  };
  Stage stage;
  stage.name = named.name;
  stage.micro_batch = named.micro_batch;
  for (std::size_t i = 0; i < named.operators.size(); ++i) {
    const OperatorId first = find(named.operators[i].first, "operators", i);
    const OperatorId last = find(named.operators[i].second, "operators", i);
    if (last < first) fail("operators", i, "runs against the model's order");
    for (std::size_t op = first.index(); op <= last.index(); ++op) stage.operators.push_back(OperatorId(op));
  }
  std::sort(stage.operators.begin(), stage.operators.end());
  stage.operators.erase(std::unique(stage.operators.begin(), stage.operators.end()), stage.operators.end());
  if (stage.operators.empty()) throw InputError(place + ".operators: has none; expected at least one");
  for (std::size_t i = 0; i < named.recompute.size(); ++i) {
    const OperatorId op = find(named.recompute[i], "recompute", i);
    if (!std::binary_search(stage.operators.begin(), stage.operators.end(), op)) {
      fail("recompute", i, "'" + named.recompute[i] + "' is not one of the stage's operators");
    }
    stage.recompute.push_back(op);
  }
  std::sort(stage.recompute.begin(), stage.recompute.end());
  const std::int64_t batch = file.training.batch.count(), size = named.micro_batch.count();
  if (batch % size != 0) {
    throw InputError(place + ".micro_batch: " + std::to_string(size) + " does not divide the batch " +
                     std::to_string(batch));
  }
  if (named.devices.empty()) throw InputError(place + ".devices: has none; expected at least one");
  for (std::size_t i = 0; i < named.devices.size(); ++i) {
    const auto device = cluster.find_device(named.devices[i]);
    if (!device) {
      fail("devices", i,
           "'" + named.devices[i].substr(0, 80) + "' is no device of the cluster" +
               (named.devices[i].find('+') != std::string::npos
                    ? ": groups of devices cannot be planned again"
                    : "; its first is '" + cluster.devices().front().name + "'"));
    }
    stage.replicas.push_back(
        {{*device},
         round_robin(static_cast<std::uint32_t>(std::min<std::int64_t>(batch / size, kMaxMicroBatches)), i,
                     named.devices.size())});
  }
  return stage;
}

namespace {

// Named and limited as the staged ones, which were made of them.
PipelinePlan resolve_fragments(const PlanFile& file, const Graph& graph) {
  const Cluster cluster(file.cluster);
  const BatchSize micro_batch = file.placement->micro_batch;
  const Placement placement =
      resolve_placement(file.placement->operators, graph, cluster, "the plan's placement: ");
  const std::vector<std::string> violations = check_placement(graph, cluster, placement);
  if (!violations.empty()) throw InputError("the placement breaks a rule: " + violations.front());
  const auto outside = [&](BatchSize size) { return size < graph.batch().min || graph.batch().max < size; };
  if (outside(micro_batch)) {
    throw InputError("the plan's placement: micro_batch: " + std::to_string(micro_batch.count()) +
                     " is outside the model's batch range");
  }
  PipelinePlan plan = fragments_of(graph, placement, file.training.batch, {micro_batch, file.staged.orders});
  plan.tokens = file.staged.tokens;
  const std::vector<StagedStage>& staged = file.staged.stages;
  bool same = plan.stages.size() == staged.size();
  for (std::size_t x = 0; same && x < staged.size(); ++x) {
    Stage& stage = plan.stages[x];
    same = staged[x].replicas[0].devices == stage.replicas[0].devices && staged[x].after == stage.after;
    stage.name = staged[x].name;
    stage.in_flight = staged[x].in_flight;
    stage.slots = staged[x].slots;
  }
  if (same) return plan;
  throw InputError(
      "the staged model is not that of the placement's fragments; `espalier plan MODEL --start` makes it "
      "again");
}

}  // namespace

PipelinePlan resolve_plan(const PlanFile& file, const Graph& graph) {
  if (file.fingerprint != graph.fingerprint()) refuse_model(file, graph);
  if (file.placement) return resolve_fragments(file, graph);
  ESP_CHECK(file.stages.size() == file.staged.stages.size(), file.stages.size(), file.staged.stages.size());
  PipelinePlan plan;
  plan.batch = file.training.batch;
  plan.orders = file.staged.orders;
  plan.tokens = file.staged.tokens;
  std::vector<bool> placed(graph.operators().size());
  for (std::size_t x = 0; x < file.stages.size(); ++x) {
    const NamedStage& named = file.stages[x];
    const StagedStage& staged = file.staged.stages[x];
    Stage stage;
    stage.name = named.name;
    stage.operators = resolve_runs(graph, named);
    for (const OperatorId op : stage.operators) {
      if (placed[op.index()] && !graph.op(op).duplicable) {
        throw InputError("operator '" + graph.op(op).name + "' stands in two stages of the plan");
      }
      placed[op.index()] = true;
    }
    for (const std::string& name : named.recompute) {
      stage.recompute.push_back(operator_named(graph, named.name, name));
    }
    for (const StagedReplica& replica : staged.replicas) {
      stage.replicas.push_back({replica.devices, replica.micro_batches});
    }
    stage.after = staged.after;
    stage.micro_batch = named.micro_batch;
    stage.in_flight = staged.in_flight;
    stage.slots = staged.slots;
    plan.stages.push_back(std::move(stage));
  }
  const std::vector<std::string> violations = check_plan(graph, Cluster(file.cluster), plan);
  if (!violations.empty()) throw InputError("the plan breaks a rule: " + violations.front());
  return plan;
}

}  // namespace espalier
