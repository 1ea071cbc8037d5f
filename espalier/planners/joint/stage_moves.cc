// Moves that change which operators stand together.

#include <algorithm>
#include <iterator>

#include "espalier/planners/joint/moves.h"

namespace espalier::joint {
namespace {

// `part` of stage `from` joins stage `to`.
Proposal joined(const Site& site, std::size_t from, const OperatorSet& part, std::size_t to) {
  Proposal plan = site.plan;
  StageDraft& gives = plan.stages[from];
  StageDraft& takes = plan.stages[to];
  gives.operators = without(gives.operators, part);
  takes.operators = united(takes.operators, part);
  gives = settled(site.space, std::move(gives), plan.micro_batch);
  takes = settled(site.space, std::move(takes), plan.micro_batch);
  return plan;
}

// `part` of stage `from` becomes a stage of its own.
Proposal apart(const Site& site, std::size_t from, const OperatorSet& part, std::vector<DeviceId> devices) {
  Proposal plan = site.plan;
  StageDraft fresh = plan.stages[from];
  fresh.operators = part;
  fresh.devices = std::move(devices);
  fresh.after.clear();
  StageDraft& rest = plan.stages[from];
  rest.operators = without(rest.operators, part);
  rest = settled(site.space, std::move(rest), plan.micro_batch);
  plan.stages.push_back(settled(site.space, std::move(fresh), plan.micro_batch));
  return plan;
}

// Sets of several devices on which other stages stand, those of the least busy stages first, each once.
std::vector<std::vector<DeviceId>> sets_of_others(const Site& site, std::size_t stage) {
  std::vector<std::vector<DeviceId>> sets;
  for (std::size_t i = site.stages.size(); i-- > 0 && sets.size() < kTargets;) {
    const std::vector<DeviceId>& devices = site.plan.stages[site.stages[i]].devices;
    if (devices.size() < 2 || devices == site.plan.stages[stage].devices) continue;
    if (std::find(sets.begin(), sets.end(), devices) == sets.end()) sets.push_back(devices);
  }
  return sets;
}

// Some of a stage's devices, where they are not equally busy: those of each of their kinds, and those with
// less to do than the busiest.
std::vector<std::vector<DeviceId>> sets_of_own(const Site& site, std::size_t stage) {
  const std::vector<DeviceId>& own = site.plan.stages[stage].devices;
  std::vector<std::vector<DeviceId>> sets;
  const auto add = [&](const auto& belongs) {
    std::vector<DeviceId> set;
    std::copy_if(own.begin(), own.end(), std::back_inserter(set), belongs);
    if (set.empty() || set.size() == own.size()) return;
    if (std::find(sets.begin(), sets.end(), set) == sets.end()) sets.push_back(std::move(set));
  };
  const Cluster& cluster = site.space.problem().cluster;
  for (std::size_t kind = 0; kind < cluster.kinds().size(); ++kind) {
    add([&](DeviceId device) { return cluster.device(device).kind == KindId(kind); });
  }
  const auto load = [&](DeviceId device) { return site.load.of_device[device.index()]; };
  Duration most;
  for (const DeviceId device : own) most = std::max(most, load(device));
  add([&](DeviceId device) { return load(device) < most; });
  return sets;
}

bool fits_side(Part::Side side, Part::Side neighbour) {
  return side == Part::Side::kPiece || side == neighbour;
}

void give(const Site& site, std::size_t from, std::size_t to, Part::Side side, std::vector<Proposal>& moves) {
  for (const Part& part : site.parts(from)) {
    if (fits_side(part.side, side)) moves.push_back(joined(site, from, part.operators, to));
  }
}

}  // namespace

std::vector<Proposal> border_moves(const Site& site) {
  std::vector<Proposal> moves;
  for (std::size_t i = 0; i < site.stages.size() && i < kSources; ++i) {
    const std::size_t from = site.stages[i];
    const std::vector<Part> parts = site.parts(from);
    for (const Part& part : parts) {
      const auto join_each = [&](const std::vector<std::size_t>& neighbours, Part::Side side) {
        for (const std::size_t to : neighbours) {
          if (!site.is_fixed(to) && fits_side(part.side, side)) {
            moves.push_back(joined(site, from, part.operators, to));
          }
        }
      };
      join_each(site.neighbours.before[from], Part::Side::kBeginning);
      join_each(site.neighbours.behind[from], Part::Side::kEnd);
    }
  }
  // Stages with little to do take from whoever is beside them.
  const std::size_t takers =
      std::min(kTargets / 2, site.stages.size() - std::min(kSources, site.stages.size()));
  for (std::size_t i = 0; i < takers; ++i) {
    const std::size_t to = site.stages[site.stages.size() - 1 - i];
    for (const std::size_t from : site.neighbours.before[to]) {
      if (!site.is_fixed(from)) give(site, from, to, Part::Side::kEnd, moves);
    }
    for (const std::size_t from : site.neighbours.behind[to]) {
      if (!site.is_fixed(from)) give(site, from, to, Part::Side::kBeginning, moves);
    }
  }
  return moves;
}

std::vector<Proposal> part_moves(const Site& site) {
  std::vector<Proposal> moves;
  for (std::size_t i = 0; i < site.stages.size() && i < kSources / 2; ++i) {
    const std::size_t from = site.stages[i];
    const StageDraft& stage = site.plan.stages[from];
    const std::vector<DeviceId>& own = stage.devices;
    const std::vector<std::vector<DeviceId>> sets = sets_of_others(site, from),
                                             some = sets_of_own(site, from);
    for (const Part& part : site.parts(from)) {
      for (std::size_t t = 0; t < site.devices.size() && t < kTargets; ++t) {
        if (own != std::vector{site.devices[t]}) {
          moves.push_back(apart(site, from, part.operators, {site.devices[t]}));
        }
        if (stage.degree == 1) continue;
        auto group = group_with(site, stage, site.devices[t]);
        if (group) moves.push_back(apart(site, from, part.operators, *std::move(group)));
      }
      moves.push_back(apart(site, from, part.operators, own));
      for (const std::vector<DeviceId>& set : some) {
        if (set.size() > 1) moves.push_back(apart(site, from, part.operators, set));
      }
      if (own.size() > 1 && !site.space.has_writer(part.operators)) {
        for (const std::vector<DeviceId>& set : sets) moves.push_back(apart(site, from, part.operators, set));
      }
    }
  }
  return moves;
}

std::vector<Proposal> merge_moves(const Site& site) {
  std::vector<Proposal> moves;
  for (const std::size_t a : site.stages) {
    const StageDraft& mine = site.plan.stages[a];
    for (std::size_t b = 0; b < site.plan.stages.size() && moves.size() < 16 * kSources; ++b) {
      if (b == a || site.is_fixed(b)) continue;
      const StageDraft& other = site.plan.stages[b];
      const std::vector<std::size_t>& behind = site.neighbours.behind[a];
      const bool follows = std::binary_search(behind.begin(), behind.end(), b);
      const bool shares =
          a < b && std::any_of(mine.devices.begin(), mine.devices.end(), [&](DeviceId device) {
            return std::find(other.devices.begin(), other.devices.end(), device) != other.devices.end();
          });
      const bool beside = a < b && site.neighbours.behind[a] == site.neighbours.behind[b] &&
                          site.neighbours.before[a] == site.neighbours.before[b];
      if (!follows && !shares && !beside) continue;
      std::vector<DeviceId> both = mine.devices;
      for (const DeviceId device : other.devices) {
        if (std::find(both.begin(), both.end(), device) == both.end()) both.push_back(device);
      }
      const OperatorSet operators = united(mine.operators, other.operators);
      for (const std::vector<DeviceId>& devices : {mine.devices, other.devices, both}) {
        if (devices.size() > 1 && site.space.has_writer(operators)) continue;
        Proposal plan = site.plan;
        plan.stages[a].operators = operators;
        plan.stages[a].devices = devices;
        plan.stages[a].after.clear();
        plan.stages[a] = settled(site.space, std::move(plan.stages[a]), plan.micro_batch);
        moves.push_back(without_stage(std::move(plan), b));
      }
    }
  }
  return moves;
}

std::vector<Proposal> split_moves(const Site& site) {
  std::vector<Proposal> moves;
  for (std::size_t i = 0; i < site.stages.size() && i < kSources; ++i) {
    const std::size_t from = site.stages[i];
    const StageDraft& stage = site.plan.stages[from];
    if (stage.devices.size() < 2) continue;
    const std::size_t together = stage.replicas() > 1 ? stage.degree : 1,
                      most = stage.devices.size() / together;
    const Duration all = site.space.work(stage.operators, site.kind_of(stage), site.plan.micro_batch);
    if (all <= Duration()) continue;
    for (const Part& part : site.parts(from)) {
      const Duration work = site.space.work(part.operators, site.kind_of(stage), site.plan.micro_batch);
      const auto share = static_cast<std::size_t>(
          (static_cast<std::int64_t>(most) * work.count() + all.count() / 2) / all.count());
      const std::size_t mine = std::clamp<std::size_t>(share, 1, most - 1) * together;
      const auto middle = stage.devices.end() - static_cast<std::ptrdiff_t>(mine);
      Proposal plan = apart(site, from, part.operators, {middle, stage.devices.end()});
      plan.stages[from].devices.assign(stage.devices.begin(), middle);
      plan.stages[from] = settled(site.space, std::move(plan.stages[from]), plan.micro_batch);
      moves.push_back(std::move(plan));
    }
  }
  return moves;
}

std::optional<Proposal> with_light_joins_apart(const Space& space, const Proposal& plan) {
  constexpr std::int64_t kLight = 20;  // 1/20 of the stage's work, at most
  const std::size_t nobody = plan.stages.size();
  std::vector<std::size_t> stage_of(space.operators(), nobody);
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    for (const OperatorRun& run : plan.stages[s].operators.runs()) {
      for (std::size_t op = run.first; op <= run.last; ++op) stage_of[op] = s;
    }
  }
  std::vector<std::optional<std::uint32_t>> join(plan.stages.size());  // the first that reads from another
  for (const Link& link : space.links()) {
    const std::size_t s = stage_of[link.to];
    if (s == nobody || stage_of[link.from] == s) continue;
    join[s] = std::min(join[s].value_or(link.to), link.to);
  }
  Proposal apart = plan;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const StageDraft& stage = plan.stages[s];
    if (!join[s] || !space.crossing(*join[s]) || !stage.locked_as.empty()) continue;
    std::vector<OperatorRun> runs;
    for (const OperatorRun& run : stage.operators.runs()) {
      if (run.last >= *join[s]) runs.push_back({std::max(run.first, *join[s]), run.last});
    }
    StageDraft end = stage;
    end.operators = OperatorSet(std::move(runs));
    end.after.clear();
    const OperatorSet rest = without(stage.operators, end.operators);
    const KindId kind = space.problem().cluster.device(stage.devices.front()).kind;
    const Duration all = space.work(stage.operators, kind, plan.micro_batch);
    if (rest.runs().empty() || kLight * space.work(end.operators, kind, plan.micro_batch) > all) continue;
    apart.stages[s].operators = rest;
    apart.stages.push_back(std::move(end));
  }
  return apart.stages.size() > plan.stages.size() ? std::optional(std::move(apart)) : std::nullopt;
}

}  // namespace espalier::joint
