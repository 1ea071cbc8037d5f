#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "espalier/app/catalog.h"
#include "espalier/app/memory_account.h"
#include "espalier/app/placements.h"
#include "espalier/app/what_if.h"
#include "espalier/base/check.h"
#include "espalier/base/json.h"
#include "espalier/cli/runtime_verbs.h"
#include "espalier/cli/shortage.h"
#include "espalier/cli/verbs.h"
#include "espalier/report/table_json.h"

namespace espalier::cli {
namespace {

constexpr Budget kUsualBudget{.max_states = 3'000'000};
constexpr std::size_t kRowsOfAccount = 8;

struct FitFlags {
  JobFlags job;
  LearnedFlags learned;
  std::string planner{kAutomatic};
  SearchFlags search{.usual = kUsualBudget};
  std::vector<std::string> changes;
  bool only_asked = false;
};

struct Fit {
  Planned planned;
  std::optional<Judged> judged;  // the plan, or the one that comes closest
  std::optional<MemoryAccount> account;
  std::vector<WhatIf> changes;
  bool fits() const { return planned.judged && !planned.judged->overflow; }
  std::optional<Duration> iteration() const {
    return fits() ? std::optional(planned.judged->trace.iteration) : std::nullopt;
  }
};

// The device with most of its memory in use.
DeviceId fullest(const PlanningJob& job, const Judged& judged) {
  const auto used = [&](std::size_t d) {
    return static_cast<double>(judged.peak[d].total().count()) /
           static_cast<double>(job.cluster.device(DeviceId(d)).memory.count());
  };
  std::size_t most = 0;
  for (std::size_t d = 1; d < judged.peak.size(); ++d) {
    if (used(d) > used(most)) most = d;
  }
  return DeviceId(most);
}

std::string verdict(const PlanningJob& job, const Fit& fit) {
  if (!fit.account) return "does not fit";
  const MemoryAccount& account = *fit.account;
  const std::string& name = job.cluster.device(account.device).name;
  if (!fit.fits())
    return fmt::format("does not fit: {} lacks {}", name, enough_text(account.peak - account.has));
  const double share =
      100 * static_cast<double>(account.peak.count()) / static_cast<double>(account.has.count());
  return fmt::format("fits: {}, the fullest device, needs {} of {} ({:.0f} %)", name, to_text(account.peak),
                     to_text(account.has), share);
}

void print(Console& console, const PlanningJob& job, const Fit& fit) {
  std::ostream& out = console.out();
  out << verdict(job, fit) << '\n';
  if (fit.fits()) {
    const std::size_t stages = fit.judged->plan.stages.size();
    out << fmt::format("{} ({}: {} stage{}, micro-batches of {})\n",
                       verdict_text(fit.judged->trace, fit.judged->plan.batch), fit.planned.planner, stages,
                       stages == 1 ? "" : "s", fit.judged->plan.stages.front().micro_batch.count());
    out << bound_text(fit.judged->trace.iteration, fit.judged->any_bound) << '\n';
  } else if (fit.planned.shortage) {
    for (const std::string& line : shortage_lines(*fit.planned.shortage, job.cluster)) out << line << '\n';
  } else {
    out << fit.planned.outcome.why << '\n';
  }
  if (fit.account) {
    out << fmt::format("\nMemory of {} at its peak, {} into the step\n",
                       job.cluster.device(fit.account->device).name, to_text(fit.account->at))
        << print_text(memory_account_table(*fit.account, kRowsOfAccount));
  }
  if (!fit.changes.empty()) {
    out << "\nWhat another cluster would give, planned again\n"
        << print_text(what_if_table(fit.changes, fit.iteration()));
    const bool usual = std::any_of(fit.changes.begin(), fit.changes.end(),
                                   [](const WhatIf& change) { return !change.binds.empty(); });
    if (usual) out << "what binds: " << binding_text(fit.changes, fit.iteration()) << '\n';
  }
  out.flush();
  console.notes(job.notes);
  console.warnings(job.warnings);
  console.warnings(fit.planned.warnings);
}

Json to_json(const PlanningJob& job, const Fit& fit) {
  Json json{{"fits", fit.fits()},
            {"status", std::string(to_text(fit.planned.outcome.status))},
            {"planner", fit.planned.planner},
            {"verdict", verdict(job, fit)}};
  json["iteration_ns"] = fit.iteration() ? Json(fit.iteration()->count()) : Json();
  if (fit.account) {
    json["device"] = job.cluster.device(fit.account->device).name;
    json["peak_bytes"] = fit.account->peak.count();
    json["memory"] = espalier::to_json(memory_account_table(*fit.account, fit.account->holders.size()));
  }
  if (fit.planned.shortage) json["shortage"] = shortage_json(*fit.planned.shortage, job.cluster);
  json["changes"] = espalier::to_json(what_if_table(fit.changes, fit.iteration()));
  if (!fit.changes.empty()) json["binds"] = binding_text(fit.changes, fit.iteration());
  std::vector<std::string> warnings = job.warnings;
  warnings.insert(warnings.end(), fit.planned.warnings.begin(), fit.planned.warnings.end());
  json["notes"] = job.notes;
  json["warnings"] = warnings;
  return json;
}

int fit(Program& program, const FitFlags& flags) {
  Console& console = program.console;
  // What is misspelt is told before the model is read.
  const LearnedPlanner learned = learned_planner(program, "fit", std::span(&flags.planner, 1), flags.learned);
  const ChosenGuides guides = chosen_guides(std::span(&flags.planner, 1), flags.learned);
  PlanningJob job = prepare_job(flags.job.to_options(program));
  const PlanOptions options{.planner = job.stages.empty() ? flags.planner : std::string(kByHand),
                            .schedule = {},
                            .budget = flags.search.budget(),
                            .search = flags.search.options(console),
                            .learned = learned,
                            .guides = guides.get()};
  Fit result;
  std::vector<WhatIf> asked;
  for (const std::string& change : flags.changes) {
    asked.emplace_back();
    asked.back().change = change;
  }
  check_changes(job, asked);
  result.planned = plan_model(job, options);
  result.judged = result.planned.judged;
  const std::optional<NearMiss>& closest = result.planned.outcome.closest;
  if (!result.judged && closest) {
    const auto* placement = std::get_if<Placement>(&closest->plan);
    result.judged = placement ? plan_placement(job, *placement, {}).judged : judge(job, *closest->pipeline());
  }
  if (!flags.only_asked && !result.planned.outcome.interrupted) {
    const std::vector<WhatIf> usual = usual_changes(job, result.planned);
    asked.insert(asked.end(), usual.begin(), usual.end());
  }
  result.changes = what_if(job, asked, options, &result.planned);
  if (result.planned.costs) job.costs = *result.planned.costs;
  if (result.judged) result.account = memory_account(job, *result.judged, fullest(job, *result.judged));
  console.finish();
  if (console.json) {
    print_json_line(console, to_json(job, result));
  } else {
    print(console, job, result);
  }
  if (!result.fits() && result.planned.outcome.interrupted) return kInterrupted;
  return result.fits() ? kDone : kNoAnswer;
}

}  // namespace

void add_fit(Program& program) {
  auto flags = std::make_shared<FitFlags>();
  CLI::App* verb =
      add_verb(program, "fit", "does it fit, how fast is it, what takes the memory, what would help",
               "espalier fit tests/fixtures/gpt2.pt2 --cluster 2xT4 --what-if gpu:1=gone");
  flags->job.add_model(verb);
  flags->job.add_planning(verb);
  flags->job.add_training(verb);
  verb->add_option("-p,--planner", flags->planner, "see `espalier planners`")->type_name("NAME");
  verb->add_option(
          "--what-if", flags->changes,
          "another cluster: gpu:1=gone, gpu:1=+1, host0=0.5x, *=+1GiB, links=2x; several joined by ','; "
          "repeatable")
      ->allow_extra_args(false)
      ->type_name("CHANGE");
  verb->add_flag("--only-asked", flags->only_asked, "try no other changes than those of --what-if");
  flags->search.add(verb);
  flags->learned.add(verb);
  verb->callback([&program, flags] { program.chosen = [&program, flags] { return fit(program, *flags); }; });
}

}  // namespace espalier::cli
