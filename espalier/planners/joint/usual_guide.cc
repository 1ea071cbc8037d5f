#include "espalier/base/embedded.h"
#include "espalier/planners/joint/guide.h"

ESP_EMBEDDED(espalier_guide, ESPALIER_GUIDE);

namespace espalier::joint {

const MoveGuide& usual_guide() {
  static const MoveGuide kGuide =
      MoveGuide::parse(ESP_BYTES_OF(espalier_guide), "the guide that comes along");
  return kGuide;
}

}  // namespace espalier::joint
