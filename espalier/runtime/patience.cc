#include "espalier/runtime/patience.h"

#include <algorithm>

namespace espalier {

Duration Patience::between_looks() const {
  return std::clamp(Duration(timeout.count() / 8), milliseconds(1), milliseconds(500));
}

void Waited::add(const Patience& patience, Duration passed) {
  if (patience.somebody_busy && patience.somebody_busy->load()) return;
  counted_ += std::min(passed, 2 * patience.between_looks());
}

}  // namespace espalier
