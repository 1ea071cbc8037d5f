#include "espalier/app/planning.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <set>

#include "espalier/app/catalog.h"
#include "espalier/app/explain.h"
#include "espalier/app/placements.h"
#include "espalier/base/check.h"
#include "espalier/base/files.h"
#include "espalier/cost/implementations.h"
#include "espalier/planners/hand_plan.h"
#include "espalier/planners/joint/joint.h"
#include "espalier/planners/pipeline/locked.h"
#include "espalier/planners/pipeline/looped.h"
#include "espalier/planners/placement/placement_planner.h"
#include "espalier/planners/placement/placer.h"
#include "espalier/schedule/schedule.h"
#include "espalier/sim/expected.h"
#include "espalier/sim/simulate.h"

namespace espalier {
namespace {

void judge_memory(const Cluster& cluster, Judged& judged) {
  judged.peak = peak_memory(judged.trace);
  for (std::size_t d = 0; d < judged.peak.size(); ++d) {
    const Bytes limit = cluster.device(DeviceId(d)).memory;
    if (!judged.overflow && limit < judged.peak[d].total()) {
      judged.overflow = DeviceId(d);
      judged.overflow_by = judged.peak[d].total() - limit;
    }
  }
}

// The first pinned operator that stands elsewhere.
std::optional<std::string> broken_pin(const PlanningJob& job, const PipelinePlan& plan) {
  if (job.pins.empty()) return std::nullopt;
  const std::vector<std::optional<DeviceId>> pinned = resolve_pins(job.graph, job.pins);
  for (const Stage& stage : plan.stages) {
    for (const OperatorId op : stage.operators) {
      const std::optional<DeviceId> device = pinned[op.index()];
      if (!device || job.graph.op(op).duplicable) continue;
      for (const Replica& replica : stage.replicas) {
        if (replica.devices != std::vector{*device}) {
          return describe_pin(job.graph, job.cluster, job.pins, op) + ", the plan has it elsewhere";
        }
      }
    }
  }
  return std::nullopt;
}

void fill_row(ComparedPlan& row, const Judged& judged, const Cluster& cluster) {
  row.stages = judged.staged.stages.size();
  row.depth = pipeline_depth(judged.staged);
  row.replicas = replica_text(judged.staged);
  std::set<DeviceId> devices;
  for (const StagedStage& stage : judged.staged.stages) {
    for (const StagedReplica& replica : stage.replicas) {
      devices.insert(replica.devices.begin(), replica.devices.end());
    }
    row.micro_batches = std::max(row.micro_batches, stage.micro_batches);
  }
  row.devices = devices.size();
  row.micro_batch = judged.plan.stages.front().micro_batch;
  row.schedule = judged.plan.orders;
  row.iteration = judged.trace.iteration;
  row.bubble = judged.bubble;
  for (const MemoryByCategory& peak : judged.peak) row.peak = std::max(row.peak, peak.total());
  row.fits = !judged.overflow;
  row.gap = judged.gap();
  row.price = step_price(cluster, judged.staged, judged.trace.iteration, judged.plan.batch);
}

// Whether a stage follows another without reading from it: what a chain of branches costs.
bool has_bare_stage_edge(const StagedModel& model) {
  return std::any_of(model.crossings.begin(), model.crossings.end(),
                     [](const Crossing& crossing) { return crossing.token; });
}

Judged judge_staged(const PlanningJob& job, PipelinePlan plan, StagedModel staged, const Schedule& schedule,
                    const Bound& any_bound) {
  Trace trace = simulate(staged, job.cluster, schedule);
  const Duration expected = job.measured
                                ? expected_iteration(staged, job.cluster, schedule, job.measured->scatter)
                                : trace.iteration;
  Bound stages = stages_bound(staged, job.cluster);
  Judged judged{.plan = std::move(plan),
                .placement = {},
                .staged = std::move(staged),
                .trace = std::move(trace),
                .expected = expected,
                .stages_bound = std::move(stages),
                .any_bound = any_bound,
                .bubble = 0,
                .peak = {},
                .overflow = {},
                .overflow_by = {}};
  judged.bubble = bubble_ratio(judged.trace);
  judge_memory(job.cluster, judged);
  if (judged.overflow) {
    judged.any_bound =
        plan_bound(job.graph, job.cluster, job.costs, job.training, any_bound.scope, Bound::Plans::kAll);
  }
  return judged;
}

// The same stages in the same orders, waiting for data alone.
Judged judge_data_edges_only(const PlanningJob& job, const Judged& chain) {
  PipelinePlan plan = chain.plan;
  plan.tokens = TokenRule::kNone;
  StagedModel staged = stage_model(job.graph, job.cluster, job.costs, job.training, plan);
  Schedule orders = make_schedule(chain.staged, job.cluster.devices().size());
  const Schedule schedule = with_channels(staged, std::move(orders.devices));
  return judge_staged(job, std::move(plan), std::move(staged), schedule, chain.any_bound);
}

Bound any_bound_of(const PlanningJob& job, Bound::Scope scope) {
  return plan_bound(job.graph, job.cluster, job.costs, job.training, scope);
}

Bound any_bound_of(const PlanningJob& job, const PipelinePlan& plan) {
  return any_bound_of(job, scope_of(plan, job.training));
}

Judged judge(const PlanningJob& job, const PipelinePlan& plan, const Bound& any_bound) {
  StagedModel staged = stage_model(job.graph, job.cluster, job.costs, job.training, plan);
  const Schedule schedule = make_schedule(staged, job.cluster.devices().size());
  return judge_staged(job, plan, std::move(staged), schedule, any_bound);
}

}  // namespace

double Judged::gap() const {
  return relative_difference(trace.iteration, any_bound.time);
}

Judged judge(const PlanningJob& job, const PipelinePlan& plan) {
  return judge(job, plan, any_bound_of(job, plan));
}

Judged judge_fragments(const PlanningJob& job, const Placement& placement, PipelinePlan fragments) {
  StagedModel staged = stage_placement(job.graph, job.cluster, job.costs, job.training, fragments);
  const Schedule schedule = make_schedule(staged, job.cluster.devices().size());
  const Bound bound = any_bound_of(job, fragments);
  Judged judged = judge_staged(job, std::move(fragments), std::move(staged), schedule, bound);
  judged.placement = placement;
  return judged;
}

namespace {

// What PlanOptions and CompareOptions say of their planners.
struct Means {
  const ChosenOrders& chosen;
  const LearnedPlanner& learned;
  Guides guides;

