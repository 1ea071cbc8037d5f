#include "testing/brute_force.h"

#include <algorithm>
#include <functional>
#include <set>
#include <vector>

#include "espalier/base/check.h"
#include "espalier/plan/staged_model.h"
#include "espalier/planners/candidate.h"
#include "espalier/sim/simulate.h"

namespace espalier::testing {
namespace {

constexpr std::uint32_t kMoreInFlight = 3, kAhead = 8;

class BruteForce {
 public:
  enum class Devices : std::uint8_t { kDisjoint, kShared };
  BruteForce(const Problem& problem, ScheduleKind schedule, Devices use)
      : problem_(problem),
        schedule_(schedule),
        use_(use),
        degrees_(tensor_parallel_degrees(problem.costs, problem.cluster.devices().size())) {}

  BruteForceResult run() {
    const std::size_t n = problem_.graph.operators().size();
    ESP_CHECK(n <= 5, n);
    ESP_CHECK(problem_.cluster.devices().size() <= 5, problem_.cluster.devices().size());
    stage_of_.assign(n, 0);
    partition(0, 0);
    return std::move(result_);
  }

 private:
  void partition(std::size_t op, std::size_t stages) {
    if (op == stage_of_.size()) {
      return use_ == Devices::kShared ? share_devices(stages) : assign_devices(stages);
    }
    for (std::size_t s = 0; s <= stages; ++s) {
      stage_of_[op] = s;
      partition(op + 1, std::max(stages, s + 1));
    }
  }

  // Each device goes to one stage or to none.
  void assign_devices(std::size_t stages) {
    const std::size_t devices = problem_.cluster.devices().size();
    std::vector<std::size_t> owner(devices, 0);
    while (true) {
      std::vector<StageDraft> drafts(stages);
      for (std::size_t d = 0; d < devices; ++d) {
        if (owner[d] < stages) drafts[owner[d]].devices.push_back(DeviceId(d));
      }
      if (std::none_of(drafts.begin(), drafts.end(), [](const StageDraft& s) { return s.devices.empty(); })) {
        give_operators(drafts);
        deal_groups(drafts, 0, [&] { add_edges(drafts); });
      }
      std::size_t d = 0;
      while (d < devices && ++owner[d] > stages) owner[d++] = 0;
      if (d == devices) return;
    }
  }

  void give_operators(std::vector<StageDraft>& drafts) const {
    std::vector<std::vector<OperatorId>> operators(drafts.size());
    for (std::size_t i = 0; i < stage_of_.size(); ++i) operators[stage_of_[i]].push_back(OperatorId(i));
    for (std::size_t s = 0; s < drafts.size(); ++s) drafts[s].operators = operators[s];
  }

  // Each stage's devices, in groups of each size; then `next`.
  void deal_groups(std::vector<StageDraft>& drafts, std::size_t stage, const std::function<void()>& next) {
    if (stage == drafts.size()) return next();
    for (const std::uint32_t degree : degrees_) {
      StageDraft& draft = drafts[stage];
      if (draft.devices.size() % degree != 0) continue;
      draft.degree = degree;
      if (has_cells(draft)) deal_groups(drafts, stage + 1, next);
    }
  }

  bool has_cells(const StageDraft& draft) const {
    for (const OperatorId op : draft.operators.operators()) {
      for (const DeviceId device : draft.devices) {
        const std::string& kind = problem_.cluster.kinds()[problem_.cluster.device(device).kind.index()].name;
        if (!problem_.costs.find(problem_.graph.op(op).op_class, kind, {draft.degree, false})) return false;
      }
    }
    return true;
  }

  // Each stage goes to any set of devices.
  void share_devices(std::size_t stages) {
    const std::size_t sets = (std::size_t{1} << problem_.cluster.devices().size()) - 1;
    std::vector<std::size_t> set(stages, 1);
    while (true) {
      std::vector<StageDraft> drafts(stages);
      for (std::size_t s = 0; s < stages; ++s) {
        for (std::size_t d = 0; d < problem_.cluster.devices().size(); ++d) {
          if (set[s] >> d & 1) drafts[s].devices.push_back(DeviceId(d));
        }
      }
      give_operators(drafts);
      deal_groups(drafts, 0, [&] {
        for (const BatchSize micro_batch : problem_.training.micro_batches) {
          auto plan = complete_plan(problem_.graph, drafts, problem_.training.batch, micro_batch, schedule_);
          if (plan) judge_limits(std::move(*plan));
        }
      });
      std::size_t s = 0;
      while (s < stages && ++set[s] > sets) set[s++] = 1;
      if (s == stages) return;
    }
  }

