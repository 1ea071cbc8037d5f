// paper      here
// T_F …      LineCosts::forward, input, weights; T_comm: arrives, returns
// M_limit    LineCosts::room
//
// We deviate in that stages may differ in time and memory, and each way has its own time.

#include "espalier/planners/orders/zero_bubble_fill.h"

#include <algorithm>

namespace espalier {
namespace {

enum Kind : std::size_t { kF, kI, kW, kKinds };

class ZeroBubbleFill {
 public:
  ZeroBubbleFill(const StageLine& line, const LineCosts& costs, const FillRules& rules)
      : costs_(costs), rules_(rules), m_(line.micro_batches), places_(line.places()), order_(line.places()) {
    for (Place& place : places_) {
      for (std::vector<Duration>& ends : place.ends) ends.reserve(m_);
    }
  }

  std::optional<FilledOrder> run() {
    if (!begin()) return std::nullopt;
    for (std::size_t i = 1; i < m_; ++i) {
      if (!put_forwards(choose_forwards()) || !put_inputs()) return std::nullopt;
    }
    Duration span;
    for (std::size_t j = 0; j < places_.size(); ++j) {
      while (done(j, kW) < m_) put(j, kW);
      span = std::max(span, places_[j].free - places_[j].ends[kF].front() + costs_.forward[j]);
    }
    return FilledOrder{std::move(order_), span};
  }

 private:
  struct Place {
    std::vector<Duration> ends[kKinds];  // by micro-batch
    Duration free, idle;                 // idle since its first action
    Bytes held;
  };

  std::size_t done(std::size_t j, Kind kind) const { return places_[j].ends[kind].size(); }
  Duration time(std::size_t j, Kind kind) const {
    return kind == kF ? costs_.forward[j] : kind == kI ? costs_.input[j] : costs_.weights[j];
  }
  bool weights_wait(std::size_t j) const { return done(j, kW) < done(j, kI); }
  bool has_room(std::size_t j, Bytes held) const { return held <= costs_.room[j]; }

  // When what the next F or I needs is there; none where it needs nothing from elsewhere.
  std::optional<Duration> arrival(std::size_t j, Kind kind) const {
    const std::size_t i = done(j, kind);
    if (kind == kF && j > 0) return places_[j - 1].ends[kF].at(i) + costs_.arrives[j];
    if (kind == kI && j + 1 < places_.size()) return places_[j + 1].ends[kI].at(i) + costs_.returns[j];
    return std::nullopt;
  }

  void put(std::size_t j, Kind kind) {
    Place& place = places_[j];
    const Duration start = std::max(place.free, arrival(j, kind).value_or(Duration()));
    if (!place.ends[kF].empty()) place.idle += start - place.free;
    place.free = start + time(j, kind);
    place.ends[kind].push_back(place.free);
    if (kind == kF) place.held += costs_.taken[j];
    if (kind == kI) place.held -= costs_.freed[j];
    if (kind == kW) place.held -= costs_.taken[j] - costs_.freed[j];
    constexpr ActionKind kActions[] = {ActionKind::kForward, ActionKind::kInputGradient,
                                       ActionKind::kWeightGradient};
    order_[j].push_back({kActions[kind], 0});
  }

  Duration most_idle() const {
    Duration most;
    for (const Place& place : places_) most = std::max(most, place.idle);
    return most;
  }

  // Up to the first I of every place.
  bool begin() {
    const std::size_t last = places_.size() - 1;
    for (std::size_t j = 0; j <= last; ++j) {
      if (!has_room(j, costs_.taken[j])) return false;
      put(j, kF);
    }
    std::vector<std::size_t> more(places_.size(), 0);  // forwards beside the first
    Duration gradient = places_[last].free + costs_.input[last];
    for (std::size_t j = last; j-- > 0;) {
      const Duration comes = gradient + costs_.returns[j];
      Duration free = places_[j].free;
      Bytes held = places_[j].held;
      while (1 + more[j] < m_ && has_room(j, held + costs_.taken[j])) {
        if (rules_.late_forwards ? free + costs_.forward[j] > comes : free >= comes) break;
        free += costs_.forward[j];
        held += costs_.taken[j];
        ++more[j];
      }
      gradient = std::max(free, comes) + costs_.input[j];
    }
    // A place must not have as many as the one before it: they would come too late. All of them it may.
    for (std::size_t j = 1; j <= last; ++j) {
      const bool has_all = 1 + more[j] == m_ && more[j] == more[j - 1];
      if (!has_all && more[j] >= more[j - 1]) more[j] = more[j - 1] > 0 ? more[j - 1] - 1 : 0;
    }
    for (std::size_t j = 0; j <= last; ++j) {
      for (; more[j] > 0; --more[j]) put(j, kF);
    }
    for (std::size_t j = last + 1; j-- > 0;) put(j, kI);
    return true;
  }

