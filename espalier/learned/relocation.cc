#include "espalier/learned/relocation.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/base/files.h"
#include "espalier/base/json.h"
#include "espalier/base/rng.h"
#include "espalier/learned/best_so_far.h"
#include "espalier/learned/gdp.h"
#include "espalier/learned/order_trial.h"
#include "espalier/learned/pretrained.h"
#include "espalier/learned/relocation_parts.h"
#include "espalier/learned/torch_threads.h"
#include "espalier/planners/placement/search_placer.h"

namespace espalier::placement {
namespace {

constexpr const char* kRelocationFormat = "espalier.relocation/1";

RelocationShape parse_relocation_shape(const std::string& text, const std::string& where) {
  const Json json = parse_json(text, where);
  const JsonCursor cursor(json, where);
  cursor.expect_format(kRelocationFormat);
  cursor.only({"format", "width", "rounds"});
  return {cursor.at("width").integer(1, 4096), cursor.at("rounds").integer(0, 64)};
}

std::vector<float> log_probabilities_of(const RelocationNet& net, const RelocationGraph& graph,
                                        const RelocationEdges& edges, const RelocationView& view) {
  const at::NoGradGuard guard;
  const FewTorchThreads few(graph.nodes);
  const RelocationView* const views[] = {&view};
  const at::Tensor row = net.log_probabilities(edges, RelocationBatch(graph, views)).contiguous();
  return {row.const_data_ptr<float>(), row.const_data_ptr<float>() + row.numel()};
}

bool any_move(const RelocationView& view) {
  return std::find(view.moves.begin(), view.moves.end(), 1) != view.moves.end();
}

// Draws moves without putting them back: the largest of logarithms with Gumbel noise are such a draw (Gumbel,
// Yellott 1977).
class MoveDraws {
 public:
  MoveDraws(std::span<const float> logarithms, std::size_t devices, Rng& rng)
      : logarithms_(logarithms), devices_(devices), rng_(rng) {}

  // So many moves at most, of different nodes, all to the device of the first. `alone`: by move, whether it
  // may be the only one.
  // From probabilities raised to `sharpness`: 0 draws evenly.
  MoveSet draw(std::size_t count, double sharpness, std::span<const char> alone) {
    noisy_.clear();
    for (std::size_t i = 0; i < logarithms_.size(); ++i) {
      const double noise = -std::log(-std::log(std::max(1e-12, rng_.unit())));
      const bool may = std::isfinite(logarithms_[i]) && (count > 1 || alone[i] != 0);
      if (may) noisy_.emplace_back(-(sharpness * static_cast<double>(logarithms_[i]) + noise), i);
    }
    if (noisy_.empty()) return {};
    const std::size_t device = std::min_element(noisy_.begin(), noisy_.end())->second % devices_;
    std::erase_if(noisy_, [&](const auto& entry) { return entry.second % devices_ != device; });
    const auto end = noisy_.begin() + static_cast<std::ptrdiff_t>(std::min(count, noisy_.size()));
    std::partial_sort(noisy_.begin(), end, noisy_.end());
    MoveSet moves;
    for (auto entry = noisy_.begin(); entry != end; ++entry) moves.push_back(entry->second);
    return moves;
  }

