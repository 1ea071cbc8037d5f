// How far do learned placements go on GDP's twelve workloads, beside classical ones with equal simulator
// calls?
//
//   bench_gdp_paper FILE.csv POLICIES CALLS SEED WORKLOAD METHOD…
//   bench_gdp_paper forward WORKLOAD [DEVICE]
//   bench_gdp_paper reach FILE.csv CALLS SEEDS WORKLOAD
//   bench_gdp_paper batch FILE.csv CALLS SEED METHOD WORKLOAD…
//
// The second form times a forward pass and a learning step with a node for each unit, on cpu or cuda. The
// third asks after how many calls a fresh policy is as fast as HDP is after CALLS of its own, and appends a
// row for each seed: workload, HDP's calls and step, seed, those calls (none: not within 6,400), its step
// after 6,400, the expert's and the bound. The fourth is GDP-batch: one fresh policy learns all of the
// workloads in turn, by both orders of devices, with so many calls for each. METHOD: gdp-batch, where all
// that is learnt is in the net, or gdp-batch-tables, where each workload has a table beside it, as gdp has.
// Seconds are those of all workloads over their number.
//
// CALLS: of the operator engine, those of starts too; four times as many on eight devices. POLICIES: a folder
// with without_FAMILY.safetensors, policies that never saw that family (bench/gdp_paper/run makes them).
// Rows that the file has are skipped: what was stopped goes on. A workload's name with " mixed" behind it has
// devices of two kinds.
//
// Appends CSV: workload, tasks, clusters, devices, method, seed, calls, seconds, step, expert's step and
// bound in ns; no step where nothing fits was found.

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <sstream>
#include <string>

#include "bench/run_benchmark.h"
#include "espalier/base/check.h"
#include "espalier/base/files.h"
#include "espalier/learned/contrastive.h"
#include "espalier/learned/cross_entropy.h"
#include "espalier/learned/gdp.h"
#include "espalier/learned/hdp.h"
#include "espalier/learned/placeto.h"
#include "espalier/learned/pretraining.h"
#include "espalier/learned/relocation.h"
#include "espalier/planners/placement/default_search.h"
#include "espalier/planners/placement/layer_split.h"
#include "espalier/planners/placement/placement_bounds.h"
#include "espalier/planners/placement/ranks.h"
#include "espalier/planners/placement/search_placer.h"
#include "espalier/planners/placement/simple.h"

namespace espalier::placement {
namespace {

struct Question {
  Workload workload;
  PlacementTask task;
  std::string family;
  FittingAssignment expert;
  std::uint64_t expert_looks = 0;
  Duration bound;

  explicit Question(const WorkloadRecipe& recipe)
      : workload(make_workload(recipe)),
        task(workload.graph, workload.instance,
             {.clusters = {.clusters = usual_clusters(workload.instance.devices())}}),
        family(family_of(recipe)),
        bound(placement_bound(workload.instance, task.engine().rules()).time) {
    Context context;
    const std::vector<std::uint32_t> layers = layers_of(workload.instance, workload.graph);
    std::optional<FittingAssignment> split = best_layer_split(task.engine(), layers, context);
    if (!split) throw InputError(workload.name + ": no split between layers fits");
    expert = std::move(*split);
    expert_looks = context.states;
  }

