#include <fmt/format.h>

#include <numeric>

#include "espalier/app/inspect.h"
#include "espalier/app/planning_job.h"
#include "espalier/base/files.h"
#include "espalier/base/json.h"
#include "espalier/cli/workers.h"
#include "espalier/cost/json.h"
#include "espalier/cost/text.h"
#include "espalier/report/table_json.h"
#include "espalier/runtime/link_estimate.h"
#include "espalier/runtime/process_placement.h"
#include "espalier/runtime/runtime.h"
#include "espalier/runtime_cli/verbs.h"

namespace espalier::cli {
namespace {

std::string endpoint_text(const EndpointCost& cost) {
  return fmt::format("{} + {:.2f} ns per KiB", to_text(cost.fixed),
                     static_cast<double>(cost.picoseconds_per_byte) * 1024 / 1000);
}

void print(Program& program, const ProfileFlags& flags, const std::string& kind, const CostTable& costs) {
  Console& console = program.console;
  // The same figures as `inspect`, now with measured times.
  JobFlags again = flags.job;
  again.options.costs = flags.output;
  again.options.cluster = "local";
  JobOptions job = again.to_options(program.machine);
  job.machine.local.kind = kind;
  for (const BatchSize size : job.micro_batches) {  // a batch that each of them divides: there is none yet
    job.batch = BatchSize(std::lcm(job.batch.value_or(BatchSize(1)).count(), size.count()));
  }
  const ModelSummary summary = inspect(prepare_job(job));
  if (console.json) {
    print_json_line(console, {{"costs", flags.output},
                              {"machine", costs.parts().machine},
                              {"threads", costs.parts().threads},
                              {"rows", costs.parts().rows.size()},
                              {"micro_batch", summary.at.count()},
                              {"forward_ns", summary.forward.count()},
                              {"backward_ns", summary.backward.count()},
                              {"operators", to_json(kind_table(summary, 1000))}});
    return;
  }
  std::ostream& out = console.out();
  out << fmt::format("{}: {} operator classes measured {}on {}\n", summary.name, costs.parts().rows.size(),
                     kind == "cpu" ? "" : "for " + kind + " ", costs.parts().machine);
  out << fmt::format("a micro-batch of {}: forward {}, backward {}\n", summary.at.count(),
                     to_text(summary.forward), to_text(summary.backward));
  if (costs.parts().link) {
    const MeasuredLink& link = *costs.parts().link;
    const std::string rate =
        link.bandwidth < kUnseenBandwidth ? to_text(Bytes(link.bandwidth)) + "/s, " : std::string();
    out << fmt::format("between workers: {}latency {}; a message costs its sender {}, its receiver {}\n",
                       rate, to_text(link.latency), endpoint_text(link.send), endpoint_text(link.receive));
  }
  out << '\n' << print_text(kind_table(summary, 15)) << "\nwrote " << flags.output << '\n';
}

// Before workers start, of which each would say it.
void check_micro_batches(const JobOptions& job) {
  if (job.micro_batches.empty()) return;
  const Imported model = import_file(job.model, job.import);
  for (const BatchSize size : job.micro_batches) check_micro_batch(model.graph, size);
}

}  // namespace

int profile(Program& program, const ProfileFlags& flags) {
  check_outputs({{"--output", flags.output}}, {flags.job.options.model});
  if (!is_worker()) check_micro_batches(flags.job.to_options(program.machine));
  const int gpus = gpus_of_device(flags.device);
  const int workers = flags.workers > 0 ? flags.workers : gpus > 0 ? gpus : program.machine.local.devices;
  if (workers > 1 && !is_worker()) return start_workers(program, workers, program.arguments);
  Console& console = program.console;
  const JobOptions job = flags.job.to_options(program.machine);
  ProfileOptions options;
  options.world = world_from_environment();
  options.on_stuck = end_stuck_worker;
  options.micro_batches = job.micro_batches;
  options.rounds = flags.rounds;
  options.threads = job.threads;
  options.device = flags.device;
  options.frozen = job.import.frozen;
  options.kind = flags.kind.empty() ? kind_here(flags.device) : flags.kind;
  if (options.world.rank == 0) {
    options.on_progress = [&console](const ProfileProgress& progress) {
      console.progress(progress.total > 0 ? static_cast<double>(progress.done) / progress.total : 0,
                       progress.phase);
    };
  }
  prepare_process(options.world, options.threads);
  const CostTable costs = profile_model(job.model, options);
  console.finish();
  if (options.world.rank != 0) return kDone;
  write_file_atomically(flags.output, print_json(costs_to_json(costs)));
  print(program, flags, options.kind, costs);
  return kDone;
}

}  // namespace espalier::cli
