#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "espalier/app/catalog.h"
#include "espalier/app/placements.h"
#include "espalier/base/check.h"
#include "espalier/base/files.h"
#include "espalier/base/json.h"
#include "espalier/cli/runtime_verbs.h"
#include "espalier/cli/shortage.h"
#include "espalier/cli/verbs.h"
#include "espalier/plan/json.h"
#include "espalier/report/table_json.h"

namespace espalier::cli {
namespace {

struct PlanFlags {
  JobFlags job;
  LearnedFlags learned;
  std::string planner{kAutomatic};
  std::string schedule;  // empty: that of the plan to start from, else 1F1B, and whatever `auto` finds
  SearchFlags search;
  std::size_t pick = 0;
  std::string output = "plan.json";
  TraceOutputs trace;
};

// "--pick 1: 53.1 ms (+2.0 %), at most 1.10 GiB on a device (-35.1 %), depth 3": beside the fastest plan.
void print_choices(std::ostream& out, const Planned& planned, const PlanPrice& now) {
  const auto percent = [](auto other, auto one) {
    return one.count() > 0 ? 100 * (static_cast<double>(other.count()) / static_cast<double>(one.count()) - 1)
                           : 0;
  };
  const std::vector<OtherChoice>& choices = planned.outcome.choices;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    const PlanPrice& price = choices[i].price;
    out << fmt::format("--pick {}: {} ({:+.1f} %), at most {} on a device ({:+.1f} %), depth {}\n", i + 1,
                       to_text(price.iteration), percent(price.iteration, now.iteration), to_text(price.peak),
                       percent(price.peak, now.peak), price.depth);
  }
}

// Of the plan that was judged.
PlanPrice price_of(const Judged& judged) {
  PlanPrice price{judged.trace.iteration, Bytes(), pipeline_depth(judged.staged)};
  for (const MemoryByCategory& peak : judged.peak) price.peak = std::max(price.peak, peak.total());
  return price;
}

// Of a placement whose step is one pass over its operators those, else the trace.
std::string gantt(const PlanningJob& job, const Judged& judged, const GanttOptions& options) {
  if (judged.placement && is_one_pass(judged.staged)) {
    const auto pictures = operator_pictures({job.graph, job.cluster, job.costs, job.training,
                                             *judged.placement, judged.plan.stages.front().micro_batch, ""},
                                            {.gantt = options});
    if (pictures) {
      return "operator by operator: " + to_text(pictures->step) + " a step\n" + pictures->gantt;
    }
  }
  return text_gantt(judged.trace, options);
}

void print(Console& console, const PlanningJob& job, const Planned& planned) {
  std::ostream& out = console.out();
  const Judged& judged = *planned.judged;
  std::size_t devices = 0;
  for (const Duration busy : busy_time(judged.trace)) devices += busy.count() > 0;
  const auto plural = [](std::size_t count, const char* ending) { return count == 1 ? "" : ending; };
  const std::size_t stages = judged.staged.stages.size(), all = job.cluster.devices().size();
  const std::uint32_t micro_batches = judged.staged.stages.front().micro_batches;
  const std::string shape =
      judged.placement
          ? placement_text(judged.staged, job.graph.operators().size())
          : fmt::format("{} stage{}, depth {}", stages, plural(stages, "s"), pipeline_depth(judged.staged));
  out << fmt::format("{}: {}, {} micro-batch{} of {}, on {} of {} device{}\n", planned.planner, shape,
                     micro_batches, plural(micro_batches, "es"),
                     judged.plan.stages.front().micro_batch.count(), devices, all, plural(all, "s"));
  if (!planned.outcome.why.empty()) out << planned.outcome.why << '\n';
  out << verdict_text(judged.trace, judged.plan.batch) << " (simulated)\n";
  out << expected_text(judged.expected, job.measured);
  out << price_text(step_price(job.cluster, judged.staged, judged.trace.iteration, judged.plan.batch));
  out << bound_text(judged.trace.iteration, judged.any_bound) << '\n';
  const SearchStats& stats = planned.outcome.stats;
  if (!job.placement) {
    out << fmt::format("searched: {} states, {} plans judged\n", stats.states, stats.evaluations);
    print_choices(out, planned, price_of(judged));
  }
  for (const NamedImplementation& one : implementations_of(job, planned)) {
    out << fmt::format("by {} on {}: {} operator{}, first {}\n", one.name, one.kind, one.operators.size(),
                       plural(one.operators.size(), "s"), one.operators.front());
  }
  out << '\n'
      << print_text(judged.placement ? placement_table(job, judged) : stage_table(job, judged)) << '\n';
  out << gantt(job, judged, {.width = console.width(), .colour = console.colour()}) << '\n';
  out << "Memory at its peak\n"
      << memory_bars(judged.trace, {.width = console.width(), .colour = console.colour()});
  out.flush();
  console.notes(job.notes);
  console.warnings(job.warnings);
  console.warnings(planned.warnings);
  if (judged.overflow) {
    console.warnings({fmt::format("{} lacks {}: this plan does not fit",
                                  job.cluster.device(*judged.overflow).name, to_text(judged.overflow_by))});
  }
}

Json to_json(const PlanningJob& job, const Planned& planned, const std::string& output) {
  Json json{{"planner", planned.planner},
            {"status", std::string(to_text(planned.outcome.status))},
            {"why", planned.outcome.why},
            {"estimate_ns", planned.outcome.estimate ? Json(planned.outcome.estimate->count()) : Json()},
            {"states", planned.outcome.stats.states},
            {"evaluations", planned.outcome.stats.evaluations},
            {"interrupted", planned.outcome.interrupted}};
  if (planned.judged) {
    json.update(judged_json(*planned.judged, job.cluster));
    json["plan"] = output;
  }
  Json choices = Json::array();
  for (const OtherChoice& choice : planned.outcome.choices) {
    choices.push_back({{"iteration_ns", choice.price.iteration.count()},
                       {"peak_bytes", choice.price.peak.count()},
                       {"depth", choice.price.depth},
                       {"stages", choice.plan.stages.size()}});
  }
  json["choices"] = choices;
  if (planned.shortage) json["shortage"] = shortage_json(*planned.shortage, job.cluster);
  const std::vector<NamedImplementation> implementations = implementations_of(job, planned);
  if (!implementations.empty()) json["implementations"] = implementations_to_json(implementations);
  json["precision"] = std::string(to_text(job.training.precision));
  std::vector<std::string> warnings = job.warnings;
  warnings.insert(warnings.end(), planned.warnings.begin(), planned.warnings.end());
  json["notes"] = job.notes;
  json["warnings"] = warnings;
  return json;
}

int plan(Program& program, const PlanFlags& flags) {
  Console& console = program.console;
  // What is misspelt is told before the model is read.
  const LearnedPlanner learned =
      learned_planner(program, "plan", std::span(&flags.planner, 1), flags.learned);
  const ChosenGuides guides = chosen_guides(std::span(&flags.planner, 1), flags.learned);
  const JobOptions& options = flags.job.options;
  const bool by_hand = !options.stages.empty();
  if (by_hand && flags.planner != kAutomatic) {
    throw InputError("--planner " + flags.planner +
                     ": with --stages there is no stage left to plan; leave one of them out");
  }
  if (!options.placement.empty() && (flags.planner != kAutomatic || !options.start.empty() || by_hand)) {
    throw InputError("--placement places every operator: leave out " + std::string(by_hand ? "--stages"
                                                                                   : options.start.empty()
                                                                                       ? "--planner"
                                                                                       : "--start"));
  }
  std::optional<ChosenOrders> schedule;
  if (!flags.schedule.empty()) schedule = choose_orders(flags.schedule);
  std::vector<NamedFile> outputs = flags.trace.files();
  outputs.push_back({"--output", flags.output});
  check_outputs(outputs, flags.job.inputs());
  PlanningJob job = prepare_job(flags.job.to_options(program));
  if (!schedule && job.start) schedule = ChosenOrders{.rule = *job.start->orders.rule()};
  const Planned planned = plan_model(job, {.planner = by_hand ? std::string(kByHand) : flags.planner,
                                           .schedule = schedule.value_or(ChosenOrders()),
                                           .budget = flags.search.budget(),
                                           .search = flags.search.options(console),
                                           .pick = flags.pick,
                                           .learned = learned,
                                           .guides = guides.get()});
  console.finish();
  if (planned.costs) job.costs = *planned.costs;
  if (!planned.judged) {
    if (console.json) print_json_line(console, to_json(job, planned, ""));
    console.notes(job.notes);
    console.warnings(job.warnings);
    if (!console.json) {
      console.out() << fmt::format("{}: no plan ({})\n", planned.planner, to_text(planned.outcome.status));
      if (planned.shortage) {
        for (const std::string& line : shortage_lines(*planned.shortage, job.cluster)) {
          console.out() << line << '\n';
        }
      } else {
        console.out() << planned.outcome.why << '\n';
      }
    }
    return planned.outcome.interrupted ? kInterrupted : kNoAnswer;
  }
  const std::string folder = std::filesystem::path(flags.output).parent_path().string();
  write_file_atomically(flags.output, print_plan_file(plan_file(job, planned, folder)));
  if (console.json) {
    print_json_line(console, to_json(job, planned, flags.output));
  } else {
    print(console, job, planned);
    console.out() << "\nwrote " << flags.output << '\n';
  }
  flags.trace.write(console, planned.judged->trace, job.graph.name() + ", " + planned.planner);
  return planned.judged->overflow ? kNoAnswer : kDone;
}

}  // namespace