  template <class Options>
  explicit Means(const Options& options)
      : chosen(options.schedule), learned(options.learned), guides(options.guides) {}
};

// A planner of the catalog, or the split by hand, for this job.
NamedPlanner contender(const PlanningJob& job, const std::string& name, const Means& means) {
  const ChosenOrders& chosen = means.chosen;
  const OrderRule& schedule = chosen.rule;
  if (name == kByHand) {
    return {name, [&job, schedule](const Problem& problem, Context& context) {
              return plan_by_hand(problem, job.stages, {.schedule = schedule}, context);
            }};
  }
  // A schedule for a line of stages needs a plan that is laid for it.
  const bool laid = chosen.named && chosen.named->needs_line();
  const PlannerEntry& planner =
      find_planner(laid && name == kAutomatic && job.locked.empty() ? kLooped : name);
  if (planner.name == kLooped && chosen.named) {
    return {planner.name,
            [named = *chosen.named](const Problem& problem, Context& context) {
              return looped(problem, {.orders = named}, context);
            },
            planner.shares};
  }
  if (planner.name == kAutomatic) {
    const JointOptions options{
        .orders = chosen.is_open() ? joint::OrdersMay::kChange : joint::OrdersMay::kStay,
        .guide = means.guides.plans};
    return {name,
            [schedule, options](const Problem& problem, Context& context) {
              if (problem.locked.empty()) {
                return joint_search(problem, named_planners(schedule), options, context);
              }
              Outcome kept = keep_locked(problem, {.schedule = schedule}, context);
              return improved(problem, std::move(kept), options, context);
            },
            planner.shares};
  }
  const placement::ProposalGuide* const proposals =
      planner.name == kLocalSearch ? means.guides.placements : nullptr;
  const auto plan = [&planner, schedule, learned = means.learned, proposals](const Problem& problem,
                                                                             Context& context) -> Outcome {
    if (problem.locked.empty() && planner.learned && learned) return learned(planner.name, problem, context);
    if (problem.locked.empty() && proposals) {
      return placement::plan_by_placer(problem, placement::find_placer(kLocalSearch),
                                       {.order = problem.order, .guide = proposals}, context);
    }
    if (problem.locked.empty()) return planner.plan(problem, schedule, context);
    return {.status = Status::kUnsupported,
            .why = "planner '" + planner.name + "' does not keep locked stages; auto does"};
  };
  return {name, plan, planner.shares};
}

// The plan with orders that are made for it.
PipelinePlan with_own_orders(const PlanningJob& job, PipelinePlan plan, const ChosenOrders& chosen) {
  const auto staged = [&] { return stage_model(job.graph, job.cluster, job.costs, job.training, plan); };
  plan.orders = orders_for(chosen, staged(), job.cluster);
  const std::vector<std::uint32_t> limits = in_flight_limits(plan);
  for (std::size_t s = 0; s < limits.size(); ++s) plan.stages[s].in_flight = limits[s];
  const StagedModel model = staged();
  const std::vector<std::string> problems =
      check_schedule(model, make_schedule(model, job.cluster.devices().size()));
  if (!problems.empty()) throw InputError(chosen.where() + ": " + problems.front());
  return plan;
}

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

// What a planner found, checked, with orders made for it if they were chosen, judged. `any_bound` is that of
// most plans.
Planned finish(const PlanningJob& job, const std::string& planner, Outcome found,
               const ChosenOrders& schedule, const Bound& any_bound) {
  Planned planned{
      .planner = planner, .outcome = std::move(found), .judged = {}, .shortage = {}, .warnings = {}};
  Outcome& outcome = planned.outcome;
  if (!outcome.plan) return planned;
  if (const auto* placement = std::get_if<Placement>(&*outcome.plan)) {
    const std::vector<std::string> violations = check_placement(job.graph, job.cluster, *placement);
    ESP_CHECK(violations.empty(), planner, violations.front());
    try {
      Planned placed = plan_placement(job, *placement, schedule);
      planned.judged = std::move(placed.judged);
      planned.warnings = std::move(placed.warnings);
    } catch (const InputError& error) {
      outcome.status = Status::kUnsupported;
      outcome.why = "planner '" + planner + "': " + error.what();
      outcome.plan.reset();
    }
    return planned;
  }
  auto* plan = std::get_if<PipelinePlan>(&*outcome.plan);
  const std::vector<std::string> violations = check_plan(job.graph, job.cluster, *plan);
  ESP_CHECK(violations.empty(), planner, violations.front());
  if (const std::optional<std::string> broken = broken_pin(job, *plan)) {
    outcome.status = Status::kUnsupported;
    outcome.why = "planner '" + planner + "' does not keep " + *broken;
    outcome.plan.reset();
    return planned;
  }
  if (schedule.for_one_plan()) {
    try {
      *plan = with_own_orders(job, std::move(*plan), schedule);
    } catch (const InputError& error) {
      outcome.status = Status::kUnsupported;
      outcome.why = std::string("the orders do not fit the plan that it made: ") + error.what();
      outcome.plan.reset();
      return planned;
    }
  }
  const bool within = scope_of(*plan, job.training) == any_bound.scope;
  planned.judged = judge(job, *plan, within ? any_bound : any_bound_of(job, *plan));
  planned.warnings = semantic_warnings(job.graph, *plan);
  return planned;
}

Problem problem_of(const PlanningJob& job, const ChosenOrders& orders) {
  Problem problem = job.problem();
  problem.lists = orders.is_open();
  return problem;
}

// What a call's planners share.
struct Search {
  Search(const PlanningJob& of, const ChosenOrders& orders, const SearchOptions& options)
      : job(of), problem(problem_of(of, orders)), pool(options.threads), watch(options.progress) {
    context.pool = &pool;
    context.cancelled = options.cancelled;
    context.watch = &watch;
  }

