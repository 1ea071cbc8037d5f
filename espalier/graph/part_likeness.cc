#include "espalier/graph/part_likeness.h"

#include <algorithm>
#include <string>
#include <unordered_map>

#include "espalier/base/rng.h"

namespace espalier::internal {
namespace {

using Code = std::vector<std::uint64_t>;

// Equal texts, equal numbers.
class Numbers {
 public:
  std::uint64_t of(const std::string& text) {
    return numbers_.try_emplace(text, numbers_.size()).first->second;
  }

 private:
  std::unordered_map<std::string, std::uint64_t> numbers_;
};

// Numbers of what a part meets, in the order in which it first meets them. Cleared for each part in no time.
class Arrivals {
 public:
  explicit Arrivals(std::size_t count) : round_(count, 0), number_(count, 0) {}
  void clear() { ++now_, met_ = 0; }
  std::uint64_t of(std::size_t i) {
    if (round_[i] != now_) round_[i] = now_, number_[i] = met_++;
    return number_[i];
  }

 private:
  std::vector<std::uint32_t> round_, number_;
  std::uint32_t now_ = 0, met_ = 0;
};

class Coder {
 public:
  Coder(const Structure& structure, const Graph& graph, std::span<const Weight> weights)
      : structure_(structure),
        graph_(graph),
        weights_(weights),
        place_(graph.operators().size(), kNowhere),
        signature_(graph.operators().size()),
        type_(graph.tensors().size()),
        outputs_(graph.tensors().size(), 0),
        storage_readers_(graph.storage_count()),
        tensors_(graph.tensors().size()),
        storages_(graph.storage_count()),
        groups_(graph.operators().size()) {
    Numbers signatures, types;
    std::unordered_map<std::uint32_t, std::uint32_t> group_number;
    group_of_.resize(graph.operators().size());
    for (std::size_t i = 0; i < structure.operators.size(); ++i) {
      const OperatorId id = structure.operators[i];
      const Operator& op = graph.op(id);
      place_[id.index()] = i;
      std::string text = op.op_class + '\n' + op.target + '\n';
      text += static_cast<char>('0' + static_cast<int>(op.role));
      text += op.random ? 'r' : '-';
      text += op.mixes_samples ? 'm' : '-';
      text += op.known ? 'k' : '-';
      text += structure.carried[i] != 0 ? 'c' : '-';
      signature_[id.index()] = signatures.of(text);
      if (op.colocation) {
        const auto number = group_number.try_emplace(*op.colocation, narrow(members_.size())).first->second;
        if (number == members_.size()) members_.emplace_back();
        members_[number].push_back(narrow(i));
        group_of_[id.index()] = number;
      }
    }
    for (std::size_t t = 0; t < graph.tensors().size(); ++t) {
      const Tensor& tensor = graph.tensor(TensorId(t));
      std::string text = type_text(tensor);
      text += static_cast<char>('0' + static_cast<int>(tensor.role));
      text += tensor.requires_grad ? 'g' : '-';
      type_[t] = types.of(text);
      for (const OperatorId reader : graph.readers(TensorId(t))) {
        if (place_[reader.index()] != kNowhere) {
          storage_readers_[tensor.storage.index()].push_back(narrow(place_[reader.index()]));
        }
      }
    }
    for (auto& readers : storage_readers_) {
      std::sort(readers.begin(), readers.end());
      readers.erase(std::unique(readers.begin(), readers.end()), readers.end());
    }
    for (const TensorId t : graph.outputs()) outputs_[t.index()] = graph.loss() == t ? 2 : 1;
  }

  Code code(PartId id) {
    tensors_.clear(), storages_.clear(), groups_.clear();
    const Structure::Part& part = structure_.part(id);
    first_ = part.first_operator;
    end_ = part.end_operator;
    Code code;
    add_shape(id, code);
    for (std::size_t i = first_; i < end_; ++i) add_operator(structure_.operators[i], code);
    return code;
  }

 private:
  static constexpr std::size_t kNowhere = static_cast<std::size_t>(-1);  // a duplicable operator

  bool within(std::size_t place) const { return place >= first_ && place < end_; }
  bool reaches_out(const std::vector<std::uint32_t>& places) const {  // they ascend
    return !places.empty() && (!within(places.front()) || !within(places.back()));
  }

