#include "espalier/planners/hand_split.h"

#include <algorithm>
#include <optional>

#include "espalier/base/check.h"
#include "espalier/base/spelling.h"
#include "espalier/graph/module_names.h"
#include "espalier/planners/given_sets.h"

namespace espalier {
namespace {

constexpr std::size_t kMostShown = 80;  // characters of what was typed

[[noreturn]] void fail_item(std::string_view item, const std::string& problem) {
  throw InputError("--stages '" + std::string(item.substr(0, kMostShown)) + "': " + problem);
}

std::string shown(const HandStage& stage) {
  return "'" + stage.item.substr(0, kMostShown) + "'";
}

// Pieces between separators outside of brackets.
std::vector<std::string_view> split_outside_brackets(std::string_view text, char separator) {
  std::vector<std::string_view> pieces;
  std::size_t begin = 0;
  bool inside = false;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    if (i == text.size() || (text[i] == separator && !inside)) {
      pieces.push_back(text.substr(begin, i - begin));
      begin = i + 1;
    } else if (text[i] == '[') {
      inside = true;
    } else if (text[i] == ']') {
      inside = false;
    }
  }
  return pieces;
}

bool can_be_a_name(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           c == '.' || c == '-';
  });
}

std::vector<DeviceId> devices_of(std::string_view item, std::string_view text, const Cluster& cluster) {
  std::vector<DeviceId> devices;
  for (const std::string_view piece : split_outside_brackets(text, '+')) {
    const std::size_t before = devices.size();
    if (const auto device = cluster.find_device(piece)) {
      devices.push_back(*device);
    } else if (piece.find_first_of("[*") != std::string_view::npos) {
      for (std::size_t d = 0; d < cluster.devices().size(); ++d) {
        if (matches_pattern(piece, cluster.devices()[d].name)) devices.push_back(DeviceId(d));
      }
    }
    if (devices.size() == before) {
      std::vector<std::string_view> known;
      for (const Device& device : cluster.devices()) known.push_back(device.name);
      fail_item(item, "no device '" + std::string(piece.substr(0, kMostShown)) + "'; did you mean '" +
                          std::string(nearest_word(piece, known).value_or("")) + "'?");
    }
  }
  std::vector<DeviceId> sorted = devices;
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) fail_item(item, "device '" + cluster.device(*twice).name + "' stands twice");
  return devices;
}

// The item with all operators that it names.
HandStage read_item(std::string_view item, const Graph& graph, const Cluster& cluster,
                    const ModuleNames& modules) {
  const std::size_t equals = item.find('=');
  HandStage stage{.item = std::string(item.substr(0, equals)), .operators = {}, .devices = {}};
  if (stage.item.empty()) {
    fail_item(item, "an item is empty; expected such as h.0-5,h.6-11 or wte+h.0-5=gpu:0,h.6-11=gpu:1");
  }
  for (const std::string_view name : split_outside_brackets(stage.item, '+')) {
    try {
      const std::vector<OperatorId> meant = modules.find(name);
      stage.operators.insert(stage.operators.end(), meant.begin(), meant.end());
    } catch (const InputError& error) {
      throw InputError(std::string("--stages ") + error.what());
    }
  }
  std::sort(stage.operators.begin(), stage.operators.end());
  stage.operators.erase(std::unique(stage.operators.begin(), stage.operators.end()), stage.operators.end());
  std::erase_if(stage.operators, [&](OperatorId op) { return graph.op(op).duplicable; });
  if (stage.operators.empty()) {
    fail_item(item, "every stage that reads this computes it (masks, positions), so it makes no stage");
  }
  if (can_be_a_name(stage.item)) stage.name = stage.item;
  if (equals != std::string_view::npos) stage.devices = devices_of(item, item.substr(equals + 1), cluster);
  return stage;
}

// The devices that pins ask for.
void obey_pins(std::vector<HandStage>& stages, const Graph& graph, const Cluster& cluster, const Pins& pins) {
  if (pins.empty()) return;
  const std::vector<std::optional<DeviceId>> pinned = resolve_pins(graph, pins);
  for (HandStage& stage : stages) {
    std::optional<OperatorId> first;
    for (const OperatorId op : stage.operators) {
      const std::optional<DeviceId>& device = pinned[op.index()];
      if (!device || stage.devices == std::vector{*device}) continue;
      if (first) {
        fail_item(stage.item, describe_pin(graph, cluster, pins, *first) + " and " +
                                  describe_pin(graph, cluster, pins, op) + " want it on two devices");
      }
      if (!stage.devices.empty()) {
        fail_item(stage.item, describe_pin(graph, cluster, pins, op) + " wants it elsewhere");
      }
      first = op;
      stage.devices = {*device};
    }
  }
}

}  // namespace

std::vector<HandStage> parse_hand_split(std::string_view text, const Graph& graph, const Cluster& cluster,
                                        const Pins& pins) {
  const ModuleNames modules(graph);
  std::vector<HandStage> stages;
  SetOfOperator set_of(graph.operators().size());
  for (const std::string_view item : split_outside_brackets(text, ',')) {
    stages.push_back(read_item(item, graph, cluster, modules));
    for (const OperatorId op : stages.back().operators) {
      std::optional<SetIndex>& set = set_of[op.index()];
      if (set) {
        const std::string& module = graph.op(op).module_path;
        throw InputError("--stages: operator '" + graph.op(op).name + "'" +
                         (module.empty() ? "" : " of " + module) + " stands in " + shown(stages[*set]) +
                         " and in " + shown(stages.back()));
      }
      set = narrow(stages.size() - 1);
    }
  }
  const ClosedSets closed = close_sets(graph, set_of, stages.size());
  if (closed.torn) {
    throw InputError("--stages: '" + graph.op(closed.torn->first).name + "' in " +
                     shown(stages[closed.torn->first_set]) + " and '" + graph.op(closed.torn->second).name +
                     "' in " + shown(stages[closed.torn->second_set]) +
                     " share memory that is written, so they stand in one stage");
  }
  if (closed.cycle) {
    throw InputError("--stages: " + shown(stages[closed.cycle->set]) + " and " +
                     shown(stages[closed.cycle->through]) + " read from each other: a path leaves " +
                     shown(stages[closed.cycle->set]) + " at '" + graph.op(closed.cycle->leaves).name +
                     "' and returns to it at '" + graph.op(closed.cycle->returns).name + "'");
  }
  const SetOfOperator joined = join_rest(graph, closed.set_of, stages.size());
  for (HandStage& stage : stages) stage.operators.clear();
  for (std::size_t i = 0; i < joined.size(); ++i) {
    if (!joined[i]) continue;
    stages[*joined[i]].operators.push_back(OperatorId(i));
    if (!set_of[i]) ++stages[*joined[i]].unnamed;
  }
  obey_pins(stages, graph, cluster, pins);
  return stages;
}

std::string unnamed_text(const std::vector<HandStage>& stages) {
  std::size_t all = 0;
  std::string where;
  for (const HandStage& stage : stages) {
    if (stage.unnamed == 0) continue;
    all += stage.unnamed;
    where += (where.empty() ? "" : ", ") + std::to_string(stage.unnamed) + " with " +
             stage.item.substr(0, kMostShown);
  }
  if (all == 0) return {};
  return std::to_string(all) + (all == 1 ? " operator" : " operators") + " that no item names: " + where;
}

}  // namespace espalier