 private:
  std::span<const float> logarithms_;
  std::size_t devices_;
  Rng& rng_;
  std::vector<std::pair<double, std::size_t>> noisy_;
};

}  // namespace

RelocationWalk::RelocationWalk(const PlacementTask& task, const RelocationGraph& graph, Assignment start)
    : task_(task), graph_(graph) {
  arrive(std::move(start));
}

void RelocationWalk::arrive(Assignment assignment) {
  assignment_ = std::move(assignment);
  view_ = view_placement(task_, graph_, assignment_);
  score_ = placement::score(task_, view_.evaluated);
}

bool RelocationWalk::can_move() const {
  return any_move(view_);
}

RelocationStep RelocationWalk::step(const RelocationNet& net, const RelocationEdges& edges, std::size_t count,
                                    Rng& rng, ThreadPool* pool,
                                    const std::function<void(const Assignment&, const Evaluated&)>& seen) {
  constexpr std::array<std::size_t, 8> kSizes{1, 1, 1, 1, 2, 2, 4, 8};
  constexpr std::array<double, 4> kSharpness{1, 0.5, 0.25, 0};
  RelocationStep step{view_, score_, {}, {}, {}};
  const std::vector<float> logarithms = log_probabilities_of(net, graph_, edges, view_);
  MoveDraws draws(logarithms, graph_.devices, rng);
  std::vector<Assignment> assignments;
  for (std::size_t i = 0; i < count && can_move(); ++i) {
    MoveSet moves =
        draws.draw(kSizes[rng.below(kSizes.size())], kSharpness[i % kSharpness.size()], view_.moves);
    if (moves.size() == 1) view_.moves[moves.front()] = 0;
    Assignment& next = assignments.emplace_back(assignment_);
    std::vector<double>& logarithm = step.log_probability.emplace_back();
    for (const std::size_t move : moves) {
      logarithm.push_back(logarithms[move]);
      for (const UnitId unit : graph_.units[move / graph_.devices])
        next[unit.index()] = DeviceId(move % graph_.devices);
    }
    step.proposals.push_back(std::move(moves));
  }
  const std::vector<Evaluated> judged = task_.engine().evaluate_all(assignments, pool);
  for (std::size_t i = 0; i < judged.size(); ++i) {
    step.scores.push_back(placement::score(task_, judged[i]));
    seen(assignments[i], judged[i]);
  }
  if (step.scores.empty()) return step;
  const auto best = std::min_element(step.scores.begin(), step.scores.end());
  if (*best <= score_) arrive(std::move(assignments[static_cast<std::size_t>(best - step.scores.begin())]));
  return step;
}

Assignment shaken(const PlacementTask& task, const RelocationGraph& graph, Assignment assignment,
                  double chance, Rng& rng) {
  for (const std::vector<UnitId>& units : graph.units) {
    if (rng.unit() >= chance) continue;
    const auto allowed = task.instance().allowed[units.front().index()];
    const DeviceId device = allowed[rng.below(allowed.size())];
    for (const UnitId unit : units) assignment[unit.index()] = device;
  }
  return assignment;
}

RelocationPolicy::RelocationPolicy(const RelocationShape& shape, std::uint64_t seed)
    : parts_(std::make_unique<Parts>(Parts{RelocationNet(shape, seed)})) {}
RelocationPolicy::RelocationPolicy(RelocationPolicy&&) noexcept = default;
RelocationPolicy& RelocationPolicy::operator=(RelocationPolicy&&) noexcept = default;
RelocationPolicy::~RelocationPolicy() = default;

const RelocationShape& RelocationPolicy::shape() const {
  return parts_->net.shape();
}

std::size_t RelocationPolicy::weights() const {
  std::size_t count = 0;
  for (const auto& [name, weight] : parts_->net.weights()) count += static_cast<std::size_t>(weight.numel());
  return count;
}

RelocationPolicy RelocationPolicy::clone() const {
  RelocationPolicy other(shape(), 0);
  const at::NoGradGuard guard;
  const NamedTensors &from = parts_->net.weights(), &to = other.parts_->net.weights();
  for (std::size_t i = 0; i < from.size(); ++i) to[i].second.copy_(from[i].second);
  return other;
}

RelocationPolicy RelocationPolicy::read(const std::string& path) {
  return parse(read_file(path), path);
}

RelocationPolicy RelocationPolicy::parse(std::string_view bytes, const std::string& name) {
  const SafetensorsReader file(bytes, name);
  for (const auto& [key, value] : file.metadata()) {
    if (key != "relocation") continue;
    const RelocationShape shape = parse_relocation_shape(value, name + ": relocation");
    // Before a net of that size is made: the file must hold its weights.
    const double least =
        4.0 * static_cast<double>(shape.width * shape.width) * static_cast<double>(5 * shape.rounds + 3);
    if (least > static_cast<double>(bytes.size()))
      throw InputError(name + ": is too short for the net that it describes; expected a whole policy file");
    RelocationPolicy policy(shape, 0);
    read_tensors(file, name, policy.parts_->net.weights());
    return policy;
  }
  throw InputError(name + ": has no metadata 'relocation'; expected a file of a relocation policy");
}

void RelocationPolicy::write(const std::string& path) const {
  const Json json = {{"format", kRelocationFormat}, {"width", shape().width}, {"rounds", shape().rounds}};
  write_tensors(path, parts_->net.weights(), {{"relocation", json.dump()}});
}

std::vector<float> RelocationPolicy::probabilities(const RelocationGraph& graph,
                                                   const RelocationView& view) const {
  if (!any_move(view)) return std::vector<float>(graph.nodes * graph.devices);
  std::vector<float> row = log_probabilities_of(parts_->net, graph, RelocationEdges(graph), view);
  for (float& logarithm : row) logarithm = std::exp(logarithm);
  return row;
}

namespace {

// An answer in the making: walks from the best so far, and from near it where steps no longer help.
class Relocation {
 public:
  Relocation(const PlacementTask& task, const RelocationNet& net, std::size_t proposals, std::uint64_t seed)
      : task_(task),
        graph_(make_relocation_graph(task)),
        edges_(graph_),
        net_(net),
        proposals_(proposals),
        rng_(stream_key(seed, {9})) {}

