#include <fmt/format.h>

#include <chrono>
#include <memory>

#include "espalier/app/catalog.h"
#include "espalier/base/files.h"
#include "espalier/base/json.h"
#include "espalier/cli/verbs.h"
#include "espalier/report/svg.h"

namespace espalier::cli {
namespace {

struct CompareFlags {
  JobFlags job;
  std::vector<std::string> planners;
  std::string schedule = "1f1b";
  std::uint64_t budget = Budget().max_states;
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
              {"estimate_ns", row.estimate ? Json(row.estimate->count()) : Json()}};
    if (row.judged) {
      json["depth"] = row.depth;
      json["replicas"] = row.replicas;
      json["peak_bytes"] = row.peak.count();
      json.update(judged_json(*row.judged, job.cluster));
    }
    rows.push_back(std::move(json));
  }
  return {{"bound", bound_json(comparison.any_bound)},
          {"precision", std::string(to_text(job.training.precision))},
          {"best", comparison.best ? Json(comparison.rows[*comparison.best].planner) : Json()},
          {"rows", std::move(rows)},
          {"notes", job.notes},
          {"warnings", job.warnings}};
}

void print(Console& console, const PlanningJob& job, const Comparison& comparison,
           const CompareFlags& flags) {
  std::ostream& out = console.out();
  Table table = comparison_table(comparison);
  if (!flags.columns.empty()) table = select_columns(table, flags.columns);
  if (flags.format == "markdown") {
    out << print_markdown(table);
  } else if (flags.format == "csv") {
    out << print_csv(table);
  } else {
    out << print_text(table) << '\n';
    out << fmt::format("bound for any plan: {} ({})\n", to_text(comparison.any_bound.time),
                       comparison.any_bound.why);
    if (comparison.best) {
      const ComparedPlan& best = comparison.rows[*comparison.best];
      out << fmt::format("best: {}, {} per iteration\n", best.planner, to_text(*best.iteration));
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
  console.notes(job.notes);
  console.warnings(job.warnings);
}

int compare(Program& program, const CompareFlags& flags) {
  Console& console = program.console;
  for (const std::string& name : flags.planners) find_planner(name);
  const ChosenOrders schedule = choose_orders(flags.schedule);
  select_columns(comparison_table({}), flags.columns);
  check_outputs({{"--svg", flags.svg}}, flags.job.inputs());
  const PlanningJob job = prepare_job(flags.job.to_options(program));
  const Comparison comparison = compare_planners(job, {.planners = flags.planners,
                                                       .schedule = schedule,
                                                       .budget = {.max_states = flags.budget},
                                                       .clock = now,
                                                       .progress = console.progress_sink()});
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
  return comparison.best ? kDone : kNoAnswer;
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
  verb->add_option("-s,--schedule", flags->schedule, "a rule or a file, as `plan` takes it")
      ->type_name("RULE|FILE");
  verb->add_option("--budget", flags->budget, "most states that a planner may look at")->type_name("N");
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
