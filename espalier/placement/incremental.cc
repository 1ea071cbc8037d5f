#include <utility>

#include "espalier/base/check.h"
#include "espalier/placement/simulation.h"

namespace espalier::placement {

struct Incremental::State {
  const Engine* engine;
  Assignment assignment, looked_at;
  Evaluated evaluated, seen;
  Scratch scratch;
};

Incremental::Incremental(const Engine& engine, Assignment start)
    : state_(std::make_unique<State>(State{&engine, std::move(start), {}, {}, {}, Scratch()})) {
  state_->evaluated = engine.evaluate(state_->assignment, state_->scratch);
  state_->looked_at = state_->assignment;
  state_->seen = state_->evaluated;
}
Incremental::~Incremental() = default;

const Assignment& Incremental::assignment() const {
  return state_->assignment;
}
const Evaluated& Incremental::evaluated() const {
  return state_->evaluated;
}

Evaluated Incremental::look(std::span<const Move> moves, Duration limit) {
  State& s = *state_;
  s.looked_at = s.assignment;
  for (const Move& move : moves) s.looked_at[move.unit.index()] = move.device;
  s.seen = s.engine->evaluate(s.looked_at, s.scratch, limit);
  return s.seen;
}

void Incremental::take() {
  State& s = *state_;
  ESP_CHECK(!s.seen.cut_off);
  s.assignment = s.looked_at;
  s.evaluated = s.seen;
}

}  // namespace espalier::placement
