#include <fmt/format.h>

#include <cmath>
#include <map>
#include <memory>

#include "espalier/app/plan_diff.h"
#include "espalier/base/check.h"
#include "espalier/base/files.h"
#include "espalier/base/json.h"
#include "espalier/cli/verbs.h"
#include "espalier/report/svg.h"
#include "espalier/report/table_json.h"
#include "espalier/trace/json.h"

namespace espalier::cli {
namespace {

struct DiffFlags {
  std::string a, b;
  std::string svg;
};

// Either kind of file; a plan stands for its simulated trace where the other is a trace.
struct Side {
  std::string path;
  std::optional<OpenedPlan> plan;
  std::optional<Trace> trace;
  const Trace& time() const { return trace ? *trace : plan->trace; }
};

Side open_side(const std::string& path) {
  const Json json = parse_json(read_file(path), path);
  const std::string format = json.is_object() ? json.value("format", "") : "";
  Side side;
  side.path = path;
  if (format.rfind("espalier.plan/", 0) == 0) {
    side.plan = open_plan(path);
  } else if (format.rfind("espalier.trace/", 0) == 0) {
    side.trace = trace_from_json(json, path);
  } else {
    throw InputError(path + ": neither a plan (espalier.plan/2) nor a trace (espalier.trace/1)");
  }
  return side;
}

Cell relative(Duration a, Duration b) {
  if (b.count() == 0) return std::monostate();
  return fmt::format("{:+.1f} %", 100 * relative_difference(a, b));
}

std::string stage_name(const Trace& trace, ActionKind kind, std::size_t stage) {
  if (kind == ActionKind::kTieSum) return "tied parameters";
  return stage < trace.stages.size() ? trace.stages[stage] : "?";
}

// Mean length of each stage's actions, in a and in b.
Table action_table(const Trace& a, const TraceDifference& difference) {
  struct Sum {
    std::int64_t count = 0;
    Duration in_a, in_b;
  };
  std::map<std::tuple<DeviceId, std::size_t, ActionKind>, Sum> sums;
  for (const ActionDifference& pair : difference.actions) {
    Sum& sum = sums[{pair.device, pair.action.target(), pair.action.kind}];
    ++sum.count;
    sum.in_a += pair.end_a - pair.start_a;
    sum.in_b += pair.end_b - pair.start_b;
  }
  Table table{{{"device", "device"},
               {"stage", "stage"},
               {"action", "action"},
               {"count", "count"},
               {"a", "mean in a"},
               {"b", "mean in b"},
               {"difference", "a to b"}},
              {}};
  for (const auto& [key, sum] : sums) {
    const auto& [device, stage, kind] = key;
    table.rows.push_back({a.devices[device.index()], stage_name(a, kind, stage), std::string(1, letter(kind)),
                          sum.count, sum.in_a / sum.count, sum.in_b / sum.count,
                          relative(sum.in_a, sum.in_b)});
  }
  return table;
}

std::string origin(const Trace& trace) {
  return trace.origin == Trace::Origin::kSimulated ? "predicted" : "measured";
}

void diff_of_traces(Console& console, const Side& a, const Side& b) {
  const TraceDifference difference = diff_traces(a.time(), b.time());
  const Table actions = action_table(a.time(), difference);
  if (console.json) {
    print_json_line(console,
                    {{"a", {{"origin", origin(a.time())}, {"iteration_ns", difference.iteration_a.count()}}},
                     {"b", {{"origin", origin(b.time())}, {"iteration_ns", difference.iteration_b.count()}}},
                     {"actions", to_json(actions)},
                     {"only_in_a", difference.only_in_a},
                     {"only_in_b", difference.only_in_b}});
    return;
  }
  std::ostream& out = console.out();
  out << fmt::format("iteration: {} {} in a, {} {} in b: a is {} against b\n", origin(a.time()),
                     to_text(difference.iteration_a), origin(b.time()), to_text(difference.iteration_b),
                     to_text(relative(difference.iteration_a, difference.iteration_b)));
  out << fmt::format("idle: {:.1f} % in a, {:.1f} % in b\n\n", 100 * bubble_ratio(a.time()),
                     100 * bubble_ratio(b.time()));
  out << print_text(actions);
  for (const auto& [list, name] : {std::pair(&difference.only_in_a, "a"), {&difference.only_in_b, "b"}}) {
    for (const std::string& action : *list) out << "only in " << name << ": " << action << '\n';
  }
}

void diff_of_plans(Console& console, const Side& a, const Side& b) {
  if (a.plan->model.empty())
    throw InputError(a.path + ": names no model, which a comparison of operators needs");
  const Imported model = import_file(a.plan->model);
  const PlanDifference difference = diff_plans(*a.plan, *b.plan, model.graph);
  if (console.json) {
    Json moved = Json::array();
    for (const auto& move : difference.moved) {
      moved.push_back(
          {{"operators", move.operators}, {"count", move.count}, {"from", move.from}, {"to", move.to}});
    }
    print_json_line(console, {{"same", difference.same()},
                              {"iteration_a_ns", difference.iteration_a.count()},
                              {"iteration_b_ns", difference.iteration_b.count()},
                              {"settings", difference.settings},
                              {"moved", std::move(moved)},
                              {"stages", difference.stages},
                              {"orders", difference.orders}});
    return;
  }
  std::ostream& out = console.out();
  out << fmt::format("iteration: {} in a, {} in b (simulated)\n", to_text(difference.iteration_a),
                     to_text(difference.iteration_b));
  if (difference.same()) out << "the plans are the same\n";
  for (const std::string& line : difference.settings) out << line << '\n';
  for (const std::string& line : difference.stages) out << line << '\n';
  for (const std::string& line : difference.orders) out << line << '\n';
  if (difference.moved.empty()) return;
  Table table{{{"operators", "operators"}, {"count", "count"}, {"a", "in a"}, {"b", "in b"}}, {}};
  for (const auto& move : difference.moved) {
    table.rows.push_back({move.operators, static_cast<std::int64_t>(move.count), move.from, move.to});
  }
  out << '\n' << print_text(table);
}

int diff(Program& program, const DiffFlags& flags) {
  check_outputs({{"--svg", flags.svg}}, {flags.a, flags.b});
  const Side a = open_side(flags.a), b = open_side(flags.b);
  if (a.plan && b.plan) {
    diff_of_plans(program.console, a, b);
  } else {
    diff_of_traces(program.console, a, b);
  }
  if (!flags.svg.empty()) {
    const std::vector<SvgPanel> panels{{a.time(), origin(a.time()) + ": " + a.path, ""},
                                       {b.time(), origin(b.time()) + ": " + b.path, ""}};
    write_file_atomically(flags.svg, svg_timeline(panels));
    if (!program.console.json) program.console.out() << "wrote " << flags.svg << '\n';
  }
  return kDone;
}

}  // namespace

void add_diff(Program& program) {
  auto flags = std::make_shared<DiffFlags>();
  CLI::App* verb = add_verb(program, "diff", "two plans, or a predicted and a measured trace",
                            "espalier diff plan.json measured.trace.json --svg both.svg");
  verb->add_option("a", flags->a, "a plan or a trace")->required()->type_name("FILE");
  verb->add_option("b", flags->b, "the other")->required()->type_name("FILE");
  verb->add_option("--svg", flags->svg, "draw both on one time axis")->type_name("FILE");
  verb->callback([&program, flags] { program.chosen = [&program, flags] { return diff(program, *flags); }; });
}

}  // namespace espalier::cli
