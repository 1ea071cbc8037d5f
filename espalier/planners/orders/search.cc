#include "espalier/planners/orders/search.h"

#include <algorithm>

#include "espalier/base/rng.h"
#include "espalier/planners/orders/best_order.h"
#include "espalier/planners/orders/order_moves.h"
#include "espalier/planners/orders/zero_bubble.h"
#include "espalier/schedule/dual_pipe_v.h"
#include "espalier/schedule/interleaved.h"
#include "espalier/schedule/order_file.h"
#include "espalier/schedule/schedule.h"
#include "espalier/schedule/v_schedules.h"
#include "espalier/schedule/zero_bubble.h"

namespace espalier {
namespace {

// At first a step back of this part of the iteration is accepted; the part falls to nothing.
constexpr std::int64_t kFirstThreshold = 50;  // 1/50
constexpr std::uint64_t kDrawsForEach = 20;   // that are not legal, for each order judged
constexpr std::uint64_t kRounds = 4;          // each begins with the best so far

bool has_halves(const OrderLists& lists) {
  return std::any_of(lists.begin(), lists.end(), [](const std::vector<Step>& list) {
    return std::any_of(list.begin(), list.end(),
                       [](const Step& step) { return step.kind == ActionKind::kInputGradient; });
  });
}

std::uint64_t steps_of(const OrderLists& lists) {
  std::uint64_t steps = 1;
  for (const std::vector<Step>& list : lists) steps += list.size();
  return steps;
}

class LocalSearch {
 public:
  LocalSearch(const StagedModel& model, const Cluster& cluster, const OrderSearchOptions& options,
              OrderJudge& judge, BestOrder& best)
      : model_(model),
        cluster_(cluster),
        halves_(options.halves),
        judge_(judge),
        best_(best),
        rng_(options.seed) {
    for (std::size_t d = 0; d < best.lists()->size(); ++d) {
      if ((*best.lists())[d].size() > 1) devices_.push_back(d);
    }
    // Where many tensors go from stage to stage, messages are what takes the time.
    orders_ = options.max_steps / std::max(steps_of(*best.lists()), best.evaluation().messages / 4);
  }

  void run() {
    if (devices_.empty()) return;
    for (std::uint64_t round = 0; round < kRounds; ++round) improve(orders_ / kRounds);
  }

 private:
  void improve(std::uint64_t orders) {
    OrderLists lists = *best_.lists();
    Duration iteration = best_.evaluation().iteration;
    Bytes lack = best_.lack();
    const std::uint64_t first = judge_.judged();
    std::uint64_t draws = orders * kDrawsForEach;
    while (judge_.judged() - first < orders && draws-- > 0) {
      const std::size_t device = devices_[rng_.below(devices_.size())];
      std::optional<std::vector<Step>> list = moved(lists[device], model_, halves_, rng_);
      if (!list) continue;
      std::swap(lists[device], *list);
      const Evaluation& found = best_.consider(lists);
      const auto done = static_cast<std::int64_t>(judge_.judged() - first);
      const Duration threshold = best_.evaluation().iteration / kFirstThreshold *
                                 (static_cast<std::int64_t>(orders) - done) /
                                 static_cast<std::int64_t>(orders);
      const Bytes now = found.can_run() ? lack_of(found, cluster_) : Bytes();
      const bool accepted =
          found.can_run() && (now < lack || (now == lack && found.iteration <= iteration + threshold));
      if (accepted) {
        iteration = found.iteration;
        lack = now;
      } else {
        std::swap(lists[device], *list);
      }
    }
  }

  const StagedModel& model_;
  const Cluster& cluster_;
  const Halves halves_;
  OrderJudge& judge_;
  BestOrder& best_;
  Rng rng_;
  std::vector<std::size_t> devices_;  // with something to move
  std::uint64_t orders_ = 0;
};

}  // namespace

std::vector<NamedLists> known_orders(const StagedModel& model, const Cluster& cluster) {
  const std::size_t devices = cluster.devices().size();
  std::vector<NamedLists> known;
  known.push_back({"as planned", lists_of(model, make_schedule(model, devices))});
  for (const char* rule : {"1f1b", "1f1b,k=2", "1f1b,split", "gpipe", "gpipe,split"}) {
    const StagedModel ruled = with_orders(model, Orders(parse_order_rule(rule)));
    known.push_back({rule, lists_of(ruled, make_schedule(ruled, devices))});
  }
  const auto add = [&](const char* name, GeneratedOrders orders) {
    if (orders.lists) known.push_back({name, std::move(*orders.lists)});
  };
  add("interleaved", interleaved(model, devices));
  add("interleaved,split", interleaved(model, devices, OrderRule::Backward::kSplit));
  add("zb-h2", zero_bubble_h2(model, devices));
  add("zb-greedy", zero_bubble_greedy(model, cluster));
  add("v-half", v_half(model, devices));
  add("v-min", v_min(model, devices));
  add("dualpipev", dual_pipe_v(model, devices));
  add("zbv", zero_bubble_v(model, cluster));
  return known;
}

SearchedOrder search_order(const StagedModel& model, const Cluster& cluster,
                           const OrderSearchOptions& options) {
  OrderJudge judge(model, cluster);
  BestOrder best(judge, cluster);
  SearchedOrder result;
  for (const NamedLists& known : known_orders(model, cluster)) {
    if (options.halves == Halves::kNever && has_halves(known.lists)) continue;
    const std::optional<OrderLists> before = best.lists();
    best.consider(known.lists);
    if (best.lists() != before) result.begun_with = known.name;
  }
  if (!best.lists()) return result;
  result.beginning = best.evaluation();
  LocalSearch(model, cluster, options, judge, best).run();
  result.lists = best.lists();
  result.evaluation = best.evaluation();
  result.judged = judge.judged();
  return result;
}

}  // namespace espalier