void add_plan(Program& program) {
  auto flags = std::make_shared<PlanFlags>();
  CLI::App* verb = add_verb(program, "plan", "decide which device runs which part, and when",
                            "espalier plan tests/fixtures/three_branch.pt2 --cluster local:2 -o plan.json");
  flags->job.add_model(verb);
  flags->job.add_planning(verb);
  flags->job.add_training(verb);
  verb->add_option("-p,--planner", flags->planner, "see `espalier planners`")->type_name("NAME");
  verb->add_option("-s,--schedule", flags->schedule,
                   "such as 1f1b, zbv or search (see `espalier planners`), or a file with an order for each "
                   "device; default: 1f1b")
      ->type_name("NAME|FILE");
  flags->job.add_order(verb);
  flags->search.add(verb);
  flags->learned.add(verb);
  verb->add_option("--start", flags->job.options.start,
                   "a plan file to improve; its stages with \"locked\": true are kept as they are")
      ->type_name("FILE");
  verb->add_option("--placement", flags->job.options.placement,
                   "in place of planning: which operators stand where, such as {\"encoder.*\": \"gpu:0\", "
                   "\"*\": \"gpu:1\"}, or a placement of dnn-partitioning")
      ->type_name("FILE");
  verb->add_option("--pick", flags->pick,
                   "another choice in place of the fastest plan, as `plan` lists them: less memory or depth")
      ->type_name("N")
      ->check(positive());
  verb->add_option("-o,--output", flags->output, "the plan file to write; default: plan.json")
      ->type_name("FILE");
  flags->trace.add(verb, "--trace");
  verb->callback([&program, flags] { program.chosen = [&program, flags] { return plan(program, *flags); }; });
}

