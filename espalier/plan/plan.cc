#include "espalier/plan/plan.h"

#include <algorithm>

#include "espalier/base/check.h"
#include "espalier/plan/staged_model.h"

namespace espalier {

std::string_view to_text(TokenRule rule) {
  constexpr std::string_view kNames[] = {"both", "forward", "free", "none"};
  return kNames[static_cast<std::size_t>(rule)];
}

std::optional<TokenRule> parse_token_rule(std::string_view text) {
  for (const TokenRule rule :
       {TokenRule::kBothWays, TokenRule::kForwardOnly, TokenRule::kFree, TokenRule::kNone}) {
    if (to_text(rule) == text) return rule;
  }
  return std::nullopt;
}

std::vector<std::uint32_t> round_robin(std::uint32_t micro_batches, std::size_t replica,
                                       std::size_t replicas) {
  ESP_CHECK(replica < replicas, replica, replicas);
  std::vector<std::uint32_t> share;
  share.reserve((micro_batches + replicas - 1 - replica) / replicas);
  for (std::size_t j = replica; j < micro_batches; j += replicas)
    share.push_back(static_cast<std::uint32_t>(j));
  return share;
}

std::uint32_t Stage::largest_share() const {
  std::size_t share = 1;
  for (const Replica& replica : replicas) share = std::max(share, replica.micro_batches.size());
  return static_cast<std::uint32_t>(share);
}

namespace {

// Names, devices and numbers of a plan of either form, for its lists.
template <class PlanStage, class MicroBatches>
OrderNames names_of(const std::vector<PlanStage>& stages, const Cluster& cluster,
                    const MicroBatches& micro_batches) {
  OrderNames names;
  for (const Device& device : cluster.devices()) names.devices.push_back(device.name);
  names.only.resize(names.devices.size());
  std::vector<bool> several(names.devices.size());
  for (std::size_t s = 0; s < stages.size(); ++s) {
    names.stages.push_back(stages[s].name);
    names.most_steps += 4 * std::size_t{micro_batches(s)} + 2;
    for (const auto& replica : stages[s].replicas) {
      for (const DeviceId device : replica.devices) {
        if (device.index() >= several.size()) continue;
        std::optional<StageId>& only = names.only[device.index()];
        if (only && *only != StageId(s)) several[device.index()] = true;
        only = StageId(s);
      }
    }
  }
  for (std::size_t d = 0; d < several.size(); ++d) {
    if (several[d]) names.only[d].reset();
  }
  return names;
}

}  // namespace

// With b == b_next this is ⌈(k·r + r_y·w_y) / r⌉.
//
//   b ≤ b_next   the successor's samples, and one group of this stage (or one of its micro-batches, if that
//   is
//                more) on its way
//   b > b_next   one group must be complete before the successor's last gradient of it comes back
std::int64_t in_flight_before(std::int64_t r, std::int64_t k, std::int64_t b, std::int64_t held,
                              std::int64_t b_next) {
  const auto ceil_div = [](std::int64_t a, std::int64_t n) { return (a + n - 1) / n; };
  if (b <= b_next) return ceil_div(held + std::max(k * r * b, b_next), r * b);
  return ceil_div(held - b_next, r * b) + k + 1;
}

std::vector<std::uint32_t> in_flight_limits(const PipelinePlan& plan) {
  if (const OrderLists* lists = plan.orders.lists()) {
    std::vector<std::uint32_t> held = in_flight_of(*lists, plan.stages.size());
    for (std::size_t x = 0; x < held.size(); ++x) {
      held[x] = std::min(held[x], plan.stages[x].largest_share());
    }
    return held;
  }
  const OrderRule& rule = *plan.orders.rule();
  const auto group_of = [&](std::size_t x) { return std::int64_t{rule.group_of(StageId(x))}; };
  std::vector<std::uint32_t> limits(plan.stages.size(), 1);
  std::vector<std::int64_t> wanted;
  for (std::size_t x = 0; x < plan.stages.size(); ++x) wanted.push_back(group_of(x));
  for (std::size_t x = plan.stages.size(); x-- > 0;) {
    const Stage& stage = plan.stages[x];
    const std::int64_t share = stage.largest_share();
    if (rule.kind == ScheduleKind::kGPipe) wanted[x] = share;
    const std::int64_t limit = std::min(wanted[x], share);
    limits[x] = static_cast<std::uint32_t>(limit);

    const std::int64_t held =
        static_cast<std::int64_t>(stage.replicas.size()) * limit * stage.micro_batch.count();
    for (const StageId before : stage.after) {
      if (before.index() >= x) continue;  // not a legal edge; check_plan says so
      const Stage& other = plan.stages[before.index()];
      const auto replicas = static_cast<std::int64_t>(std::max<std::size_t>(other.replicas.size(), 1));
      if (other.micro_batch.count() < 1) continue;
      wanted[before.index()] =
          std::max(wanted[before.index()],
                   in_flight_before(replicas, group_of(before.index()), other.micro_batch.count(), held,
                                    stage.micro_batch.count()));
    }
  }
  return limits;
}

OrderNames order_names(const PipelinePlan& plan, const Cluster& cluster) {
  OrderNames names =
      names_of(plan.stages, cluster, [&](std::size_t s) { return plan.micro_batches(StageId(s)); });
  names.ties = std::size_t{1} << 20;
  names.most_steps += std::size_t{1} << 20;
  return names;
}

OrderNames order_names(const StagedModel& model, const Cluster& cluster) {
  OrderNames names =
      names_of(model.stages, cluster, [&](std::size_t s) { return model.stages[s].micro_batches; });
  names.ties = model.ties.size();
  names.most_steps += names.ties;
  return names;
}

}  // namespace espalier
