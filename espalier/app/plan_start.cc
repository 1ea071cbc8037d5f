#include "espalier/app/plan_start.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/base/files.h"
#include "espalier/planners/candidate.h"
#include "espalier/planners/pipeline/locked.h"

namespace espalier {
namespace {

// The start as it stands, where nothing that it rests on has changed: shares of replicas, samples in flight
// and micro-batches of several sizes are kept.
std::optional<PipelinePlan> unchanged_plan(const EditedPlan& start, const std::string& path,
                                           const PlanningJob& job) {
  if (!start.edited.empty() || start.had_lists || start.file.training.batch != job.training.batch ||
      !(Cluster(start.file.cluster) == job.cluster))
    return std::nullopt;
  try {
    return resolve_plan(parse_plan_file(read_file(path), path), job.graph);
  } catch (const InputError&) {  // somebody has changed what is derived from the stages
    return std::nullopt;
  }
}

// The start as a whole plan that drafts describe: every operator once, one micro-batch. Throws InputError
// naming the place where it is none.
PipelinePlan whole_plan(const PlanFile& start, const std::vector<Stage>& stages, const std::string& path,
                        const PlanningJob& job) {
  const auto place = [&](std::size_t x) { return fmt::format("{}: stages[{}]", path, x); };
  std::vector<StageDraft> drafts;
  std::map<OperatorId, std::size_t> holder;
  std::map<std::string, std::size_t> named;
  for (std::size_t x = 0; x < stages.size(); ++x) named.emplace(stages[x].name, x);
  for (std::size_t x = 0; x < stages.size(); ++x) {
    StageDraft draft{stages[x].operators, {}, {}, stages[x].name, stages[x].recompute};
    for (const OperatorId op : stages[x].operators) {
      const auto [it, fresh] = holder.emplace(op, x);
      if (fresh || job.graph.op(op).duplicable) continue;
      throw InputError(fmt::format("{}.operators: '{}' stands in stages[{}], too", place(x),
                                   job.graph.op(op).name, it->second));
    }
    for (const Replica& replica : stages[x].replicas) {
      draft.devices.insert(draft.devices.end(), replica.devices.begin(), replica.devices.end());
      draft.degree = static_cast<std::uint32_t>(replica.devices.size());
      draft.weights.push_back(static_cast<std::uint32_t>(replica.micro_batches.size()));
    }
    if (stages[x].micro_batch != stages.front().micro_batch) {
      throw InputError(
          fmt::format("{}.micro_batch: {}, but stages[0] has {}; an edited plan has one size for all stages",
                      place(x), stages[x].micro_batch.count(), stages.front().micro_batch.count()));
    }
    for (std::size_t i = 0; i < start.stages[x].after.size(); ++i) {
      const auto before = named.find(start.stages[x].after[i]);
      if (before != named.end() && before->second != x) draft.after.push_back(before->second);
    }
    drafts.push_back(std::move(draft));
  }
  for (std::size_t i = 0; i < job.graph.operators().size(); ++i) {
    if (holder.contains(OperatorId(i)) || job.graph.operators()[i].duplicable) continue;
    throw InputError(
        fmt::format("{}: stages: '{}' stands in none of them", path, job.graph.operators()[i].name));
  }
  const auto plan = complete_plan(job.graph, drafts, job.training.batch, stages.front().micro_batch,
                                  *start.staged.orders.rule());
  if (!plan) throw InputError(path + ": stages: they read from each other in a circle");
  const std::vector<std::string> violations = check_plan(job.graph, job.cluster, *plan);
  if (!violations.empty()) throw InputError(path + ": stages: " + violations.front());
  return *plan;
}

void check_names(const PlanFile& start, const std::string& path) {
  std::map<std::string, std::size_t> named;
  for (std::size_t x = 0; x < start.stages.size(); ++x) {
    const auto [it, fresh] = named.emplace(start.stages[x].name, x);
    if (fresh) continue;
    throw InputError(
        fmt::format("{}: stages[{}].name: '{}' is stages[{}]'s, too", path, x, it->first, it->second));
  }
  for (std::size_t x = 0; x < start.stages.size(); ++x) {
    for (std::size_t i = 0; i < start.stages[x].after.size(); ++i) {
      if (named.contains(start.stages[x].after[i])) continue;
      throw InputError(fmt::format("{}: stages[{}].after[{}]: there is no stage '{}'", path, x, i,
                                   start.stages[x].after[i].substr(0, 80)));
    }
  }
}

// It stands as it is, also on a model that has changed, as far as names say where its operators are.
void add_placement(const EditedPlan& start, const std::string& path, PlanningJob& job) {
  job.placement =
      resolve_placement(start.file.placement->operators, job.graph, job.cluster, path + ": placement.");
  const std::vector<std::string> violations = check_placement(job.graph, job.cluster, *job.placement);
  if (!violations.empty()) throw InputError(path + ": placement: " + violations.front());
  if (!start.edited.empty()) {
    job.notes.push_back(path + ": placement was edited: its times and memory are computed again");
  }
}

}  // namespace

std::string costs_of_start(const EditedPlan& start, const std::string& path) {
  if (start.file.cost_file.empty()) return {};
  return (std::filesystem::path(path).parent_path() / start.file.cost_file).lexically_normal().string();
}

std::vector<BatchSize> sizes_of_start(const PlanFile& start) {
  std::vector<BatchSize> sizes;
  if (start.placement) sizes.push_back(start.placement->micro_batch);
  for (const NamedStage& stage : start.stages) {
    if (stage.locked) sizes.push_back(stage.micro_batch);
  }
  return sizes.empty() ? start.training.micro_batches : sizes;
}

void add_start(const EditedPlan& start, const std::string& path, PlanningJob& job) {
  PlanFile file = start.file;
  if (file.placement) {
    add_placement(start, path, job);
    return;
  }
  check_names(file, path);
  if (start.had_lists) {
    job.notes.push_back(path +
                        ": its orders are lists, which belong to its stages as they were; --schedule FILE "
                        "gives such orders again");
  }
  file.training.batch = job.training.batch;
  const bool same_model = file.fingerprint == job.graph.fingerprint();
  std::map<std::string, StageId> locked;  // by name
  std::vector<Stage> stages;
  for (std::size_t x = 0; x < file.stages.size(); ++x) {
    const NamedStage& named = file.stages[x];
    if (!named.locked && !same_model) continue;
    stages.push_back(resolve_stage(file, x, job.graph, job.cluster, path));
    if (!named.locked) continue;
    LockedStage kept{stages.back(), fmt::format("{}: stages[{}] ('{}')", path, x, named.name)};
    for (const std::string& before : named.after) {
      if (const auto found = locked.find(before); found != locked.end()) {
        kept.stage.after.push_back(found->second);
      }
    }
    std::sort(kept.stage.after.begin(), kept.stage.after.end());
    locked.emplace(named.name, StageId(job.locked.size()));
    job.locked.push_back(std::move(kept));
  }
  if (same_model) {
    try {
      job.start = job.locked.empty() ? unchanged_plan(start, path, job) : std::nullopt;
      if (!job.start) job.start = whole_plan(file, stages, path, job);
    } catch (const InputError&) {
      if (job.locked.empty()) throw;  // else the rest is planned anyway
    }
  } else if (job.locked.empty()) {
    throw InputError(path + ": is a plan of another model, and none of its stages is locked");
  }
  if (!job.locked.empty()) {
    const std::vector<std::string> conflicts = locked_conflicts(job.problem());
    if (!conflicts.empty()) throw InputError(conflicts.front());
  }
  for (const std::size_t x : start.edited) {
    job.notes.push_back(
        fmt::format("{}: stages[{}] ('{}') was edited: its times and memory are computed again", path, x,
                    file.stages[x].name));
  }
  if (job.start && std::find(job.training.micro_batches.begin(), job.training.micro_batches.end(),
                             job.start->stages.front().micro_batch) == job.training.micro_batches.end()) {
    job.start.reset();
  }
}

}  // namespace espalier
