#include "espalier/app/memory_account.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "espalier/cost/cost_table.h"

namespace espalier {
namespace {

// The device's first sample with the largest total.
const MemorySample* peak_of(const Trace& trace, DeviceId device) {
  const MemorySample* most = nullptr;
  for (const MemorySample& sample : trace.memory) {
    if (sample.device != device) continue;
    if (most == nullptr || sample.held.total() > most->held.total()) most = &sample;
  }
  return most;
}

// Micro-batches of the stage between the start of F and the end of B (of W where that is split) then.
std::int64_t in_flight_at(const Trace& trace, DeviceId device, StageId stage, Duration time) {
  std::int64_t begun = 0;
  std::map<std::uint32_t, Duration> ends;  // by micro-batch
  for (const Span& span : trace.spans) {
    if (span.device != device || span.kind != SpanKind::kAction || !span.action.is_of(stage)) continue;
    if (span.action.kind == ActionKind::kForward) begun += span.start <= time ? 1 : 0;
    if (span.action.kind == ActionKind::kBackward || span.action.kind == ActionKind::kWeightGradient) {
      ends[span.action.micro_batch] = span.end;
    }
  }
  return begun - std::count_if(ends.begin(), ends.end(), [&](const auto& end) { return end.second <= time; });
}

// "encoder.layers.3.linear1": "encoder.layers.*.linear1".
std::string pattern_of(const std::string& module) {
  std::string pattern;
  for (std::size_t at = 0; at <= module.size();) {
    const std::size_t end = std::min(module.find('.', at), module.size());
    const std::string part = module.substr(at, end - at);
    const bool number = !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
    pattern += (at > 0 ? "." : "") + (number ? "*" : part);
    at = end + 1;
  }
  return pattern;
}

struct Alike {  // modules whose names differ in numbers alone
  MemoryHolder sum;
  std::set<std::string> modules;
  Bytes largest;  // of one operator
};

class Accountant {
 public:
  Accountant(const PlanningJob& job, const Judged& judged, DeviceId device) : job_(job), judged_(judged) {
    account_.device = device;
    account_.has = job.cluster.device(device).memory;
    const MemorySample* const peak = peak_of(judged.trace, device);
    if (peak == nullptr) return;
    account_.peak = peak->held.total();
    account_.at = peak->time;
  }

  MemoryAccount run() {
    for (std::size_t s = 0; s < judged_.plan.stages.size(); ++s) {
      const Stage& stage = judged_.plan.stages[s];
      for (const Replica& replica : stage.replicas) {
        const auto& group = replica.devices;
        if (std::find(group.begin(), group.end(), account_.device) == group.end()) continue;
        add(StageId(s), stage, static_cast<std::int64_t>(group.size()));
      }
    }
    Bytes told;
    for (auto& [pattern, alike] : holders_) {
      const std::size_t count = alike.modules.size();
      alike.sum.module = count == 1 ? *alike.modules.begin() : pattern + " (" + std::to_string(count) + ")";
      told += alike.sum.total();
      account_.holders.push_back(std::move(alike.sum));
    }
    std::stable_sort(account_.holders.begin(), account_.holders.end(),
                     [](const MemoryHolder& a, const MemoryHolder& b) { return a.total() > b.total(); });
    account_.rest = account_.peak - told;
    return std::move(account_);
  }

