// From a graph to tasks and values, in this order: tasks of operators, the duplicable operators behind each,
// units, values of the forward half (or of the whole training graph), values of the mirrored half, residents.
//
//   F half         f ── y ──▶ g        mirrored        f' ◀── y.grad ── g'
//                  └ kept ──▶ f'                       f' also reads what f keeps: tensors, private bytes
//
// Bytes do not depend on the kind: where cells of kinds differ, the most of those that may run the operator.

#include "espalier/placement/instance.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/base/union_find.h"
#include "espalier/cost/training_times.h"

namespace espalier::placement {
namespace {

constexpr std::uint32_t kNone = 0xffffffff;

// What all kinds that have a cell say of an operator's memory.
struct OperatorMemory {
  std::vector<SavedTensor> saved;
  Bytes private_bytes, workspace;
};

// A value while readers are still being found.
struct ValueDraft {
  TaskId producer;
  Bytes bytes;
  Bytes own;
  std::uint32_t within = kNone;
  bool here_only = false;
  std::vector<TaskId> readers;
};

class InstanceMaker {
 public:
  InstanceMaker(const Graph& graph, const Cluster& cluster, const CostTable& costs, const Training& training,
                const InstanceOptions& options)
      : graph_(graph),
        cluster_(cluster),
        costs_(costs),
        training_(training),
        options_(options),
        training_graph_(is_training_graph(graph.operators())) {}

  Instance run() {
    number_tasks();
    find_duplicables();
    add_devices();
    add_times();
    make_units();
    add_residents();
    add_trained();
    for (std::size_t i = 0; i < operators(); ++i) add_forward_values(OperatorId(i));
    if (training_graph_) {
      add_private_values();
    } else {
      for (std::size_t i = operators(); i-- > 0;) add_backward_values(OperatorId(i));
    }
    write_values();
    return std::move(made_);
  }

 private:
  std::size_t operators() const { return graph_.operators().size(); }
  const Operator& op(OperatorId id) const { return graph_.op(id); }
  TaskId forward(OperatorId id) const { return TaskId(forward_[id.index()]); }
  bool has_backward(OperatorId id) const { return backward_[id.index()] != kNone; }
  TaskId backward(OperatorId id) const { return TaskId(backward_[id.index()]); }

  void add_task(OperatorId id, Pass pass, std::vector<std::uint32_t>& number) {
    number[id.index()] = narrow(made_.op.size());
    made_.op.push_back(id);
    made_.pass.push_back(pass);
  }

  void number_tasks() {
    forward_.assign(operators(), kNone);
    backward_.assign(operators(), kNone);
    for (std::size_t i = 0; i < operators(); ++i) {
      const OperatorId id(i);
      if (!op(id).duplicable) {
        add_task(id, op(id).role == OperatorRole::kForward ? Pass::kForward : Pass::kBackward, forward_);
      }
    }
    for (std::size_t i = training_graph_ ? 0 : operators(); i-- > 0;) {
      const std::vector<TensorId>& outputs = graph_.operators()[i].outputs;
      if (std::any_of(outputs.begin(), outputs.end(),
                      [&](TensorId t) { return graph_.tensor(t).requires_grad; })) {
        add_task(OperatorId(i), Pass::kBackward, backward_);
      }
    }
  }

  // By operator: the duplicable operators that must have run before it.
  void find_duplicables() {
    behind_.resize(operators());
    for (std::size_t i = 0; i < operators(); ++i) {
      if (graph_.operators()[i].duplicable) {
        number_of_duplicable_[OperatorId(i)] = narrow(duplicable_.size());
        duplicable_.emplace_back(i);
      }
      std::vector<std::uint32_t>& all = behind_[i];
      for (const TensorId input : graph_.operators()[i].inputs) {
        const std::optional<OperatorId> from = graph_.tensor(input).producer;
        if (!from || !op(*from).duplicable) continue;
        all.insert(all.end(), behind_[from->index()].begin(), behind_[from->index()].end());
        all.push_back(number_of_duplicable_.at(*from));
      }
      std::sort(all.begin(), all.end());
      all.erase(std::unique(all.begin(), all.end()), all.end());
    }
    for (std::size_t task = 0; task < made_.op.size(); ++task) {
      const std::vector<std::uint32_t>& all = behind_[made_.op[task].index()];
      made_.duplicates.items.insert(made_.duplicates.items.end(), all.begin(), all.end());
      made_.duplicates.close();
    }
  }

