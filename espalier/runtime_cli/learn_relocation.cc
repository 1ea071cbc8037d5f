// A policy that moves operators of a placement, trained on generated graphs.

#include <fmt/format.h>

#include <cmath>

#include "espalier/learned/relocation.h"
#include "espalier/report/table_json.h"
#include "espalier/runtime_cli/learning_run.h"
#include "espalier/runtime_cli/verbs.h"
#include "espalier/zoo/zoo.h"

namespace espalier::cli {

int learn_relocation(Program& program, const LearnFlags& flags) {
  expect_output(flags);
  for (const std::string& name : flags.without) find_zoo_model(name);
  Console& console = program.console;
  LearningRun run(flags.search.options(console));
  placement::RelocationPretraining options;
  options.graphs = flags.graphs.value_or(options.graphs);
  options.without = flags.without;
  options.seed = options.learning.seed = flags.seed;
  options.learning.updates = flags.updates.value_or(options.learning.updates);
  constexpr std::uint64_t kLastUpdates = 50;
  RunningMean gain(kLastUpdates), better(kLastUpdates);
  const auto told = [&](const placement::RelocationPoint& point) {
    gain.add(point.gain);
    better.add(point.better);
    console.progress(static_cast<double>(point.update) / static_cast<double>(options.learning.updates),
                     fmt::format("{:.0f} % of the moves help", 100 * better.value()));
  };
  const placement::RelocationPolicy policy = placement::pretrain_relocation(options, run.context, told);
  console.finish();
  policy.write(flags.output);
  if (console.json) {
    print_json_line(console, {{"policy", flags.output},
                              {"graphs", options.graphs},
                              {"weights", policy.weights()},
                              {"last_gain", gain.value()},
                              {"last_better", better.value()}});
  } else {
    console.out() << fmt::format(
        "{} weights learnt from {} graphs; at the end {:.0f} % of the moves that it draws help, and a "
        "walk of {} steps takes {:.1f} % off a step\nwrote {}\n",
        policy.weights(), options.graphs, 100 * better.value(), options.learning.steps,
        100 * (1 - std::exp(-gain.value())), flags.output);
  }
  return run.context.stop() ? kInterrupted : kDone;
}

}  // namespace espalier::cli
