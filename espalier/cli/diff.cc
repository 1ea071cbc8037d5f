#include <fmt/format.h>

#include <algorithm>
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

constexpr std::size_t kMostPrintedMoves = 24;     // runs of operators by name; --json has all
constexpr std::size_t kMostPrintedMemories = 16;  // devices

Json work_json(const MovedWork& work) {
  const auto line = [](const MovedWork::Line& l) {
    return Json{{"operators", l.operators}, {"share", l.share}, {"parameter_bytes", l.parameters.count()}};
  };
  Json lines = Json::array();
  for (const MovedWork::Line& l : work.lines) {
    Json one = line(l);
    one.update({{"module", l.module}, {"from", l.from}, {"to", l.to}});
    lines.push_back(std::move(one));
  }
  Json json = line(work.all);
  json["lines"] = std::move(lines);
  json["more"] = line(work.rest);
  json["more"]["lines"] = work.more;
  if (work.renaming) json["renamed"] = {{"devices", work.renaming->devices}, {"share", work.renaming->share}};
  return json;
}

Json to_json(const PlanDifference& difference) {
  Json moved = Json::array(), memory = Json::array();
  for (const auto& move : difference.moved) {
    moved.push_back(
        {{"operators", move.operators}, {"count", move.count}, {"from", move.from}, {"to", move.to}});
  }
  for (const auto& device : difference.memory) {
    memory.push_back(
        {{"device", device.device}, {"a_bytes", device.a.count()}, {"b_bytes", device.b.count()}});
  }
  return {{"same", difference.same()},
          {"iteration_a_ns", difference.iteration_a.count()},
          {"iteration_b_ns", difference.iteration_b.count()},
          {"settings", difference.settings},
          {"moved", std::move(moved)},
          {"work", difference.work ? work_json(*difference.work) : Json()},
          {"messages_a_bytes", difference.messages_a.count()},
          {"messages_b_bytes", difference.messages_b.count()},
          {"memory", std::move(memory)},
          {"stages", difference.stages},
          {"orders", difference.orders}};
}

void print_work(std::ostream& out, const MovedWork& work) {
  const MovedWork::Line& all = work.all;
  out << fmt::format("\nmoved: {} operator{}, {:.1f} % of the work, {} of parameters\n", all.operators,
                     all.operators == 1 ? "" : "s", 100 * all.share, to_text(all.parameters));
  if (work.renaming) {
    out << fmt::format("with devices renamed {} only {:.1f} % of the work moved\n", work.renaming->devices,
                       100 * work.renaming->share);
  }
  Table table{{{"module", "module"},
               {"from", "from"},
               {"to", "to"},
               {"operators", "operators"},
               {"share", "work"},
               {"parameters", "parameters"}},
              {}};
  for (const MovedWork::Line& l : work.lines) {
    table.rows.push_back(
        {l.module, l.from, l.to, static_cast<std::int64_t>(l.operators), Percentage{l.share}, l.parameters});
  }
  if (work.more > 0) {
    table.rows.push_back({fmt::format("{} more", work.more), std::monostate(), std::monostate(),
                          static_cast<std::int64_t>(work.rest.operators), Percentage{work.rest.share},
                          work.rest.parameters});
  }
  out << print_text(table);
}

// Those that change most, in the order of the devices.
void print_memory(std::ostream& out, std::vector<PlanDifference::Memory> memory) {
  const auto change = [](const PlanDifference::Memory& m) { return m.a < m.b ? m.b - m.a : m.a - m.b; };
  std::vector<Bytes> changes;
  for (const PlanDifference::Memory& m : memory) changes.push_back(change(m));
  std::sort(changes.rbegin(), changes.rend());
  const std::size_t all = memory.size();
  if (all > kMostPrintedMemories) {
    const Bytes least = changes[kMostPrintedMemories];
    memory.erase(std::remove_if(memory.begin(), memory.end(),
                                [&](const PlanDifference::Memory& m) { return change(m) <= least; }),
                 memory.end());
  }
  Table table{{{"device", "device"}, {"a", "memory in a"}, {"b", "in b"}, {"change", "change"}}, {}};
  for (const PlanDifference::Memory& m : memory) {
    table.rows.push_back({m.device, m.a, m.b, (m.a <= m.b ? "+" : "-") + to_text(change(m))});
  }
  out << '\n' << print_text(table);
  if (memory.size() == all) return;
  out << fmt::format("{} more devices change by at most {}\n", all - memory.size(),
                     to_text(changes[memory.size()]));
}

void print_difference(std::ostream& out, const PlanDifference& difference) {
  out << fmt::format("iteration: {} in a, {} in b (simulated)\n", to_text(difference.iteration_a),
                     to_text(difference.iteration_b));
  if (difference.same()) {
    out << "the plans are the same\n";
    return;
  }
  out << fmt::format("messages: {} in a, {} in b\n", to_text(difference.messages_a),
                     to_text(difference.messages_b));
  for (const std::string& line : difference.settings) out << line << '\n';
  for (const std::string& line : difference.stages) out << line << '\n';
  for (const std::string& line : difference.orders) out << line << '\n';
  if (difference.work) print_work(out, *difference.work);
  print_memory(out, difference.memory);
  if (difference.moved.empty()) return;
  if (difference.moved.size() > kMostPrintedMoves) {
    out << fmt::format("\n{} runs of operators moved; --json names them\n", difference.moved.size());
    return;
  }
  Table table{{{"operators", "operators"}, {"count", "count"}, {"a", "in a"}, {"b", "in b"}}, {}};
  for (const auto& move : difference.moved) {
    table.rows.push_back({move.operators, static_cast<std::int64_t>(move.count), move.from, move.to});
  }
  out << '\n' << print_text(table);
}

void diff_of_plans(Console& console, const Side& a, const Side& b) {
  if (a.plan->model.empty())
    throw InputError(a.path + ": names no model, which a comparison of operators needs");
  const auto known =
      model_and_costs(*a.plan, a.path + ": the share of the work that moved", {work_size(*a.plan)});
  const auto* priced = std::get_if<ModelAndCosts>(&known);
  const PlanDifference difference =
      priced ? diff_plans(*a.plan, *b.plan, priced->graph, &priced->costs)
             : diff_plans(*a.plan, *b.plan, import_file(a.plan->model, as_planned(*a.plan)).graph);
  if (console.json) {
    print_json_line(console, to_json(difference));
    return;
  }
  print_difference(console.out(), difference);
  console.out().flush();
  if (!priced && !difference.same()) console.notes({std::get<std::string>(known)});
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
