#include "espalier/runtime/local_crossings.h"

namespace espalier {

void LocalTensors::keep(const Produced& produced, Piece piece, std::size_t readers) {
  if (readers > 0) kept_[produced] = {std::move(piece), readers};
}

std::vector<Piece> LocalTensors::take(const Produced& produced) {
  const auto found = kept_.find(produced);
  if (found == kept_.end()) return {};
  std::vector<Piece> taken{found->second.piece};
  if (--found->second.readers_left == 0) kept_.erase(found);
  return taken;
}

const std::vector<Piece>& LocalGradients::of(const Produced& produced) const {
  static const std::vector<Piece> kNone;
  const auto found = pieces_.find(produced);
  return found == pieces_.end() ? kNone : found->second;
}

}  // namespace espalier