  // Calls the planners, and finds the bound beside them: the first plans need not wait for it.
  void run(const std::function<void()>& planners) {
    pool.for_each(2, [&](std::size_t i) {
      if (i == 1) return planners();
      any_bound = any_bound_of(job, Bound::Scope::kOneSize);
      watch.bounded(any_bound.time);
    });
  }

  // `shares`: of the budget, of all planners that were asked. Of several the one that made the closest plan
  // plans again, beside those that are soon done.
  Shortage explain(NamedPlanner maker, const OrderRule& rule, const std::vector<std::uint32_t>& shares,
                   const Plan& closest) const {
    if (shares.size() > 1) maker = with_early_ones(std::move(maker), rule);
    const std::uint64_t all = std::accumulate(shares.begin(), shares.end(), std::uint64_t{0});
    Context again;
    again.pool = context.pool;
    again.cancelled = context.cancelled;
    again.budget.max_states =
        all == 0 ? context.budget.max_states : context.budget.max_states / all * maker.shares;
    return explain_shortage(problem, maker, again, closest);
  }

  static NamedPlanner with_early_ones(NamedPlanner maker, const OrderRule& rule) {
    std::vector<NamedPlanner> planners{maker};
    for (NamedPlanner& each : named_planners(rule)) {
      if (each.early && each.name != maker.name) planners.push_back(std::move(each));
    }
    maker.shares = 0;
    for (const NamedPlanner& each : planners) maker.shares += each.shares;
    maker.plan = [planners](const Problem& changed, Context& own) {
      return automatic(changed, planners, own);
    };
    return maker;
  }

