#include "espalier/plan/plan.h"

#include <algorithm>

#include "espalier/base/check.h"

namespace espalier {

std::string_view to_text(ScheduleKind kind) {
  return kind == ScheduleKind::kGPipe ? "gpipe" : "1f1b";
}

std::optional<ScheduleKind> parse_schedule_kind(std::string_view text) {
  for (const ScheduleKind kind : {ScheduleKind::kGPipe, ScheduleKind::kOneFOneB}) {
    if (to_text(kind) == text) return kind;
  }
  return std::nullopt;
}

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

namespace {

// The limit of a stage that runs r replicas at micro-batch b, from one successor that keeps `held` samples in
// flight at micro-batch b_next. With b == b_next this is ⌈(r + r_y·w_y) / r⌉.
//
//   b ≤ b_next   the successor's samples, and one micro-batch of either (the larger) on its way
//   b > b_next   one micro-batch must be complete before the successor's last gradient of it comes back
std::int64_t limit_before(std::int64_t r, std::int64_t b, std::int64_t held, std::int64_t b_next) {
  const auto ceil_div = [](std::int64_t a, std::int64_t n) { return (a + n - 1) / n; };
  if (b <= b_next) return ceil_div(held + std::max(r * b, b_next), r * b);
  return ceil_div(held - b_next, r * b) + 2;
}

}  // namespace

std::vector<std::uint32_t> in_flight_limits(const PipelinePlan& plan) {
  std::vector<std::uint32_t> limits(plan.stages.size(), 1);
  std::vector<std::int64_t> wanted(plan.stages.size(), 1);
  for (std::size_t x = plan.stages.size(); x-- > 0;) {
    const Stage& stage = plan.stages[x];
    std::size_t share = 1;
    for (const Replica& replica : stage.replicas) share = std::max(share, replica.micro_batches.size());
    if (plan.schedule == ScheduleKind::kGPipe) wanted[x] = static_cast<std::int64_t>(share);
    const std::int64_t limit = std::min(wanted[x], static_cast<std::int64_t>(share));
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
                   limit_before(replicas, other.micro_batch.count(), held, stage.micro_batch.count()));
    }
  }
  return limits;
}

}  // namespace espalier
