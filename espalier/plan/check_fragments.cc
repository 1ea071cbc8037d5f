// The checker of fragments. It shares no code with fragments_of.

#include <algorithm>
#include <map>
#include <set>
#include <span>

#include "espalier/plan/fragments.h"

namespace espalier {
namespace {

class FragmentChecker {
 public:
  FragmentChecker(const Graph& graph, const Cluster& cluster, const Placement& placement,
                  const PipelinePlan& plan)
      : graph_(graph), cluster_(cluster), placement_(placement), plan_(plan) {}

  std::vector<std::string> run() {
    named();
    devices();
    micro_batch();
    if (!found_.empty()) return std::move(found_);
    covered();
    if (!found_.empty()) return std::move(found_);
    level();
    ordered();
    return std::move(found_);
  }

 private:
  void violate(const char* rule, const std::string& text) {
    found_.push_back(std::string(rule) + " " + text);
  }
  const Operator& op(std::size_t i) const { return graph_.operators()[i]; }

  void named() {
    std::set<std::string> names;
    for (const Stage& stage : plan_.stages) {
      if (stage.name.empty() || !names.insert(stage.name).second) {
        violate("named", "'" + stage.name + "' is no name, or that of two fragments");
      }
    }
  }

  void devices() {
    for (const Stage& stage : plan_.stages) {
      const bool one = stage.replicas.size() == 1 && stage.replicas[0].devices.size() == 1 &&
                       stage.replicas[0].devices[0].index() < cluster_.devices().size();
      if (!one) {
        violate("devices", "'" + stage.name + "' stands on not exactly one device of the cluster");
        continue;
      }
      const std::vector<std::uint32_t>& share = stage.replicas[0].micro_batches;
      for (std::size_t j = 0; j < share.size(); ++j) {
        if (share[j] != j) violate("devices", "'" + stage.name + "' leaves out a micro-batch");
      }
      if (!stage.recompute.empty()) violate("devices", "'" + stage.name + "' recomputes");
    }
  }

  void micro_batch() {
    if (plan_.stages.empty()) violate("covered", "there is no fragment");
    for (const Stage& stage : plan_.stages) {
      const std::int64_t size = stage.micro_batch.count();
      const bool fits = size > 0 && plan_.batch.count() % size == 0 &&
                        size == plan_.stages[0].micro_batch.count() && graph_.batch().min.count() <= size &&
                        size <= graph_.batch().max.count();
      if (!fits) {
        violate("micro-batch", "'" + stage.name + "' has micro-batches of " + std::to_string(size));
      } else if (!stage.replicas.empty() && stage.replicas[0].micro_batches.size() !=
                                                static_cast<std::size_t>(plan_.batch.count() / size)) {
        violate("devices", "'" + stage.name + "' does not take all micro-batches");
      }
    }
  }

  // Which fragments hold each operator, and which should.
  void covered() {
    holders_.resize(graph_.operators().size());
    for (std::size_t x = 0; x < plan_.stages.size(); ++x) {
      if (plan_.stages[x].operators.empty()) violate("covered", "'" + plan_.stages[x].name + "' is empty");
      for (const OperatorId id : plan_.stages[x].operators) {
        if (id.index() >= holders_.size() || !holders_[id.index()].insert(x).second) {
          return violate("covered", "'" + plan_.stages[x].name + "' has an operator twice or one too many");
        }
      }
    }
    for (std::size_t i = 0; i < holders_.size(); ++i) {
      std::set<std::size_t> wanted;  // of a duplicable operator: its readers'
      if (op(i).duplicable) {
        for (std::size_t reader = 0; reader < holders_.size(); ++reader) {
          if (reads(reader, i)) wanted.insert(holders_[reader].begin(), holders_[reader].end());
        }
      }
      if (!wanted.empty() && holders_[i] != wanted) {
        violate("covered", "'" + op(i).name + "' does not stand exactly where it is read");
      }
      if (!wanted.empty()) continue;
      const bool once = holders_[i].size() == 1;
      if (!once || device_of(*holders_[i].begin()) != placement_.device[i]) {
        violate("covered", "'" + op(i).name + "' does not stand once, on its device");
      }
    }
  }

