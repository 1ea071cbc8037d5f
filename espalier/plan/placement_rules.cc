#include "espalier/plan/placement_rules.h"

#include <algorithm>
#include <map>
#include <optional>

#include "espalier/base/check.h"
#include "espalier/base/json.h"
#include "espalier/base/spelling.h"
#include "espalier/base/words.h"
#include "espalier/plan/json.h"
#include "espalier/plan/plan_file.h"
#include "espalier/plan/text.h"

namespace espalier {
namespace {

constexpr std::string_view kBetween = "=";
constexpr std::string_view kQuoted = "={";  // a text that begins with a brace is JSON

bool is_json(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && text[first] == '{';
}

DeviceId device_of_rule(const std::string& name, const Cluster& cluster) {
  if (const std::optional<DeviceId> device = cluster.find_device(name)) return *device;
  std::vector<std::string_view> known;
  for (const Device& device : cluster.devices()) known.push_back(device.name);
  throw InputError("'" + name.substr(0, 80) + "' is no device of the cluster; did you mean '" +
                   std::string(nearest_word(name, known).value_or("")) + "'?");
}

class RuleReader {
 public:
  explicit RuleReader(const Cluster& cluster) : cluster_(cluster) {}

  void add(const std::string& pattern, const std::string& device) {
    for (const PlacementRule& rule : rules_) {
      if (rule.pattern == pattern) throw InputError("'" + pattern.substr(0, 80) + "' stands here twice");
    }
    rules_.push_back({pattern, device_of_rule(device, cluster_)});
  }
  std::vector<PlacementRule> rules() && { return std::move(rules_); }

 private:
  const Cluster& cluster_;
  std::vector<PlacementRule> rules_;
};

bool matches(const PlacementRule& rule, const Operator& op) {
  return matches_pattern(rule.pattern, op.module_path) || matches_pattern(rule.pattern, op.name);
}

class RuleFollower {
 public:
  RuleFollower(const Graph& graph, const Cluster& cluster, const std::vector<PlacementRule>& rules,
               const std::string& where)
      : graph_(graph), cluster_(cluster), rules_(rules), where_(where), own_(graph.operators().size()) {}

  PlacedByRules run() {
    match();
    join_groups();
    place_duplicables();
    note_moved();
    PlacedByRules placed{{}, std::move(notes_)};
    for (std::size_t i = 0; i < rule_.size(); ++i) {
      if (!rule_[i]) refuse_unmatched();
      placed.placement.device.push_back(rules_[*rule_[i]].device);
    }
    return placed;
  }

 private:
  const Operator& op(std::size_t i) const { return graph_.operators()[i]; }

  // Each operator's own rule: the first that matches.
  void match() {
    std::vector<bool> used(rules_.size());
    for (std::size_t i = 0; i < own_.size(); ++i) {
      for (std::size_t r = 0; r < rules_.size(); ++r) {
        if ((own_[i] && used[r]) || !matches(rules_[r], op(i))) continue;
        used[r] = true;
        if (!own_[i]) own_[i] = r;
      }
    }
    for (std::size_t r = 0; r < rules_.size(); ++r) {
      if (used[r]) continue;
      throw InputError(where_ + ": '" + rules_[r].pattern.substr(0, 80) +
                       "' matches no operator or module; `espalier inspect` lists the modules");
    }
    rule_ = own_;
  }

  void join_groups() {
    std::map<std::uint32_t, std::size_t> of_group;
    for (std::size_t i = 0; i < own_.size(); ++i) {
      if (!op(i).colocation || !own_[i]) continue;
      const auto [at, fresh] = of_group.emplace(*op(i).colocation, *own_[i]);
      if (!fresh) at->second = std::min(at->second, *own_[i]);
    }
    for (std::size_t i = 0; i < own_.size(); ++i) {
      if (!op(i).colocation) continue;
      if (const auto at = of_group.find(*op(i).colocation); at != of_group.end()) rule_[i] = at->second;
    }
  }

  void place_duplicables() {
    for (std::size_t i = rule_.size(); i-- > 0;) {  // readers stand behind
      if (rule_[i] || !op(i).duplicable) continue;
      std::optional<OperatorId> first;
      for (const TensorId output : op(i).outputs) {
        for (const OperatorId reader : graph_.readers(output))
          first = std::min(reader, first.value_or(reader));
      }
      if (first) rule_[i] = rule_[first->index()];
    }
  }

  // Those that their colocation group takes elsewhere.
  void note_moved() {
    std::size_t moved = 0, example = 0;
    for (std::size_t i = 0; i < own_.size(); ++i) {
      if (!own_[i] || rules_[*own_[i]].device == rules_[*rule_[i]].device) continue;
      if (moved++ == 0) example = i;
    }
    if (moved == 0) return;
    const auto at = [&](std::size_t rule) {
      return cluster_.device(rules_[rule].device).name + " ('" + rules_[rule].pattern + "')";
    };
    notes_.push_back(
        where_ + ": " + std::to_string(moved) + (moved == 1 ? " operator, '" : " operators, such as '") +
        op(example).name + (moved == 1 ? "', stands" : "', stand") + " on " + at(*rule_[example]) +
        " in place of " + at(*own_[example]) + ", with operators that use memory which one of them writes");
  }