  // Which places take a forward now. None takes one that the next place does not.
  std::vector<char> choose_forwards() const {
    std::vector<char> takes(places_.size());
    for (std::size_t j = 0; j < places_.size(); ++j) {
      takes[j] = done(j, kF) < m_ && !(rules_.backwards_first && should_wait(j));
    }
    for (std::size_t j = places_.size() - 1; j-- > 0;) takes[j] = takes[j] && takes[j + 1];
    return takes;
  }

  // Where the next place has forwards in store, a forward here only delays the gradient that comes from
  // there.
  bool should_wait(std::size_t j) const {
    if (j + 1 == places_.size() || done(j, kF) < done(j + 1, kF) + 2) return false;
    const Place& here = places_[j];
    const Duration gradient =
        places_[j + 1].free + costs_.forward[j + 1] + costs_.input[j + 1] + costs_.returns[j];
    if (here.free >= gradient) return true;
    Duration weights;
    Bytes held = here.held + costs_.taken[j];
    for (std::size_t w = done(j, kW); !has_room(j, held) && w < done(j, kI); ++w) {
      weights += costs_.weights[j];
      held -= costs_.taken[j] - costs_.freed[j];
    }
    if (here.free + costs_.forward[j] + weights <= gradient) return false;
    return gradient - here.free <= most_idle() - here.idle;
  }

  bool put_forwards(const std::vector<char>& takes) {
    for (std::size_t j = 0; j < places_.size(); ++j) {
      if (!takes[j]) continue;
      if (j > 0 && done(j - 1, kF) == done(j, kF)) return false;
      while (!has_room(j, places_[j].held + costs_.taken[j])) {
        if (!weights_wait(j)) return false;
        put(j, kW);
      }
      fill_before(j, kF);
      put(j, kF);
    }
    return true;
  }

  bool put_inputs() {
    for (std::size_t j = places_.size(); j-- > 0;) {
      if (done(j, kF) == done(j, kI)) return false;
      fill_before(j, kI);
      while (j == 0 && done(0, kF) == m_ && weights_wait(0)) put(0, kW);
      put(j, kI);
    }
    return true;
  }

  // W while the next F or I cannot come.
  void fill_before(std::size_t j, Kind kind) {
    const std::optional<Duration> comes = arrival(j, kind);
    if (!comes) return;
    while (weights_wait(j) && places_[j].free + costs_.weights[j] <= *comes) put(j, kW);
    if (!weights_wait(j) || places_[j].free >= *comes) return;
    const bool costs_nothing = *comes - places_[j].free <= most_idle() - places_[j].idle;
    if (!costs_nothing || rules_.always_fill) put(j, kW);
  }

  const LineCosts& costs_;
  const FillRules rules_;
  const std::size_t m_;
  std::vector<Place> places_;
  LineOrder order_;
};

}  // namespace

std::optional<FilledOrder> zero_bubble_fill(const StageLine& line, const LineCosts& costs,
                                            const FillRules& rules) {
  return ZeroBubbleFill(line, costs, rules).run();
}

void add_new(std::optional<FilledOrder> fill, std::vector<FilledOrder>& fills) {
  const auto known = [&](const FilledOrder& other) { return other.order == fill->order; };
  if (fill && std::none_of(fills.begin(), fills.end(), known)) fills.push_back(std::move(*fill));
}

std::vector<FilledOrder> zero_bubble_fills(const StageLine& line, const LineCosts& costs) {
  std::vector<FilledOrder> fills;
  for (std::size_t rules = 0; rules < 8; ++rules) {
    add_new(zero_bubble_fill(line, costs, {(rules & 4) == 0, (rules & 2) == 0, (rules & 1) == 0}), fills);
  }
  return fills;
}

}  // namespace espalier
