#include "espalier/base/embedded.h"
#include "espalier/planners/placement/proposal_guide.h"

ESP_EMBEDDED(espalier_proposals, ESPALIER_PROPOSALS);

namespace espalier::placement {

const ProposalGuide& usual_proposals() {
  static const ProposalGuide kGuide =
      ProposalGuide::parse(ESP_BYTES_OF(espalier_proposals), "the guide that comes along");
  return kGuide;
}

}  // namespace espalier::placement