  // Parts of a part stand behind it in preorder.
  void add_shape(PartId id, Code& code) const {
    for (std::size_t p = id.index(); p < structure_.parts.size(); ++p) {
      const Structure::Part& part = structure_.parts[p];
      if (part.first_operator >= end_) break;
      code.push_back(static_cast<std::uint64_t>(part.kind));
      code.push_back(part.kind == PartKind::kLeaf ? part.end_operator - part.first_operator
                                                  : part.end_child - part.first_child);
    }
  }

  void add_operator(OperatorId id, Code& code) {
    const Operator& op = graph_.op(id);
    code.push_back(signature_[id.index()]);
    code.push_back(static_cast<std::uint64_t>(weights_[id.index()].count()));
    code.push_back(op.inputs.size());
    for (const TensorId t : op.inputs) add_input(t, code);
    code.push_back(op.mutates.size());
    for (const TensorId t : op.mutates) {
      code.push_back(
          static_cast<std::uint64_t>(std::find(op.inputs.begin(), op.inputs.end(), t) - op.inputs.begin()));
    }
    code.push_back(op.outputs.size());
    for (const TensorId t : op.outputs) {
      code.push_back(type_[t.index()]);
      code.push_back(storages_.of(graph_.tensor(t).storage.index()));
      bool outside = false;
      for (const OperatorId reader : graph_.readers(t)) {
        outside = outside || !within(place_[reader.index()]);
      }
      code.push_back(outputs_[t.index()] * 2U + (outside ? 1 : 0));
    }
    if (group_of_[id.index()]) {
      const std::uint32_t group = *group_of_[id.index()];
      code.push_back(1 + groups_.of(group) * 2 + (reaches_out(members_[group]) ? 1 : 0));
    } else {
      code.push_back(0);
    }
  }

  void add_input(TensorId t, Code& code) {
    const Tensor& tensor = graph_.tensor(t);
    if (tensor.producer && within(place_[tensor.producer->index()])) {
      const auto& outputs = graph_.op(*tensor.producer).outputs;
      code.push_back(1 + (place_[tensor.producer->index()] - first_));
      code.push_back(
          static_cast<std::uint64_t>(std::find(outputs.begin(), outputs.end(), t) - outputs.begin()));
      return;
    }
    code.push_back(0);
    code.push_back(tensors_.of(t.index()));
    code.push_back(type_[t.index()]);
    code.push_back(storages_.of(tensor.storage.index()));
    code.push_back(tensor.parameter && reaches_out(storage_readers_[tensor.storage.index()]) ? 1 : 0);
  }

  const Structure& structure_;
  const Graph& graph_;
  std::span<const Weight> weights_;
  std::size_t first_ = 0, end_ = 0;  // places of the part that is looked at
  std::vector<std::size_t> place_;   // by operator: in structure.operators
  std::vector<std::uint64_t> signature_, type_;
  std::vector<unsigned> outputs_;  // by tensor: 1 an output of the graph, 2 the loss
  std::vector<std::vector<std::uint32_t>> storage_readers_, members_;  // places; of storages, of groups
  std::vector<std::optional<std::uint32_t>> group_of_;
  Arrivals tensors_, storages_, groups_;
};

std::uint64_t hash_of(const Code& code) {
  std::uint64_t hash = code.size();
  for (const std::uint64_t value : code) hash = mix64(hash ^ value) + 0x9e3779b97f4a7c15 * value;
  return hash;
}

}  // namespace

void find_likeness(Structure& structure, const Graph& graph, std::span<const Weight> weights) {
  Coder coder(structure, graph, weights);
  std::unordered_map<std::uint64_t, std::vector<PartId>> known;  // the first of each kind
  for (std::size_t p = 0; p < structure.parts.size(); ++p) {
    const Code code = coder.code(PartId(p));
    Structure::Part& part = structure.parts[p];
    part.hash = hash_of(code);
    std::vector<PartId>& alike = known[part.hash];
    const auto same =
        std::find_if(alike.begin(), alike.end(), [&](PartId other) { return coder.code(other) == code; });
    if (same == alike.end()) {
      alike.push_back(PartId(p));
    } else {
      part.like = *same;
    }
  }
}

}  // namespace espalier::internal
