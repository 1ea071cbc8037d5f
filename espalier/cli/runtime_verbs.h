#pragma once

// The verbs that execute models. Their options are declared here, so that `espalier` helps, refuses and
// begins at once; what they do is in runtime_cli/, and espalier-runtime does it.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "espalier/app/order_study.h"
#include "espalier/cli/runtime_program.h"
#include "espalier/cli/verbs.h"
#include "espalier/planners/joint/guide.h"
#include "espalier/planners/placement/proposal_guide.h"

namespace espalier::cli {

// What verbs that execute a plan share.
struct ExecutionFlags {
  std::string plan, schedule, data, device;
  std::uint32_t threads = 1;
  int workers = 0;  // 0: one per device that has a stage

  void add_inputs(CLI::App* verb);   // the plan, --schedule, --data
  void add_workers(CLI::App* verb);  // --workers, --device, --threads
};

struct RunFlags {
  ExecutionFlags execution;
  TrainingFlags training;  // for this run, over the plan's
  std::string load, save, record, resume, checkpoints, log, evaluation_data;
  bool load_partial = false;
  std::uint64_t steps = 10, save_every = 0, keep = 0, evaluate_every = 0;
  bool paced = false;
  double slower = 1;
  double timeout = 300;
  TraceOutputs outputs;
};

struct VerifyFlags {
  ExecutionFlags execution;
  std::uint64_t steps = 1;
  std::optional<double> tolerance;
};

struct ProfileFlags {
  JobFlags job;
  std::string output = "costs.json";
  std::string device, kind;
  std::uint32_t rounds = 20;
  int workers = 0;
};

struct CalibrateFlags {
  std::uint32_t threads = 1;
  bool quiet = false;
};

// How the planner that was trained answers.
struct LearnedFlags {
  std::string policy;           // a file of `learn`; empty: the one that comes with the program
  std::uint64_t fine_tune = 0;  // updates on this graph before it answers
  std::string embedding;        // of placeto; empty: the usual one
  bool guided = false;          // searches by guides: the policy, if it is nobody else's, or the usual ones

  void add(CLI::App* verb);  // --policy, --fine-tune, --embedding, --learned
};

struct LearnFlags {
  std::string action;  // "pretrain", "finetune", "apply", "curve", "guide", "proposals", "relocation"
  JobFlags job;        // the model: of finetune and apply; of curve a checkpoint
  std::vector<std::string> others;  // models that finetune learns beside it
  LearnedFlags learned;
  std::vector<std::string> without;
  std::string output, checkpoint, svg, device = "cpu";
  std::uint64_t rounds = 60, looks = 6000, samples = 32, seed = 1, contrast = 0;
  std::optional<std::uint64_t> graphs, updates;  // none: as many as usual for the action
  // Of a net that is trained from nothing; none: as PolicyShape has it.
  std::optional<std::int64_t> width, segment, attention_layers, refinements, spectral, priorities;
  std::optional<std::string> gate, coarsening;
  bool told_order = false;
  SearchFlags search;
};

// Each returns the exit code, but for the planner and the ordered placer.
struct RuntimeVerbs {
  int (*run)(Program&, const RunFlags&);
  int (*verify)(Program&, const VerifyFlags&);
  int (*profile)(Program&, const ProfileFlags&);
  int (*calibrate)(Program&, const CalibrateFlags&);
  int (*learn)(Program&, const LearnFlags&);
  LearnedPlanner (*learned)(std::span<const std::string> planners, const LearnedFlags&);
  LearnedOrdered (*ordered)(std::string_view placer);  // one of kLearnedOrdered
};

// The learned planner, where one of these planners of the catalog is it; else an empty function. A program
// without libtorch becomes espalier-runtime for it. Throws InputError for flags that nobody asked to use.
LearnedPlanner learned_planner(Program& program, const std::string& verb,
                               std::span<const std::string> planners, const LearnedFlags& flags);

// The guides of searches, where --learned asks for them and their planners are asked for; else null. No
// planners: all that auto asks, and auto. Throws InputError for a file that is no guide, and where nobody
// asked for a search that takes one.
struct ChosenGuides {
  std::shared_ptr<const joint::MoveGuide> plans = {};
  std::shared_ptr<const placement::ProposalGuide> placements = {};
  Guides get() const { return {plans.get(), placements.get()}; }
};
ChosenGuides chosen_guides(std::span<const std::string> planners, const LearnedFlags& flags);

// The placer of the order study of that name, one of kLearnedOrdered. A program without libtorch becomes
// espalier-runtime for it.
LearnedOrdered learned_ordered(Program& program, std::string_view placer);

// `verb`, if it is called, is carried out by this program where it has a runtime, else by espalier-runtime.
// Before that `check` may throw InputError.
template <typename Flags>
void execute_when_called(
    Program& program, CLI::App* verb, int (*RuntimeVerbs::*action)(Program&, const Flags&),
    const std::shared_ptr<Flags>& flags, void (*check)(const CLI::App&, const Flags&) = [](auto&, auto&) {}) {
  verb->callback([&program, verb, action, flags, check] {
    program.chosen = [&program, verb, action, flags, check]() -> int {
      check(*verb, *flags);
      if (program.runtime == nullptr) hand_over(verb->get_name(), program.arguments);
      return (program.runtime->*action)(program, *flags);
    };
  });
}

}  // namespace espalier::cli
