#include "espalier/app/planning.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "espalier/app/placements.h"
#include "espalier/app/planner_call.h"
#include "espalier/base/check.h"
#include "espalier/base/files.h"
#include "espalier/cost/implementations.h"
#include "espalier/schedule/schedule.h"

namespace espalier {
namespace {

// The choice in place of the fastest plan. The other choices stay as they were.
void pick_choice(Outcome& outcome, std::size_t pick) {
  if (!outcome.plan) return;
  const std::size_t count = outcome.choices.size();
  if (pick > count) {
    throw InputError("--pick " + std::to_string(pick) + ": " +
                     (count == 0 ? "the fastest plan is the only choice"
                      : count == 1
                          ? "there is one choice beside the fastest plan: --pick 1"
                          : "there are " + std::to_string(count) +
                                " choices beside the fastest plan: --pick 1 to " + std::to_string(count)));
  }
  outcome.plan = outcome.choices[pick - 1].plan;
  outcome.estimate.reset();
  outcome.why = "choice " + std::to_string(pick) + ": slower than the best plan found";
}

bool fits(const Planned& planned) {
  return planned.judged && !planned.judged->overflow;
}

Planned plan_once(const PlanningJob& job, const PlanOptions& options);

// Recomputation is time spent where memory binds, as lighter implementations are.
bool recomputes(const Planned& planned) {
  const std::vector<Stage>& stages = planned.judged->plan.stages;
  return std::any_of(stages.begin(), stages.end(),
                     [](const Stage& stage) { return !stage.recompute.empty(); });
}

// Plans with lighter implementations of the first classes of operators, those that cost the least time for
// each byte.
class LighterPlans {
 public:
  LighterPlans(const PlanningJob& job, const PlanOptions& options)
      : job_(job),
        options_(options),
        lighter_(job),
        choices_(lighter_choices(job.graph, job.cluster, job.costs, job.training.micro_batches.back())) {
    options_.remedies = false;
  }

  // As few as fit; nothing where all of them do not.
  std::optional<Planned> fewest() {
    if (choices_.empty()) return std::nullopt;
    std::size_t too_few = 0, enough = choices_.size();
    Planned best = with_first(enough);
    if (!fits(best)) return std::nullopt;
    while (enough - too_few > 1) {
      const std::size_t middle = (too_few + enough) / 2;
      Planned planned = with_first(middle);
      if (fits(planned)) {
        enough = middle;
        best = std::move(planned);
      } else {
        too_few = middle;
      }
    }
    return told("nothing fits with the fastest implementation of each operator", std::move(best), enough);
  }

  // One, two, four … and all of them: the fastest plan that is faster than this one.
  std::optional<Planned> faster_than(const Planned& now) {
    std::optional<Planned> best;
    std::size_t of_best = 0;
    for (std::size_t count = 1; !choices_.empty(); count = std::min(2 * count, choices_.size())) {
      Planned planned = with_first(count);
      const Duration least = (best ? *best : now).judged->trace.iteration;
      if (fits(planned) && planned.judged->trace.iteration < least) {
        best = std::move(planned);
        of_best = count;
      }
      if (count == choices_.size()) break;
    }
    if (!best) return std::nullopt;
    return told("faster than to recompute more", *std::move(best), of_best);
  }

 private:
  Planned with_first(std::size_t count) {
    lighter_.costs = with_lighter(job_.costs, std::span(choices_).first(count));
    Planned planned = plan_once(lighter_, options_);
    planned.costs = lighter_.costs;
    return planned;
  }

  // The bound stays that of any implementations.
  Planned told(const std::string& reason, Planned planned, std::size_t count) const {
    std::size_t operators = 0;
    Bytes less;
    for (const LighterChoice& choice : std::span(choices_).first(count)) {
      operators += choice.operators;
      less += choice.less;
    }
    planned.judged->any_bound = any_bound_of(job_, planned.judged->plan);
    const std::string why =
        fmt::format("{}: {} take{} a lighter one, {} less in a micro-batch of {}", reason,
                    operators == 1 ? "1 operator" : fmt::format("{} operators", operators),
                    operators == 1 ? "s" : "", to_text(less), job_.training.micro_batches.back().count());
    planned.outcome.why = planned.outcome.why.empty() ? why : why + "; " + planned.outcome.why;
    return planned;
  }

