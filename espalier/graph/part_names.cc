#include "espalier/graph/part_names.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>

#include "espalier/base/check.h"

namespace espalier {
namespace {

bool is_number(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

std::string allowed(std::string text) {
  for (char& c : text) {
    const bool good = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                      c == '_' || c == '.' || c == '-';
    if (!good) c = '_';
  }
  return text;
}

// "q" where an operator of module "layers.0" is called "layers.0.q", as the zoo's are.
std::string name_in_module(const Operator& op) {
  const std::size_t length = op.module_path.size();
  const bool repeats = length > 0 && op.name.size() > length + 1 && op.name[length] == '.' &&
                       op.name.starts_with(op.module_path);
  return repeats ? op.name.substr(length + 1) : op.name;
}

// The modules of a graph as a tree, with the operators as its leaves.
class ModuleTree {
 public:
  struct Node {
    std::string name;
    std::uint32_t parent = 0;
    bool is_operator = false;
    std::uint32_t operators = 0;  // in it, but duplicable ones
    std::vector<std::uint32_t> children = {};
  };

  explicit ModuleTree(const Graph& graph) : leaf_(graph.operators().size()) {
    nodes_.push_back({.name = "", .parent = 0});
    std::unordered_map<std::string, std::uint32_t> by_path;
    for (std::size_t i = 0; i < leaf_.size(); ++i) {
      const Operator& op = graph.op(OperatorId(i));
      const std::uint32_t module = module_of(op.module_path, by_path);
      leaf_[i] = add(name_in_module(op), module);
      nodes_[leaf_[i]].is_operator = true;
      for (std::uint32_t n = leaf_[i]; !op.duplicable; n = nodes_[n].parent) {
        ++nodes_[n].operators;
        if (n == 0) break;
      }
    }
    find_base();
    for (std::size_t n = 1; n < nodes_.size(); ++n) {
      if (!nodes_[n].is_operator) module_paths_.emplace(path(narrow(n)), narrow(n));
    }
  }

  const Node& node(std::uint32_t n) const { return nodes_[n]; }
  std::size_t size() const { return nodes_.size(); }
  std::uint32_t leaf(OperatorId op) const { return leaf_[op.index()]; }

  // Without what all have in common.
  std::string path(std::uint32_t n) const {
    if (n == 0 || n == base_) return "";
    const std::string before = path(nodes_[n].parent);
    return before.empty() ? nodes_[n].name : before + "." + nodes_[n].name;
  }

  // The module of this name, written as `path` does.
  const std::uint32_t* find(const std::string& path) const {
    const auto found = module_paths_.find(path);
    return found == module_paths_.end() ? nullptr : &found->second;
  }

 private:
  std::uint32_t add(const std::string& name, std::uint32_t parent) {
    const std::uint32_t n = narrow(nodes_.size());
    nodes_.push_back({.name = allowed(name), .parent = parent});
    nodes_[parent].children.push_back(n);
    return n;
  }

  std::uint32_t module_of(const std::string& path, std::unordered_map<std::string, std::uint32_t>& by_path) {
    if (path.empty()) return 0;
    if (const auto found = by_path.find(path); found != by_path.end()) return found->second;
    const std::size_t dot = path.rfind('.');
    const std::uint32_t parent = dot == std::string::npos ? 0 : module_of(path.substr(0, dot), by_path);
    return by_path[path] = add(dot == std::string::npos ? path : path.substr(dot + 1), parent);
  }

  void find_base() {
    const auto only_module = [&](std::uint32_t n) -> std::uint32_t {
      std::uint32_t found = 0;
      for (const std::uint32_t child : nodes_[n].children) {
        if (nodes_[child].is_operator && n == 0) continue;  // of no module
        if (nodes_[child].is_operator || found != 0) return 0;
        found = child;
      }
      return found;
    };
    while (true) {
      const std::uint32_t next = only_module(base_);
      if (next == 0) return;
      const auto& children = nodes_[next].children;
      const bool has_named_module = std::any_of(children.begin(), children.end(), [&](std::uint32_t child) {
        return !nodes_[child].is_operator && !is_number(nodes_[child].name);
      });
      if (!has_named_module) return;
      base_ = next;
    }
  }

  std::vector<Node> nodes_;
  std::vector<std::uint32_t> leaf_;  // by operator
  std::uint32_t base_ = 0;           // what all operators of modules have in common
  std::unordered_map<std::string, std::uint32_t> module_paths_;
};

class Namer {
 public:
  explicit Namer(const Graph& graph)
      : graph_(graph), tree_(graph), count_(tree_.size(), 0), round_(tree_.size(), 0), first_(tree_.size()) {}

  enum class Detail : std::uint8_t { kMostOfIt, kAllOfIt, kItsEnds };
  static constexpr int kDetails = 3;

  std::string name(const std::vector<OperatorId>& set, Detail detail) {
    const std::vector<OperatorId> operators = counting(set);
    count(operators);
    std::uint32_t at = 0;
    while (const auto child = only_child(at, detail)) {
      if (detail != Detail::kItsEnds && nearly_all(at)) break;
      at = *child;
    }
    if (detail == Detail::kItsEnds) {
      return join(at, tree_.node(tree_.leaf(operators.front())).name,
                  tree_.node(tree_.leaf(operators.back())).name);
    }
    if (nearly_all(at)) return tree_.path(at);
    if (tree_.path(at).empty() && count_[at] == tree_.node(0).operators) return "model";
    const auto [first, last] = ends(at, detail);
    return join(at, tree_.node(first).name, tree_.node(last).name);
  }

  // Whether the name is that of a module that is mostly something else.
  bool misleads(const std::string& name, const std::vector<OperatorId>& set) {
    const std::uint32_t* module = tree_.find(name);
    if (!module) return false;
    count(counting(set));
    return !inside(*module) || count_[*module] * 2 < tree_.node(*module).operators;
  }

 private:
  bool inside(std::uint32_t n) const { return round_[n] == now_; }

  // Whether the set is the module, but for a twentieth at most.
  bool nearly_all(std::uint32_t n) const {
    return count_[n] * 20 >= tree_.node(n).operators * 19 && !tree_.path(n).empty();
  }

  std::vector<OperatorId> counting(const std::vector<OperatorId>& set) const {
    ESP_CHECK(!set.empty());
    std::vector<OperatorId> result;
    for (const OperatorId id : set) {
      if (!graph_.op(id).duplicable) result.push_back(id);
    }
    if (result.empty()) result = set;
    std::sort(result.begin(), result.end());
    return result;
  }

  // How many operators of the set are in each module.
  void count(const std::vector<OperatorId>& operators) {
    ++now_;
    for (const OperatorId id : operators) {
      for (std::uint32_t n = tree_.leaf(id);; n = tree_.node(n).parent) {
        if (!inside(n)) round_[n] = now_, count_[n] = 0, first_[n] = id;
        ++count_[n];
        if (n == 0) break;
      }
    }
  }

  std::vector<std::uint32_t> touched(std::uint32_t n) const {
    std::vector<std::uint32_t> result;
    for (const std::uint32_t child : tree_.node(n).children) {
      if (inside(child)) result.push_back(child);
    }
    return result;
  }

  // The child that the name goes on in: the one that holds all; for most of it, the one that holds three
  // quarters or is the only module with a tenth.
  std::optional<std::uint32_t> only_child(std::uint32_t n, Detail detail) const {
    std::vector<std::uint32_t> modules;
    for (const std::uint32_t child : touched(n)) {
      if (tree_.node(child).is_operator) continue;
      if (count_[child] == count_[n]) return child;
      if (detail != Detail::kMostOfIt) continue;
      if (count_[child] * 4 >= count_[n] * 3) return child;
      if (count_[child] * 10 >= count_[n]) modules.push_back(child);
    }
    if (modules.size() != 1) return std::nullopt;
    return modules.front();
  }

  // The first and the last child that count: modules before operators, and none with less than a tenth.
  std::pair<std::uint32_t, std::uint32_t> ends(std::uint32_t n, Detail detail) const {
    std::vector<std::uint32_t> children = touched(n);
    if (detail == Detail::kMostOfIt) {
      for (const int round : {0, 1}) {
        std::vector<std::uint32_t> kept;
        for (const std::uint32_t child : children) {
          const bool counts = round == 0 ? !tree_.node(child).is_operator : count_[child] * 10 >= count_[n];
          if (counts) kept.push_back(child);
        }
        if (!kept.empty()) children = std::move(kept);
      }
    }
    const bool numbers = std::all_of(children.begin(), children.end(),
                                     [&](std::uint32_t child) { return is_number(tree_.node(child).name); });
    const auto before = [&](std::uint32_t a, std::uint32_t b) {
      if (!numbers) return first_[a] < first_[b];
      const std::string &x = tree_.node(a).name, &y = tree_.node(b).name;
      return std::pair(x.size(), x) < std::pair(y.size(), y);
    };
    const auto [first, last] = std::minmax_element(children.begin(), children.end(), before);
    return {*first, *last};
  }

  std::string join(std::uint32_t module, const std::string& first, const std::string& last) const {
    const std::string path = tree_.path(module);
    return (path.empty() ? "" : path + ".") + first + (first == last ? "" : "-" + last);
  }

  const Graph& graph_;
  ModuleTree tree_;
  std::vector<std::uint32_t> count_, round_;
  std::vector<OperatorId> first_;  // of the set, in each module
  std::uint32_t now_ = 0;
};

}  // namespace

std::vector<std::string> part_names(const Graph& graph, std::span<const std::vector<OperatorId>> sets,
                                    std::span<const std::string> given) {
  ESP_CHECK(given.empty() || given.size() == sets.size(), given.size());
  Namer namer(graph);
  const auto stays = [&](std::size_t s) { return !given.empty() && !given[s].empty(); };
  std::vector<std::string> names(sets.size());
  std::vector<int> detail(sets.size(), 0);
  for (std::size_t s = 0; s < sets.size(); ++s) {
    names[s] = stays(s) ? given[s] : namer.name(sets[s], Namer::Detail::kMostOfIt);
  }
  for (bool changed = true; changed;) {
    changed = false;
    std::map<std::string, int> uses;
    for (const std::string& name : names) ++uses[name];
    for (std::size_t s = 0; s < sets.size(); ++s) {
      if (stays(s) || detail[s] + 1 == Namer::kDetails) continue;
      if (uses[names[s]] == 1 && !namer.misleads(names[s], sets[s])) continue;
      names[s] = namer.name(sets[s], static_cast<Namer::Detail>(++detail[s]));
      changed = true;
    }
  }
  std::set<std::string> taken;
  for (std::size_t s = 0; s < sets.size(); ++s) {
    if (stays(s)) taken.insert(names[s]);
  }
  for (std::size_t s = 0; s < sets.size(); ++s) {  // a module may still have the name that operators make
    if (stays(s)) continue;
    const std::string stem = names[s];
    for (int i = 2; taken.contains(names[s]) || namer.misleads(names[s], sets[s]); ++i) {
      names[s] = stem + "#" + std::to_string(i);
    }
    taken.insert(names[s]);
  }
  return names;
}

}  // namespace espalier