  void add_devices() {
    const std::size_t count = cluster_.devices().size();
    for (const Device& device : cluster_.devices()) {
      made_.kind.push_back(device.kind);
      made_.memory.push_back(device.memory);
    }
    made_.kinds = cluster_.kinds().size();
    made_.links = cluster_.link_count();
    for (std::size_t from = 0; from < count; ++from) {
      for (std::size_t to = 0; to < count; ++to) {
        made_.ways.push_back(cluster_.route(DeviceId(from), DeviceId(to)));
      }
    }
  }

  void add_times() {
    made_.time.resize(made_.op.size() * made_.kinds);
    made_.duplicate_time.resize(duplicable_.size() * made_.kinds);
    memory_.resize(operators());
    can_.assign(operators() * made_.kinds, 1);
    for (std::size_t k = 0; k < made_.kinds; ++k) add_times_of(KindId(k));
    for (std::size_t task = 0; task < made_.op.size(); ++task) {
      made_.workspace.push_back(memory_[made_.op[task].index()].workspace);
    }
  }

  void add_times_of(KindId kind) {
    const KindCosts costs(graph_, cluster_.kind(kind), costs_, options_.micro_batch);
    const std::vector<Duration> whole =
        operator_durations(graph_, cluster_, costs_, costs, kind, training_.optimizer.kind);
    for (std::size_t i = 0; i < operators(); ++i) {
      const OperatorId id(i);
      const OperatorCost* const cost = costs.of(id);
      if (!cost) {
        can_[i * made_.kinds + kind.index()] = 0;
        continue;
      }
      note_memory(id, *cost, cluster_.kind(kind));
      if (op(id).duplicable) {
        made_.duplicate_time[number_of_duplicable_.at(id) * made_.kinds + kind.index()] = cost->forward;
        continue;
      }
      const auto time = [&](TaskId task) -> Duration& {
        return made_.time[task.index() * made_.kinds + kind.index()];
      };
      time(forward(id)) = training_graph_ ? whole[i] : cost->forward;
      if (has_backward(id)) time(backward(id)) = cost->backward();
    }
  }

  void note_memory(OperatorId id, const OperatorCost& cost, const DeviceKind& kind) {
    OperatorMemory& memory = memory_[id.index()];
    memory.saved = merged(memory.saved, cost.saved);
    memory.private_bytes = std::max(memory.private_bytes, cost.private_bytes);
    memory.workspace = std::max(memory.workspace, cost.workspace);
    if (op(id).role != OperatorRole::kUpdate) return;
    for (const TensorId written : op(id).mutates) {
      if (const auto parameter = graph_.tensor(written).parameter) {
        memory.workspace = std::max(
            memory.workspace, update_workspace(training_.optimizer, graph_.parameter(*parameter), kind));
      }
    }
  }

  void make_units() {
    UnionFind sets(operators());
    const auto join = [&](auto number_of) {
      std::map<std::uint32_t, std::uint32_t> first;
      for (std::size_t i = 0; i < operators(); ++i) {
        const std::optional<std::uint32_t> number = number_of(i);
        if (!number || graph_.operators()[i].duplicable) continue;
        sets.join(first.try_emplace(*number, narrow(i)).first->second, narrow(i));
      }
    };
    join([&](std::size_t i) { return graph_.operators()[i].colocation; });
    if (!options_.together.empty()) {
      ESP_CHECK(options_.together.size() == operators(), options_.together.size(), operators());
      join([&](std::size_t i) { return std::optional(options_.together[i]); });
    }
    std::vector<std::uint32_t> unit_of_set(operators(), kNone);
    std::vector<std::vector<TaskId>> tasks;
    for (std::size_t task = 0; task < made_.op.size(); ++task) {
      std::uint32_t& unit = unit_of_set[sets.find(narrow(made_.op[task].index()))];
      if (unit == kNone) {
        unit = narrow(tasks.size());
        tasks.emplace_back();
      }
      made_.unit.emplace_back(unit);
      tasks[unit].emplace_back(task);
    }
    for (const std::vector<TaskId>& own : tasks) {
      made_.tasks_of.items.insert(made_.tasks_of.items.end(), own.begin(), own.end());
      made_.tasks_of.close();
      add_allowed(own);
    }
  }

