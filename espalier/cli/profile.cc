#include <fmt/format.h>

#include <memory>
#include <numeric>

#include "espalier/app/inspect.h"
#include "espalier/base/check.h"
#include "espalier/base/files.h"
#include "espalier/base/json.h"
#include "espalier/cli/runtime_verbs.h"
#include "espalier/cli/workers.h"
#include "espalier/cost/text.h"

#if ESPALIER_TORCH
#include "espalier/cost/json.h"
#include "espalier/report/table_json.h"
#include "espalier/runtime/process_placement.h"
#include "espalier/runtime/runtime.h"
#endif

namespace espalier::cli {
namespace {

struct ProfileFlags {
  JobFlags job;
  std::string output = "costs.json";
  std::string device, kind;
  std::uint32_t rounds = 20;
  int workers = 0;
};

#if ESPALIER_TORCH

std::string endpoint_text(const EndpointCost& cost) {
  return fmt::format("{} + {:.2f} ns per KiB", to_text(cost.fixed),
                     static_cast<double>(cost.picoseconds_per_byte) * 1024 / 1000);
}

void print(Program& program, const ProfileFlags& flags, const CostTable& costs) {
  Console& console = program.console;
  // The same figures as `inspect`, now with measured times.
  JobFlags again = flags.job;
  again.options.costs = flags.output;
  again.options.cluster = "local";
  JobOptions job = again.to_options(program.machine);
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
  out << fmt::format("{}: {} operator classes measured on {}\n", summary.name, costs.parts().rows.size(),
                     costs.parts().machine);
  out << fmt::format("a micro-batch of {}: forward {}, backward {}\n", summary.at.count(),
                     to_text(summary.forward), to_text(summary.backward));
  if (costs.parts().link) {
    const MeasuredLink& link = *costs.parts().link;
    out << fmt::format("between workers: {}/s, latency {}; a message costs its sender {}, its receiver {}\n",
                       to_text(Bytes(link.bandwidth)), to_text(link.latency), endpoint_text(link.send),
                       endpoint_text(link.receive));
  }
  out << '\n' << print_text(kind_table(summary, 15)) << "\nwrote " << flags.output << '\n';
}

#endif

int profile(Program& program, const ProfileFlags& flags) {
#if ESPALIER_TORCH
  check_outputs({{"--output", flags.output}}, {flags.job.options.model});
  const int workers = flags.workers > 0 ? flags.workers : program.machine.local.devices;
  if (workers > 1 && !is_worker()) return start_workers(workers, program.arguments);
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
  if (!flags.kind.empty()) options.kind = flags.kind;
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
  print(program, flags, costs);
  return kDone;
#else
  (void)program, (void)flags;
  needs_runtime("profile");
#endif
}

}  // namespace

void add_profile(Program& program) {
  auto flags = std::make_shared<ProfileFlags>();
  CLI::App* verb = add_verb(program, "profile", "measure a model's operators here, on all workers at once",
                            "espalier profile model.pt2 --micro-batch 4,8 -o costs.json");
  verb->add_option("model", flags->job.options.model, "a .pt2 file")->required()->type_name("FILE");
  flags->job.training.add_frozen(verb);
  verb->add_option("-m,--micro-batch", flags->job.micro_batches,
                   "sizes to measure; default: 1, 2, 4, 8 as exported")
      ->delimiter(',')
      ->type_name("N,...")
      ->check(positive());
  verb->add_option("-o,--output", flags->output, "the cost file to write; default: costs.json")
      ->type_name("FILE");
  verb->add_option("--workers", flags->workers, "processes that measure at once; default: one per core")
      ->type_name("N")
      ->check(worker_count());
  verb->add_option("--rounds", flags->rounds, "passes that are measured; default: 20")
      ->type_name("N")
      ->check(positive());
  verb->add_option("--device", flags->device, "cpu, cuda or cuda:1; default: cuda where there is one")
      ->type_name("NAME");
  verb->add_option("--kind", flags->kind, "the device kind that the costs are for; default: cpu")
      ->type_name("NAME");
  verb->add_option("--threads", flags->job.options.threads, "threads of each worker")
      ->type_name("N")
      ->check(positive());
  verb->callback(
      [&program, flags] { program.chosen = [&program, flags] { return profile(program, *flags); }; });
}

}  // namespace espalier::cli
