#include "espalier/runtime/fragment_memory.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "espalier/base/union_find.h"

namespace espalier {
namespace {

using Memory = std::uint32_t;  // a storage, or several that an unknown operator may have made one

class FragmentMemory {
 public:
  FragmentMemory(const Graph& graph, const PipelinePlan& fragments)
      : graph_(graph),
        fragments_(fragments),
        joined_(graph.storage_count()),
        fragment_(graph.operators().size()) {
    for (std::size_t f = 0; f < fragments.stages.size(); ++f) {
      for (const OperatorId op : fragments.stages[f].operators) fragment_[op.index()] = StageId(f);
    }
    join_memories();
    for (std::size_t i = 0; i < graph.operators().size(); ++i) {
      for (const TensorId id : graph.op(OperatorId(i)).mutates) writers_[memory(id)].insert(OperatorId(i));
    }
    for (const Tensor& tensor : graph.tensors()) {
      if (tensor.parameter) states_.insert(joined_.find(raw(tensor.storage)));
    }
  }

  void require_whole() {
    for (std::size_t f = 0; f < fragments_.stages.size(); ++f) count_arrivals(StageId(f));
    for (std::size_t f = 0; f < fragments_.stages.size(); ++f) {
      for (const OperatorId op : fragments_.stages[f].operators) {
        for (const TensorId id : graph_.op(op).inputs) {
          if (const auto found = writers_.find(memory(id)); found != writers_.end()) {
            require_written_before(StageId(f), op, id, found->second);
          }
        }
        require_writes_to_stay(op);
      }
    }
    require_order_of_states();
  }

 private:
  static std::uint32_t raw(StorageId id) { return static_cast<std::uint32_t>(id.index()); }
  Memory memory(TensorId id) { return joined_.find(raw(graph_.tensor(id).storage)); }
  StageId fragment(OperatorId op) const { return fragment_[op.index()]; }

  void join_memories() {
    for (const Operator& op : graph_.operators()) {
      if (op.known || op.inputs.empty()) continue;
      const std::uint32_t first = raw(graph_.tensor(op.inputs[0]).storage);
      for (const auto* list : {&op.inputs, &op.outputs}) {
        for (const TensorId id : *list) joined_.join(first, raw(graph_.tensor(id).storage));
      }
    }
  }

  // Where a tensor's memory is made, seen from a fragment that reads it: what nobody produces, and what each
  // fragment computes by itself, is made there.
  StageId home(TensorId id, StageId reader) const {
    const std::optional<OperatorId> producer = graph_.tensor(id).producer;
    return producer && !graph_.op(*producer).duplicable ? fragment(*producer) : reader;
  }

  void count_arrivals(StageId f) {
    for (const OperatorId op : fragments_.stages[f.index()].operators) {
      for (const TensorId id : graph_.op(op).inputs) {
        if (!writers_.contains(memory(id))) continue;
        touched_[memory(id)].insert(f);
        if (home(id, f) != f) arrivals_[{f, memory(id)}].insert(id);
      }
    }
  }
  std::size_t arrivals(StageId f, Memory m) const {
    const auto found = arrivals_.find({f, m});
    return found == arrivals_.end() ? 0 : found->second.size();
  }

  // Does `reader` see what was written to the memory of `read` after that was made?
  void require_written_before(StageId f, OperatorId reader, TensorId read,
                              const std::set<OperatorId>& writers) {
    const Tensor& tensor = graph_.tensor(read);
    if (tensor.parameter) return;
    for (const OperatorId writer : writers) {
      if (!(writer < reader)) break;
      if (tensor.producer && !(*tensor.producer < writer)) continue;
      const StageId at = fragment(writer), made = home(read, f);
      const bool written_where_made = made == at;
      const bool written_where_read = f == at && !states_.contains(memory(read));
      if (arrivals(at, memory(read)) <= 1 && (written_where_made || written_where_read)) continue;
      throw InputError("operator '" + graph_.op(reader).name + "' reads '" + tensor.name +
                       "', whose memory '" + graph_.op(writer).name +
                       "' writes in another fragment of the placement; with all that is between them on one "
                       "device it can run");
    }
  }

  // A buffer is written itself, not a copy of an alias that arrived.
  void require_writes_to_stay(OperatorId op) {
    for (const TensorId id : graph_.op(op).mutates) {
      const Tensor& tensor = graph_.tensor(id);
      if (tensor.parameter || !states_.contains(memory(id)) || home(id, fragment(op)) == fragment(op)) {
        continue;
      }
      throw InputError("operator '" + graph_.op(op).name + "' writes a parameter or buffer through '" +
                       tensor.name +
                       "', which comes from another fragment of the placement; with all that "
                       "is between them on one device it can run");
    }
  }

  void require_order_of_states() {
    if (fragments_.stages.empty() || fragments_.micro_batches(StageId(0)) == 1) return;
    for (const auto& [m, fragments] : touched_) {
      if (fragments.size() < 2 || !states_.contains(m)) continue;
      const OperatorId writer = *writers_.at(m).begin();
      throw InputError("operator '" + graph_.op(writer).name + "' writes a buffer that " +
                       std::to_string(fragments.size()) +
                       " fragments of the placement touch: with several micro-batches their order would be "
                       "another than in one process; plan it with one (--micro-batch)");
    }
  }

  const Graph& graph_;
  const PipelinePlan& fragments_;
  UnionFind joined_;
  std::vector<StageId> fragment_;  // by operator that is not duplicable
  std::map<Memory, std::set<OperatorId>> writers_;
  std::set<Memory> states_;                                            // of parameters and buffers
  std::map<Memory, std::set<StageId>> touched_;                        // of those in writers_
  std::map<std::pair<StageId, Memory>, std::set<TensorId>> arrivals_;  // what comes from other fragments
};

}  // namespace

void require_whole_memory(const Graph& graph, const PipelinePlan& fragments) {
  FragmentMemory(graph, fragments).require_whole();
}

}  // namespace espalier