  void add_edges(const std::vector<StageDraft>& drafts) {
    for (const BatchSize micro_batch : problem_.training.micro_batches) {
      const auto plain =
          complete_plan(problem_.graph, drafts, problem_.training.batch, micro_batch, schedule_);
      if (!plain) return;
      const std::size_t stages = plain->stages.size();
      std::vector<std::pair<std::size_t, std::size_t>> free_edges;
      for (std::size_t b = 0; b < stages; ++b) {
        for (std::size_t a = 0; a < b; ++a) {
          const auto& after = plain->stages[b].after;
          if (!std::binary_search(after.begin(), after.end(), StageId(a))) free_edges.emplace_back(a, b);
        }
      }
      for (std::size_t mask = 0; mask < (std::size_t{1} << free_edges.size()); ++mask) {
        PipelinePlan plan = *plain;
        for (std::size_t e = 0; e < free_edges.size(); ++e) {
          if ((mask >> e & 1) == 0) continue;
          auto& after = plan.stages[free_edges[e].second].after;
          after.push_back(StageId(free_edges[e].first));
          std::sort(after.begin(), after.end());
        }
        judge_limits(std::move(plan));
      }
    }
  }

  // Those of the rule, a few more for all stages, which is faster where messages take time, and more for
  // those that hold more than some other, which then is done earlier.
  void judge_limits(PipelinePlan plan) {
    const std::vector<std::uint32_t> limits = in_flight_limits(plan);
    set_limits(plan, limits);
    judge(plan);
    if (schedule_ != ScheduleKind::kOneFOneB) return;
    for (std::uint32_t more = 1; more <= kMoreInFlight; ++more) {
      std::vector<std::uint32_t> all = limits;
      for (std::uint32_t& limit : all) limit += more;
      if (!set_limits(plan, all)) break;
      judge(plan);
    }
    for (const std::uint32_t than : std::set(limits.begin(), limits.end())) {
      std::vector<std::uint32_t> ahead = limits;
      set_limits(plan, ahead);
      for (;;) {
        for (std::size_t s = 0; s < limits.size(); ++s) ahead[s] += limits[s] > than ? kAhead : 0;
        if (!set_limits(plan, ahead)) break;
        judge(plan);
      }
    }
  }

  // At most a replica's micro-batches. False if the plan has these limits already.
  static bool set_limits(PipelinePlan& plan, const std::vector<std::uint32_t>& limits) {
    bool changed = false;
    for (std::size_t s = 0; s < limits.size(); ++s) {
      const std::uint32_t limit = std::min(limits[s], plan.stages[s].largest_share());
      changed = changed || limit != plan.stages[s].in_flight;
      plan.stages[s].in_flight = limit;
    }
    return changed;
  }

  void judge(const PipelinePlan& plan) {
    ++result_.tried;
    const StagedModel model =
        stage_model(problem_.graph, problem_.cluster, problem_.costs, problem_.training, plan);
    const Trace trace = simulate(model, problem_.cluster);
    const std::vector<MemoryByCategory> peak = peak_memory(trace);
    for (std::size_t d = 0; d < peak.size(); ++d) {
      if (peak[d].total() > problem_.cluster.devices()[d].memory) return;
    }
    if (!result_.plan || trace.iteration < result_.iteration) {
      result_.plan = plan;
      result_.iteration = trace.iteration;
    }
  }

  const Problem& problem_;
  ScheduleKind schedule_;
  Devices use_;
  std::vector<std::uint32_t> degrees_;
  std::vector<std::size_t> stage_of_;
  BruteForceResult result_;
};

}  // namespace

BruteForceResult brute_force(const Problem& problem, ScheduleKind schedule) {
  return BruteForce(problem, schedule, BruteForce::Devices::kDisjoint).run();
}

BruteForceResult brute_force_sharing(const Problem& problem) {
  return BruteForce(problem, ScheduleKind::kOneFOneB, BruteForce::Devices::kShared).run();
}

}  // namespace espalier::testing
