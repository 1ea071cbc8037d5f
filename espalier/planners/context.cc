#include "espalier/planners/context.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace espalier {

std::optional<double> SearchProgress::gap() const {
  if (!best || !bound || bound->count() <= 0) return std::nullopt;
  return static_cast<double>(best->count()) / static_cast<double>(bound->count()) - 1;
}

struct SearchWatch::State {
  const Listener listener;
  std::mutex mutex;  // guards what follows, and is held while the listener listens
  std::optional<Duration> bound;
  std::map<std::string, double, std::less<>> done;  // by planner: weight × fraction
  std::string speaker;
  std::optional<Duration> best;
  SearchStats stats;

  void tell() {
    if (!listener) return;
    SearchProgress progress{0, speaker, best, bound, stats};
    for (const auto& [planner, part] : done) progress.fraction += part;
    progress.fraction = std::min(progress.fraction, 1.0);
    listener(progress);
  }
};

SearchWatch::SearchWatch(Listener listener)
    : state_(new State{std::move(listener), {}, {}, {}, {}, {}, {}}) {}
SearchWatch::~SearchWatch() = default;

void SearchWatch::bounded(Duration bound) {
  const std::lock_guard lock(state_->mutex);
  state_->bound = bound;
  if (!state_->speaker.empty()) state_->tell();
}

void SearchWatch::speak(std::string_view planner, double weight, double fraction) {
  const std::lock_guard lock(state_->mutex);
  state_->speaker = planner;
  state_->done[state_->speaker] = weight * fraction;
  state_->tell();
}

void SearchWatch::found(Duration iteration) {
  const std::lock_guard lock(state_->mutex);
  if (state_->best && *state_->best <= iteration) return;
  state_->best = iteration;
  state_->tell();
}

void SearchWatch::count(const SearchStats& more) {
  const std::lock_guard lock(state_->mutex);
  constexpr std::uint64_t kOften = 256;
  const std::uint64_t before = state_->stats.evaluations / kOften;
  state_->stats += more;
  if (more.states > 0 || state_->stats.evaluations / kOften > before) state_->tell();
}

std::vector<Context> Context::parts(std::size_t count) const {
  const std::uint64_t all = left();
  std::vector<Context> parts(count, *this);
  for (std::size_t i = 0; i < count; ++i) {
    parts[i].budget.max_states = all / count + (i < all % count ? 1 : 0);
    parts[i].states = 0;
    parts[i].budget_spent = false;
  }
  return parts;
}

void Context::for_each(std::size_t count, const std::function<void(std::size_t, Context&)>& f) {
  std::vector<Context> own = parts(count);
  on_threads(pool, count, [&](std::size_t i) {
    if (!stop()) f(i, own[i]);
  });
  for (const Context& part : own) {
    states += part.states;
    budget_spent = budget_spent || part.budget_spent;
  }
}

}  // namespace espalier
