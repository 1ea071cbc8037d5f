// Policies that place operators: trained on generated graphs, on models that are given, asked, and drawn.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <filesystem>
#include <memory>

#include "espalier/app/catalog.h"
#include "espalier/base/check.h"
#include "espalier/base/files.h"
#include "espalier/base/json.h"
#include "espalier/learned/contrastive.h"
#include "espalier/learned/cross_entropy.h"
#include "espalier/learned/gdp.h"
#include "espalier/learned/hdp.h"
#include "espalier/learned/placeto.h"
#include "espalier/learned/pretrained.h"
#include "espalier/learned/pretraining.h"
#include "espalier/learned/relocation.h"
#include "espalier/planners/placement/layer_split.h"
#include "espalier/planners/placement/placement_bounds.h"
#include "espalier/planners/placement/placement_planner.h"
#include "espalier/planners/placement/simple.h"
#include "espalier/report/curve_plot.h"
#include "espalier/report/table.h"
#include "espalier/report/table_json.h"
#include "espalier/runtime_cli/learning_run.h"
#include "espalier/runtime_cli/verbs.h"

namespace espalier::cli {
namespace {

using namespace placement;  // NOLINT(google-build-using-namespace): this file is about nothing else

Policy policy_of(const LearnedFlags& flags, const std::string& device) {
  return flags.policy.empty() ? pretrained_policy(device) : Policy::read(flags.policy, device);
}

void expect_model(const LearnFlags& flags, const char* example) {
  if (flags.job.options.model.empty())
    throw InputError("learn " + flags.action + ": expected a file, as in `espalier learn " + example + "`");
}

// The model of a job as placers see it: one micro-batch of the whole batch, or the largest that it allows.
struct Asked {
  PlanningJob job;
  Instance instance;
  PlacementTask task;

