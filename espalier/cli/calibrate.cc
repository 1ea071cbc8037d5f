#include "espalier/cli/calibrate.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>

#include "espalier/base/check.h"
#include "espalier/base/files.h"
#include "espalier/base/json.h"
#include "espalier/cli/runtime_verbs.h"
#include "espalier/cli/workers.h"
#include "espalier/cost/json.h"

#if ESPALIER_TORCH
#include "espalier/runtime/calibrate.h"
#include "espalier/runtime/process_placement.h"
#endif

namespace espalier::cli {
namespace {

namespace fs = std::filesystem;

struct CalibrateFlags {
  std::uint32_t threads = 1;
  bool quiet = false;
};

// Archives of torch.export bring no costs; published profiles do.
bool is_archive(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  char begin[2] = {};
  return file.read(begin, 2) && begin[0] == 'P' && begin[1] == 'K';
}

#if ESPALIER_TORCH

// What is in the file; nothing if it cannot be read, since it can be made again.
std::vector<Calibration> remembered(const std::string& path) {
  try {
    return calibrations_from_json(parse_json(read_file(path, 1 << 24), path), path);
  } catch (const InputError&) {
    return {};
  }
}

void remember(const std::string& path, const Calibration& fresh) {
  std::error_code ignored;
  fs::create_directories(fs::path(path).parent_path(), ignored);
  write_file_atomically(path, print_json(calibrations_to_json(with_calibration(remembered(path), fresh))));
}

int workers_here(const Machine& machine) {
  return machine.local.devices > 1 ? 2 : 1;  // a pair shows what a neighbour and a message cost
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
    out << fmt::format(
        "between workers {} GB/s, latency {}; a message takes {} of its sender, {} of its receiver\n",
        rate(static_cast<double>(link->bandwidth)), to_text(link->latency), to_text(link->send.fixed),
        to_text(link->receive.fixed));
  }
  if (!path.empty()) out << "remembered in " << path << '\n';
}

int calibrate_here(Program& program, const CalibrateFlags& flags) {
  const int workers = workers_here(program.machine);
  if (workers > 1 && !is_worker()) return start_workers(workers, program.arguments);
  const World world = world_from_environment();
  prepare_process(world, flags.threads);
  const Calibration fresh = calibrate(world, flags.threads);
  if (world.rank != 0) return kDone;
  const std::string& path = program.machine.calibration_file;
  if (!path.empty()) remember(path, fresh);
  if (!flags.quiet) print(program.console, fresh, path);
  return kDone;
}

#endif

}  // namespace

void calibrate_local(Program& program, JobOptions& options) {
  const bool local = options.cluster.empty() ? options.start.empty() : names_local(options.cluster);
  const std::string& path = program.machine.calibration_file;
  if (!local || !options.costs.empty() || path.empty() || is_worker() || !is_archive(options.model)) return;
#if ESPALIER_TORCH
  const auto find = [&] {
    return find_calibration(remembered(path), program.machine.description, options.threads, torch_version());
  };
  options.machine.calibration = find();
  if (options.machine.calibration) return;
  const auto start = std::chrono::steady_clock::now();
  program.console.progress(0, "calibrating this machine");
  try {
    start_workers(workers_here(program.machine),
                  {"calibrate", "--quiet", "--threads", std::to_string(options.threads)});
  } catch (const InputError&) {  // told below, whatever the reason
  }
  program.console.finish();
  options.machine.calibration = find();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (options.machine.calibration) {  // said here, not by the plan: a plan made tomorrow is the same
    program.console.notes({fmt::format("local: calibrated in {:.1f} s, remembered in {}", seconds, path)});
  } else {
    options.notes.push_back("local: this machine could not be calibrated; a usual core's rates are taken");
  }
#else
  options.notes.push_back(
      "local: this build has no runtime to calibrate this machine; a usual core's rates are taken");
#endif
}

std::string calibration_file_of_user() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value ? value : "");
  };
  if (variable("ESPALIER_CALIBRATION") == "off") return {};
  std::string folder = variable("XDG_CACHE_HOME");
  if (folder.empty() && !variable("HOME").empty()) folder = variable("HOME") + "/.cache";
  return folder.empty() ? folder : folder + "/espalier/calibration.json";
}

void add_calibrate(Program& program) {
  auto flags = std::make_shared<CalibrateFlags>();
  CLI::App* verb =
      add_verb(program, "calibrate", "measure this machine again, for plans of `local` without --costs",
               "espalier calibrate");
  verb->add_option("--threads", flags->threads, "threads of each worker")->type_name("N")->check(positive());
  verb->add_flag("--quiet", flags->quiet, "print nothing");
  verb->callback([&program, flags] {
    program.chosen = [&program, flags] {
#if ESPALIER_TORCH
      return calibrate_here(program, *flags);
#else
      (void)program;
      needs_runtime("calibrate");
      return kWrongInput;
#endif
    };
  });
}

}  // namespace espalier::cli