  const PlanningJob& job_;
  PlanOptions options_;
  PlanningJob lighter_;
  const std::vector<LighterChoice> choices_;
};

}  // namespace

Planned plan_model(const PlanningJob& job, const PlanOptions& options) {
  if (!has_implementations(job.costs)) return plan_once(job, options);
  PlanOptions plain = options;
  plain.remedies = false;
  Planned planned = plan_once(job, plain);
  if (planned.outcome.interrupted) return planned;
  if (fits(planned)) {
    if (!recomputes(planned)) return planned;
    std::optional<Planned> faster = LighterPlans(job, options).faster_than(planned);
    return faster ? *std::move(faster) : planned;
  }
  const bool lacks_memory = planned.judged || planned.outcome.status == Status::kInfeasible;
  if (!lacks_memory) return planned;
  if (std::optional<Planned> lighter = LighterPlans(job, options).fewest()) return *std::move(lighter);
  return options.remedies ? plan_once(job, options) : planned;
}

std::vector<NamedImplementation> implementations_of(const PlanningJob& job, const Planned& planned) {
  const CostTable& costs = planned.costs ? *planned.costs : job.costs;
  if (!planned.judged || !has_implementations(costs)) return {};
  std::map<std::tuple<KindId, BatchSize, std::size_t>, std::vector<std::string>> known;
  std::map<std::pair<std::string, std::string>, std::set<OperatorId>> found;
  for (const Stage& stage : planned.judged->plan.stages) {
    for (const Replica& replica : stage.replicas) {
      for (const DeviceId device : replica.devices) {
        const KindId kind = job.cluster.device(device).kind;
        Variant variant;
        variant.tensor_parallel = static_cast<std::uint32_t>(replica.devices.size());
        const auto [names, fresh] =
            known.try_emplace({kind, stage.micro_batch, replica.devices.size()}, std::vector<std::string>{});
        if (fresh) {
          names->second =
              implementations_of(job.graph, job.cluster.kind(kind), costs, stage.micro_batch, variant);
        }
        for (const OperatorId op : stage.operators) {
          const std::string& name = names->second[op.index()];
          if (!name.empty()) found[{job.cluster.kind(kind).name, name}].insert(op);
        }
      }
    }
  }
  std::vector<NamedImplementation> all;
  for (const auto& [key, operators] : found) {
    all.push_back({key.first, key.second, {}});
    for (const OperatorId op : operators) all.back().operators.push_back(job.graph.op(op).name);
  }
  return all;
}

namespace {

Planned plan_once(const PlanningJob& job, const PlanOptions& options) {
  if (job.placement) return plan_given_placement(job, *job.placement, options.schedule);
  const NamedPlanner planner = planner_for(job, options.planner, PlannerMeans(options));
  PlannerCall search(job, options.schedule, options.search, !options.brief);
  search.context.budget = options.budget;
  search.context.planner = planner.name;
  Outcome outcome;
  search.run([&] { outcome = planner.plan(search.problem, search.context); });
  if (options.schedule.for_one_plan()) outcome.choices.clear();  // none of them has these orders
  if (options.pick > 0) pick_choice(outcome, options.pick);
  Planned planned = search.checked_and_judged(planner.name, std::move(outcome), options.schedule);
  const std::optional<NearMiss>& closest = planned.outcome.closest;
  if (planned.outcome.status == Status::kInfeasible && closest && options.remedies) {
    const bool named = !closest->planner.empty() && closest->planner != "start";
    const NamedPlanner maker = named ? planner_for(job, closest->planner, PlannerMeans(options)) : planner;
    std::vector<std::uint32_t> shares{maker.shares};
    if (maker.name != planner.name) {
      shares.clear();
      for (const NamedPlanner& each : named_planners(options.schedule.rule)) shares.push_back(each.shares);
    }
    planned.shortage = search.explain(maker, options.schedule.rule, shares, closest->plan);
  }
  return planned;
}

}  // namespace

PlanFile plan_file(const PlanningJob& job, const Planned& planned, const std::string& folder) {
  ESP_CHECK(planned.judged.has_value());
  const Judged& judged = *planned.judged;
  PlanFile file = judged.placement
                      ? make_plan_file(job.graph, job.cluster, job.training, *judged.placement,
                                       judged.plan.stages.front().micro_batch, judged.staged)
                      : make_plan_file(job.graph, job.cluster, job.training, judged.plan, judged.staged);
  file.model = path_from(folder, job.model);
  file.planner = planned.planner;
  file.seed = job.seed;
  file.cost_file = path_from(folder, job.cost_file);
  file.cost_hash = job.cost_hash;
  file.measured = job.measured;
  if (file.staged.orders.rule()) {
    file.expansion = schedule_hash(make_schedule(file.staged, job.cluster.devices().size()));
  }
  for (NamedStage& stage : file.stages) {
    stage.locked = std::any_of(job.locked.begin(), job.locked.end(),
                               [&](const LockedStage& locked) { return locked.stage.name == stage.name; });
  }
  file.implementations = implementations_of(job, planned);
  if (!planned.outcome.why.empty()) file.notes.push_back(planned.outcome.why);
  file.notes.insert(file.notes.end(), job.notes.begin(), job.notes.end());
  file.notes.insert(file.notes.end(), planned.warnings.begin(), planned.warnings.end());
  return file;
}

}  // namespace espalier
