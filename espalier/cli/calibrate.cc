#include "espalier/cli/calibrate.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <fstream>

#include "espalier/base/check.h"
#include "espalier/base/files.h"
#include "espalier/base/json.h"
#include "espalier/cli/runtime_verbs.h"
#include "espalier/cli/workers.h"
#include "espalier/cost/json.h"

namespace espalier::cli {
namespace {

// Archives of torch.export bring no costs; published profiles do.
bool is_archive(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  char begin[2] = {};
  return file.read(begin, 2) && begin[0] == 'P' && begin[1] == 'K';
}

}  // namespace

std::vector<Calibration> remembered_calibrations(const std::string& path) {
  try {
    return calibrations_from_json(parse_json(read_file(path, 1 << 24), path), path);
  } catch (const InputError&) {
    return {};
  }
}

int calibration_workers(const Machine& machine) {
  return machine.local.devices > 1 ? 2 : 1;  // a pair shows what a neighbour and a message cost
}

void calibrate_local(Program& program, JobOptions& options) {
  const bool local = options.cluster.empty() ? options.start.empty() : names_local(options.cluster);
  const std::string& path = program.machine.calibration_file;
  if (!local || !options.costs.empty() || path.empty() || is_worker() || !is_archive(options.model)) return;
  const auto torch_version = runtime_torch_version();
  if (!torch_version) {
    options.notes.push_back(
        "local: this build has no runtime to calibrate this machine; a usual core's rates are taken");
    return;
  }
  const auto find = [&] {
    return find_calibration(remembered_calibrations(path), program.machine.description, options.threads,
                            *torch_version);
  };
  options.machine.calibration = find();
  if (options.machine.calibration) return;
  const auto start = std::chrono::steady_clock::now();
  program.console.progress(0, "calibrating this machine");
  try {
    start_workers(program, calibration_workers(program.machine),
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
  execute_when_called(program, verb, &RuntimeVerbs::calibrate, flags);
}

}  // namespace espalier::cli
