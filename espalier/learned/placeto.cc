#include "espalier/learned/placeto.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/base/rng.h"
#include "espalier/learned/placement_task.h"
#include "espalier/learned/placeto_graph.h"
#include "espalier/learned/placeto_net.h"
#include "espalier/learned/torch_threads.h"
#include "espalier/planners/placement/list_state.h"

namespace espalier::placement {
namespace {

constexpr std::array<std::string_view, 3> kEmbeddingNames{"message-passing", "graphsage", "p-gnn"};
constexpr std::size_t kRowsAtOnce = 1 << 12;  // states × nodes of one pass back through the net

at::Tensor finite_log_softmax(const at::Tensor& logits) {
  const at::Tensor all = at::log_softmax(logits, 1);
  return at::where(at::isfinite(all), all, at::zeros_like(all));
}

// Where an episode stands.
struct Standing {
  Assignment assignment;
  NodeDevices of_node;
  Timeline line;
  double cost = 0;  // ln of the step, or of the price of what does not fit
};

// What an episode leaves to learn from, one entry for each step.
struct Episode {
  std::vector<float> features;
  std::vector<std::uint32_t> node, device;
  std::vector<double> reward;
  std::size_t steps = 0;
  double gain = 0;
  double entropy = 0;       // sum over steps with a choice, each over its largest
  std::size_t choices = 0;  // such steps
  double mean_entropy() const { return choices > 0 ? entropy / static_cast<double>(choices) : 1; }
};

class PlacetoLearner {
 public:
  PlacetoLearner(const PlacerInput& input, const Engine& engine, const PlacetoOptions& options)
      : input_(input),
        engine_(engine),
        options_(options),
        memory_(all_memory(engine.instance())),
        graph_(make_placeto_graph(input.graph, engine.instance(), options.most_nodes)),
        net_(graph_, options.embedding, options.rounds, stream_key(input.seed, {21})),
        adam_(net_.weights()) {}

  void run(Context& context);
  Placed answer() const;

 private:
  const Instance& instance() const { return engine_.instance(); }
  // The share of the learning episodes that are done, for settings that change along the way.
  double part_done() const {
    const std::uint64_t every = options_.evaluate_every;
    const std::uint64_t learning = episodes_ - (every > 0 ? episodes_ / every : 0);
    return learning < 2 ? 0 : static_cast<double>(learnt_) / static_cast<double>(learning - 1);
  }
  bool evaluates(std::uint64_t episode) const {
    return options_.evaluate_every > 0 && (episode + 1) % options_.evaluate_every == 0;
  }

  Standing standing(NodeDevices of_node) const;
  void see(const Standing& at);
  std::vector<std::uint32_t> order_of(std::uint64_t episode) const;
  Episode play(std::uint64_t number, Context& context);
  std::vector<float> probabilities(const std::vector<float>& rows, std::uint32_t node) const;
  void note_choice(std::uint32_t node, const std::vector<float>& row, Episode& episode) const;
  std::vector<double> advantages(const Episode& episode);
  void learn(const Episode& episode);
  at::Tensor loss_of(const Episode& episode, std::size_t begin, std::size_t end,
                     const std::vector<double>& advantage, double entropy_weight) const;

