// A proposal distribution of the search of placements, from changes of placements of generated graphs.

#include <fmt/format.h>

#include "espalier/learned/proposal_learning.h"
#include "espalier/report/table_json.h"
#include "espalier/runtime_cli/learning_run.h"
#include "espalier/runtime_cli/verbs.h"
#include "espalier/zoo/zoo.h"

namespace espalier::cli {
int learn_proposals(Program& program, const LearnFlags& flags) {
  expect_output(flags);
  for (const std::string& name : flags.without) find_zoo_model(name);
  Console& console = program.console;
  LearningRun run(flags.search.options(console));
  const Context& context = run.context;
  const std::uint64_t graphs = flags.graphs.value_or(kUsualGraphs);
  const placement::GeneratedChanges of{.graphs = graphs, .without = flags.without, .seed = flags.seed};
  const auto told = [&](std::size_t done) {
    console.progress(static_cast<double>(done) / static_cast<double>(graphs), "judging changes");
  };
  const std::vector<placement::JudgedPlacement> places = placement::generated_changes(of, context, told);
  std::size_t changes = 0;
  for (const placement::JudgedPlacement& place : places) changes += place.size();
  if (changes == 0 && context.stop()) {
    console.finish();
    console.notes({"interrupted before a change was judged: nothing is written"});
    return kInterrupted;
  }
  placement::ProposalLearning learning{.seed = flags.seed};
  learning.updates = flags.updates.value_or(learning.updates);
  console.progress(1, fmt::format("learning from {} changes", changes));
  const placement::ProposalGuide guide = placement::learn_proposals(places, learning);
  // Graphs that no training has.
  placement::GeneratedChanges beside = of;
  beside.graphs = asked_beside(graphs);
  beside.seed = of.seed + 1'000'000;
  const placement::ProposalQuality quality = quality_of(guide, placement::generated_changes(beside, context));
  console.finish();
  const std::string without = fmt::format("{}", fmt::join(flags.without, ","));
  guide.write(flags.output,
              {{"training_set", fmt::format("{} graphs by draw_workload, seed {}{}", graphs, flags.seed,
                                            without.empty() ? "" : ", without " + without)}});
  if (console.json) {
    print_json_line(console, {{"guide", flags.output},
                              {"graphs", graphs},
                              {"changes", changes},
                              {"proposed", quality.proposed},
                              {"random", quality.random}});
  } else {
    console.out() << fmt::format(
        "{} changes of {} placements judged\nof {} random changes the one that the guide proposes has {:.0f} "
        "% of the best one's gain, "
        "one at random {:.0f} % ({} graph{} that it never saw)\nwrote {}\n",
        changes, places.size(), of.walks.changes, 100 * quality.proposed, 100 * quality.random, beside.graphs,
        beside.graphs == 1 ? "" : "s", flags.output);
  }
  return context.stop() ? kInterrupted : kDone;
}

}  // namespace espalier::cli
