// The cost table of a model on this machine: rounds of a ModelProfiler, as many as were asked for or fit.

#include <ATen/Parallel.h>

#include <algorithm>

#include "espalier/runtime/agreement.h"
#include "espalier/runtime/model_profiler.h"
#include "espalier/runtime/runtime.h"

namespace espalier {
namespace {

constexpr double kSizeSeconds = 20;  // of rounds, for each micro-batch size; long passes get fewer of them
constexpr std::uint32_t kLeastRounds = 7;

constexpr Duration kProfileTimeout = milliseconds(600'000);

CostTable measure(const LoadedModel& model, const ProfileOptions& options, Workers& workers) {
  const auto progress = [&](const std::string& phase, std::uint32_t done, std::uint32_t total) {
    if (options.on_progress) options.on_progress({phase, done, total});
  };
  progress("sizes and memory", 0, 1);
  ModelProfiler profiler(model, options, workers);
  std::string phase = "operators, micro-batches of";
  for (const BatchSize size : profiler.micro_batches())
    phase.append(" ").append(std::to_string(size.count()));
  const std::uint32_t most = std::max(1U, options.rounds);
  std::uint32_t rounds = most;
  double seconds = 0;
  for (std::uint32_t round = 0; round < rounds; ++round) {
    progress(phase, round, rounds);
    profiler.round();
    seconds += profiler.round_seconds();
    const double each = seconds / (round + 1);
    const double budget = kSizeSeconds * static_cast<double>(profiler.micro_batches().size());
    const double fit = std::min(budget / each, static_cast<double>(most));
    rounds = std::max({round + 1, std::min(kLeastRounds, most), static_cast<std::uint32_t>(fit)});
  }
  CostTable table = profiler.table();
  progress("done", 1, 1);
  return table;
}

}  // namespace

CostTable profile_model(const std::string& model, const ProfileOptions& options) {
  at::set_num_threads(static_cast<int>(options.threads));
  const LoadedModel loaded(model, options.frozen);
  Workers workers = join_workers(
      options.world,
      {.timeout = kProfileTimeout, .facts = profile_facts(model, options), .on_stuck = options.on_stuck});
  CostTable table(CostTableParts{});
  guarded(workers, [&] { table = measure(loaded, options, workers); });
  return table;
}

}  // namespace espalier