 private:
  // `share`: devices of a tensor-parallel group hold so much less of each parameter.
  void add(StageId id, const Stage& stage, std::int64_t share) {
    const Graph& graph = job_.graph;
    Variant variant;
    variant.tensor_parallel = static_cast<std::uint32_t>(share);
    const KindCosts costs(graph, job_.cluster.kind_of(account_.device), job_.costs, stage.micro_batch,
                          variant);
    const std::int64_t in_flight = in_flight_at(judged_.trace, account_.device, id, account_.at);
    std::set<StorageId> own, counted;
    for (const OperatorId op : stage.operators) {
      for (const TensorId t : graph.op(op).outputs) own.insert(graph.tensor(t).storage);
    }
    // What crosses a border stands in the rest: it is counted with messages.
    const std::set<std::string> crossing = names_of_crossings(id);
    for (const TensorId t : graph_tensors(stage)) {
      if (crossing.contains(graph.tensor(t).name)) own.erase(graph.tensor(t).storage);
    }
    for (const OperatorId op : stage.operators) {
      MemoryHolder more;
      for (const TensorId t : graph.op(op).inputs) {
        const auto parameter = graph.tensor(t).parameter;
        if (!parameter || !parameters_.insert(*parameter).second) continue;
        const Bytes bytes = graph.parameter(*parameter).bytes() / share;
        more.parameters += bytes;
        if (!graph.parameter(*parameter).trainable) continue;
        more.training += bytes + optimizer_state(job_.training.optimizer, bytes);
      }
      const bool again = std::binary_search(stage.recompute.begin(), stage.recompute.end(), op);
      const OperatorCost* const cost = costs.of(op);
      if (cost != nullptr && !again) {
        Bytes kept = cost->private_bytes;
        for (const SavedTensor& saved : cost->saved) {
          const bool input = saved.side == SavedTensor::Side::kInput;
          const Tensor& tensor =
              graph.tensor((input ? graph.op(op).inputs : graph.op(op).outputs)[saved.index]);
          if (!own.contains(tensor.storage) || !counted.insert(tensor.storage).second) continue;
          kept += tensor.bytes(stage.micro_batch);
        }
        more.kept = in_flight * kept;
      }
      if (more.total() == Bytes()) continue;
      const Operator& named = graph.op(op);
      const std::string& module = named.module_path.empty() ? named.name : named.module_path;
      Alike& alike = holders_[pattern_of(module)];
      alike.modules.insert(module);
      alike.sum.parameters += more.parameters;
      alike.sum.training += more.training;
      alike.sum.kept += more.kept;
      if (more.total() > alike.largest) {
        alike.largest = more.total();
        alike.sum.source = named.source;
      }
    }
  }

  std::vector<TensorId> graph_tensors(const Stage& stage) const {
    std::vector<TensorId> tensors;
    for (const OperatorId op : stage.operators) {
      const std::vector<TensorId>& outputs = job_.graph.op(op).outputs;
      tensors.insert(tensors.end(), outputs.begin(), outputs.end());
    }
    return tensors;
  }

  std::set<std::string> names_of_crossings(StageId stage) const {
    std::set<std::string> names;
    for (const Crossing& crossing : judged_.staged.crossings) {
      if (crossing.from == stage) names.insert(crossing.tensor);
    }
    return names;
  }

  const PlanningJob& job_;
  const Judged& judged_;
  MemoryAccount account_;
  std::set<ParameterId> parameters_;      // counted
  std::map<std::string, Alike> holders_;  // by pattern
};

}  // namespace

MemoryAccount memory_account(const PlanningJob& job, const Judged& judged, DeviceId device) {
  return Accountant(job, judged, device).run();
}

Table memory_account_table(const MemoryAccount& account, std::size_t most) {
  Table table{{{"module", "module"},
               {"source", "source"},
               {"parameters", "parameters"},
               {"training", "grad + opt"},
               {"kept", "kept"},
               {"total", "in all"},
               {"share", "share"}},
              {}};
  const double peak = static_cast<double>(std::max<std::int64_t>(1, account.peak.count()));
  const auto add = [&](const std::string& module, const std::string& source, Cell parameters, Cell training,
                       Cell kept, Bytes total) {
    table.rows.push_back({module, source.empty() ? Cell() : Cell(source), std::move(parameters),
                          std::move(training), std::move(kept), total,
                          Percentage{static_cast<double>(total.count()) / peak}});
  };
  MemoryHolder others;
  for (std::size_t i = 0; i < account.holders.size(); ++i) {
    const MemoryHolder& holder = account.holders[i];
    if (i < most) {
      add(holder.module, holder.source, holder.parameters, holder.training, holder.kept, holder.total());
    } else {
      others.parameters += holder.parameters;
      others.training += holder.training;
      others.kept += holder.kept;
    }
  }
  if (account.holders.size() > most) {
    add(std::to_string(account.holders.size() - most) +
            (account.holders.size() - most == 1 ? " other" : " others"),
        "", others.parameters, others.training, others.kept, others.total());
  }
  add("messages, workspace", "", Cell(), Cell(), Cell(), account.rest);
  return table;
}

}  // namespace espalier