  PlacerInput input(std::uint64_t seed) const {
    return {.graph = workload.graph, .instance = workload.instance, .seed = seed};
  }
  std::optional<Duration> step_of(const Assignment& assignment) const {
    Scratch scratch;
    const Evaluated seen = task.engine().evaluate(assignment, scratch);
    return seen.fits ? std::optional(seen.time) : std::nullopt;
  }
};

struct Asked {
  const Question& question;
  std::string policies;
  std::uint64_t seed;
  Context& context;  // has the calls
};
using Method = std::function<std::optional<Duration>(const Asked&)>;

// ---- Placers and searches

Method placer(const std::string& name) {
  return [name](const Asked& asked) -> std::optional<Duration> {
    const Placed placed =
        place_in_live_memory(asked.question.input(asked.seed), find_placer(name), asked.context);
    return placed.assignment ? asked.question.step_of(*placed.assignment) : std::nullopt;
  };
}

// The one that never saw the workload's family.
Policy trained_policy(const Asked& asked) {
  return Policy::read(asked.policies + "/without_" + asked.question.family + ".safetensors");
}

// The best split between layers; those of placers too; a policy's answer as well, or that of a policy which
// learned from half of the calls.
enum class Starts { kExpert, kPlacers, kPolicy, kTuned };

// Changes that are judged: random ones, or what a guide proposes that never saw the workload's family.
enum class Changes { kRandom, kProposed, kUntrained };

// What devices run by in a search.
enum class Priorities { kGraph, kUpward, kUsual };

// Rates all changes the same: what proposals are without a guide.
ProposalGuide untrained_guide() {
  constexpr std::size_t kInputs = ChangeFigures::kCount;
  return ProposalGuide(RatingNet(
      {.middle = std::vector<float>(kInputs),
       .scale = std::vector<float>(kInputs),
       .layers = {{.inputs = kInputs, .units = 1, .weights = std::vector<float>(kInputs), .offsets = {0}}}}));
}

std::optional<Duration> search(const Asked& asked, SearchMethod method, Starts from, Priorities by,
                               Changes changes) {
  const Question& question = asked.question;
  PlacementSearchOptions options{.method = method, .starts = {question.expert.assignment}};
  options.seed = asked.seed;
  std::optional<ProposalGuide> guide;
  if (changes == Changes::kUntrained) {
    options.guide = &guide.emplace(untrained_guide());
  } else if (changes == Changes::kProposed) {
    const std::string file = asked.policies + "/proposals_without_" + asked.question.family + ".safetensors";
    options.guide = &guide.emplace(ProposalGuide::parse(read_file(file), file));
  }
  if (by == Priorities::kUpward) options.orders = {{upward_priorities(question.workload.instance), {}}};
  if (by == Priorities::kUsual) options.orders = usual_orders(question.workload.instance);
  options.levels = search_levels(question.workload.instance,
                                 layers_of(question.workload.instance, question.workload.graph));
  asked.context.take_states(question.expert_looks);
  if (from != Starts::kExpert) {
    for (Assignment& start :
         placer_starts(question.input(asked.seed), question.task.engine().rules(), asked.context))
      options.starts.push_back(std::move(start));
  }
  if (from == Starts::kPolicy || from == Starts::kTuned) {
    const Policy policy = trained_policy(asked);
    GdpOptions how;
    how.policy = &policy;
    how.updates = 0;
    if (from == Starts::kTuned) {
      how.updates = asked.context.budget.max_states / 2 / how.learning.rollouts;
      asked.context.take_states(options.orders.size() * options.starts.size());
      how.to_beat = best_step(question.workload.instance, question.task.engine().rules(), options.orders,
                              options.starts, asked.context.pool);
    }
    const Placed answer = gdp(question.input(asked.seed), how, asked.context);
    if (answer.assignment) options.starts.push_back(*answer.assignment);
  }
  return placement_search(question.workload.instance, question.task.engine().rules(), options, asked.context)
      .estimate;
}

Method searching(SearchMethod method, Starts from, Priorities by, Changes changes = Changes::kRandom) {
  return [=](const Asked& asked) { return search(asked, method, from, by, changes); };
}

// The best split between layers by each of the usual orders.
std::optional<Duration> expert_by_usual_orders(const Asked& asked) {
  const Question& question = asked.question;
  std::optional<Duration> best;
  for (const DeviceOrders& orders : usual_orders(question.workload.instance)) {
    Context context;
    const Engine engine(question.task.engine(), orders);
    const std::optional<FittingAssignment> split =
        best_layer_split(engine, question.task.layer_of_unit(), context);
    asked.context.take_states(context.states);
    if (split && (!best || split->time < *best)) best = split->time;
  }
  return best;
}

std::optional<Duration> expert_by_upward_rank(const Asked& asked) {
  asked.context.take_states(asked.question.expert_looks + 1);
  const Engine& engine = asked.question.task.engine();
  Scratch scratch;
  const Evaluated seen = Engine(engine, {upward_priorities(engine.instance()), {}})
                             .evaluate(asked.question.expert.assignment, scratch);
  return seen.fits ? std::optional(seen.time) : std::nullopt;
}

// ---- Policies

struct Learning {
  PolicyShape shape = {};
  LearningOptions options = {};
  bool table = false, knows_expert = false, imitates_expert = false;
  std::optional<std::size_t> clusters = {};
  std::optional<TraversalOrder> order = {};
  bool by_upward_rank = false;  // what devices run by all along
  std::uint64_t contrast = 0;   // epochs
};

TaskProgress learn(const Asked& asked, const Learning& how, const PlacementTask& task) {
  Policy policy = how.table ? Policy::table() : Policy(how.shape, asked.seed);
  const PolicyInput* input = &task.input();
  contrast(policy, {&input, 1}, {.epochs = how.contrast, .seed = asked.seed}, asked.context);
  LearningOptions options = how.options;
  options.seed = asked.seed;
  options.updates = asked.context.budget.max_states / options.rollouts;
  Learner learner(policy, {&task}, options);
  const NodeDevices expert =
      devices_of_clusters(task.instance(), task.clusters(), asked.question.expert.assignment);
  if (how.imitates_expert || how.knows_expert) asked.context.take_states(asked.question.expert_looks);
  if (how.imitates_expert) learner.imitate({canonical(task.input(), expert)}, 60, 0.7, 3e-3);
  if (how.knows_expert) learner.know(0, judge(task, {expert}, Repairs::kNone, nullptr).front());
  while (learner.updates() < options.updates && learner.update(asked.context)) {
  }
  return learner.progress(0);
}

// What a learnt placement is worth where devices run as they did while it was learnt, by the order of the
// graph, or by upward rank.
enum class Order { kOwn, kGraph, kUpward };

std::optional<Duration> step_by(const Engine& engine, const std::optional<Sample>& best, Order order) {
  if (!best || order == Order::kOwn) return best ? std::optional(best->evaluated.time) : std::nullopt;
  DeviceOrders orders;
  if (order == Order::kUpward) orders.priority = upward_priorities(engine.instance());
  Scratch scratch;
  const Evaluated seen = Engine(engine, std::move(orders)).evaluate(best->assignment, scratch);
  return seen.fits ? std::optional(seen.time) : std::nullopt;
}

Method learning(Learning how, Order order = Order::kOwn) {
  return [how, order](const Asked& asked) {
    const auto step = [&](const PlacementTask& task) {
      return step_by(task.engine(), learn(asked, how, task).best, order);
    };
    if (!how.clusters && !how.order && !how.by_upward_rank) return step(asked.question.task);
    TaskOptions options;
    options.clusters.clusters =
        how.clusters.value_or(usual_clusters(asked.question.workload.instance.devices()));
    options.order = how.order.value_or(options.order);
    if (how.by_upward_rank) options.priority = upward_priorities(asked.question.workload.instance);
    const PlacementTask other(asked.question.workload.graph, asked.question.workload.instance, options);
    return step(other);
  };
}

std::optional<Duration> greedy_answer(const Asked& asked) {
  asked.context.take_states(1);
  const PlacementTask* const task = &asked.question.task;
  const PolicyAnswer answer = ask(trained_policy(asked), {&task, 1}, 0, asked.seed, asked.context.pool);
  const Evaluated& seen = answer.most_probable.evaluated;
  return seen.fits ? std::optional(seen.time) : std::nullopt;
}

// A trained policy's answer, after so many updates on the workload.
Method answering(std::uint64_t updates) {
  return [updates](const Asked& asked) {
    const Policy policy = trained_policy(asked);
    GdpOptions options;
    options.policy = &policy;
    options.updates = updates;
    return gdp(asked.question.input(asked.seed), options, asked.context).estimate;
  };
}

// As many updates as there are calls, so that the learning rate falls over all of them.
Method learning_hdp(const HdpOptions& how, Priorities by) {
  return [how, by](const Asked& asked) {
    HdpOptions options = how;
    options.task.tries_orders = by == Priorities::kUsual;
    options.updates = std::max<std::uint64_t>(1, asked.context.budget.max_states / options.rollouts);
    return hdp(asked.question.input(asked.seed), options, asked.context).estimate;
  };
}

Method by_cross_entropy(Priorities by) {
  return [by](const Asked& asked) {
    CrossEntropyOptions options;
    options.task.tries_orders = by == Priorities::kUsual;
    options.iterations = asked.context.budget.max_states / options.samples + 1;
    return cross_entropy(asked.question.input(asked.seed), options, asked.context).estimate;
  };
}

// A fresh policy with all that pays on one graph, as the library has it by default; no rollout is repeated.
std::optional<Duration> gdp_one(const Asked& asked) {
  GdpOptions options;
  options.learning.repeat_best = false;
  options.updates = asked.context.budget.max_states / options.learning.rollouts;
  return gdp(asked.question.input(asked.seed), options, asked.context).estimate;
}

// As many nodes as others have clusters, as many episodes as there are calls.
Method visiting(const std::string& name) {
  return [name](const Asked& asked) {
    PlacetoOptions options = *placeto_by_name(name);
    options.rules = asked.question.task.engine().rules();
    options.most_nodes = usual_clusters(asked.question.workload.instance.devices());
    options.episodes = 0;
    return placeto(asked.question.input(asked.seed), options, asked.context).estimate;
  };
}

std::optional<Duration> best_of_random(const Asked& asked) {
  const PlacementTask& task = asked.question.task;
  const std::vector<float> even(task.input().nodes * task.input().devices,
                                1.0F / static_cast<float>(task.input().devices));
  const std::uint64_t calls = asked.context.budget.max_states;
  asked.context.take_states(calls);
  std::optional<Duration> best;
  for (const Sample& sample :
       judge(task, draw(even, task.input().devices, calls, asked.seed), Repairs::kNone, asked.context.pool)) {
    if (sample.evaluated.fits && (!best || sample.evaluated.time < *best)) best = sample.evaluated.time;
  }
  return best;
}

// A relocation policy from the expert's split: the one that comes along, one that has learnt nothing, or one
// that learns from half of the calls first, at the expert's split too.
enum class Relocating { kPretrained, kFresh, kLearns };

Method relocating(Relocating which) {
  return [which](const Asked& asked) {
    const Question& question = asked.question;
    RelocationOptions options;
    options.starts.push_back(question.expert.assignment);
    options.steps = 0;
    options.task.tries_orders = false;
    asked.context.take_states(question.expert_looks);
    RelocationPolicy own({}, asked.seed);
    if (which == Relocating::kLearns) {
      RelocationTask task(question.task);
      task.starts.push_back(question.expert.assignment);
      RelocationLearning learning{.seed = asked.seed};
      const std::uint64_t of_update = learning.walks * (learning.steps * learning.proposals + 1);
      learning.updates = asked.context.budget.max_states / 2 / of_update;
      for (std::optional<Assignment>& found : learn_relocation(own, {&task, 1}, learning, asked.context)) {
        if (found) options.starts.push_back(std::move(*found));
      }
    }
    if (which != Relocating::kPretrained) options.policy = &own;
    return relocate(question.input(asked.seed), options, asked.context).estimate;
  };
}

Learning with(const std::function<void(Learning&)>& change) {
  Learning how;
  change(how);
  return how;
}

// Groups drawn by the policy, of so many clusters; none: the usual ones.
Method coarsening(Coarsening which, std::optional<std::size_t> clusters) {
  return learning(with([&](Learning& l) {
    l.shape.coarsening = which;
    l.clusters = clusters;
  }));
}

const std::map<std::string, Method>& methods() {
  static const std::map<std::string, Method> kMethods{
      {"expert",
       [](const Asked& asked) {
         asked.context.take_states(asked.question.expert_looks);
         return std::optional(asked.question.expert.time);
       }},
      {"expert-upward", expert_by_upward_rank},
      {"one-device", placer("one-device")},
      {"metis", placer("metis")},
      {"m-etf", placer("m-etf")},
      {"heft", placer("heft")},
      {"random", best_of_random},
      {"expert-usual", expert_by_usual_orders},
      {"descent", searching(SearchMethod::kCoordinate, Starts::kPlacers, Priorities::kGraph)},
      {"accept", searching(SearchMethod::kAccept, Starts::kExpert, Priorities::kGraph)},
      {"search", searching(SearchMethod::kDefault, Starts::kPlacers, Priorities::kUsual)},
      {"search-graph", searching(SearchMethod::kDefault, Starts::kPlacers, Priorities::kGraph)},
      {"accept-upward", searching(SearchMethod::kAccept, Starts::kExpert, Priorities::kUpward)},
      {"search-upward", searching(SearchMethod::kDefault, Starts::kPlacers, Priorities::kUpward)},
      {"tuned-search", searching(SearchMethod::kDefault, Starts::kTuned, Priorities::kUsual)},
      {"policy-search", searching(SearchMethod::kDefault, Starts::kPolicy, Priorities::kUsual)},
      {"proposed-search",
       searching(SearchMethod::kDefault, Starts::kPlacers, Priorities::kUsual, Changes::kProposed)},
      {"proposed-untrained",
       searching(SearchMethod::kDefault, Starts::kPlacers, Priorities::kUsual, Changes::kUntrained)},
      {"table", learning(with([](Learning& l) { l.table = true; }))},
      {"gdp", learning({})},
      {"gdp-best", learning(with([](Learning& l) { l.options.repeat_best = true; }))},
      {"gdp-repair", learning(with([](Learning& l) { l.options.repairs = Repairs::kInvalid; }))},
      {"gdp-imitate", learning(with([](Learning& l) { l.imitates_expert = true; }))},
      {"gdp-warm", learning(with([](Learning& l) { l.knows_expert = l.options.repeat_best = true; }))},
      {"gdp-published", learning(with([](Learning& l) { l.options = published_learning(); }))},
      {"gdp-64-clusters", learning(with([](Learning& l) { l.clusters = 64; }))},
      {"gdp-uncontracted", learning(with([](Learning& l) { l.clusters = 0; }))},
      {"gdp-no-tables", learning(with([](Learning& l) { l.options.tables = false; }))},
      {"gdp-no-attention", learning(with([](Learning& l) { l.shape.attention_layers = 0; }))},
      {"gdp-no-sage", learning(with([](Learning& l) { l.shape.sage_layers = 0; }))},
      {"gdp-no-gate", learning(with([](Learning& l) { l.shape.gate = Gate::kNone; }))},
      {"gdp-node-gate", learning(with([](Learning& l) { l.shape.gate = Gate::kNode; }))},
      {"gdp-refine", learning(with([](Learning& l) { l.shape.refinements = 1; }))},
      {"gdp-upward", learning(with([](Learning& l) { l.by_upward_rank = true; }))},
      {"gdp-then-upward", learning({}, Order::kUpward)},
      {"gdp-priority", learning(with([](Learning& l) { l.shape.priorities = 8; }))},
      {"gdp-priority-dropped", learning(with([](Learning& l) { l.shape.priorities = 8; }), Order::kGraph)},
      {"gdp-priority-upward", learning(with([](Learning& l) {
         l.shape.priorities = 8;
         l.by_upward_rank = true;
       }))},
      {"gdp-one", gdp_one},
      {"gdp-groups-priority", learning(with([](Learning& l) { l.shape = shape_for_one_graph(); }))},
      {"gdp-groups-upward", learning(with([](Learning& l) {
         l.shape.coarsening = Coarsening::kLearned;
         l.by_upward_rank = true;
       }))},
      {"gdp-groups-priority-upward", learning(with([](Learning& l) {
         l.shape = shape_for_one_graph();
         l.by_upward_rank = true;
       }))},
      {"gdp-spectral", learning(with([](Learning& l) { l.shape.spectral = 8; }))},
      {"gdp-coarsening", coarsening(Coarsening::kLearned, 1024)},
      {"gdp-coarsening-256", coarsening(Coarsening::kLearned, {})},
      {"coarsening-random", coarsening(Coarsening::kRandom, 1024)},
      {"coarsening-random-256", coarsening(Coarsening::kRandom, {})},
      {"gdp-1024-clusters", coarsening(Coarsening::kNone, 1024)},
      {"gdp-contrast", learning(with([](Learning& l) { l.contrast = 200; }))},
      {"gdp-order-alpha", learning(with([](Learning& l) { l.order = TraversalOrder::kAlpha; }))},
      {"gdp-order-dfs_preorder", learning(with([](Learning& l) { l.order = TraversalOrder::kDfsPreorder; }))},
      {"gdp-order-random", learning(with([](Learning& l) { l.order = TraversalOrder::kRandom; }))},
      {"hdp", learning_hdp({}, Priorities::kGraph)},
      {"hdp-usual", learning_hdp({}, Priorities::kUsual)},
      {"hdp-published", learning_hdp(published_hdp(), Priorities::kGraph)},
      {"cross-entropy", by_cross_entropy(Priorities::kGraph)},
      {"cross-entropy-usual", by_cross_entropy(Priorities::kUsual)},
      {"placeto", visiting("placeto")},
      {"placeto-graphsage", visiting("placeto-graphsage")},
      {"placeto-p-gnn", visiting("placeto-p-gnn")},
      {"placeto-literature", visiting("placeto-literature")},
      {"giph", relocating(Relocating::kPretrained)},
      {"giph-untrained", relocating(Relocating::kFresh)},
      {"giph-one", relocating(Relocating::kLearns)},
      {"zero-shot", answering(0)},
      {"zero-shot-greedy", greedy_answer},
      {"tuned-50", answering(50)},
      {"tuned-200", answering(200)},
  };
  return kMethods;
}

// ---- The table

class Rows {
 public:
  explicit Rows(const std::string& file) : file_(file) {
    std::ifstream in(file);
    for (std::string line; std::getline(in, line);) {
      std::istringstream cells(line);
      std::vector<std::string> row;
      for (std::string cell; std::getline(cells, cell, ',');) row.push_back(cell);
      if (row.size() >= 6) done_.insert(row[0] + "," + row[4] + "," + row[5]);
    }
  }
  bool has(const std::string& key) const { return done_.contains(key); }
  void add(const std::string& line) const { std::ofstream(file_, std::ios::app) << line << "\n"; }

