#include "espalier/runtime/calibrate.h"

#include <fmt/format.h>

#include <filesystem>

#include "espalier/base/files.h"
#include "espalier/base/json.h"
#include "espalier/cli/calibrate.h"
#include "espalier/cli/workers.h"
#include "espalier/cost/json.h"
#include "espalier/runtime/link_estimate.h"
#include "espalier/runtime/process_placement.h"
#include "espalier/runtime_cli/verbs.h"

namespace espalier::cli {
namespace {

namespace fs = std::filesystem;

void remember(const std::string& path, const Calibration& fresh) {
  std::error_code ignored;
  fs::create_directories(fs::path(path).parent_path(), ignored);
  write_file_atomically(
      path, print_json(calibrations_to_json(with_calibration(remembered_calibrations(path), fresh))));
}

void print(Console& console, const Calibration& c, const std::string& path) {
  const auto rate = [](double per_second) { return fmt::format("{:.3g}", per_second / 1e9); };
  if (console.json) {
    print_json_line(console,
                    {{"remembered", path}, {"calibration", calibrations_to_json({c})["calibrations"][0]}});
    return;
  }
  std::ostream& out = console.out();
  out << fmt::format("{}, {} thread{} for each worker, torch {}\n", c.machine, c.threads,
                     c.threads == 1 ? "" : "s", c.torch_version);
  out << fmt::format("peak {} GFLOP/s, memory {} GB/s, an operator at least {}\n", rate(c.flops_f32),
                     rate(static_cast<double>(c.memory_bandwidth)), to_text(c.launch_overhead));
  if (const auto& link = c.costs.parts().link) {
    const std::string bytes = link->bandwidth < kUnseenBandwidth
                                  ? rate(static_cast<double>(link->bandwidth)) + " GB/s, "
                                  : std::string();
    out << fmt::format("between workers {}latency {}; a message takes {} of its sender, {} of its receiver\n",
                       bytes, to_text(link->latency), to_text(link->send.fixed),
                       to_text(link->receive.fixed));
  }
  if (!path.empty()) out << "remembered in " << path << '\n';
}

}  // namespace

int calibrate(Program& program, const CalibrateFlags& flags) {
  const int workers = calibration_workers(program.machine);
  if (workers > 1 && !is_worker()) return start_workers(program, workers, program.arguments);
  const World world = world_from_environment();
  prepare_process(world, flags.threads);
  const Calibration fresh = espalier::calibrate(world, flags.threads);
  if (world.rank != 0) return kDone;
  const std::string& path = program.machine.calibration_file;
  if (!path.empty()) remember(path, fresh);
  if (!flags.quiet) print(program.console, fresh, path);
  return kDone;
}

}  // namespace espalier::cli