  explicit Asked(PlanningJob of)
      : job(std::move(of)),
        instance(make_instance(job.graph, job.cluster, job.costs, job.training,
                               {.micro_batch = job.training.largest_micro_batch()})),
        task(job.graph, instance,
             {.clusters = {.clusters = usual_clusters(instance.devices())}, .order = job.order}) {}
};

std::unique_ptr<Asked> asked(Program& program, const JobFlags& job) {
  return std::make_unique<Asked>(prepare_job(job.to_options(program)));
}

PolicyShape shape_of(const LearnFlags& flags) {
  PolicyShape shape;
  shape.width = flags.width.value_or(shape.width);
  if (shape.width % shape.heads != 0) {
    throw InputError(
        fmt::format("--width: {} is not a multiple of {}, the heads of attention", shape.width, shape.heads));
  }
  shape.segment = flags.segment.value_or(shape.segment);
  shape.attention_layers = flags.attention_layers.value_or(shape.attention_layers);
  shape.refinements = flags.refinements.value_or(shape.refinements);
  shape.spectral = flags.spectral.value_or(shape.spectral);
  if (flags.gate) shape.gate = parse_gate(*flags.gate).value();
  if (flags.coarsening) shape.coarsening = parse_coarsening(*flags.coarsening).value();
  shape.priorities = flags.priorities.value_or(shape.priorities);
  shape.told_order = flags.told_order;
  return shape;
}

int pretrain_verb(Program& program, const LearnFlags& flags) {
  expect_output(flags);
  Policy policy(shape_of(flags), flags.seed, flags.device);
  PretrainingOptions options;
  Console& console = program.console;
  for (const std::string& name : flags.without) find_zoo_model(name);
  LearningRun run(flags.search.options(console));
  const std::uint64_t graphs = flags.graphs.value_or(kUsualGraphs);
  const TrainingSetOptions of_set{.graphs = graphs,
                                  .without = flags.without,
                                  .by_each_order = flags.told_order,
                                  .looks = flags.looks,
                                  .seed = flags.seed * 1000};
  const TrainingSet set = make_training_set(of_set, &run.pool, [&](std::size_t done) {
    console.progress(static_cast<double>(done) / static_cast<double>(graphs), "searching targets");
  });
  if (set.empty()) throw InputError("learn pretrain: none of the graphs can be placed; ask for more of them");
  options.contrast = flags.contrast;
  options.rounds = flags.rounds;
  options.updates = flags.updates.value_or(options.updates);
  options.checkpoint = flags.checkpoint;
  options.seed = flags.seed;
  constexpr std::uint64_t kLastUpdates = 200;
  RunningMean over(kLastUpdates), valid(kLastUpdates);
  pretrain(policy, set, options, run.context, [&](const PretrainingStep& step) {
    if (!step.imitates) {
      over.add(step.mean_over_target);
      valid.add(step.valid);
    }
    console.progress(
        static_cast<double>(step.step) / static_cast<double>(step.steps),
        step.imitates ? "imitating" : fmt::format("reinforcing: {:.2f} times the targets", over.value()));
  });
  console.finish();
  const std::string without = fmt::format("{}", fmt::join(flags.without, ","));
  policy.write(flags.output, {{"training_set",
                               fmt::format("{} graphs of the zoo by draw_workload, seeds {} on{}", set.size(),
                                           of_set.seed, without.empty() ? "" : ", without " + without)}});
  if (console.json) {
    print_json_line(console, {{"policy", flags.output},
                              {"graphs", set.size()},
                              {"weights", policy.weights()},
                              {"last_over_target", over.value()},
                              {"last_valid", valid.value()}});
  } else {
    console.out() << fmt::format("{} of {} graphs can be placed; {} weights learnt from them\n", set.size(),
                                 graphs, policy.weights());
    if (!over.empty()) {
      console.out() << fmt::format(
          "at the end a sample takes {:.2f} times the searched placement, {:.0f} % fit\n", over.value(),
          100 * valid.value());
    }
    console.out() << "wrote " << flags.output << '\n';
  }
  return run.context.stop() ? kInterrupted : kDone;
}

std::vector<Curve> curves_of(const std::vector<LearningPoint>& points) {
  Curve best{"best step so far / one device's", {}},
      mean{"mean step of an update's samples / one device's", {}}, valid{"part of them that fits", {}};
  for (const LearningPoint& point : points) {
    const auto calls = static_cast<double>(point.calls);
    if (point.best > 0) best.points.emplace_back(calls, point.best);
    mean.points.emplace_back(calls, point.mean);
    valid.points.emplace_back(calls, point.valid);
  }
  return {best, mean, valid};
}

void print_curves(Console& console, const std::vector<LearningPoint>& points) {
  for (const Curve& curve : curves_of(points)) {
    if (curve.points.empty()) continue;
    console.out() << fmt::format("{:<48} {} {:.4g} to {:.4g}\n", curve.name, curve_text(curve, 40),
                                 curve.points.front().second, curve.points.back().second);
  }
}

struct LearntModel {
  std::string name;
  std::size_t first_task = 0, end_task = 0;  // by either order
  FoundForGraph found = {};
};

int finetune_verb(Program& program, const LearnFlags& flags) {
  expect_model(flags, "finetune model.pt2 -o policy.safetensors");
  expect_output(flags);
  Console& console = program.console;
  std::vector<std::unique_ptr<Asked>> models;
  models.push_back(asked(program, flags.job));
  for (const std::string& other : flags.others) {
    JobFlags job = flags.job;
    job.options.model = other;
    models.push_back(asked(program, job));
  }
  Policy policy = policy_of(flags.learned, flags.device);
  LearningRun run(flags.search.options(console));
  LearningOptions options;
  options.tables = false;  // what is learnt is to serve others
  options.learning_rate = 1e-3;
  options.last_learning_rate = 1e-4;
  options.updates = flags.updates.value_or(50);
  options.seed = flags.seed;
  Context& context = run.context;
  std::vector<LearningPoint> points;
  const bool goes_on = !flags.checkpoint.empty() && std::filesystem::exists(flags.checkpoint);
  std::deque<PlacementTask> by_order;  // in turn: the policy is to serve all
  std::vector<LearntModel> learnt;
  for (const std::unique_ptr<Asked>& model : models) {
    learnt.push_back({.name = model->job.graph.name(), .first_task = by_order.size()});
    for (PlacementTask& task : tasks_by_order(model->task)) by_order.push_back(std::move(task));
    learnt.back().end_task = by_order.size();
  }
  if (!goes_on) {
    std::vector<const PolicyInput*> inputs;
    for (const PlacementTask& task : by_order) inputs.push_back(&task.input());
    contrast(policy, inputs, {.epochs = flags.contrast, .seed = flags.seed}, context);
  }
  {
    std::vector<const PlacementTask*> tasks;
    for (const PlacementTask& task : by_order) tasks.push_back(&task);
    Learner learner(policy, tasks, options);
    if (goes_on) learner.restore(flags.checkpoint);
    while (learner.updates() < options.updates) {
      const std::size_t turn = learner.next_task();
      if (!learner.update(context)) break;
      if (!flags.checkpoint.empty()) learner.save(flags.checkpoint);
      const LearningPoint& point = learner.progress(turn).curve.back();
      console.progress(static_cast<double>(point.update) / static_cast<double>(options.updates),
                       fmt::format("best {:.4f}, samples {:.4f}", point.best, point.mean));
    }
    points = learner.curve();
    for (LearntModel& model : learnt) model.found = found_for(learner, model.first_task, model.end_task);
  }
  console.finish();
  std::string names;
  for (const LearntModel& model : learnt) names += (names.empty() ? "" : ", ") + model.name;
  policy.write(flags.output, {{"tuned_for", names}});
  if (console.json) {
    Json rows = Json::array();
    for (const LearningPoint& point : points)
      rows.push_back(
          {{"calls", point.calls}, {"best", point.best}, {"mean", point.mean}, {"valid", point.valid}});
    Json of_models = Json::array();
    for (const LearntModel& model : learnt) {
      of_models.push_back({{"model", model.name}, {"calls", model.found.calls}});
      if (model.found.best) of_models.back()["best_ns"] = model.found.best->count();
    }
    print_json_line(console, {{"policy", flags.output}, {"models", of_models}, {"curve", rows}});
  } else {
    print_curves(console, points);
    for (const LearntModel& model : learnt) {
      console.out() << fmt::format(
          "{}: {}\n", model.name,
          model.found.best ? "a step of " + to_text(*model.found.best) + " at best" : "nothing fits");
    }
    console.out() << "wrote " << flags.output << '\n';
  }
  return context.stop() ? kInterrupted : kDone;
}

struct AnswerRow {
  std::string who;
  std::optional<Evaluated> evaluated;
  Duration took = {};
};

int apply_verb(Program& program, const LearnFlags& flags) {
  expect_model(flags, "apply model.pt2 --cluster 4xV100-16GB");
  Console& console = program.console;
  const std::unique_ptr<Asked> model = asked(program, flags.job);
  const Policy policy = policy_of(flags.learned, flags.device);
  const PlacementTask& task = model->task;
  // All that is asked is judged by the order that suits it better.
  const std::deque<PlacementTask> by_order = tasks_by_order(model->task);
  std::vector<const PlacementTask*> tasks;
  for (const PlacementTask& each : by_order) tasks.push_back(&each);
  ThreadPool pool(flags.search.options(console).threads);
  Scratch scratch;
  const auto judged = [&](const Assignment& assignment) {
    Evaluated best = tasks.front()->engine().evaluate(assignment, scratch);
    for (const PlacementTask* each : tasks) {
      const Evaluated seen = each->engine().evaluate(assignment, scratch);
      if (std::pair(seen.lack, seen.time) < std::pair(best.lack, best.time)) best = seen;
    }
    return best;
  };
  std::vector<AnswerRow> rows;
  const auto add = [&](const std::string& who, const std::function<std::optional<Evaluated>()>& place) {
    const auto begin = std::chrono::steady_clock::now();
    AnswerRow row{who, place()};
    row.took = Duration(std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count());
    rows.push_back(std::move(row));
  };
  PolicyAnswer answer;
  add(fmt::format("policy, best of {}", flags.samples), [&]() -> std::optional<Evaluated> {
    answer = ask(policy, tasks, flags.samples, flags.seed, &pool);
    return answer.best ? std::optional(answer.best->evaluated) : std::nullopt;
  });
  rows.push_back({"policy, most probable", judged(answer.most_probable.assignment)});
  add("best split between layers", [&]() -> std::optional<Evaluated> {
    std::optional<Evaluated> best;
    for (const PlacementTask* each : tasks) {
      Context context;
      const std::optional<FittingAssignment> split =
          best_layer_split(each->engine(), each->layer_of_unit(), context);
      if (split && (!best || split->time < best->time))
        best = each->engine().evaluate(split->assignment, scratch);
    }
    return best;
  });
  for (const char* name : {"one-device", "heft", "m-etf", "metis"}) {
    add(name, [&]() -> std::optional<Evaluated> {
      Context context;
      const Placed placed = find_placer(name).place({model->job.graph, model->instance}, context);
      if (!placed.assignment) return std::nullopt;
      return judged(*placed.assignment);
    });
  }
  const Duration bound = placement_bound(model->instance, task.engine().rules()).time;
  Table table{{{"placer", "placer"},
               {"step", "step"},
               {"over bound", "over_bound"},
               {"fits", "fits"},
               {"took", "took"}},
              {}};
  for (const AnswerRow& row : rows) {
    table.rows.push_back(
        {row.who, row.evaluated ? to_text(row.evaluated->time) : "-",
         row.evaluated ? fmt::format("{:.3f}", ratio(row.evaluated->time, std::max(bound, nanoseconds(1))))
                       : "-",
         row.evaluated ? (row.evaluated->fits ? "yes" : "no") : "-",
         row.took.count() > 0 ? to_text(row.took) : "-"});
  }
  if (console.json) {
    print_json_line(console, {{"bound_ns", bound.count()}, {"placers", espalier::to_json(table)}});
  } else {
    console.out()
        << fmt::format("{}: {} operators in {} clusters, {} devices; a step operator by operator, bound {}\n",
                       model->job.graph.name(), model->job.graph.operators().size(), task.clusters().count,
                       model->instance.devices(), to_text(bound))
        << print_text(table) << "`espalier plan --planner gdp` writes such a placement\n";
  }
  console.notes(model->job.notes);
  console.warnings(model->job.warnings);
  return answer.best ? kDone : kNoAnswer;
}

int curve_verb(Program& program, const LearnFlags& flags) {
  expect_model(flags, "curve checkpoint.safetensors");
  Console& console = program.console;
  if (!flags.svg.empty()) check_outputs({{"--svg", flags.svg}}, {flags.job.options.model});
  const std::vector<LearningPoint> points = read_learning_curve(flags.job.options.model);
  if (console.json) {
    Json rows = Json::array();
    for (const LearningPoint& point : points)
      rows.push_back({{"update", point.update},
                      {"calls", point.calls},
                      {"best", point.best},
                      {"mean", point.mean},
                      {"valid", point.valid}});
    print_json_line(console, {{"curve", rows}});
  } else {
    console.out() << fmt::format("{}: {} updates\n", flags.job.options.model, points.size());
    print_curves(console, points);
  }
  if (!flags.svg.empty()) {
    write_file_atomically(flags.svg, svg_curves("Learning to place", "simulator calls", curves_of(points)));
    if (!console.json) console.out() << "wrote " << flags.svg << '\n';
  }
  return kDone;
}

}  // namespace

void expect_output(const LearnFlags& flags) {
  if (flags.output.empty()) {
    const char* what = flags.action == "guide" || flags.action == "proposals" ? "guide" : "policy";
    throw InputError(fmt::format("learn {}: -o names the {} to write, such as -o {}.safetensors",
                                 flags.action, what, what));
  }
  std::vector<std::string> inputs = flags.job.inputs();
  inputs.insert(inputs.end(), flags.others.begin(), flags.others.end());
  check_outputs({{"--output", flags.output}, {"--checkpoint", flags.checkpoint}}, inputs);
}

int learn(Program& program, const LearnFlags& flags) {
  if (flags.action == "pretrain") return pretrain_verb(program, flags);
  if (flags.action == "finetune") return finetune_verb(program, flags);
  if (flags.action == "apply") return apply_verb(program, flags);
  if (flags.action == "guide") return learn_guide(program, flags);
  if (flags.action == "relocation") return learn_relocation(program, flags);
  if (flags.action == "proposals") return learn_proposals(program, flags);
  return curve_verb(program, flags);
}

LearnedPlanner learned(std::span<const std::string> planners, const LearnedFlags& flags) {
  // Read before anything is planned: a file that is none is refused at once.
  const auto asked_for = [&](std::string_view name) {
    return std::find(planners.begin(), planners.end(), name) != planners.end();
  };
  std::shared_ptr<const Policy> policy;
  if (asked_for(kGdp) || asked_for(kGdpSearch)) policy = std::make_shared<Policy>(policy_of(flags, "cpu"));
  std::shared_ptr<const RelocationPolicy> moves;
  if (asked_for(kGiph) && !flags.policy.empty())
    moves = std::make_shared<RelocationPolicy>(RelocationPolicy::read(flags.policy));
  PlacetoOptions visits;
  if (!flags.embedding.empty()) visits.embedding = parse_placeto_embedding(flags.embedding).value();
  const ProposalGuide* const guide = flags.guided ? &usual_proposals() : nullptr;
  return [policy, moves, visits, guide, updates = flags.fine_tune](std::string_view name,
                                                                   const Problem& problem, Context& context) {
    const auto place = [&](const PlacerInput& input, Context& shared) {
      if (name == kPlacetoPlanner) return placeto(input, visits, shared);
      if (name == kGiph) return relocate(input, {.policy = moves.get()}, shared);
      if (name == kHdp) return hdp(input, {}, shared);
      if (name == kCrossEntropy) return cross_entropy(input, {}, shared);
      if (name == kGdpOne) return gdp(input, {}, shared);
      const GdpOptions options{.policy = policy.get(), .updates = updates};
      return name == kGdpSearch ? gdp_search(input, options, shared) : gdp(input, options, shared);
    };
    return plan_by_placer(problem, {std::string(name), "", "", place, 1},
                          {.order = problem.order, .guide = guide}, context);
  };
}

LearnedOrdered ordered(std::string_view placer) {
  const std::optional<PlacetoOptions> named = placeto_by_name(placer);
  ESP_CHECK(named.has_value(), placer);
  return [options = *named](const Graph& graph, const Engine& engine, const OrderedOptions& run,
                            Context& context) {
    LearnedWalk walk;
    PlacetoOptions how = options;
    how.told = [&](const PlacetoPoint& point) { walk.entropy = point.entropy; };
    walk.placed = placeto_in_order(graph, engine, how, run, context);
    return walk;
  };
}

}  // namespace espalier::cli