  void add_allowed(const std::vector<TaskId>& tasks) {
    std::vector<char> can(made_.kinds, 1);
    const auto need = [&](std::size_t i) {
      for (std::size_t k = 0; k < made_.kinds; ++k) can[k] = can[k] & can_[i * made_.kinds + k];
    };
    for (const TaskId task : tasks) {
      const OperatorId id = made_.op[task.index()];
      need(id.index());
      for (const std::uint32_t number : behind_[id.index()]) need(duplicable_[number].index());
    }
    for (std::size_t d = 0; d < made_.kind.size(); ++d) {
      if (can[made_.kind[d].index()]) made_.allowed.items.emplace_back(d);
    }
    made_.allowed.close();
    if (made_.allowed[made_.allowed.size() - 1].empty()) {
      throw InputError("operator '" + op(made_.op[tasks.front().index()]).name +
                       "' stands on no device: no kind has costs of all that must stand with it");
    }
  }

  // Storages that are held all step, numbered by first appearance; and who touches them.
  void add_residents() {
    resident_of_.assign(graph_.storage_count(), kNone);
    for (std::size_t t = 0; t < graph_.tensors().size(); ++t) {
      const Tensor& tensor = graph_.tensors()[t];
      if (tensor.producer && !op(*tensor.producer).duplicable) continue;
      std::uint32_t& resident = resident_of_[tensor.storage.index()];
      const bool first = resident == kNone;
      if (first) {
        resident = narrow(made_.resident_bytes.size());
        made_.resident_bytes.push_back({});
      }
      Bytes& bytes = made_.resident_bytes[resident];
      bytes = std::max(bytes, held_all_step(tensor));
    }
    std::vector<std::vector<std::uint32_t>> by_unit(made_.tasks_of.size());
    std::vector<std::vector<std::uint32_t>> touched(operators());  // by operator, with duplicables behind it
    for (std::size_t i = 0; i < operators(); ++i) {
      const Operator& own = graph_.operators()[i];
      std::vector<std::uint32_t>& all = touched[i];
      const auto touch = [&](TensorId t) {
        const std::uint32_t resident = resident_of_[graph_.tensor(t).storage.index()];
        if (resident != kNone) all.push_back(resident);
        const std::optional<OperatorId> from = graph_.tensor(t).producer;
        if (!from || from->index() == i || !op(*from).duplicable) return;
        all.insert(all.end(), touched[from->index()].begin(), touched[from->index()].end());
      };
      for (const TensorId input : own.inputs) touch(input);
      for (const TensorId output : own.outputs) touch(output);
      std::sort(all.begin(), all.end());
      all.erase(std::unique(all.begin(), all.end()), all.end());
      if (own.duplicable) continue;
      std::vector<std::uint32_t>& of_unit = by_unit[made_.unit[forward(OperatorId(i)).index()].index()];
      of_unit.insert(of_unit.end(), all.begin(), all.end());
      if (own.role == OperatorRole::kUpdate) add_optimizer_state(own, of_unit);
    }
    for (std::vector<std::uint32_t>& all : by_unit) {
      std::sort(all.begin(), all.end());
      all.erase(std::unique(all.begin(), all.end()), all.end());
      made_.resident.items.insert(made_.resident.items.end(), all.begin(), all.end());
      made_.resident.close();
    }
  }

  // Updates' times are those of all of a device's parameters together, so what is fixed comes once.
  void add_trained() {
    if (training_graph_) return;
    std::vector<Bytes> gradient(made_.resident_bytes.size());
    for (const Tensor& tensor : graph_.tensors()) {
      if (!tensor.parameter || !graph_.parameter(*tensor.parameter).trainable) continue;
      gradient[resident_of_[tensor.storage.index()]] = graph_.parameter(*tensor.parameter).bytes();
    }
    for (std::size_t resident = 0; resident < gradient.size(); ++resident) {
      if (gradient[resident] == Bytes()) continue;
      made_.trained.push_back(narrow(resident));
      made_.trained_bytes.push_back(gradient[resident]);
      for (std::size_t k = 0; k < made_.kinds; ++k) {
        const DeviceKind& kind = cluster_.kind(KindId(k));
        const Duration alone =
            update_time(costs_.overhead(kind.name), training_.optimizer.kind, gradient[resident]);
        made_.update_time.push_back(at_speed(alone, kind) - fixed_on(kind));
      }
    }
    for (std::size_t k = 0; k < made_.kinds; ++k)
      made_.update_fixed.push_back(fixed_on(cluster_.kind(KindId(k))));
  }

