#include "espalier/planners/orders/best_order.h"

#include <tuple>

namespace espalier {

Bytes lack_of(const Evaluation& evaluation, const Cluster& cluster) {
  Bytes lack;
  for (std::size_t d = 0; d < evaluation.peak.size(); ++d) {
    const Bytes needs = evaluation.peak[d].total(), has = cluster.device(DeviceId(d)).memory;
    if (needs > has) lack += needs - has;
  }
  return lack;
}

const Evaluation& BestOrder::consider(const OrderLists& lists) {
  last_ = judge_.judge(lists);
  if (!last_.can_run()) return last_;
  const Bytes lack = lack_of(last_, cluster_);
  if (!lists_ || std::tie(lack, last_.iteration) < std::tie(lack_, evaluation_.iteration)) {
    lists_ = lists;
    evaluation_ = last_;
    lack_ = lack;
  }
  return last_;
}

}  // namespace espalier
