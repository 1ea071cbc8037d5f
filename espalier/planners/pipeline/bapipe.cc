#include "espalier/planners/pipeline/bapipe.h"

#include <algorithm>
#include <optional>

#include "espalier/planners/candidate.h"
#include "espalier/planners/literal/bapipe.h"
#include "espalier/planners/pipeline/device_row.h"
#include "espalier/planners/pipeline/equal_groups.h"

namespace espalier {
namespace {

using literal::BapipeSchedule;
using BapipeEnds = std::vector<std::size_t>;  // of stages

// A chain on groups of devices, as the closed forms see it. Times in nanoseconds.
class ClosedForms {
 public:
  ClosedForms(const GroupedChain& grouped, const DeviceTable& table) : grouped_(grouped), table_(table) {
    const auto replicas = static_cast<std::int64_t>(grouped.groups.front().size());
    micro_batches_ = (grouped.micro_batches + replicas - 1) / replicas;  // of each of the pipelines
    const std::size_t blocks = grouped.chain.blocks(), stages = grouped.groups.size();
    borders_.stages = stages;
    for (std::size_t cut = 0; cut <= blocks; ++cut) {
      double slowest = 0;
      for (std::size_t s = 0; s + 1 < stages; ++s) slowest = std::max(slowest, message(s, cut));
      borders_.messages.push_back(slowest);
    }
    for (std::size_t s = 0; s < stages; ++s)
      borders_.share += time(s, 0, blocks) / static_cast<double>(stages * stages);
  }

  std::optional<BapipeEnds> partition(BapipeSchedule schedule) const {
    return literal::bapipe_partition(
        borders_, [&](std::size_t s, std::size_t first, std::size_t last) -> std::optional<double> {
          if (!fits(schedule, s, first, last)) return std::nullopt;
          return time(s, first, last);
        });
  }
  BapipeEnds partition_without_memory() const {
    return *literal::bapipe_partition(borders_, [&](std::size_t s, std::size_t first, std::size_t last) {
      return std::optional(time(s, first, last));
    });
  }

  double step(BapipeSchedule schedule, const BapipeEnds& ends) const {
    std::vector<literal::BapipeStageTimes> stages;
    for (std::size_t s = 0; s < ends.size(); ++s) {
      const GroupTimes of =
          group_times(grouped_.chain, grouped_.groups[s], s == 0 ? 0 : ends[s - 1], ends[s]);
      stages.push_back({static_cast<double>(of.forward.count()), static_cast<double>(of.backward.count()),
                        s + 1 < ends.size() ? message(s, ends[s]) : 0});
    }
    return literal::bapipe_step(schedule, stages, micro_batches_);
  }

 private:
  double time(std::size_t stage, std::size_t first, std::size_t last) const {
    const GroupTimes of = group_times(grouped_.chain, grouped_.groups[stage], first, last);
    return static_cast<double>((of.forward + of.backward).count());
  }
  // The longer of both directions, from the stage to the next.
  double message(std::size_t stage, std::size_t cut) const {
    const Chain& chain = grouped_.chain;
    const DeviceId from = grouped_.groups[stage].back(), to = grouped_.groups[stage + 1].front();
    const Hop& hop = table_.hops()[table_.hop_of(from, to)];
    const Bytes bytes = std::max(chain.forward_bytes(cut), chain.backward_bytes(cut));
    return static_cast<double>((hop.hold(bytes) + hop.latency).count());
  }
  bool fits(BapipeSchedule schedule, std::size_t stage, std::size_t first, std::size_t last) const {
    const Bytes needs =
        grouped_.chain.price(first, last)
            .memory(literal::bapipe_in_flight(schedule, borders_.stages, stage, micro_batches_));
    const std::vector<DeviceId>& group = grouped_.groups[stage];
    return std::all_of(group.begin(), group.end(),
                       [&](DeviceId device) { return needs <= table_.memory(device); });
  }

  const GroupedChain& grouped_;
  const DeviceTable& table_;
  std::int64_t micro_batches_ = 1;
  literal::BapipeBorders borders_;
};

}  // namespace

Outcome bapipe(const Problem& problem, const BapipeOptions& options, Context& context) {
  if (unpinned_devices(problem).size() < problem.cluster.devices().size())
    return {.status = Status::kUnsupported, .why = "planner 'bapipe' does not keep pins"};
  Judge judge(problem, context);
  const DeviceTable table(problem);
  for_each_grouped_chain(problem, context, [&](const GroupedChain& grouped) {
    if (!context.take_state()) return;
    const ClosedForms forms(grouped, table);
    std::optional<BapipeEnds> best;
    BapipeSchedule chosen = BapipeSchedule::k1F1BSno;
    double least = 0;
    for (const BapipeSchedule schedule : literal::bapipe_schedules(false)) {
      if (schedule == BapipeSchedule::k1F1BSo && options.schedule.kind != ScheduleKind::kOneFOneB) continue;
      std::optional<BapipeEnds> ends = forms.partition(schedule);
      if (!ends) continue;
      const double step = forms.step(schedule, *ends);
      if (best && step >= least) continue;
      best = std::move(ends);
      chosen = schedule;
      least = step;
    }
    std::vector<StageDraft> drafts = grouped_drafts(grouped, best ? *best : forms.partition_without_memory());
    for (std::size_t s = 0; s < drafts.size() && chosen == BapipeSchedule::k1F1BSo; ++s)
      drafts[s].more_in_flight = static_cast<std::int32_t>(drafts.size() - 1 - s);
    judge.consider(drafts, grouped.chain.micro_batch(), options.schedule);
  });
  return judge.outcome();
}

}  // namespace espalier
