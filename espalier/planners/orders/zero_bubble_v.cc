// We deviate from the authors' program in that stages may differ in time and memory, and each way has its own
// time.

#include "espalier/planners/orders/zero_bubble_v.h"

#include <algorithm>
#include <deque>

namespace espalier {
namespace {

enum Pass : std::size_t { kForwardDown, kForwardUp, kInputDown, kInputUp, kPasses };

constexpr bool is_forward(std::size_t pass) {
  return pass < kInputDown;
}
constexpr std::size_t chunk_of(std::size_t pass) {
  return pass == kForwardUp || pass == kInputDown ? 1 : 0;
}

class FillV {
 public:
  // `before`: how long each place idled in the run before, if there was one.
  FillV(const StageLine& line, const LineCosts& costs, const FillVRules& rules, std::vector<Duration> before)
      : line_(line),
        costs_(costs),
        rules_(rules),
        before_(std::move(before)),
        most_before_(before_.empty() ? Duration() : *std::max_element(before_.begin(), before_.end())),
        m_(line.micro_batches),
        places_(line.places()),
        order_(line.places()) {}

  bool run() {
    if (!begin()) return false;
    while (put_round()) {
    }
    for (std::size_t j = 0; j < places_.size(); ++j) {
      while (!places_[j].waiting.empty()) put_weight(j);
      for (const std::vector<Duration>& ends : places_[j].ends) {
        if (ends.size() != m_) return false;
      }
    }
    return true;
  }

  Duration most_idle() const {
    Duration most;
    for (const Place& place : places_) most = std::max(most, place.idle);
    return most;
  }
  std::vector<Duration> idle() const {
    std::vector<Duration> idle;
    for (const Place& place : places_) idle.push_back(place.idle);
    return idle;
  }
  FilledOrder take() {
    Duration span;
    for (const Place& place : places_) span = std::max(span, place.free - place.first);
    return {std::move(order_), span};
  }

 private:
  struct Place {
    std::vector<Duration> ends[kPasses];  // by micro-batch
    std::deque<std::size_t> waiting;      // chunks of the I whose W has not come
    Duration first, free, idle;           // idle since its first action
    Bytes held;
  };

  std::size_t last() const { return places_.size() - 1; }
  std::size_t done(std::size_t j, std::size_t pass) const { return places_[j].ends[pass].size(); }
  std::size_t stage(std::size_t j, std::size_t chunk) const { return line_.stage(j, chunk).index(); }
  bool has_room(std::size_t j, Bytes more) const { return places_[j].held + more <= costs_.room[j]; }

  // Whose end the pass waits for: the place before it on the way, if any.
  std::optional<std::size_t> place_before(std::size_t j, std::size_t pass) const {
    if (pass % 2 == 0) return j > 0 ? std::optional(j - 1) : std::nullopt;
    return j < last() ? std::optional(j + 1) : std::nullopt;
  }
  // Has what the next of that pass needs been put?
  bool can_come(std::size_t j, std::size_t pass) const {
    const std::size_t i = done(j, pass);
    if (i == m_) return false;
    if (const auto from = place_before(j, pass)) return done(*from, pass) > i;
    return pass == kForwardDown || done(j, pass - 1) > i;
  }
  // From another place; none where nothing travels.
  std::optional<Duration> arrival(std::size_t j, std::size_t pass) const {
    const auto from = place_before(j, pass);
    if (!from) return std::nullopt;
    const std::size_t to = stage(j, chunk_of(pass));
    return places_[*from].ends[pass].at(done(j, pass)) +
           (is_forward(pass) ? costs_.arrives[to] : costs_.returns[to]);
  }

  bool put(std::size_t j, std::size_t pass) {
    if (!can_come(j, pass)) return false;
    Place& place = places_[j];
    const std::size_t chunk = chunk_of(pass), s = stage(j, chunk);
    if (is_forward(pass) && !has_room(j, costs_.taken[s])) return false;
    const Duration start = std::max(place.free, arrival(j, pass).value_or(Duration()));
    if (place.ends[kForwardDown].empty()) {
      place.first = start;
    } else {
      place.idle += start - place.free;
    }
    place.free = start + (is_forward(pass) ? costs_.forward[s] : costs_.input[s]);
    place.ends[pass].push_back(place.free);
    if (is_forward(pass)) {
      place.held += costs_.taken[s];
    } else {
      place.held -= costs_.freed[s];
      place.waiting.push_back(chunk);
    }
    order_[j].push_back({is_forward(pass) ? ActionKind::kForward : ActionKind::kInputGradient, chunk});
    return true;
  }

  void put_weight(std::size_t j) {
    Place& place = places_[j];
    const std::size_t chunk = place.waiting.front(), s = stage(j, chunk);
    place.waiting.pop_front();
    place.free += costs_.weights[s];
    place.held -= costs_.taken[s] - costs_.freed[s];
    order_[j].push_back({ActionKind::kWeightGradient, chunk});
  }