  const PlanningJob& job;
  const Problem problem;
  Bound any_bound;  // of most plans; known after run
  ThreadPool pool;
  SearchWatch watch;
  Context context;
};

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
  const NamedPlanner planner = contender(job, options.planner, Means(options));
  Search search(job, options.schedule, options.search);
  search.context.budget = options.budget;
  search.context.planner = planner.name;
  Outcome outcome;
  search.run([&] { outcome = planner.plan(search.problem, search.context); });
  if (options.schedule.for_one_plan()) outcome.choices.clear();  // none of them has these orders
  if (options.pick > 0) pick_choice(outcome, options.pick);
  Planned planned = finish(job, planner.name, std::move(outcome), options.schedule, search.any_bound);
  const std::optional<NearMiss>& closest = planned.outcome.closest;
  if (planned.outcome.status == Status::kInfeasible && closest && options.remedies) {
    const bool named = !closest->planner.empty() && closest->planner != "start";
    const NamedPlanner maker = named ? contender(job, closest->planner, Means(options)) : planner;
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

namespace {

// The row of what a planner found, and one with data edges only where that says something else.
std::vector<ComparedPlan> rows_of(const PlanningJob& job, Planned planned, Duration planning_time) {
  ComparedPlan row;
  row.planner = planned.planner;
  row.planning_time = planning_time;
  row.status = planned.outcome.status;
  row.why = planned.outcome.why;
  row.estimate = planned.outcome.estimate;
  row.stats = planned.outcome.stats;
  if (!planned.judged) {
    row.fits = false;
    return {std::move(row)};
  }
  fill_row(row, *planned.judged, job.cluster);
  row.judged = std::move(planned.judged);
  // Of fragments such an edge is an order within the graph, not one of a chain.
  if (row.judged->placement || !has_bare_stage_edge(row.judged->staged)) return {std::move(row)};
  ComparedPlan bare;
  bare.planner = row.planner;
  bare.data_edges_only = true;
  bare.status = row.status;
  bare.judged = judge_data_edges_only(job, *row.judged);
  fill_row(bare, *bare.judged, job.cluster);
  return {std::move(row), std::move(bare)};
}

// The narrowest scope with all rows in it, where the micro-batches of plans from files are offered too.
Bound bound_of_all(const PlanningJob& job, const std::vector<ComparedPlan>& rows, const Bound& usual) {
  std::vector<BatchSize> sizes;
  bool one = true;
  for (const ComparedPlan& row : rows) {
    if (!row.judged) continue;
    one &= row.judged->any_bound.scope == Bound::Scope::kOneSize;
    for (const Stage& stage : row.judged->plan.stages) sizes.push_back(stage.micro_batch);
  }
  const PlanningJob sized = with_sizes(job, sizes);
  if (one && sized.training == job.training) return usual;
  return any_bound_of(sized, one ? Bound::Scope::kOneSize : Bound::Scope::kOfferedSizes);
}

// Of which auto has the usual part by its shares, if it is among them.
Budget usual_budget(const std::vector<NamedPlanner>& planners) {
  Budget budget;
  std::uint64_t shares = 0, of_auto = 0;
  for (const NamedPlanner& planner : planners) {
    shares += planner.shares;
    if (planner.name == kAutomatic) of_auto = planner.shares;
  }
  if (of_auto > 0) budget.max_states = budget.max_states / of_auto * shares;
  return budget;
}

bool may_be_best(const ComparedPlan& row) {
  return row.iteration && row.fits && !row.data_edges_only;
}

}  // namespace

Comparison compare_planners(const PlanningJob& job, const CompareOptions& options) {
  std::vector<std::string> names = options.planners;
  for (const PlannerEntry& entry : planner_catalog()) {
    if (options.planners.empty() && (entry.asked_by_auto || entry.name == kAutomatic))
      names.push_back(entry.name);
  }
  if (!job.stages.empty()) names.insert(names.begin(), std::string(kByHand));
  std::vector<NamedPlanner> planners;
  for (const std::string& name : names) planners.push_back(contender(job, name, Means(options)));
  Search search(job, options.schedule, options.search);
  search.context.budget = options.budget ? *options.budget : usual_budget(planners);
  std::vector<Duration> times(planners.size());
  PlannerCalls calls;
  if (options.clock) {
    calls.begun = [&](std::size_t i) { times[i] = options.clock(); };
    calls.ended = [&](std::size_t i) { times[i] = options.clock() - times[i]; };
  }
  std::vector<Candidate> found;
  search.run([&] { found = run_all(search.problem, planners, search.context, calls); });
  const Candidate* const closest = closest_of(found);
  const std::string closest_maker = closest ? closest->name : "";
  const Plan closest_plan = closest ? closest->outcome.closest->plan : Plan();
  std::vector<std::vector<ComparedPlan>> rows(planners.size());
  search.pool.for_each(planners.size(), [&](std::size_t i) {
    rows[i] = rows_of(
        job, finish(job, found[i].name, std::move(found[i].outcome), options.schedule, search.any_bound),
        times[i]);
  });

  Comparison result;
  result.interrupted = search.context.stop();
  for (std::vector<ComparedPlan>& some : rows) {
    std::move(some.begin(), some.end(), std::back_inserter(result.rows));
  }
  for (const std::string& path : options.files) {
    ComparedPlan row;
    row.planner = path;
    row.judged = judge_file(job, path);
    row.status = row.judged->overflow ? Status::kInfeasible : Status::kFeasible;
    fill_row(row, *row.judged, job.cluster);
    result.rows.push_back(std::move(row));
  }
  result.any_bound = bound_of_all(job, result.rows, search.any_bound);
  for (std::size_t i = 0; i < result.rows.size(); ++i) {
    const ComparedPlan& row = result.rows[i];
    if (!may_be_best(row)) continue;
    if (!result.best || *row.iteration < *result.rows[*result.best].iteration) result.best = i;
  }
  if (!result.best && !result.interrupted && !closest_maker.empty() && closest_maker != "start") {
    std::vector<std::uint32_t> shares;
    for (const NamedPlanner& planner : planners) shares.push_back(planner.shares);
    result.shortage = search.explain(contender(job, closest_maker, Means(options)), options.schedule.rule,
                                     shares, closest_plan);
  }
  return result;
}

std::optional<std::size_t> cheapest(const Comparison& comparison) {
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < comparison.rows.size(); ++i) {
    const ComparedPlan& row = comparison.rows[i];
    if (!may_be_best(row) || !row.price) continue;
    if (!best || row.price->million_samples < comparison.rows[*best].price->million_samples) best = i;
  }
  return best;
}

std::string replica_text(const StagedModel& model) {
  std::string out;
  for (const StagedStage& stage : model.stages) {
    std::size_t devices = 0;
    for (const StagedReplica& replica : stage.replicas) devices += replica.devices.size();
    out += (out.empty() ? "" : "+") + std::to_string(devices);
  }
  return out;
}

std::size_t pipeline_depth(const StagedModel& model) {
  std::vector<std::size_t> depth(model.stages.size(), 1);
  std::size_t most = 0;
  for (std::size_t s = 0; s < model.stages.size(); ++s) {
    for (const StageId before : model.stages[s].after)
      depth[s] = std::max(depth[s], depth[before.index()] + 1);
    most = std::max(most, depth[s]);
  }
  return most;
}

}  // namespace espalier
