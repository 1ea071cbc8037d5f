#include "espalier/app/order_advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "espalier/planners/placement/list_clock.h"

namespace espalier {
namespace {

constexpr std::array<std::string_view, kOrderFeatures> kFeatureNames{
    "units", "depth", "width", "critical", "degree", "branching", "communication", "slack"};
constexpr double kMostSlack = 100;

double quotient(double part, double whole) {
  return whole > 0 ? part / whole : 0;
}

}  // namespace

std::string_view to_text(OrderSetUp set_up) {
  return set_up == OrderSetUp::kPlaceto ? "placeto" : "links";
}

std::string_view to_text(OrderFeature feature) {
  return kFeatureNames[static_cast<std::size_t>(feature)];
}

OrderFeatures order_features(const placement::Engine& engine) {
  const placement::Instance& instance = engine.instance();
  const placement::MeanCosts mean(instance);
  const std::optional<std::int64_t> bandwidth = engine.rules().bandwidth;
  std::vector<std::int64_t> levels(instance.tasks(), 1);
  std::vector<Duration> end(instance.tasks());
  double work = 0, messages = 0, held = 0, memory = 0, reads = 0, branching = 0, depth = 0, longest = 0;
  for (std::size_t t = 0; t < instance.tasks(); ++t) {
    Duration begin;
    for (const placement::ValueId value : instance.reads[t]) {
      const std::size_t from = instance.producer[value.index()].index();
      levels[t] = std::max(levels[t], levels[from] + 1);
      begin = std::max(begin, end[from]);
    }
    end[t] = begin + mean.time[t];
    reads += static_cast<double>(instance.reads[t].size());
    work += static_cast<double>(mean.time[t].count());
    depth = std::max(depth, static_cast<double>(levels[t]));
    longest = std::max(longest, static_cast<double>(end[t].count()));
    std::size_t readers = 0;
    for (const placement::ValueId value : instance.produces[t])
      readers += instance.readers[value.index()].size();
    branching += readers > 1 ? 1 : 0;
  }
  for (std::size_t v = 0; v < instance.values(); ++v) {
    const Duration message = bandwidth ? transfer_time(instance.bytes[v], *bandwidth) : mean.message[v];
    messages += static_cast<double>(message.count());
    held += static_cast<double>(instance.bytes[v].count());
  }
  for (const Bytes bytes : instance.resident_bytes) held += static_cast<double>(bytes.count());
  for (const Bytes bytes : instance.memory) memory += static_cast<double>(bytes.count());
  const auto tasks = static_cast<double>(instance.tasks());
  OrderFeatures features;
  features.value = {static_cast<double>(instance.units()),
                    depth,
                    quotient(tasks, depth),
                    quotient(longest, work),
                    quotient(reads, tasks),
                    quotient(branching, tasks),
                    quotient(messages, work),
                    held > 0 ? std::min(kMostSlack, memory / held) : kMostSlack};
  return features;
}

const OrderAdviceNode& order_advice(std::span<const OrderAdviceNode> tree, const OrderFeatures& features) {
  std::size_t at = 0;
  while (tree[at].feature) {
    at = features.of(*tree[at].feature) < tree[at].threshold ? tree[at].below : tree[at].above;
  }
  return tree[at];
}

bool check_order_tree(std::span<const OrderAdviceNode> tree) {
  if (tree.empty()) return false;
  for (std::size_t i = 0; i < tree.size(); ++i) {
    const OrderAdviceNode& node = tree[i];
    if (!node.feature) continue;
    const bool later =
        node.below > i && node.above > i && node.below < tree.size() && node.above < tree.size();
    if (!later) return false;
  }
  return true;
}

std::string advice_text(const OrderAdviceNode& answer) {
  if (!answer.order) {
    return fmt::format(
        "any order: the best one for all {} graphs like it saves less than 1 %; each graph's own best {:.1f} "
        "%, "
        "against its worst {:.1f} %",
        answer.graphs, 100 * answer.other, 100 * answer.worst);
  }
  return fmt::format(
      "{}: within 1 % of the best order on {:.0f} % of {} graphs like it; another takes {:.1f} % "
      "longer in the mean, the worst {:.1f} %",
      to_text(*answer.order), 100 * answer.confidence, answer.graphs, 100 * answer.other, 100 * answer.worst);
}

}  // namespace espalier
