#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "espalier/app/catalog.h"
#include "espalier/app/order_study.h"
#include "espalier/base/check.h"
#include "espalier/base/files.h"
#include "espalier/base/host.h"
#include "espalier/base/json.h"
#include "espalier/base/spelling.h"
#include "espalier/cli/runtime_verbs.h"
#include "espalier/cli/verbs.h"
#include "espalier/report/dot_plot.h"
#include "espalier/report/table_json.h"
#include "espalier/zoo/task_families.h"

namespace espalier::cli {
namespace {

struct OrdersFlags {
  JobFlags job;
  std::vector<std::string> graphs, orders, placers, families;
  std::string svg;
  std::int64_t members = 8;
  std::uint64_t seeds = 5, episodes = 10;
  bool placeto = false;
  std::size_t jobs = 0;
};

// One of those that need nothing else, or one that learns.
struct StudiedPlacer {
  std::string name;
  std::optional<placement::OrderedPlacer> plain;
  LearnedOrdered learned = {};
};

StudiedPlacer find_studied_placer(Program& program, const std::string& name) {
  if (const auto placer = placement::parse_ordered_placer(name)) return {name, placer};
  std::vector<std::string_view> names(kLearnedOrdered.begin(), kLearnedOrdered.end());
  if (std::find(names.begin(), names.end(), name) != names.end())
    return {name, std::nullopt, learned_ordered(program, name)};
  for (const placement::OrderedPlacer placer : placement::ordered_placers()) names.push_back(to_text(placer));
  throw InputError("--placer " + name.substr(0, 40) +
                   ": expected uniform-walk, accept, list, descent, or placeto; did you mean '" +
                   std::string(*nearest_word(name, names)) + "'?");
}

std::vector<StudiedPlacer> studied_placers(Program& program, const OrdersFlags& flags) {
  std::vector<StudiedPlacer> placers;
  for (const std::string& name : flags.placers) placers.push_back(find_studied_placer(program, name));
  if (!placers.empty()) return placers;
  for (const placement::OrderedPlacer placer : placement::ordered_placers())
    placers.push_back({std::string(to_text(placer)), placer});
  return placers;
}

void add_family(const std::string& name, std::int64_t members, std::vector<OrderCase>& cases) {
  const TaskFamily* family = find_task_family(name);
  if (!family) {
    throw InputError("there is no family '" + name.substr(0, 40) + "'; `espalier zoo --list` lists them");
  }
  const bool seeded = std::any_of(family->settings.begin(), family->settings.end(),
                                  [](const ZooSetting& setting) { return setting.name == "seed"; });
  for (std::int64_t member = 1; member <= (seeded ? members : 1); ++member) {
    const ZooValues values = seeded ? ZooValues{{"seed", member}} : ZooValues{};
    cases.push_back(order_case(build_task_family(*family, values)));
  }
}

std::vector<OrderCase> cases_of(Program& program, const OrdersFlags& flags) {
  std::vector<OrderCase> cases;
  for (const std::string& path : flags.graphs) {
    JobFlags one = flags.job;
    one.options.model = path;
    cases.push_back(order_case(prepare_job(one.to_options(program))));
  }
  for (const std::string& family : flags.families) add_family(family, flags.members, cases);
  return cases;
}

// Of one graph: what the trees say beside what the study found.
struct Advice {
  std::string graph, placer;
  OrderAdviceNode answer;
};

Json to_json(const OrderReport& report, const std::vector<Advice>& advice) {
  Json told = Json::array();
  for (const Advice& one : advice) {
    if (one.placer != report.placer) continue;
    told.push_back({{"graph", one.graph},
                    {"order", one.answer.order ? Json(std::string(to_text(*one.answer.order))) : Json()},
                    {"confidence", one.answer.confidence},
                    {"other", one.answer.other},
                    {"worst", one.answer.worst},
                    {"graphs", one.answer.graphs}});
  }
  return {{"placer", report.placer},
          {"friedman_chi_square", report.chi_square},
          {"friedman_p", report.p},
          {"blocks", report.blocks},
          {"blocks_are_graphs", report.blocks_are_graphs},
          {"left_out", report.left_out},
          {"entropy", report.entropy ? Json(*report.entropy) : Json()},
          {"orders", espalier::to_json(order_table(report))},
          {"advice", told}};
}

std::string verdict_of(const OrderReport& report) {
  if (report.blocks == 0) return "nothing fits on any graph";
  const std::string blocks = report.blocks_are_graphs
                                 ? fmt::format("{} graphs", report.blocks)
                                 : fmt::format("{} runs; what follows holds for these graphs", report.blocks);
  return fmt::format("Friedman over {}: chi-square {:.1f}, p = {:.2g}: {}", blocks, report.chi_square,
                     report.p, report.p < 0.05 ? "the orders differ" : "no difference is shown");
}

DotPanel panel_of(const OrderReport& report) {
  DotPanel panel{"placer " + report.placer, verdict_of(report), {}};
  for (const OrderRow& row : report.rows)
    panel.rows.push_back(
        {std::string(to_text(row.order)), row.mean, row.deviation, row.best || row.p >= 0.05,
         fmt::format("{:.4f} ± {:.4f}, mean rank {:.2f}", row.mean, row.deviation, row.rank)});
  return panel;
}

void print(Console& console, const std::vector<OrderReport>& reports, const std::vector<Advice>& advice) {
  for (const OrderReport& report : reports) {
    console.out() << "placer " << report.placer << '\n'
                  << print_text(order_table(report)) << verdict_of(report) << '\n';
    if (report.left_out > 0) console.out() << report.left_out << " graphs left out: nothing fits\n";
    if (report.entropy) {
      console.out() << fmt::format("entropy of the policies in their last episodes: {:.3f} of uniform ones\n",
                                   *report.entropy);
    }
    for (const Advice& one : advice) {
      if (one.placer == report.placer)
        console.out() << "advice for " << one.graph << ": " << advice_text(one.answer) << '\n';
    }
    console.out() << '\n';
  }
}

OrderStudyOptions study_options(const OrdersFlags& flags) {
  if (flags.graphs.empty() == flags.families.empty())
    throw InputError("orders: expected graphs, or a family of the zoo (--family cifar10)");
  OrderStudyOptions options{.set_up = flags.placeto ? OrderSetUp::kPlaceto : OrderSetUp::kLinks,
                            .seeds = flags.seeds,
                            .episodes = flags.episodes};
  for (const std::string& name : flags.orders) options.orders.push_back(find_order(name));
  if (options.orders.empty()) options.orders.assign(traversal_orders().begin(), traversal_orders().end());
  if (options.orders.size() < 2) throw InputError("--orders: expected at least two to compare");
  return options;
}

OrderReport study_plain(const StudiedPlacer& placer, const std::vector<OrderCase>& cases,
                        const OrderStudyOptions& options, ThreadPool& pool, std::vector<Advice>& advice) {
  std::vector<OrderSteps> steps;
  for (const OrderCase& asked : cases) {
    steps.push_back(run_orders(asked, *placer.plain, options, &pool));
    const OrderFeatures features = order_features(order_engine(asked, options.set_up));
    advice.push_back(
        {asked.name, placer.name, order_advice(order_advice_tree(options.set_up, *placer.plain), features)});
  }
  return order_report(placer.name, options.orders, steps);
}

OrderReport study_learned(const StudiedPlacer& placer, const std::vector<OrderCase>& cases,
                          const OrderStudyOptions& options, ThreadPool& pool) {
  std::vector<OrderSteps> steps;
  double entropy = 0;
  for (const OrderCase& asked : cases) {
    LearnedOrderRuns runs = run_learned_orders(asked, placer.learned, options, &pool);
    steps.push_back(std::move(runs.steps));
    entropy += runs.entropy / static_cast<double>(cases.size());
  }
  OrderReport report = order_report(placer.name, options.orders, steps);
  report.entropy = entropy;
  return report;
}

int orders(Program& program, const OrdersFlags& flags) {
  Console& console = program.console;
  const OrderStudyOptions options = study_options(flags);
  const std::vector<StudiedPlacer> placers = studied_placers(program, flags);
  check_outputs({{"--svg", flags.svg}}, flags.graphs);
  const std::vector<OrderCase> cases = cases_of(program, flags);
  ThreadPool pool(flags.jobs > 0 ? flags.jobs : static_cast<std::size_t>(this_host().usable));
  std::vector<OrderReport> reports;
  std::vector<Advice> advice;
  for (const StudiedPlacer& placer : placers) {
    reports.push_back(placer.plain ? study_plain(placer, cases, options, pool, advice)
                                   : study_learned(placer, cases, options, pool));
  }
  if (console.json) {
    Json json{{"set_up", std::string(to_text(options.set_up))}, {"placers", Json::array()}};
    for (const OrderReport& report : reports) json["placers"].push_back(to_json(report, advice));
    print_json_line(console, json);
  } else {
    print(console, reports, advice);
  }
  if (!flags.svg.empty()) {
    std::vector<DotPanel> panels;
    for (const OrderReport& report : reports) panels.push_back(panel_of(report));
    write_file_atomically(flags.svg, svg_dot_plot(panels, "step / that of the best order of the graph"));
    if (!console.json) console.out() << "wrote " << flags.svg << '\n';
  }
  return kDone;
}

}  // namespace

void add_orders(Program& program) {
  auto flags = std::make_shared<OrdersFlags>();
  CLI::App* verb = add_verb(program, "orders", "which traversal order suits a placer on these graphs",
                            "espalier orders --family cifar10 --members 8");
  verb->add_option("graphs", flags->graphs, "graphs, as `plan` reads them; together they are one study")
      ->type_name("FILE...");
  verb->add_option("--family", flags->families, "in place of graphs: families of task graphs of the zoo")
      ->delimiter(',')
      ->type_name("NAME,...");
  verb->add_option("--members", flags->members, "graphs of a family, seeds 1 to N; default: 8")
      ->type_name("N")
      ->check(CLI::Range(1, 10'000));
  flags->job.add_reading(verb);
  flags->job.add_planning(verb);
  verb->add_option("--orders", flags->orders, "only these, such as alpha,topo_lifo (see `espalier planners`)")
      ->delimiter(',')
      ->type_name("NAME,...");
  verb->add_option("--placer", flags->placers,
                   "only these: uniform-walk, accept, list, descent; or, learning as they go, placeto, "
                   "placeto-graphsage, placeto-p-gnn, placeto-literature, placeto-flipped")
      ->delimiter(',')
      ->type_name("NAME,...");
  verb->add_option("--seeds", flags->seeds, "runs of each order; default: 5")
      ->type_name("N")
      ->check(CLI::Range(1, 1'000));
  verb->add_option("--episodes", flags->episodes, "looks for each operator that is placed; default: 10")
      ->type_name("N")
      ->check(CLI::Range(1, 100'000));
  verb->add_flag("--placeto", flags->placeto, "judged by Placeto's simulator, as the literature does");
  verb->add_option("--svg", flags->svg, "write means and deviations as a picture")->type_name("FILE");
  verb->add_option("-j,--jobs", flags->jobs, "threads; the result is the same; default: one per core")
      ->type_name("N")
      ->check(worker_count());
  verb->callback(
      [&program, flags] { program.chosen = [&program, flags] { return orders(program, *flags); }; });
}

}  // namespace espalier::cli
