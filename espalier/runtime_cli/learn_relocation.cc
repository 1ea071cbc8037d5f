// A policy that moves operators of a placement, trained on generated graphs.

#include <fmt/format.h>

#include <cmath>

#include "espalier/learned/relocation.h"
#include "espalier/report/table_json.h"
#include "espalier/runtime_cli/verbs.h"
#include "espalier/zoo/zoo.h"

namespace espalier::cli {

int learn_relocation(Program& program, const LearnFlags& flags) {
  expect_output(flags);
  for (const std::string& name : flags.without) find_zoo_model(name);
  Console& console = program.console;
  const SearchOptions search = flags.search.options(console);
  ThreadPool pool(search.threads);
  Context context;
  context.budget.max_states = ~std::uint64_t{0};
  context.pool = &pool;
  context.cancelled = search.cancelled;
  placement::RelocationPretraining options;
  options.graphs = flags.graphs.value_or(options.graphs);
  options.without = flags.without;
  options.seed = options.learning.seed = flags.seed;
  options.learning.updates = flags.updates.value_or(options.learning.updates);
  double gain = 0, better = 0;
  std::uint64_t counted = 0;
  const auto told = [&](const placement::RelocationPoint& point) {
    // Of the last some fifty updates.
    const double share = 1.0 / static_cast<double>(counted < 50 ? ++counted : 50);
    gain += share * (point.gain - gain);
    better += share * (point.better - better);
    console.progress(static_cast<double>(point.update) / static_cast<double>(options.learning.updates),
                     fmt::format("{:.0f} % of the moves help", 100 * better));
  };
  const placement::RelocationPolicy policy = placement::pretrain_relocation(options, context, told);
  console.finish();
  policy.write(flags.output);
  if (console.json) {
    print_json_line(console, {{"policy", flags.output},
                              {"graphs", options.graphs},
                              {"weights", policy.weights()},
                              {"last_gain", gain},
                              {"last_better", better}});
  } else {
    console.out() << fmt::format(
        "{} weights learnt from {} graphs; at the end {:.0f} % of the moves that it draws help, and a "
        "walk of {} steps takes {:.1f} % off a step\nwrote {}\n",
        policy.weights(), options.graphs, 100 * better, options.learning.steps, 100 * (1 - std::exp(-gain)),
        flags.output);
  }
  return context.stop() ? kInterrupted : kDone;
}

}  // namespace espalier::cli
