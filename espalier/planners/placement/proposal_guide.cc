#include "espalier/planners/placement/proposal_guide.h"

#include <utility>

#include "espalier/base/check.h"

namespace espalier::placement {

ProposalGuide::ProposalGuide(RatingNet net) : net_(std::move(net)) {
  ESP_CHECK(net_.inputs() == ChangeFigures::kCount, net_.inputs());
}

ProposalGuide ProposalGuide::parse(std::string_view bytes, std::string_view where) {
  return ProposalGuide(RatingNet::parse(bytes, where, ChangeFigures::kCount, "espalier learn proposals"));
}

}  // namespace espalier::placement