 private:
  std::string file_;
  std::set<std::string> done_;
};

double best_of_four(const std::function<void()>& work) {
  double best = 1e9;
  for (int round = 0; round < 4; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    best = std::min(best, took.count());
  }
  return best;
}

double peak_memory_gib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / (1 << 20);
}

// A pass with every unit as a node, what an uncontracted policy costs: without gradients, then with them and
// with a step of the optimizer.
int forward(const WorkloadRecipe& recipe, const std::string& device) {
  const Workload workload = make_workload(recipe);
  const PlacementTask task(workload.graph, workload.instance, {.clusters = {.clusters = 0}});
  Policy policy(PolicyShape{}, 1, device);
  const double pass = best_of_four([&] { policy.probabilities(task.input()); });
  std::cout << recipe.name << " on " << device << ": " << task.input().nodes << " nodes ("
            << workload.graph.operators().size() << " operators), forward pass " << pass
            << " s, peak memory of the process " << peak_memory_gib() << " GiB";
  Learner learner(policy, {&task}, {});
  const std::vector<NodeDevices> target{NodeDevices(task.input().nodes, DeviceId(0))};
  const double step = best_of_four([&] {
    learner.imitate(target, 1, 0.9, 1e-3);
    policy.probabilities(task.input());  // which waits for the step
  });
  std::cout << ", learning step " << step - pass << " s, " << peak_memory_gib() << " GiB\n";
  return 0;
}

// One of GDP's; "RNNLM-4 mixed" is RNNLM-4 where half of the devices are of a kind that no policy was trained
// on.
WorkloadRecipe recipe_of(const std::string& workload) {
  constexpr std::string_view kMixed = " mixed";
  const bool mixed = workload.ends_with(kMixed);
  const std::string name = mixed ? workload.substr(0, workload.size() - kMixed.size()) : workload;
  const auto at = std::ranges::find(gdp_workloads(), name, &WorkloadRecipe::name);
  if (at == gdp_workloads().end()) throw InputError("there is no workload '" + workload + "'");
  WorkloadRecipe recipe = *at;
  if (!mixed) return recipe;
  const std::string half = std::to_string(parse_cluster(recipe.cluster).devices().size() / 2);
  recipe.name = workload;
  recipe.cluster = half + "xRTX3090," + half + "xP100-16GB";
  return recipe;
}

int reach(const std::string& file, std::uint64_t hdp_calls, std::uint64_t seeds,
          const std::string& workload) {
  constexpr std::uint64_t kCalls = 6'400;
  const Question question(recipe_of(workload));
  ThreadPool pool(2);
  Context context;
  context.pool = &pool;
  context.budget.max_states = hdp_calls;
  const std::optional<Duration> hdps = learning_hdp({}, Priorities::kGraph)({question, "", 1, context});
  if (!hdps) throw InputError(workload + ": HDP finds nothing that fits");
  std::ostringstream rows;  // added all at once: a run that is stopped leaves no part of a workload
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    Context own;
    own.pool = &pool;
    own.budget.max_states = kCalls;
    const TaskProgress learnt = learn({question, "", seed, own}, {}, question.task);
    const auto alone = static_cast<double>(question.task.alone().count());
    const auto there = std::ranges::find_if(learnt.curve, [&](const LearningPoint& point) {
      return point.best > 0 && point.best * alone <= static_cast<double>(hdps->count()) + 0.5;
    });
    rows << workload << ',' << hdp_calls << ',' << hdps->count() << ',' << seed << ',';
    if (there != learnt.curve.end()) rows << there->calls;
    rows << ',';
    if (learnt.best) rows << learnt.best->evaluated.time.count();
    rows << ',' << question.expert.time.count() << ',' << question.bound.count() << '\n';
  }
  std::ofstream(file, std::ios::app) << rows.str();
  return 0;
}