  [[noreturn]] void refuse_unmatched() const {
    std::size_t count = 0, first = 0;
    for (std::size_t i = rule_.size(); i-- > 0;) {
      if (rule_[i]) continue;
      ++count;
      first = i;
    }
    const std::string& module = op(first).module_path;
    throw InputError(where_ + ": no pattern matches operator '" + op(first).name + "'" +
                     (module.empty() ? "" : " of module '" + module + "'") +
                     (count > 1 ? " and " + std::to_string(count - 1) + " more" : "") +
                     "; a last rule such as \"*\": \"" + cluster_.devices().front().name +
                     "\" would place what is left");
  }

  const Graph& graph_;
  const Cluster& cluster_;
  const std::vector<PlacementRule>& rules_;
  const std::string& where_;
  std::vector<std::optional<std::size_t>> own_, rule_;  // by operator
  std::vector<std::string> notes_;
};

PlacedByRules parse_placement_document(const Json& json, const std::string& where, std::string_view text,
                                       const Graph& graph, const Cluster& cluster) {
  const JsonCursor root(json, where);
  const std::string format = root.at("format").string();
  if (format.rfind("espalier.plan/", 0) != 0) {
    return {placement_from_json(json, where, graph, cluster), {}};
  }
  const EditedPlan plan = parse_edited_plan(text, where);
  if (!plan.file.placement) {
    throw InputError(where + ": is a plan of stages; --start takes it, and --placement a placement");
  }
  return {resolve_placement(plan.file.placement->operators, graph, cluster, where + ": placement."), {}};
}

bool are_rules(std::string_view text) {
  for (const auto& [number, words] : split_lines(text, kBetween)) {
    return std::any_of(words.begin(), words.end(), [](const Word& word) { return word.is(kBetween); });
  }
  return false;
}

}  // namespace

std::vector<PlacementRule> parse_placement_rules(std::string_view text, const std::string& where,
                                                 const Cluster& cluster) {
  RuleReader reader(cluster);
  if (is_json(text)) {
    const Json json = parse_json(text, where);
    for (const auto& [pattern, device] : JsonCursor(json, where).members()) {
      try {
        reader.add(pattern, device.string());
      } catch (const InputError& error) {
        const std::string what = error.what();
        if (what.rfind(where, 0) == 0) throw;
        device.fail(what);
      }
    }
    return std::move(reader).rules();
  }
  std::size_t line = 0;
  try {
    for (const auto& [number, words] : split_lines(text, kBetween)) {
      line = number;
      if (words.size() != 3 || !words[1].is(kBetween) || words[0].is(kBetween) || words[2].is(kBetween)) {
        throw InputError("expected PATTERN = DEVICE, such as 'encoder.* = " + cluster.devices().front().name +
                         "'");
      }
      reader.add(words[0].text, words[2].text);
    }
  } catch (const InputError& error) {
    const std::string what = error.what();
    throw InputError(where + ": " +
                     (what.rfind("line ", 0) == 0 ? "" : "line " + std::to_string(line) + ": ") + what);
  }
  return std::move(reader).rules();
}

std::string print_placement_rules(const std::vector<PlacementRule>& rules, const Cluster& cluster) {
  std::string text;
  for (const PlacementRule& rule : rules) {
    text += quote_word(rule.pattern, kQuoted) + " = " +
            quote_word(cluster.device(rule.device).name, kBetween) + "\n";
  }
  return text;
}

PlacedByRules place_by_rules(const Graph& graph, const Cluster& cluster,
                             const std::vector<PlacementRule>& rules, const std::string& where) {
  return RuleFollower(graph, cluster, rules, where).run();
}

PlacedByRules parse_placement_file(std::string_view text, const std::string& where, const Graph& graph,
                                   const Cluster& cluster) {
  PlacedByRules placed;
  const auto by_rules = [&] {
    return place_by_rules(graph, cluster, parse_placement_rules(text, where, cluster), where);
  };
  if (is_json(text)) {
    const Json json = parse_json(text, where);
    placed = json.is_object() && json.contains("format")
                 ? parse_placement_document(json, where, text, graph, cluster)
                 : by_rules();
  } else {
    try {
      if (are_rules(text)) {
        placed = by_rules();
      } else {
        placed.placement = parse_placement(text, graph, cluster);
      }
    } catch (const InputError& error) {
      const std::string what = error.what();
      throw InputError(what.rfind(where + ":", 0) == 0 ? what : where + ": " + what);
    }
  }
  const std::vector<std::string> violations = check_placement(graph, cluster, placed.placement);
  if (!violations.empty()) throw InputError(where + ": breaks a rule: " + violations.front());
  return placed;
}

}  // namespace espalier