  // Up to the first I.
  bool begin() {
    for (std::size_t j = 0; j <= last(); ++j) {
      if (!put(j, kForwardDown)) return false;
    }
    for (std::size_t j = last() + 1; j-- > 0;) {
      if (j < last()) {
        const Duration comes = *arrival(j, kForwardUp);
        while (fits_row_of_forwards(j) && places_[j].free + costs_.forward[stage(j, 0)] <= comes) {
          bool all = true;
          for (std::size_t k = 0; k <= j && all; ++k) all = put(k, kForwardDown);
          if (!all) break;
        }
      }
      if (!put(j, kForwardUp)) return false;
    }
    catch_up();
    return true;
  }

  // Later places come as far as those before them, down and up in turn, while memory has room.
  void catch_up() {
    std::size_t pass = kForwardDown;
    for (std::size_t j = 1; j <= last(); ++j) {
      while (forwards(j) < forwards(j - 1) ||
             (done(j, kForwardUp) <= done(j - 1, kForwardUp) && done(j - 1, kForwardUp) < m_)) {
        for (std::size_t k = last() + 1; k-- > j;) {
          if (done(k, pass) < m_ && !put(k, pass)) return;
        }
        pass = pass == kForwardDown ? kForwardUp : kForwardDown;
      }
    }
  }
  std::size_t forwards(std::size_t j) const { return done(j, kForwardDown) + done(j, kForwardUp); }

  // Room for one more forward of this place now, and for those of the places after it that follow from it.
  bool fits_row_of_forwards(std::size_t j) const {
    return done(j, kForwardDown) < m_ &&
           has_room(j, costs_.taken[stage(j, 0)] * static_cast<std::int64_t>(2 + 2 * j));
  }

  // An I and a forward on each place that has one; false if nothing is left, or nothing can come.
  bool put_round() {
    const bool inputs = put_inputs(), forwards = put_forwards();
    return inputs || forwards;
  }

  // One I on each place: first those on their way up, from below, then those on their way down.
  bool put_inputs() {
    std::vector<char> up(places_.size());
    for (std::size_t j = 0; j <= last(); ++j) {
      if (done(j, kInputUp) < done(j, kInputDown)) {
        up[j] = j == last() || done(j + 1, kInputUp) > done(j, kInputUp) || done(j, kInputDown) == m_;
      }
    }
    bool any = false;
    for (std::size_t j = last() + 1; j-- > 0;) any |= up[j] && put_input(j, kInputUp);
    for (std::size_t j = 0; j <= last(); ++j) any |= !up[j] && put_input(j, kInputDown);
    return any;
  }
  bool put_input(std::size_t j, std::size_t pass) {
    if (!can_come(j, pass)) return false;
    fill_before(j, pass, pass == kInputUp || rules_.fill_before_inputs_down);
    return put(j, pass);
  }

  // One forward on each place that has one: on its way up if it has come, else down.
  bool put_forwards() {
    bool any = false;
    for (std::size_t j = 0; j <= last(); ++j) {
      if (done(j, kForwardUp) == m_) continue;
      std::size_t pass = kForwardUp;
      if (done(j, kForwardUp) >= done(j, kForwardDown) || !can_come(j, kForwardUp)) pass = kForwardDown;
      if (!can_come(j, pass)) continue;
      while (!has_room(j, costs_.taken[stage(j, chunk_of(pass))]) && !places_[j].waiting.empty())
        put_weight(j);
      if (!has_room(j, costs_.taken[stage(j, chunk_of(pass))])) continue;
      fill_before(j, pass, rules_.fill_before_forwards);
      any |= put(j, pass);
    }
    return any;
  }

  // W while the next of that pass cannot come.
  void fill_before(std::size_t j, std::size_t pass, bool may_delay) {
    const std::optional<Duration> comes = arrival(j, pass);
    if (!comes) return;
    Place& place = places_[j];
    const auto fits = [&] { return place.free + costs_.weights[stage(j, place.waiting.front())] <= *comes; };
    while (!place.waiting.empty() && fits()) put_weight(j);
    if (may_delay && !place.waiting.empty() && *comes - place.free > allowed(j) - place.idle) put_weight(j);
  }
  Duration allowed(std::size_t j) const {
    return before_.empty() ? most_idle() : std::max(most_idle(), most_before_ - before_[j]);
  }

  const StageLine& line_;
  const LineCosts& costs_;
  const FillVRules rules_;
  const std::vector<Duration> before_;
  const Duration most_before_;
  const std::size_t m_;
  std::vector<Place> places_;
  LineOrder order_;
};

}  // namespace

std::optional<FilledOrder> zero_bubble_v_fill(const StageLine& line, const LineCosts& costs,
                                              const FillVRules& rules) {
  std::optional<FilledOrder> best;
  std::vector<Duration> before;
  std::optional<Duration> least;
  while (true) {
    FillV fill(line, costs, rules, before);
    if (!fill.run() || (least && fill.most_idle() >= *least)) return best;
    least = fill.most_idle();
    before = fill.idle();
    best = fill.take();
  }
}

std::vector<FilledOrder> zero_bubble_v_fills(const StageLine& line, const LineCosts& costs) {
  std::vector<FilledOrder> fills;
  for (const FillVRules rules : {FillVRules{true, true}, {false, true}, {true, false}, {false, false}}) {
    add_new(zero_bubble_v_fill(line, costs, rules), fills);
  }
  return fills;
}

}  // namespace espalier
