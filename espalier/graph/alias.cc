#include "espalier/graph/alias.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "espalier/base/union_find.h"

namespace espalier {
AliasSets::AliasSets(const GraphParts& parts) {
  std::size_t storages = 0;
  for (const Tensor& tensor : parts.tensors) storages = std::max(storages, tensor.storage.index() + 1);
  UnionFind sets(storages);
  const auto storage = [&](TensorId t) { return narrow(parts.tensors[t.index()].storage.index()); };
  for (const Operator& op : parts.operators) {
    if (op.known || op.outputs.empty()) continue;
    for (const TensorId t : op.inputs) sets.join(storage(op.outputs[0]), storage(t));
    for (const TensorId t : op.outputs) sets.join(storage(op.outputs[0]), storage(t));
  }
  mutated_.assign(storages, 0);
  lives_on_.assign(storages, 0);
  for (const Tensor& tensor : parts.tensors) {
    set_of_tensor_.push_back(sets.find(narrow(tensor.storage.index())));
    if (tensor.parameter) lives_on_[set_of_tensor_.back()] = 1;
  }
  for (const Operator& op : parts.operators) {
    for (const TensorId t : op.mutates) {
      mutated_[of(t)] = 1;
      any_mutated_ = true;
    }
  }
}

std::vector<std::uint32_t> AliasSets::touched_by(const Operator& op) const {
  std::vector<std::uint32_t> sets;
  for (const TensorId t : op.inputs) sets.push_back(of(t));
  for (const TensorId t : op.outputs) sets.push_back(of(t));
  std::sort(sets.begin(), sets.end());
  sets.erase(std::unique(sets.begin(), sets.end()), sets.end());
  return sets;
}

bool AliasSets::mutates(const Operator& op, std::uint32_t set) const {
  return std::any_of(op.mutates.begin(), op.mutates.end(), [&](TensorId t) { return of(t) == set; });
}

GraphParts with_colocation(GraphParts parts) {
  const AliasSets sets(parts);
  const std::size_t count = parts.operators.size();
  std::vector<std::optional<std::size_t>> last_mutation(sets.count());
  for (std::size_t i = 0; i < count; ++i) {
    if (parts.operators[i].role == OperatorRole::kUpdate) continue;
    for (const TensorId t : parts.operators[i].mutates) last_mutation[sets.of(t)] = i;
  }

  UnionFind groups(count);
  std::vector<std::optional<std::uint32_t>> first_of_set(sets.count());
  std::map<std::uint32_t, std::uint32_t> first_of_number;
  std::vector<char> grouped(count, 0);
  const auto join = [&](std::uint32_t first, std::size_t op) {
    groups.join(first, narrow(op));
    grouped[first] = grouped[op] = 1;
  };
  for (std::size_t i = 0; i < count; ++i) {
    const Operator& op = parts.operators[i];
    if (op.colocation) join(first_of_number.try_emplace(*op.colocation, narrow(i)).first->second, i);
    for (const std::uint32_t set : sets.touched_by(op)) {
      if (!last_mutation[set] || (!sets.lives_on(set) && i > *last_mutation[set])) continue;
      if (!first_of_set[set]) first_of_set[set] = narrow(i);
      join(*first_of_set[set], i);
    }
  }

  // Smallest number of each group by its root, then unused numbers for the groups that have none.
  std::set<std::uint32_t> used;
  std::vector<std::optional<std::uint32_t>> number(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto own = parts.operators[i].colocation;
    if (!own) continue;
    used.insert(*own);
    auto& n = number[groups.find(narrow(i))];
    n = std::min(n.value_or(*own), *own);
  }
  std::uint32_t next = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (grouped[i] == 0) continue;
    auto& n = number[groups.find(narrow(i))];
    if (!n) {
      while (!used.insert(next).second) ++next;
      n = next;
    }
    parts.operators[i].colocation = n;
  }
  return parts;
}

}  // namespace espalier