  const PlacerInput& input_;
  const Engine& engine_;
  const PlacetoOptions& options_;
  Bytes memory_;  // of all devices
  PlacetoGraph graph_;
  PlacetoNet net_;
  Adam adam_;
  std::optional<Standing> best_, nearest_;  // that fits; of least cost
  std::vector<double> mean_return_;         // by step
  std::uint64_t episodes_ = 0, learnt_ = 0;
};

Standing PlacetoLearner::standing(NodeDevices of_node) const {
  Standing made;
  made.assignment = assignment_of_clusters(graph_.clusters, of_node);
  made.of_node = std::move(of_node);
  made.line = timeline(engine_, made.assignment);
  const Evaluated& evaluated = made.line.evaluated;
  made.cost = std::log(static_cast<double>(std::max(evaluated.time, nanoseconds(1)).count()));
  if (!evaluated.fits) made.cost += std::log(graded_price(evaluated, memory_));
  return made;
}

void PlacetoLearner::see(const Standing& at) {
  if (at.line.evaluated.fits && (!best_ || at.line.evaluated.time < best_->line.evaluated.time)) best_ = at;
  if (!best_ && (!nearest_ || at.cost < nearest_->cost)) nearest_ = at;
}

// A node stands where the order meets its first unit.
std::vector<std::uint32_t> PlacetoLearner::order_of(std::uint64_t episode) const {
  const std::vector<OperatorId> operators =
      traversal_order(input_.graph, input_.order, {.seed = input_.seed, .episode = episode});
  std::vector<std::uint32_t> nodes;
  std::vector<char> met(graph_.nodes);
  for (const UnitId unit : units_in_order(instance(), operators)) {
    const std::uint32_t node = graph_.clusters.of_unit[unit.index()];
    if (met[node] == 0) nodes.push_back(node);
    met[node] = 1;
  }
  return nodes;
}

std::vector<float> PlacetoLearner::probabilities(const std::vector<float>& rows, std::uint32_t node) const {
  const at::NoGradGuard guard;
  const auto nodes = static_cast<std::int64_t>(graph_.nodes);
  const at::Tensor features = at::from_blob(
      const_cast<float*>(rows.data()), {1, nodes, static_cast<std::int64_t>(graph_.features())}, at::kFloat);
  const at::Tensor row =
      at::softmax(net_.logits(features, at::full({1}, static_cast<std::int64_t>(node), at::kLong)), 1)
          .contiguous();
  return {row.const_data_ptr<float>(), row.const_data_ptr<float>() + row.numel()};
}

void PlacetoLearner::note_choice(std::uint32_t node, const std::vector<float>& row, Episode& episode) const {
  const auto bars = graph_.allowed.begin() + static_cast<std::ptrdiff_t>(node * graph_.devices);
  const auto possible = std::count(bars, bars + static_cast<std::ptrdiff_t>(graph_.devices), 1);
  if (possible < 2) return;
  double sum = 0;
  for (const float chance : row) {
    if (chance > 0) sum -= static_cast<double>(chance) * std::log(static_cast<double>(chance));
  }
  episode.entropy += sum / std::log(static_cast<double>(possible));
  ++episode.choices;
}

// Ends early where the context has no more states or wants the end.
Episode PlacetoLearner::play(std::uint64_t number, Context& context) {
  const bool evaluation = evaluates(number);
  Episode episode;
  Rng rng(stream_key(input_.seed, {22, number}));
  Standing at = best_ ? *best_ : *nearest_;
  std::vector<char> placed(graph_.nodes);
  std::vector<float> rows;
  if (number > 0 && !context.take_state()) return episode;
  for (const std::uint32_t node : order_of(number)) {
    if (context.stop() || !context.take_state()) break;
    ++episode.steps;
    rows.clear();
    append_features(graph_, at.line.start, at.of_node, placed, node, rows);
    const std::vector<float> row = probabilities(rows, node);
    note_choice(node, row, episode);
    const std::size_t device =
        evaluation ? static_cast<std::size_t>(std::max_element(row.begin(), row.end()) - row.begin())
                   : drawn_entry(row, rng.unit());
    const double before = at.cost;
    if (at.of_node[node].index() != device) {
      NodeDevices moved = at.of_node;
      moved[node] = DeviceId(device);
      at = standing(std::move(moved));
      if (!evaluation) see(at);
    }
    placed[node] = 1;
    const double faster = before - at.cost;
    episode.gain += faster;
    if (evaluation) continue;
    episode.features.insert(episode.features.end(), rows.begin(), rows.end());
    episode.node.push_back(node);
    episode.device.push_back(static_cast<std::uint32_t>(device));
    episode.reward.push_back(options_.reward == PlacetoReward::kFaster ? faster : -faster);
  }
  return episode;
}

// Returns less their mean over earlier episodes at the same place; of the first episode as they are, since
// less themselves they would teach nothing. All episodes but the last are whole.
std::vector<double> PlacetoLearner::advantages(const Episode& episode) {
  std::vector<double> advantage(episode.reward.size());
  mean_return_.resize(std::max(mean_return_.size(), advantage.size()));
  double later = 0;
  for (std::size_t t = advantage.size(); t-- > 0;) {
    later = episode.reward[t] + options_.discount * later;
    advantage[t] = later - mean_return_[t];
    mean_return_[t] += advantage[t] / static_cast<double>(learnt_ + 1);
  }
  return advantage;
}

at::Tensor PlacetoLearner::loss_of(const Episode& episode, std::size_t begin, std::size_t end,
                                   const std::vector<double>& advantage, double entropy_weight) const {
  const auto count = static_cast<std::int64_t>(end - begin);
  const auto nodes = static_cast<std::int64_t>(graph_.nodes);
  const std::size_t row = graph_.nodes * graph_.features();
  const at::Tensor features =
      at::from_blob(const_cast<float*>(episode.features.data() + begin * row),
                    {count, nodes, static_cast<std::int64_t>(graph_.features())}, at::kFloat);
  std::vector<std::int64_t> current, chosen;
  std::vector<float> worth;
  for (std::size_t t = begin; t < end; ++t) {
    current.push_back(episode.node[t]);
    chosen.push_back(episode.device[t]);
    worth.push_back(static_cast<float>(advantage[t]));
  }
  const at::Tensor logits = net_.logits(features, at::from_blob(current.data(), {count}, at::kLong).clone());
  const at::Tensor all = finite_log_softmax(logits);
  const at::Tensor taken =
      all.gather(1, at::from_blob(chosen.data(), {count}, at::kLong).clone().unsqueeze(1)).squeeze(1);
  const at::Tensor gain = (at::from_blob(worth.data(), {count}, at::kFloat).clone() * taken).sum();
  const at::Tensor entropy = -(at::softmax(logits, 1) * all).sum();
  return -(gain + entropy_weight * entropy) / static_cast<double>(episode.node.size());
}

void PlacetoLearner::learn(const Episode& episode) {
  const std::vector<double> advantage = advantages(episode);
  const double part = std::min(1.0, part_done());
  const double rate =
      options_.learning_rate * std::pow(options_.last_learning_rate / options_.learning_rate, part);
  const double entropy_weight = options_.entropy + (options_.last_entropy - options_.entropy) * part;
  const std::size_t at_once = std::max<std::size_t>(1, kRowsAtOnce / graph_.nodes);
  GradientSum gradients(net_.weights());
  for (std::size_t begin = 0; begin < episode.node.size(); begin += at_once) {
    const std::size_t end = std::min(begin + at_once, episode.node.size());
    gradients.add(loss_of(episode, begin, end, advantage, entropy_weight));
  }
  adam_.step(gradients, rate, options_.most_norm);
  ++learnt_;
}

void PlacetoLearner::run(Context& context) {
  episodes_ =
      options_.episodes > 0 ? options_.episodes : (context.left() + graph_.nodes) / (graph_.nodes + 1);
  if (!context.take_state()) return;
  NodeDevices first;
  for (std::size_t n = 0; n < graph_.nodes; ++n) {
    const auto row = graph_.allowed.begin() + static_cast<std::ptrdiff_t>(n * graph_.devices);
    first.emplace_back(std::find(row, row + static_cast<std::ptrdiff_t>(graph_.devices), 1) - row);
  }
  see(standing(std::move(first)));
  for (std::uint64_t number = 0; number < episodes_; ++number) {
    const Episode episode = play(number, context);
    if (context.stop() || episode.steps == 0) return;
    if (!episode.node.empty()) learn(episode);
    if (options_.told) {
      options_.told({number + 1, context.states, best_ ? best_->line.evaluated.time : Duration(),
                     episode.mean_entropy(), episode.gain, evaluates(number)});
    }
    context.report(static_cast<double>(number + 1) / static_cast<double>(episodes_));
    if (context.budget_spent) return;
  }
}

Placed PlacetoLearner::answer() const {
  if (best_) return {.assignment = best_->assignment, .estimate = best_->line.evaluated.time};
  if (!nearest_) return {.why = "the budget has no state for a placement, expected one at least"};
  Placed placed = placed_by(instance(), nearest_->assignment);
  Scratch scratch;
  if (placed.assignment) placed.estimate = engine_.evaluate(*placed.assignment, scratch).time;
  return placed;
}

Placed place_by_learning(const PlacerInput& input, const Engine& engine, const PlacetoOptions& options,
                         Context& context) {
  ESP_CHECK(options.most_nodes > 0 && engine.rules().order != Rules::Order::kListed, options.most_nodes);
  const std::uint64_t states = context.states;
  const FewTorchThreads few(0);
  PlacetoLearner learner(input, engine, options);
  learner.run(context);
  Placed placed = learner.answer();
  placed.stats = {context.states - states, context.states - states};
  return placed;
}

}  // namespace

std::string_view to_text(PlacetoEmbedding embedding) {
  return kEmbeddingNames[static_cast<std::size_t>(embedding)];
}

std::optional<PlacetoEmbedding> parse_placeto_embedding(std::string_view text) {
  for (std::size_t i = 0; i < kEmbeddingNames.size(); ++i) {
    if (kEmbeddingNames[i] == text) return static_cast<PlacetoEmbedding>(i);
  }
  return std::nullopt;
}

PlacetoOptions literature_placeto() {
  PlacetoOptions options;
  options.evaluate_every = 5;
  options.discount = 1;
  options.entropy = options.last_entropy = 1;
  options.learning_rate = options.last_learning_rate = 1e-3;
  return options;
}

std::optional<PlacetoOptions> placeto_by_name(std::string_view name) {
  if (name == "placeto-literature") return literature_placeto();
  if (name == "placeto-flipped") {
    PlacetoOptions options = literature_placeto();
    options.reward = PlacetoReward::kSlower;
    return options;
  }
  if (name == "placeto") return PlacetoOptions();
  constexpr std::string_view kPrefix = "placeto-";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const auto embedding = parse_placeto_embedding(name.substr(kPrefix.size()));
  if (!embedding) return std::nullopt;
  PlacetoOptions options;
  options.embedding = *embedding;
  return options;
}

Placed placeto(const PlacerInput& input, const PlacetoOptions& options, Context& context) {
  return place_by_learning(input, Engine(input.instance, options.rules), options, context);
}

Placed placeto_in_order(const Graph& graph, const Engine& engine, const PlacetoOptions& options,
                        const OrderedOptions& ordered, Context& context) {
  PlacetoOptions how = options;
  how.episodes = 0;
  Context own = context;
  own.states = 0;
  own.budget.max_states = std::min(ordered.looks, context.left());
  Placed placed = place_by_learning(
      {.graph = graph, .instance = engine.instance(), .order = ordered.order, .seed = ordered.seed}, engine,
      how, own);
  context.states += own.states;
  return placed;
}

}  // namespace espalier::placement