  Duration fixed_on(const DeviceKind& kind) const {
    return at_speed(update_overhead(costs_.overhead(kind.name), training_.optimizer.kind), kind);
  }

  void add_optimizer_state(const Operator& update, std::vector<std::uint32_t>& residents) {
    for (const TensorId written : update.mutates) {
      const auto parameter = graph_.tensor(written).parameter;
      if (!parameter) continue;
      residents.push_back(narrow(made_.resident_bytes.size()));
      made_.resident_bytes.push_back(
          optimizer_state(training_.optimizer, graph_.parameter(*parameter).bytes()));
    }
  }

  // A forward graph's trainable parameter with its gradient and the optimizer's state.
  Bytes held_all_step(const Tensor& tensor) const {
    if (!tensor.parameter) return tensor.bytes(options_.micro_batch);
    const Parameter& parameter = graph_.parameter(*tensor.parameter);
    const Bytes bytes = parameter.bytes();
    if (training_graph_ || !parameter.trainable) return bytes;
    return bytes + bytes + optimizer_state(training_.optimizer, bytes);
  }

  // --- values

  std::uint32_t add_value(TaskId producer, Bytes bytes) {
    values_.push_back({producer, bytes, bytes, kNone, false, {}});
    return narrow(values_.size() - 1);
  }
  void read(std::uint32_t value, TaskId reader) {
    std::vector<TaskId>& readers = values_[value].readers;
    if (readers.empty() || readers.back() != reader)
      readers.push_back(reader);  // they come in ascending order
  }

  // The value of a tensor that an operator after its last mutation so far reads; none: a resident.
  std::optional<std::uint32_t> value_of(TensorId tensor) {
    const Tensor& t = graph_.tensor(tensor);
    if (!t.producer || op(*t.producer).duplicable) return std::nullopt;
    const auto last = mutation_.find(t.storage);
    if (last == mutation_.end() || last->second <= *t.producer) return value_of_.at({*t.producer, tensor});
    const auto [at, fresh] = value_of_.try_emplace({last->second, tensor}, narrow(values_.size()));
    if (fresh) {
      const std::uint32_t before = value_of_.at({*t.producer, tensor});
      add_value(forward(last->second), t.bytes(options_.micro_batch));
      values_.back().own = {};
      if (reads(before, forward(last->second))) values_.back().within = before;
    }
    return at->second;
  }
  bool reads(std::uint32_t value, TaskId task) const {
    const std::vector<TaskId>& readers = values_[value].readers;
    return std::binary_search(readers.begin(), readers.end(), task);
  }

  void add_forward_values(OperatorId id) {
    if (op(id).duplicable) return;
    std::vector<std::uint32_t> inputs;  // values of this operator's inputs
    for (const TensorId input : op(id).inputs) {
      if (const auto value = value_of(input)) {
        read(*value, forward(id));
        inputs.push_back(*value);
        storage_of_value_.emplace(*value, graph_.tensor(input).storage);
      }
    }
    for (const OperatorId before : graph_.predecessors(id)) {
      if (!op(before).duplicable && !feeds(before, id)) add_order(before, id);
    }
    std::vector<std::uint32_t> shared = inputs;
    for (const TensorId output : op(id).outputs) {
      const Tensor& tensor = graph_.tensor(output);
      const std::uint32_t value = add_value(forward(id), tensor.bytes(options_.micro_batch));
      value_of_[{id, output}] = value;
      storage_of_value_.emplace(value, tensor.storage);
      if (resident_of_[tensor.storage.index()] != kNone) values_[value].own = {};
      const auto same = std::find_if(shared.begin(), shared.end(), [&](std::uint32_t other) {
        return storage_of_value_.at(other) == tensor.storage;
      });
      if (same != shared.end()) {
        values_[value].own = {};
        values_[value].within = *same;
      }
      shared.push_back(value);
    }
    for (const TensorId written : op(id).mutates) mutation_[graph_.tensor(written).storage] = id;
  }

  // Whether the operator reads what `before` gives, by itself or as it left the memory.
  bool feeds(OperatorId before, OperatorId id) const {
    for (const TensorId input : op(id).inputs) {
      const Tensor& tensor = graph_.tensor(input);
      if (tensor.producer == before) return true;
      const auto last = mutation_.find(tensor.storage);
      if (last != mutation_.end() && last->second == before && value_of_.count({before, input}) > 0)
        return true;
    }
    return false;
  }

