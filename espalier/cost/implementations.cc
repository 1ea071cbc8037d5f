#include "espalier/cost/implementations.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "espalier/base/check.h"

namespace espalier {
namespace {

using OfClass = std::tuple<std::string, std::string, Variant>;

OfClass class_of(const CostRow& row) {
  return {row.op_class, row.kind, row.variant};
}

// What an operator keeps for its backward and works in.
Bytes bytes_of(const Graph& graph, const Operator& op, const OperatorCost& cost, BatchSize micro_batch) {
  Bytes bytes = cost.private_bytes + cost.between_halves + cost.workspace;
  for (const SavedTensor& saved : cost.saved) {
    const auto& tensors = saved.side == SavedTensor::Side::kInput ? op.inputs : op.outputs;
    if (saved.index < tensors.size()) bytes += graph.tensor(tensors[saved.index]).bytes(micro_batch);
  }
  return bytes;
}

}  // namespace

bool has_implementations(const CostTable& table) {
  const std::vector<CostRow>& rows = table.parts().rows;
  return std::any_of(rows.begin(), rows.end(),
                     [](const CostRow& row) { return !row.implementation.empty(); });
}

std::vector<LighterChoice> lighter_choices(const Graph& graph, const Cluster& cluster, const CostTable& table,
                                           BatchSize micro_batch) {
  std::map<std::string_view, std::pair<const Operator*, std::size_t>> classes;
  for (const Operator& op : graph.operators()) {
    auto& [first, count] = classes[op.op_class];
    if (count++ == 0) first = &op;
  }
  std::set<Variant> variants;
  for (const CostRow& row : table.parts().rows) variants.insert(row.variant);
  std::vector<LighterChoice> choices;
  for (const DeviceKind& kind : cluster.kinds()) {
    for (const Variant& variant : variants) {
      std::vector<std::string> counts;
      for (const auto& [op_class, operators] : classes) {
        const std::span<const CostRow> rows = table.rows(op_class, kind.name, variant);
        if (rows.size() < 2) continue;
        if (counts.empty()) counts = implementations_of(graph, kind, table, micro_batch, variant);
        const Operator& op = *operators.first;
        const std::size_t place = static_cast<std::size_t>(&op - graph.operators().data());
        struct Way {
          const CostRow* row;
          Duration time;
          Bytes bytes;
        };
        std::vector<Way> ways;
        const Way* now = nullptr;
        ways.reserve(rows.size());
        for (const CostRow& row : rows) {
          const OperatorCost cost = cost_at(row, micro_batch);
          ways.push_back({&row, cost.forward + cost.backward(), bytes_of(graph, op, cost, micro_batch)});
          if (row.implementation == counts[place]) now = &ways.back();
        }
        ESP_CHECK(now != nullptr, op_class);
        const auto lightest = std::min_element(ways.begin(), ways.end(), [](const Way& a, const Way& b) {
          return std::tie(a.bytes, a.time, a.row->implementation) <
                 std::tie(b.bytes, b.time, b.row->implementation);
        });
        if (lightest->bytes >= now->bytes) continue;
        const auto each = static_cast<std::int64_t>(operators.second);
        choices.push_back({std::string(op_class), kind.name, variant, now->row->implementation,
                           lightest->row->implementation, operators.second,
                           std::max(Duration(), lightest->time - now->time) * each,
                           (now->bytes - lightest->bytes) * each});
      }
    }
  }
  std::stable_sort(choices.begin(), choices.end(), [](const LighterChoice& a, const LighterChoice& b) {
    return static_cast<double>(a.longer.count()) * static_cast<double>(b.less.count()) <
           static_cast<double>(b.longer.count()) * static_cast<double>(a.less.count());
  });
  return choices;
}

CostTable with_lighter(const CostTable& table, std::span<const LighterChoice> choices) {
  std::map<OfClass, std::string> chosen;
  for (const LighterChoice& choice : choices) {
    chosen[{choice.op_class, choice.kind, choice.variant}] = choice.to;
  }
  CostTableParts parts = table.parts();
  std::erase_if(parts.rows, [&](const CostRow& row) {
    const auto found = chosen.find(class_of(row));
    return found != chosen.end() && found->second != row.implementation;
  });
  return CostTable(std::move(parts));
}

}  // namespace espalier
