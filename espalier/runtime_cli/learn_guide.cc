// A guide of the joint search, from steps between plans of the zoo's models.

#include <fmt/format.h>

#include <algorithm>

#include "espalier/base/check.h"
#include "espalier/base/json.h"
#include "espalier/learned/guide_learning.h"
#include "espalier/report/table_json.h"
#include "espalier/runtime_cli/learning_run.h"
#include "espalier/runtime_cli/verbs.h"

namespace espalier::cli {
namespace {

// Problems that no training has: of the models that were left out, or of all, by other seeds.
joint::GeneratedMoves unseen(const joint::GeneratedMoves& training) {
  joint::GeneratedMoves beside = training;
  beside.problems = asked_beside(training.problems);
  beside.seed = training.seed + 1'000'000;
  if (training.without.empty()) return beside;
  beside.without = joint::drawn_models();
  std::erase_if(beside.without, [&](const std::string& name) {
    return std::find(training.without.begin(), training.without.end(), name) != training.without.end();
  });
  return beside;
}

}  // namespace

int learn_guide(Program& program, const LearnFlags& flags) {
  expect_output(flags);
  const std::vector<std::string> known = joint::drawn_models();
  for (const std::string& name : flags.without) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      throw InputError("--without: a guide learns from no '" + name + "', only from " +
                       fmt::format("{}", fmt::join(known, ", ")));
    }
  }
  Console& console = program.console;
  LearningRun run(flags.search.options(console));
  const Context& context = run.context;
  const std::uint64_t problems = flags.graphs.value_or(kUsualGraphs);
  const joint::GeneratedMoves of{.problems = problems, .without = flags.without, .seed = flags.seed};
  const auto told = [&](std::size_t done) {
    console.progress(static_cast<double>(done) / static_cast<double>(problems), "judging steps");
  };
  const std::vector<joint::JudgedPlace> places = joint::generated_places(of, context, told);
  std::size_t moves = 0;
  for (const joint::JudgedPlace& place : places) moves += place.size();
  if (moves == 0 && context.stop()) {
    console.finish();
    console.notes({"interrupted before a step was judged: nothing is written"});
    return kInterrupted;
  }
  joint::GuideLearning learning{.seed = flags.seed};
  learning.updates = flags.updates.value_or(learning.updates);
  console.progress(1, fmt::format("learning from {} steps", moves));
  const joint::MoveGuide guide = joint::learn_guide(places, learning);
  const joint::GeneratedMoves beside = unseen(of);
  const joint::GuideQuality quality = quality_of(guide, joint::generated_places(beside, context));
  console.finish();
  const std::string without = fmt::format("{}", fmt::join(flags.without, ","));
  guide.write(flags.output,
              {{"training_set", fmt::format("{} problems by draw_pipeline, seed {}{}", problems, flags.seed,
                                            without.empty() ? "" : ", without " + without)}});
  if (console.json) {
    print_json_line(console, {{"guide", flags.output},
                              {"problems", problems},
                              {"steps", moves},
                              {"guided", quality.guided},
                              {"by_load", quality.by_load}});
  } else {
    console.out() << fmt::format(
        "{} steps from {} plans judged\nof the best step's gain the quarter that the guide puts first has "
        "{:.0f} %, "
        "the quarter with the least busy devices {:.0f} % ({} problem{} that it never saw{})\nwrote {}\n",
        moves, places.size(), 100 * quality.guided, 100 * quality.by_load, beside.problems,
        beside.problems == 1 ? "" : "s", without.empty() ? "" : ", of " + without, flags.output);
  }
  return context.stop() ? kInterrupted : kDone;
}

}  // namespace espalier::cli
