#include "espalier/planners/joint/guide.h"

#include "espalier/base/check.h"

namespace espalier::joint {

MoveGuide::MoveGuide(RatingNet net) : net_(std::move(net)) {
  ESP_CHECK(net_.inputs() == MoveFigures::kCount, net_.inputs());
}

MoveGuide MoveGuide::parse(std::string_view bytes, std::string_view where) {
  return MoveGuide(RatingNet::parse(bytes, where, MoveFigures::kCount, "espalier learn guide"));
}

std::vector<float> MoveGuide::rate(std::span<const MoveFigures> moves) const {
  std::vector<float> rates;
  for (const MoveFigures& move : moves) rates.push_back(net_.rate(move.values));
  return rates;
}

}  // namespace espalier::joint