  void add_order(OperatorId before, OperatorId id) {
    const bool update = op(id).role == OperatorRole::kUpdate;
    const auto [at, fresh] = order_of_.try_emplace({before, update}, narrow(values_.size()));
    if (fresh) {
      add_value(forward(before), {});
      values_.back().here_only = update;
    }
    read(at->second, forward(id));
  }

  // In a training graph the backward of an operator is the one of its class that reads a gradient of what it
  // gave; private bytes pass to it like a tensor.
  void add_private_values() {
    std::vector<std::vector<OperatorId>> takers(graph_.tensors().size());  // of a tensor's gradients
    for (std::size_t t = 0; t < graph_.tensors().size(); ++t) {
      const std::optional<TensorId> of = graph_.tensors()[t].gradient_of;
      if (!of) continue;
      for (const OperatorId reader : graph_.readers(TensorId(t))) takers[of->index()].push_back(reader);
    }
    for (std::size_t i = 0; i < operators(); ++i) {
      const Operator& own = graph_.operators()[i];
      if (own.role != OperatorRole::kForward || memory_[i].private_bytes == Bytes()) continue;
      const std::uint32_t value = add_value(forward(OperatorId(i)), memory_[i].private_bytes);
      for (const TensorId output : own.outputs) {
        for (const OperatorId reader : takers[output.index()]) {
          const bool its_own =
              op(reader).role == OperatorRole::kBackward && op(reader).op_class == own.op_class;
          if (its_own) values_[value].readers.push_back(forward(reader));
        }
      }
    }
  }

  // --- the mirrored half

  void add_backward_values(OperatorId id) {
    if (!has_backward(id)) return;
    const TaskId task = backward(id);
    const std::vector<std::uint32_t> gradients = std::move(gradients_of_[id]);
    for (const std::uint32_t gradient : gradients) read(gradient, task);
    read_kept(id, task, gradients.empty());
    std::vector<TensorId> given;
    for (const TensorId input : op(id).inputs) {
      const Tensor& tensor = graph_.tensor(input);
      if (!tensor.requires_grad || !tensor.producer) continue;
      if (std::find(given.begin(), given.end(), input) != given.end()) continue;
      given.push_back(input);
      const std::uint32_t value = add_value(task, tensor.bytes(options_.micro_batch));
      if (gradients.size() == 1 && passes_on(id, tensor)) {
        values_[value].own = {};
        values_[value].within = gradients.front();
      }
      gradients_of_[*tensor.producer].push_back(value);
    }
  }

  // Whether the gradient of that input is the gradient of the output, seen as another shape.
  bool passes_on(OperatorId id, const Tensor& input) const {
    if (op(id).outputs.size() != 1 || !op(id).mutates.empty()) return false;
    const Tensor& output = graph_.tensor(op(id).outputs[0]);
    return output.storage == input.storage && output.dtype == input.dtype &&
           output.elements() == input.elements();
  }

  void read_kept(OperatorId id, TaskId task, bool needs_order) {
    const OperatorMemory& memory = memory_[id.index()];
    for (const SavedTensor& saved : memory.saved) {
      const std::vector<TensorId>& side =
          saved.side == SavedTensor::Side::kInput ? op(id).inputs : op(id).outputs;
      if (saved.index >= side.size()) {
        throw InputError("the cost of operator '" + op(id).name + "' keeps tensor " +
                         std::to_string(saved.index) + " of a side that has " + std::to_string(side.size()));
      }
      const Tensor& tensor = graph_.tensor(side[saved.index]);
      if (!tensor.producer || op(*tensor.producer).duplicable) continue;
      read(value_of_.at({*tensor.producer, side[saved.index]}), task);
    }
    if (memory.private_bytes > Bytes() || needs_order) {
      read(add_value(forward(id), memory.private_bytes), task);
    }
  }

