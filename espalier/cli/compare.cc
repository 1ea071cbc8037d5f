#include <fmt/format.h>

#include <chrono>
#include <memory>

#include "espalier/app/catalog.h"
#include "espalier/app/comparison.h"
#include "espalier/base/files.h"
#include "espalier/base/json.h"
#include "espalier/cli/runtime_verbs.h"
#include "espalier/cli/shortage.h"
#include "espalier/cli/verbs.h"
#include "espalier/report/svg.h"

namespace espalier::cli {
namespace {

struct CompareFlags {
  JobFlags job;
  LearnedFlags learned;
  std::vector<std::string> planners;
  std::vector<std::string> plans;
  std::string schedule;  // empty: 1F1B, and whatever `auto` finds
  SearchFlags search;
  std::string svg;
  std::string format = "text";
  std::vector<std::string> columns;
};

Duration now() {
  return Duration(std::chrono::duration_cast<std::chrono::nanoseconds>(
                      std::chrono::steady_clock::now().time_since_epoch())
                      .count());
}

Json to_json(const PlanningJob& job, const Comparison& comparison) {
  Json rows = Json::array();
  for (const ComparedPlan& row : comparison.rows) {
    Json json{{"planner", row.planner},
              {"data_edges_only", row.data_edges_only},
              {"status", std::string(to_text(row.status))},
              {"why", row.why},
              {"planning_ns", row.planning_time.count()},
              {"states", row.stats.states},
              {"evaluations", row.stats.evaluations},
              {"estimate_ns", row.estimate ? Json(row.estimate->count()) : Json()}};
    if (row.judged) {
      json["placement"] = row.judged->placement.has_value();
      json["depth"] = row.depth;
      json["replicas"] = row.replicas;
      json["peak_bytes"] = row.peak.count();
      json.update(judged_json(*row.judged, job.cluster));
    }
    rows.push_back(std::move(json));
  }
  Json json{{"bound", bound_json(comparison.any_bound)},
            {"precision", std::string(to_text(job.training.precision))},
            {"interrupted", comparison.interrupted},
            {"best", comparison.best ? Json(comparison.rows[*comparison.best].planner) : Json()},
            {"rows", std::move(rows)},
            {"notes", job.notes},
            {"warnings", job.warnings}};
  if (comparison.shortage) json["shortage"] = shortage_json(*comparison.shortage, job.cluster);
  return json;
}

void print(Console& console, const PlanningJob& job, const Comparison& comparison,
           const CompareFlags& flags) {
  std::ostream& out = console.out();
  const TableReaders readers = flags.format == "csv" ? TableReaders::kMachines : TableReaders::kPeople;
  const Table table = select_columns(comparison_table(comparison, readers),
                                     flags.columns.empty() ? usual_columns(comparison) : flags.columns);
  if (flags.format == "markdown") {
    out << print_markdown(table);
  } else if (flags.format == "csv") {
    out << print_csv(table);
  } else {
    out << print_text(table) << '\n';
    out << fmt::format("bound for {}: {} ({})\n", scope_text(comparison.any_bound.scope),
                       to_text(comparison.any_bound.time), comparison.any_bound.why);
    if (comparison.best) {
      const ComparedPlan& best = comparison.rows[*comparison.best];
      out << fmt::format("best: {}, {} per iteration\n", best.planner, to_text(*best.iteration));
      if (const std::optional<std::size_t> row = cheapest(comparison)) {
        out << fmt::format("cheapest: {}, {:.4g} a million samples\n", comparison.rows[*row].planner,
                           comparison.rows[*row].price->million_samples);
      }
    } else if (comparison.shortage) {
      for (const std::string& line : shortage_lines(*comparison.shortage, job.cluster)) out << line << '\n';
    }
    for (const ComparedPlan& row : comparison.rows) {
      if (row.data_edges_only) {
        out << "'data edges only' is the row above, its orders kept, but waiting for data alone: what its "
               "extra "
               "depth costs\n";
        break;
      }
    }
  }
  out.flush();
  for (const ComparedPlan& row : comparison.rows) {
    if (!row.judged && !row.why.empty()) {
      console.notes({fmt::format("{}: {} ({})", row.planner, to_text(row.status), row.why)});
    }
  }
  if (comparison.interrupted) console.notes({"interrupted: what was found so far"});
  console.notes(job.notes);
  console.warnings(job.warnings);
}

int compare(Program& program, const CompareFlags& flags) {
  Console& console = program.console;
  const LearnedPlanner learned = learned_planner(program, "compare", flags.planners, flags.learned);
  const ChosenGuides guides = chosen_guides(flags.planners, flags.learned);
  const ChosenOrders schedule = flags.schedule.empty() ? ChosenOrders() : choose_orders(flags.schedule);
  select_columns(comparison_table({}, TableReaders::kMachines), flags.columns);
  std::vector<std::string> inputs = flags.job.inputs();
  inputs.insert(inputs.end(), flags.plans.begin(), flags.plans.end());
  check_outputs({{"--svg", flags.svg}}, inputs);
  const PlanningJob job = prepare_job(flags.job.to_options(program));
  std::optional<Budget> budget;
  if (flags.search.asked) budget = flags.search.budget();
  const Comparison comparison = compare_planners(job, {.planners = flags.planners,
                                                       .files = flags.plans,
                                                       .schedule = schedule,
                                                       .budget = budget,
                                                       .clock = now,
                                                       .search = flags.search.options(console),
                                                       .learned = learned,
                                                       .guides = guides.get()});
  console.finish();
  if (console.json) {
    print_json_line(console, to_json(job, comparison));
  } else {
    print(console, job, comparison, flags);
  }
  if (!flags.svg.empty()) {
    std::vector<SvgPanel> panels;
    for (const ComparedPlan& row : comparison.rows) {
      if (row.judged) {
        panels.push_back(
            {row.judged->trace, row.planner + (row.data_edges_only ? ", data edges only" : ""), ""});
      }
    }
    if (!panels.empty()) {
      write_file_atomically(flags.svg, svg_timeline(panels, {.memory = false}));
      if (!console.json) console.out() << "wrote " << flags.svg << '\n';
    }
  }
  if (comparison.best) return kDone;
  return comparison.interrupted ? kInterrupted : kNoAnswer;
}

}  // namespace

void add_compare(Program& program) {
  auto flags = std::make_shared<CompareFlags>();
  CLI::App* verb =
      add_verb(program, "compare", "every planner side by side, judged by one simulator",
               "espalier compare tests/fixtures/three_branch.pt2 --cluster 4xV100-16GB --batch 64");
  flags->job.add_model(verb);
  flags->job.add_planning(verb);
  flags->job.add_training(verb);
  verb->add_option("-p,--planner", flags->planners, "only these, such as single,branches")
      ->delimiter(',')
      ->type_name("NAME,…");
  verb->add_option("--plan", flags->plans, "a plan or placement file to judge beside them; repeatable")
      ->allow_extra_args(false)
      ->type_name("FILE");
  verb->add_option("-s,--schedule", flags->schedule, "a rule, a name or a file, as `plan` takes it")
      ->type_name("RULE|FILE");
  flags->job.add_order(verb);
  flags->search.add(verb, "30 million for auto, a tenth of it for each other");
  flags->learned.add(verb);
  verb->add_option("--svg", flags->svg, "write all timelines, one below the other")->type_name("FILE");
  verb->add_option("--format", flags->format, "text, markdown or csv")
      ->check(CLI::IsMember({"text", "markdown", "csv"}));
  verb->add_option("--columns", flags->columns, "only these, such as planner,iteration,peak")
      ->delimiter(',')
      ->type_name("NAME,…");
  verb->callback(
      [&program, flags] { program.chosen = [&program, flags] { return compare(program, *flags); }; });
}

}  // namespace espalier::cli
