#include <fmt/format.h>

#include "espalier/base/json.h"
#include "espalier/cli/workers.h"
#include "espalier/report/table.h"
#include "espalier/runtime/process_placement.h"
#include "espalier/runtime/runtime.h"
#include "espalier/runtime_cli/execution.h"
#include "espalier/runtime_cli/verbs.h"

namespace espalier::cli {
namespace {

std::string what_text(Difference::What what) {
  switch (what) {
    case Difference::What::kLoss:
      return "loss";
    case Difference::What::kGradientNorm:
      return "gradient norm";
    case Difference::What::kGradient:
      return "gradient";
    case Difference::What::kBuffer:
      return "buffer";
    case Difference::What::kParameterAfterFirst:
      return "parameter after the first step";
    case Difference::What::kParameter:
      return "parameter";
  }
  return "?";
}

void print(Console& console, const VerifyResult& result) {
  if (console.json) {
    Json differences = Json::array();
    for (const Difference& difference : result.differences) {
      differences.push_back({{"what", what_text(difference.what)},
                             {"name", difference.name},
                             {"measure", difference.measure},
                             {"operator", difference.op}});
    }
    Json control;
    if (result.control) {
      control = {{"name", result.control->name},
                 {"plan", result.control->plan},
                 {"one_process_disturbed", result.control->control}};
    }
    print_json_line(console, {{"equal", result.equal},
                              {"compared_with", result.compared_with},
                              {"tolerance", result.tolerance},
                              {"control", std::move(control)},
                              {"bit_equal", result.bit_equal},
                              {"bit_equality_due", result.bit_equality_due},
                              {"loss", result.loss},
                              {"reference_loss", result.reference_loss},
                              {"gradient_norm", result.gradient_norm},
                              {"reference_gradient_norm", result.reference_gradient_norm},
                              {"gradients", result.gradients},
                              {"buffers", result.buffers},
                              {"parameters", result.parameters},
                              {"worst", result.worst},
                              {"worst_name", result.worst_name},
                              {"first", result.first},
                              {"verdict", result.verdict},
                              {"differences", std::move(differences)}});
    return;
  }
  std::ostream& out = console.out();
  out << result.verdict << '\n';
  Table table{{{"what", "compared"}, {"plan", "by the plan"}, {"reference", "one process"}}, {}};
  table.rows.push_back({std::string("loss"), fmt::format("{:.9g}", result.loss),
                        fmt::format("{:.9g}", result.reference_loss)});
  table.rows.push_back({std::string("gradient norm"), fmt::format("{:.9g}", result.gradient_norm),
                        fmt::format("{:.9g}", result.reference_gradient_norm)});
  out << print_text(table);
  out << fmt::format(
      "{} gradients, {} parameters after the update, {} buffers; worst difference {:.2g} ({}), allowed "
      "{:.2g}\n",
      result.gradients, result.parameters, result.buffers, result.worst,
      result.worst_name.empty() ? "none" : result.worst_name, result.tolerance);
  if (!result.first.empty()) out << "first: " << result.first << '\n';
  constexpr std::size_t kMost = 20;
  for (std::size_t i = 0; i < result.differences.size() && i < kMost; ++i) {
    const Difference& difference = result.differences[i];
    out << fmt::format("  {} {}: {:.3g} (read by {})\n", what_text(difference.what), difference.name,
                       difference.measure, difference.op);
  }
  if (result.differences.size() > kMost)
    out << fmt::format("  … and {} more\n", result.differences.size() - kMost);
}

}  // namespace

int verify(Program& program, const VerifyFlags& flags) {
  const OpenedPlan opened = open_with_model(flags.execution);
  const int workers = workers_for(flags.execution, opened.file);
  if (workers > 1 && !is_worker()) return start_workers(program, workers, program.arguments);
  VerifyOptions options;
  options.world = world_from_environment();
  options.on_stuck = end_stuck_worker;
  options.steps = flags.steps;
  options.data = flags.execution.data;
  options.device = flags.execution.device;
  options.threads = flags.execution.threads;
  options.tolerance = flags.tolerance;
  prepare_process(options.world, options.threads);
  if (options.world.rank == 0) {
    program.console.warnings(device_warnings(program, opened, flags.execution));
  }
  const VerifyResult result = verify_plan(opened.file, opened.model, options);
  if (options.world.rank != 0) return kDone;
  print(program.console, result);
  return result.equal ? kDone : kDiffers;
}

}  // namespace espalier::cli