void add_row(const Rows& rows, const Question& question, const std::string& method, std::uint64_t seed,
             std::uint64_t calls, double seconds, const std::optional<Duration>& step) {
  const Instance& instance = question.workload.instance;
  std::ostringstream line;
  line << question.workload.name << ',' << instance.tasks() << ',' << question.task.clusters().count << ','
       << instance.devices() << ',' << method << ',' << seed << ',' << calls << ',' << seconds << ',';
  if (step) line << step->count();
  line << ',' << question.expert.time.count() << ',' << question.bound.count();
  rows.add(line.str());
}

int batch(const std::string& file, std::uint64_t calls, std::uint64_t seed, const std::string& method,
          std::span<const std::string> workloads) {
  if (method != "gdp-batch" && method != "gdp-batch-tables")
    throw InputError("there is no method '" + method + "'");
  const Rows rows(file);
  std::deque<Question> questions;
  std::deque<PlacementTask> tasks;
  std::vector<const PlacementTask*> all;
  std::vector<std::size_t> begins{0};  // of each question's tasks, and where the last one's end
  for (const std::string& workload : workloads) {
    const Question& question = questions.emplace_back(recipe_of(workload));
    for (PlacementTask& task : tasks_by_order(question.task))
      all.push_back(&tasks.emplace_back(std::move(task)));
    begins.push_back(all.size());
  }
  LearningOptions options{.seed = seed};
  options.tables = method == "gdp-batch-tables";
  if (!options.tables) options.learning_rate = 1e-3, options.last_learning_rate = 1e-4;
  options.updates = calls / options.rollouts * workloads.size();
  Policy policy(PolicyShape{}, seed);
  ThreadPool pool(2);
  Context context;
  context.pool = &pool;
  const auto begin = std::chrono::steady_clock::now();
  Learner learner(policy, all, options);
  while (learner.updates() < options.updates && learner.update(context)) {
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  for (std::size_t q = 0; q < questions.size(); ++q) {
    const FoundForGraph found = found_for(learner, begins[q], begins[q + 1]);
    add_row(rows, questions[q], method, seed, found.calls,
            took.count() / static_cast<double>(questions.size()), found.best);
  }
  return 0;
}

int run(const std::vector<std::string>& arguments) {
  if (arguments.size() == 5 && arguments[0] == "reach") {
    return reach(arguments[1], std::stoull(arguments[2]), std::stoull(arguments[3]), arguments[4]);
  }
  if (arguments.size() >= 6 && arguments[0] == "batch") {
    return batch(arguments[1], std::stoull(arguments[2]), std::stoull(arguments[3]), arguments[4],
                 std::span(arguments).subspan(5));
  }
  if ((arguments.size() == 2 || arguments.size() == 3) && arguments[0] == "forward") {
    return forward(recipe_of(arguments[1]), arguments.size() == 3 ? arguments[2] : "cpu");
  }
  if (arguments.size() < 6) throw InputError("expected FILE.csv POLICIES CALLS SEED WORKLOAD METHOD…");
  const Rows rows(arguments[0]);
  const std::uint64_t calls = std::stoull(arguments[2]), seed = std::stoull(arguments[3]);
  std::vector<std::string> wanted;
  for (std::size_t i = 5; i < arguments.size(); ++i) {
    if (!methods().contains(arguments[i])) throw InputError("there is no method '" + arguments[i] + "'");
    if (!rows.has(arguments[4] + "," + arguments[i] + "," + arguments[3])) wanted.push_back(arguments[i]);
  }
  if (wanted.empty()) return 0;
  const Question question(recipe_of(arguments[4]));
  const std::size_t devices = question.workload.instance.devices();
  ThreadPool pool(2);
  for (const std::string& method : wanted) {
    Context context;
    context.budget.max_states = devices < 8 ? calls : 4 * calls;
    context.pool = &pool;
    const auto begin = std::chrono::steady_clock::now();
    const std::optional<Duration> step = methods().at(method)({question, arguments[1], seed, context});
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    add_row(rows, question, method, seed, context.states, took.count(), step);
  }
  return 0;
}

}  // namespace
}  // namespace espalier::placement

int main(int count, char** words) {
  return espalier::run_benchmark(espalier::placement::run, count, words);
}