void add_planners(Program& program) {
  CLI::App* verb =
      add_verb(program, "planners", "every planner, schedule and order: its source and what it decides",
               "espalier planners");
  verb->callback([&program] {
    program.chosen = [&program] {
      Table planners{
          {{"planner", "planner"}, {"plans", "plans"}, {"decides", "decides"}, {"source", "source"}}, {}};
      for (const PlannerEntry& entry : planner_catalog()) {
        planners.rows.push_back({entry.name, entry.shape, entry.decides, entry.source});
      }
      Table orders{{{"order", "order"}, {"what", "what"}}, {}};
      for (const OrderEntry& entry : order_catalog()) {
        orders.rows.push_back({std::string(to_text(entry.order)), entry.what});
      }
      Table schedules{{{"schedule", "schedule"}, {"what", "what"}, {"source", "source"}}, {}};
      for (const ScheduleEntry& entry : schedule_catalog()) {
        schedules.rows.push_back({entry.text, entry.what, entry.source});
      }
      if (program.console.json) {
        Json rows = espalier::to_json(planners);
        for (std::size_t i = 0; i < rows.size(); ++i) {
          rows[i]["asked_by_auto"] = planner_catalog()[i].asked_by_auto;
        }
        print_json_line(program.console, {{"planners", std::move(rows)},
                                          {"schedules", espalier::to_json(schedules)},
                                          {"orders", espalier::to_json(orders)}});
      } else {
        program.console.out() << print_text(planners) << '\n'
                              << print_text(schedules) << '\n'
                              << print_text(orders);
      }
      return kDone;
    };
  });
}

}  // namespace espalier::cli
