#include <algorithm>
#include <map>
#include <set>

#include "espalier/cost/operator_family.h"
#include "espalier/plan/plan.h"

namespace espalier {
namespace {

struct Found {
  std::string first;
  std::size_t count = 0;
  void add(const std::string& name) {
    if (count++ == 0) first = name;
  }
  // The verb for one and for several.
  std::string text(const char* verb, const char* verb_of_several) const {
    if (count == 1) return "'" + first + "' " + verb;
    return "'" + first + "' and " + std::to_string(count - 1) + " more " + verb_of_several;
  }
};

std::string size_text(BatchSize size) {
  return std::to_string(size.count());
}

// A scalar quotient whose divisor comes from the data averages over a count that varies.
bool divides_by_a_count(const Graph& graph, const Operator& op) {
  if (op.target.find("div") == std::string::npos || op.inputs.size() < 2) return false;
  const Tensor& divisor = graph.tensor(op.inputs[1]);
  return divisor.producer && divisor.sizes.empty();
}

void warn_of_stage(const Graph& graph, const PipelinePlan& plan, StageId id, Found& random,
                   std::vector<std::string>& found) {
  const Stage& stage = plan.stages[id.index()];
  const bool split = stage.micro_batch < plan.batch;
  std::map<std::string, Found> mixing;  // by target
  std::set<std::string> buffers;
  for (const OperatorId op_id : stage.operators) {
    const Operator& op = graph.op(op_id);
    const bool is_loss = graph.loss() && graph.tensor(*graph.loss()).producer == op_id;
    if (op.mixes_samples && split && !is_loss) mixing[op.target].add(op.name);
    if (op.random && split) random.add(op.name);
    if (op.mixes_samples && split && is_loss) {
      found.push_back("the loss '" + op.name + "' depends on which samples it sees together: it sees " +
                      size_text(stage.micro_batch) + " of " + size_text(plan.batch) + " at a time");
    }
    if (is_loss && split && divides_by_a_count(graph, op)) {
      found.push_back(
          "the loss '" + op.name + "' divides by '" + graph.tensor(op.inputs[1]).name +
          "', which may differ from micro-batch to micro-batch: the step's loss is the mean of their means");
    }
    for (const TensorId tensor : op.mutates) {
      const auto parameter = graph.tensor(tensor).parameter;
      if (parameter) buffers.insert(graph.parameter(*parameter).names[0]);
    }
  }
  for (const auto& [target, operators] : mixing) {
    found.push_back("stage '" + stage.name + "': " + operators.text("mixes", "mix") + " samples (" + target +
                    "): " + (operators.count == 1 ? "it sees " : "they see ") + size_text(stage.micro_batch) +
                    " of " + size_text(plan.batch) + " at a time");
  }
  if (!buffers.empty() && stage.replicas.size() > 1) {
    found.push_back("stage '" + stage.name + "': buffer '" + *buffers.begin() + "'" +
                    (buffers.size() > 1 ? " and " + std::to_string(buffers.size() - 1) + " more" : "") +
                    " is written in each of " + std::to_string(stage.replicas.size()) +
                    " replicas on its own; replica 0's is the one that is saved");
  }
}

}  // namespace

std::vector<OperatorId> operators_that_need_the_whole_batch(const Graph& graph) {
  std::vector<bool> needed(graph.operators().size(), !graph.loss().has_value());
  if (graph.loss() && graph.tensor(*graph.loss()).producer) {
    needed[graph.tensor(*graph.loss()).producer->index()] = true;
  }
  std::vector<OperatorId> result;
  for (std::size_t i = needed.size(); i-- > 0;) {
    if (!needed[i]) continue;
    for (const OperatorId p : graph.predecessors(OperatorId(i))) needed[p.index()] = true;
    const bool statistics = operator_family(graph, OperatorId(i)).keeps == Keeps::kChannelStatistics;
    if (graph.operators()[i].mixes_samples && !statistics) result.push_back(OperatorId(i));
  }
  std::reverse(result.begin(), result.end());
  return result;
}

bool writes_buffer(const Graph& graph, OperatorId op) {
  const std::vector<TensorId>& mutates = graph.op(op).mutates;
  return std::any_of(mutates.begin(), mutates.end(),
                     [&](TensorId tensor) { return graph.tensor(tensor).parameter.has_value(); });
}

std::vector<std::string> semantic_warnings(const Graph& graph, const PipelinePlan& plan) {
  std::vector<std::string> found;
  Found random;
  for (std::size_t x = 0; x < plan.stages.size(); ++x) warn_of_stage(graph, plan, StageId(x), random, found);
  if (random.count > 0) {
    found.push_back(random.text("draws", "draw") +
                    " random numbers for each micro-batch: another micro-batch size draws others");
  }

  const auto other = std::find_if(plan.stages.begin(), plan.stages.end(), [&](const Stage& stage) {
    return stage.micro_batch != plan.stages[0].micro_batch;
  });
  if (other != plan.stages.end()) {
    found.push_back("stages '" + plan.stages[0].name + "' and '" + other->name + "' have micro-batches of " +
                    size_text(plan.stages[0].micro_batch) + " and " + size_text(other->micro_batch) +
                    ": a run takes that where no operator mixes samples");
  }
  return found;
}

}  // namespace espalier