  bool reads(std::size_t reader, std::size_t producer) const {
    for (const TensorId input : op(reader).inputs) {
      if (graph_.tensor(input).producer == OperatorId(producer)) return true;
    }
    return false;
  }
  // For data, or because of memory.
  bool must_wait(std::size_t v, std::size_t u) const {
    const std::span<const OperatorId> before = graph_.predecessors(OperatorId(v));
    if (std::find(before.begin(), before.end(), OperatorId(u)) == before.end()) return false;
    return reads(v, u) || placement_.device[u] == placement_.device[v] || op(v).role != OperatorRole::kUpdate;
  }
  DeviceId device_of(std::size_t fragment) const { return plan_.stages[fragment].replicas[0].devices[0]; }

  // The placement's levels; without any, raises levels until nothing is too low any more: the smallest that
  // obey the definition.
  void level() {
    const std::size_t count = holders_.size();
    std::vector<std::size_t> levels(placement_.level.begin(), placement_.level.end());
    levels.resize(count, 0);
    for (bool changed = placement_.level.empty(); changed;) {
      changed = false;
      for (std::size_t v = count; v-- > 0;) {
        for (std::size_t u = 0; u < v && !op(v).duplicable; ++u) {
          if (op(u).duplicable) continue;
          const bool same = placement_.device[u] == placement_.device[v];
          const std::size_t least = must_wait(v, u) ? levels[u] + (same ? 0 : 1) : 0;
          if (levels[v] >= least) continue;
          levels[v] = least;
          changed = true;
        }
      }
    }
    std::map<std::pair<std::size_t, DeviceId>, std::size_t> fragment;
    for (std::size_t v = 0; v < count; ++v) {
      if (op(v).duplicable) continue;
      const std::size_t own = *holders_[v].begin();
      const auto [at, fresh] = fragment.emplace(std::pair(levels[v], placement_.device[v]), own);
      if (at->second != own)
        violate("level", "'" + op(v).name + "' stands in another fragment than its level");
    }
    std::set<std::size_t> used;
    for (const auto& [key, own] : fragment) {
      if (!used.insert(own).second) {
        violate("level", "'" + plan_.stages[own].name + "' holds operators of two levels");
      }
    }
  }

  void ordered() {
    for (std::size_t x = 0; x < plan_.stages.size(); ++x) {
      const Stage& stage = plan_.stages[x];
      std::set<std::size_t> wanted;
      for (std::size_t i = 0; i < stage.operators.size(); ++i) {
        if (i > 0 && !(stage.operators[i - 1] < stage.operators[i])) {
          violate("ordered", "operators of '" + stage.name + "' do not ascend");
        }
        const std::size_t v = stage.operators[i].index();
        for (std::size_t u = 0; u < v && !op(v).duplicable; ++u) {
          if (op(u).duplicable || holders_[u].contains(x)) continue;
          if (must_wait(v, u)) wanted.insert(*holders_[u].begin());
        }
      }
      std::vector<StageId> after;
      for (const std::size_t before : wanted) after.push_back(StageId(before));
      if (stage.after != after) violate("ordered", "`after` of '" + stage.name + "' is not what it needs");
      if (!wanted.empty() && *wanted.rbegin() >= x) {
        violate("ordered", "'" + stage.name + "' stands before what it needs");
      }
    }
  }

  const Graph& graph_;
  const Cluster& cluster_;
  const Placement& placement_;
  const PipelinePlan& plan_;
  std::vector<std::set<std::size_t>> holders_;  // by operator: fragments
  std::vector<std::string> found_;
};

}  // namespace

std::vector<std::string> check_fragments(const Graph& graph, const Cluster& cluster,
                                         const Placement& placement, const PipelinePlan& plan) {
  return FragmentChecker(graph, cluster, placement, plan).run();
}

}  // namespace espalier