  // Numbers values by producer, keeps within to smaller numbers, and writes all lists.
  void write_values() {
    std::vector<std::uint32_t> order(values_.size()), number(values_.size());
    for (std::size_t v = 0; v < order.size(); ++v) order[v] = narrow(v);
    std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
      return values_[a].producer < values_[b].producer;
    });
    for (std::size_t i = 0; i < order.size(); ++i) number[order[i]] = narrow(i);
    std::vector<std::vector<ValueId>> reads_of(made_.op.size());
    std::size_t task = 0;
    for (std::size_t i = 0; i < order.size(); ++i) {
      ValueDraft& value = values_[order[i]];
      std::sort(value.readers.begin(), value.readers.end());
      value.readers.erase(std::unique(value.readers.begin(), value.readers.end()), value.readers.end());
      for (; task < value.producer.index(); ++task) made_.produces.close();
      made_.produces.items.emplace_back(i);
      made_.producer.push_back(value.producer);
      made_.bytes.push_back(value.bytes);
      made_.own_bytes.push_back(value.own);
      made_.within.emplace_back(value.within == kNone ? i : number[value.within]);
      made_.here_only.push_back(value.here_only ? 1 : 0);
      made_.readers.items.insert(made_.readers.items.end(), value.readers.begin(), value.readers.end());
      made_.readers.close();
      for (const TaskId reader : value.readers) reads_of[reader.index()].emplace_back(i);
    }
    for (; task < made_.op.size(); ++task) made_.produces.close();
    for (const std::vector<ValueId>& all : reads_of) {
      made_.reads.items.insert(made_.reads.items.end(), all.begin(), all.end());
      made_.reads.close();
    }
  }

  const Graph& graph_;
  const Cluster& cluster_;
  const CostTable& costs_;
  const Training& training_;
  const InstanceOptions& options_;
  const bool training_graph_;
  Instance made_;
  std::vector<std::uint32_t> forward_, backward_;  // by operator: its tasks
  std::map<OperatorId, std::uint32_t> number_of_duplicable_;
  std::vector<OperatorId> duplicable_;              // by that number
  std::vector<std::vector<std::uint32_t>> behind_;  // by operator: duplicables, by number
  std::vector<OperatorMemory> memory_;              // by operator
  std::vector<char> can_;                           // by operator and kind
  std::vector<std::uint32_t> resident_of_;          // by storage
  std::vector<ValueDraft> values_;
  std::map<std::pair<OperatorId, TensorId>, std::uint32_t> value_of_;  // as that operator left the tensor
  std::map<std::pair<OperatorId, bool>, std::uint32_t> order_of_;      // of one operator, for updates or not
  std::map<std::uint32_t, StorageId> storage_of_value_;
  std::map<StorageId, OperatorId> mutation_;                       // the last so far
  std::map<OperatorId, std::vector<std::uint32_t>> gradients_of_;  // that its backward reads
};

}  // namespace

Instance make_instance(const Graph& graph, const Cluster& cluster, const CostTable& costs,
                       const Training& training, const InstanceOptions& options) {
  return InstanceMaker(graph, cluster, costs, training, options).run();
}

Placement placement_of(const Instance& instance, const Graph& graph, const Assignment& assignment) {
  ESP_CHECK(assignment.size() == instance.units(), assignment.size(), instance.units());
  Placement placement;
  placement.device.assign(graph.operators().size(), DeviceId(0));
  for (std::size_t task = 0; task < instance.tasks(); ++task) {
    placement.device[instance.op[task].index()] = assignment[instance.unit[task].index()];
  }
  for (std::size_t i = graph.operators().size(); i-- > 0;) {
    const Operator& op = graph.operators()[i];
    if (!op.duplicable) continue;
    std::optional<OperatorId> first;
    for (const TensorId output : op.outputs) {
      const auto readers = graph.readers(output);
      if (!readers.empty() && (!first || readers.front() < *first)) first = readers.front();
    }
    if (first) placement.device[i] = placement.device[first->index()];
  }
  return placement;
}

std::optional<Assignment> assignment_of(const Instance& instance, const Graph& graph,
                                        const Placement& placement) {
  ESP_CHECK(placement.device.size() == graph.operators().size(), placement.device.size());
  Assignment assignment;
  for (std::size_t unit = 0; unit < instance.units(); ++unit) {
    const auto tasks = instance.tasks_of[unit];
    const auto device = [&](TaskId task) { return placement.device[instance.op[task.index()].index()]; };
    assignment.push_back(device(tasks.front()));
    for (const TaskId task : tasks) {
      if (device(task) != assignment.back()) return std::nullopt;
    }
  }
  return assignment;
}

}  // namespace espalier::placement