  // Judges the starts, a state each, and stands at the best.
  void begin(const std::vector<Assignment>& starts, Context& context) {
    context.take_states(starts.size());  // they are worth having where they are not left, too
    const std::vector<Evaluated> judged = task_.engine().evaluate_all(starts, context.pool);
    std::size_t first = 0;
    for (std::size_t i = 0; i < starts.size(); ++i) {
      best_.see({{}, starts[i], judged[i], {}});
      if (score(task_, judged[i]) < score(task_, judged[first])) first = i;
    }
    walk_.emplace(task_, graph_, starts[first]);
    any_move_ = walk_->can_move();
    keep();
  }

  // False: the budget is spent, or there is nothing to move.
  bool step(Context& context) {
    constexpr std::uint64_t kPatience = 12;  // steps
    constexpr double kShaken = 0.02;
    if (context.stop() || !any_move_) return false;
    if (in_vain_ == kPatience || !walk_->can_move()) {
      if (!context.take_state()) return false;
      walk_.emplace(task_, graph_, shaken(task_, graph_, nearest_, kShaken, rng_));
      best_.see({{}, walk_->assignment(), walk_->view().evaluated, {}});
      in_vain_ = 0;
    }
    const std::size_t count = std::min<std::uint64_t>(proposals_, context.left());
    if (count == 0 || !context.take_states(count)) return false;
    walk_->step(net_, edges_, count, rng_, context.pool,
                [&](const Assignment& assignment, const Evaluated& evaluated) {
                  best_.see({{}, assignment, evaluated, {}});
                });
    ++in_vain_;
    if (walk_->score() < least_) keep();
    return true;
  }

  Placed answer(Context& context) const { return best_.answer(task_, context); }

 private:
  void keep() {
    nearest_ = walk_->assignment();
    least_ = walk_->score();
    in_vain_ = 0;
  }

  const PlacementTask& task_;
  const RelocationGraph graph_;
  const RelocationEdges edges_;
  const RelocationNet& net_;
  std::size_t proposals_;
  Rng rng_;
  BestSoFar best_;
  std::optional<RelocationWalk> walk_;
  Assignment nearest_;  // of the least score
  double least_ = 0;
  bool any_move_ = false;
  std::uint64_t in_vain_ = 0;  // steps since the last better one
};

}  // namespace

Placed relocate(const PlacerInput& input, const RelocationOptions& options, Context& context) {
  ESP_CHECK(options.proposals > 0);
  const std::uint64_t states = context.states;
  std::optional<RelocationPolicy> along;
  if (!options.policy) along.emplace(pretrained_relocation());
  const RelocationPolicy& policy = options.policy ? *options.policy : *along;
  std::vector<Assignment> starts = options.starts;
  if (starts.empty()) starts = placer_starts(input, options.task.rules, context);
  if (starts.empty()) starts.emplace_back(input.instance.units(), DeviceId(0));
  TaskOptions how = task_options(input, options.task);
  if (how.tries_orders) how.priority = better_order(input.instance, how.rules, starts, context);
  const PlacementTask task(input.graph, input.instance, how);
  Relocation relocation(task, policy.parts().net, options.proposals, input.seed);
  relocation.begin(starts, context);
  for (std::uint64_t step = 0; options.steps == 0 || step < options.steps; ++step) {
    if (!relocation.step(context)) break;
    if (options.steps > 0) context.report(static_cast<double>(step + 1) / static_cast<double>(options.steps));
  }
  Placed placed = relocation.answer(context);
  placed.stats = {context.states - states, context.states - states};
  return placed;
}

}  // namespace espalier::placement
