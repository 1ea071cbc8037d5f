#include <fmt/format.h>

#include <memory>
#include <optional>

#include "espalier/app/placements.h"
#include "espalier/base/files.h"
#include "espalier/base/json.h"
#include "espalier/cli/verbs.h"
#include "espalier/report/device_selection.h"

namespace espalier::cli {
namespace {

struct SimulateFlags {
  std::string plan;
  std::string costs;
  std::string schedule;
  std::string orders;
  bool gantt = false;
  bool transfers = false;
  std::string operators, operators_svg;
  TraceOutputs outputs;
};

void write_operators(Console& console, const SimulateFlags& flags, const OperatorPictures& pictures) {
  const auto write_one = [&console](const std::string& path, const std::string& content) {
    if (path.empty()) return;
    write_file_atomically(path, content);
    if (!console.json) console.out() << "wrote " << path << '\n';
  };
  write_one(flags.operators, pictures.chrome);
  write_one(flags.operators_svg, pictures.svg);
}

// Of a placement whose step is one pass over its operators the Gantt shows them, not fragments; where it
// cannot, a note says why.
std::optional<OperatorPictures> pictures_of(Console& console, const SimulateFlags& flags,
                                            const OpenedPlan& opened) {
  OperatorPictureOptions wanted{.chrome = !flags.operators.empty(), .svg = !flags.operators_svg.empty()};
  const bool gantt = (flags.gantt || flags.transfers) && !console.json && flags.schedule.empty();
  if (gantt && opened.file.placement && is_one_pass(opened.file.staged)) {
    wanted.gantt = GanttOptions{.width = console.width(), .colour = console.colour(), .memory = true};
  }
  if (!wanted.chrome && !wanted.svg && !wanted.gantt) return std::nullopt;
  auto made = operator_pictures(opened, wanted);
  if (auto* pictures = std::get_if<OperatorPictures>(&made)) return std::move(*pictures);
  const std::string& why = std::get<std::string>(made);
  if (wanted.chrome || wanted.svg) throw InputError(why);
  console.notes({why});
  return std::nullopt;
}

int simulate_plan(Program& program, const SimulateFlags& flags) {
  Console& console = program.console;
  std::vector<NamedFile> files = flags.outputs.files();
  files.push_back({"--orders", flags.orders});
  files.push_back({"--operators", flags.operators});
  files.push_back({"--operators-svg", flags.operators_svg});
  check_outputs(files, {flags.plan, flags.costs, flags.schedule});
  OpenedPlan planned = open_plan(flags.plan);
  if (!flags.schedule.empty()) planned = with_orders(planned, choose_orders(flags.schedule));
  const OpenedPlan opened = flags.costs.empty() ? planned : with_costs(planned, flags.costs);
  const std::optional<OperatorPictures> pictures = pictures_of(console, flags, opened);
  const Duration before = planned.trace.iteration, now = opened.trace.iteration;
  const BoundOrReason any = any_plan_bound(opened);
  const std::optional<StepPrice> price =
      step_price(opened.cluster, opened.file.staged, now, opened.file.training.batch);
  if (console.json) {
    Json bounds = Json::array();
    if (any.bound) bounds.push_back(bound_json(*any.bound));
    bounds.push_back(bound_json(opened.stages_bound));
    Json json{{"plan", flags.plan},
              {"precision", std::string(to_text(opened.file.training.precision))},
              {"iteration_ns", opened.trace.iteration.count()},
              {"predicted_before_ns", before.count()},
              {"expected_ns", opened.expected().count()},
              {"bubble", bubble_ratio(opened.trace)},
              {"fits", fits(opened.trace)},
              {"bounds", std::move(bounds)},
              {"memory", memory_json(opened.trace)}};
    if (price) json["price"] = price_json(*price);
    print_json_line(console, json);
  } else {
    std::ostream& out = console.out();
    if (opened.file.placement) {
      out << "placement: " << placement_text(opened.file.staged, opened.file.operators.size()) << '\n';
    }
    if (const Precision precision = opened.file.training.precision; precision != Precision::kF32) {
      out << "precision: " << to_text(precision) << '\n';
    }
    if (!flags.costs.empty()) {
      out << fmt::format("predicted {} when it was planned, {} from {}: {:+.1f} %\n", to_text(before),
                         to_text(now), flags.costs, 100 * relative_difference(now, before));
    }
    out << verdict_text(opened.trace, opened.file.training.batch) << '\n';
    out << expected_text(opened.expected(), opened.file.measured);
    out << price_text(price);
    if (any.bound) out << bound_text(opened.trace.iteration, *any.bound) << '\n';
    out << bound_text(opened.trace.iteration, opened.stages_bound) << "\n\n";
    if (pictures) out << "operator by operator: " << to_text(pictures->step) << " a step\n";
    if (pictures && !pictures->gantt.empty()) {
      out << pictures->gantt << '\n';
    } else if (flags.gantt || flags.transfers) {
      out << text_gantt(opened.trace, {.width = console.width(),
                                       .colour = console.colour(),
                                       .transfers = flags.transfers,
                                       .memory = true})
          << '\n';
    }
    const DeviceSelection devices = fullest_devices(opened.trace);
    out << "Peak memory\n"
        << print_text(memory_table(opened.trace, devices.shown))
        << hidden_memory_text(opened.trace, devices.hidden);
    out.flush();
    if (!any.bound) console.notes({any.why_not});
    if (!fits(opened.trace)) console.warnings({"this plan does not fit"});
    warn_of_measurement(program, opened, {});
  }
  if (!flags.orders.empty()) {
    write_file_atomically(flags.orders, orders_text(opened, flags.orders));
    if (!console.json) console.out() << "wrote " << flags.orders << '\n';
  }
  if (pictures) write_operators(console, flags, *pictures);
  flags.outputs.write(console, opened.trace, opened.file.planner + ", " + flags.plan);
  return kDone;
}

}  // namespace

void add_simulate(Program& program) {
  auto flags = std::make_shared<SimulateFlags>();
  CLI::App* verb = add_verb(program, "simulate", "what a plan takes: time, idle share, memory, bounds",
                            "espalier simulate plan.json --gantt --svg plan.svg");
  verb->add_option("plan", flags->plan, "a plan file")->required()->type_name("FILE");
  verb->add_option("--costs", flags->costs, "predict it again from these costs, its stages kept")
      ->type_name("FILE");
  verb->add_option("-s,--schedule", flags->schedule,
                   "with these orders instead: a rule or name (see `espalier planners`), or a schedule file")
      ->type_name("NAME|FILE");
  verb->add_option("--orders", flags->orders, "write its orders here: PyTorch's form if it ends in .csv")
      ->type_name("FILE");
  verb->add_flag("--gantt", flags->gantt, "draw the timeline; of a placement operator by operator");
  verb->add_flag("--transfers", flags->transfers, "draw it with its transfers");
  verb->add_option("--operators", flags->operators,
                   "of a placement: write a Chrome trace of each operator and message here")
      ->type_name("FILE");
  verb->add_option("--operators-svg", flags->operators_svg, "of a placement: its operators as a picture")
      ->type_name("FILE");
  flags->outputs.add(verb, "-o,--trace");
  verb->callback(
      [&program, flags] { program.chosen = [&program, flags] { return simulate_plan(program, *flags); }; });
}

}  // namespace espalier::cli
