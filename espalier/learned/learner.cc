#include "espalier/learned/learner.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "espalier/base/check.h"
#include "espalier/base/files.h"
#include "espalier/base/json.h"
#include "espalier/base/rng.h"
#include "espalier/learned/policy_parts.h"
#include "espalier/learned/torch_threads.h"

namespace espalier::placement {
namespace {

constexpr const char* kLearnerFormat = "espalier.learner/1";

// GDP's reward: -√seconds of the step, -10 where it does not fit.
double published_reward(const Evaluated& evaluated) {
  return evaluated.fits ? -std::sqrt(to_seconds(evaluated.time)) : -10;
}

// What an update needs of its rollouts: by node and entry of a head the advantages of those that chose it.
struct Choices {
  at::Tensor gained, lost;  // [nodes, entries]: sums of positive and of negative advantages
};

// `chosen`: by rollout, an entry for each node; empty: it chose none.
Choices choices_of(std::span<const std::vector<std::int64_t>> chosen, std::span<const double> advantage,
                   const at::Tensor& like) {
  const auto nodes = static_cast<std::size_t>(like.size(0)), entries = static_cast<std::size_t>(like.size(1));
  std::vector<float> gained(nodes * entries), lost(nodes * entries);
  const double share = 1 / static_cast<double>(chosen.size() * nodes);
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    if (chosen[i].empty()) continue;
    std::vector<float>& sums = advantage[i] > 0 ? gained : lost;
    const auto each = static_cast<float>(advantage[i] * share);
    for (std::size_t n = 0; n < nodes; ++n)
      sums[n * entries + static_cast<std::size_t>(chosen[i][n])] += each;
  }
  return {at::from_blob(gained.data(), like.sizes(), at::kFloat).clone().to(like.device()),
          at::from_blob(lost.data(), like.sizes(), at::kFloat).clone().to(like.device())};
}

// What PPO maximises, for one head.
at::Tensor clipped_gain(const Choices& choices, const at::Tensor& now, const at::Tensor& old, double clip) {
  const at::Tensor chance = at::exp(now - old);
  return (choices.gained * at::clamp_max(chance, 1 + clip) + choices.lost * at::clamp_min(chance, 1 - clip))
      .sum();
}

// Zero where a device is barred: its probability is 0 and its logarithm -inf, which no gradient may meet.
at::Tensor log_probabilities(const at::Tensor& logits) {
  const at::Tensor all = at::log_softmax(logits, 1);
  return at::where(at::isfinite(all), all, at::zeros_like(all));
}

at::Tensor entropy_of(const at::Tensor& log_probability, const at::Tensor& logits) {
  return -(at::softmax(logits, 1) * log_probability).sum(1).mean();
}

std::vector<std::int64_t> indices(const NodeDevices& devices) {
  std::vector<std::int64_t> result;
  for (const DeviceId device : devices) result.push_back(static_cast<std::int64_t>(device.index()));
  return result;
}

std::vector<float> rows_of(const at::Tensor& logits) {
  const at::Tensor rows = at::softmax(logits, 1).to(at::kCPU).contiguous();
  return {rows.const_data_ptr<float>(), rows.const_data_ptr<float>() + rows.numel()};
}

// One head and what the rollouts chose of it.
struct Head {
  at::Tensor HeadLogits::*logits;
  at::Tensor old;  // log probabilities that the rollouts were drawn from
  Choices choices;
};

}  // namespace

LearningOptions published_learning() {
  LearningOptions options;
  options.learning_rate = options.last_learning_rate = 1e-3;
  options.entropy = 0.01;
  options.advantage = Advantage::kRunningMean;
  options.invalid = InvalidPrice::kConstant;
  return options;
}

struct Learner::State {
  State(Policy& learning, std::vector<const PlacementTask*> of, const LearningOptions& with)
      : policy(learning), tasks(std::move(of)), options(with), adam(made_weights()), progress(tasks.size()) {}
  ~State() {
    for (const PlacementTask* task : tasks) policy.parts().forget(task->input());
    policy.parts().with_tables = false;
  }

  // A table's weights exist once it was asked for each task.
  NamedTensors made_weights() {
    policy.parts().with_tables = options.tables;
    for (const PlacementTask* task : tasks) policy.parts().logits(task->input());
    return policy.parts().weights();
  }

  at::Tensor logits(std::size_t task) { return policy.parts().logits(tasks[task]->input()); }
  HeadLogits heads(std::size_t task) { return policy.parts().heads(tasks[task]->input()); }
  at::Device device() const {
    return policy.parts().net ? policy.parts().net->device() : at::Device(at::kCPU);
  }

  // The task of an update: each once a round, in an order drawn for the round.
  std::size_t turn(std::uint64_t update, std::uint64_t stream) const {
    std::vector<std::size_t> order(tasks.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    Rng rng(stream_key(options.seed, {stream, update / tasks.size()}));
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng.below(i)]);
    return order[update % tasks.size()];
  }

  double done() const {
    return std::min(1.0, static_cast<double>(updates) / std::max(1.0, static_cast<double>(options.updates)));
  }

  std::vector<double> advantages(std::size_t task, std::span<const Sample> samples) {
    std::vector<double> values;
    TaskProgress& own = progress[task];
    for (const Sample& sample : samples) {
      values.push_back(options.advantage == Advantage::kRunningMean
                           ? published_reward(sample.evaluated)
                           : score(*tasks[task], sample.evaluated, options.invalid));
    }
    if (options.advantage == Advantage::kRank) return rank_advantages(values);
    const auto count = static_cast<double>(values.size());
    const double sum = std::accumulate(values.begin(), values.end(), 0.0);
    if (options.advantage == Advantage::kRunningMean) {
      const double earlier = own.calls > values.size()
                                 ? own.reward_sum / static_cast<double>(own.calls - values.size())
                                 : sum / count;
      own.reward_sum += sum;
      for (double& value : values) value -= earlier;
      return values;
    }
    double squares = 0;
    for (const double value : values) squares += (value - sum / count) * (value - sum / count);
    const double deviation = std::sqrt(squares / count) + 1e-9;
    for (double& value : values) value = (sum / count - value) / deviation;
    return values;
  }

  void keep_best(std::size_t task, const Sample& sample) {
    std::optional<Sample>& best = progress[task].best;
    if (sample.evaluated.fits && (!best || sample.evaluated.time < best->evaluated.time)) best = sample;
  }

  // `old`: what the rollouts were drawn from.
  std::vector<Head> heads_of(std::span<const Sample> samples, std::span<const double> advantage,
                             const HeadLogits& old) const {
    std::vector<std::vector<std::int64_t>> devices, levels;
    for (const Sample& sample : samples) {
      devices.push_back(indices(sample.devices));
      levels.emplace_back(sample.levels.begin(), sample.levels.end());
    }
    std::vector<Head> heads;
    heads.push_back(
        {&HeadLogits::devices, log_probabilities(old.devices), choices_of(devices, advantage, old.devices)});
    if (old.levels.defined()) {
      heads.push_back(
          {&HeadLogits::levels, log_probabilities(old.levels), choices_of(levels, advantage, old.levels)});
    }
    return heads;
  }

  void learn_from(std::size_t task, const std::vector<Head>& of_rollouts) {
    const double part = done();
    const double rate =
        options.learning_rate * std::pow(options.last_learning_rate / options.learning_rate, part);
    const double entropy_weight = options.entropy * (1 - part);
    for (std::size_t epoch = 0; epoch < options.epochs; ++epoch) {
      const HeadLogits raw = heads(task);
      at::Tensor loss;
      for (const Head& head : of_rollouts) {
        const at::Tensor now = log_probabilities(raw.*head.logits);
        at::Tensor own = -clipped_gain(head.choices, now, head.old, options.clip);
        if (entropy_weight > 0) own = own - entropy_weight * entropy_of(now, raw.*head.logits);
        loss = loss.defined() ? loss + own : own;
      }
      adam.step(loss, rate, options.most_norm);
    }
  }

  // Placements as the heads have it, judged.
  std::vector<Sample> rollouts(std::size_t task, const HeadLogits& drawn_from, ThreadPool* pool) const {
    std::vector<NodeDevices> devices = draw(rows_of(drawn_from.devices), tasks[task]->input().devices,
                                            options.rollouts, stream_key(options.seed, {2, updates}));
    std::vector<NodeLevels> levels(options.rollouts);
    if (drawn_from.levels.defined()) {
      levels = draw_levels(rows_of(drawn_from.levels), static_cast<std::size_t>(drawn_from.levels.size(1)),
                           options.rollouts, stream_key(options.seed, {4, updates}));
    }
    return judge(*tasks[task], std::move(devices), std::move(levels), options.repairs, pool);
  }

  Policy& policy;
  std::vector<const PlacementTask*> tasks;
  LearningOptions options;
  Adam adam;
  std::vector<TaskProgress> progress;
  std::uint64_t updates = 0, imitated = 0;
};

Learner::Learner(Policy& policy, std::vector<const PlacementTask*> tasks, const LearningOptions& options)
    : state_(std::make_unique<State>(policy, std::move(tasks), options)) {
  ESP_CHECK(!state_->tasks.empty() && options.rollouts > 0);
}
Learner::~Learner() = default;

bool Learner::update(Context& context) {
  State& state = *state_;
  if (context.stop() || !context.take_states(state.options.rollouts)) return false;
  const std::size_t turn = state.turn(state.updates, 1);
  const PlacementTask& task = *state.tasks[turn];
  const FewTorchThreads few(task.input().nodes);
  HeadLogits old;
  {
    at::NoGradGuard guard;
    old = state.heads(turn);
  }
  std::vector<Sample> samples = state.rollouts(turn, old, context.pool);
  TaskProgress& own = state.progress[turn];
  own.calls += samples.size();
  LearningPoint point{state.updates + 1, own.calls};
  for (const Sample& sample : samples) {
    state.keep_best(turn, sample);
    point.mean += score(task, sample.evaluated) / static_cast<double>(samples.size());
    point.valid += (sample.evaluated.fits ? 1.0 : 0.0) / static_cast<double>(samples.size());
  }
  if (own.best) point.best = score(task, own.best->evaluated);
  own.curve.push_back(point);
  if (state.options.repeat_best && own.best) samples.push_back(*own.best);
  state.learn_from(turn, state.heads_of(samples, state.advantages(turn, samples), old));
  ++state.updates;
  return true;
}

void Learner::imitate(const std::vector<NodeDevices>& targets, std::uint64_t steps, double confidence,
                      double learning_rate) {
  State& state = *state_;
  ESP_CHECK(targets.size() == state.tasks.size(), targets.size(), state.tasks.size());
  for (std::uint64_t step = 0; step < steps; ++step) {
    const std::size_t turn = state.turn(state.imitated++, 3);
    const PlacementTask& task = *state.tasks[turn];
    const FewTorchThreads few(task.input().nodes);
    std::vector<std::int64_t> wanted = indices(targets[turn]);
    const at::Tensor target =
        at::from_blob(wanted.data(), {static_cast<std::int64_t>(wanted.size())}, at::kLong)
            .clone()
            .to(state.device());
    const at::Tensor now = log_probabilities(state.logits(turn));
    const auto devices = static_cast<double>(task.input().devices);
    const double rest = devices > 1 ? (1 - confidence) / (devices - 1) : 0;
    const at::Tensor chosen = now.gather(1, target.unsqueeze(1)).squeeze(1);
    // Nodes count by their work, and each a little: a wrong large one costs most.
    const at::Tensor weight = state.policy.parts().weight_of(task.input());
    const at::Tensor loss = -((chosen * (confidence - rest) + now.sum(1) * rest) * weight).sum();
    state.adam.step(loss, learning_rate, state.options.most_norm);
  }
}

void Learner::know(std::size_t task, const Sample& sample) {
  state_->keep_best(task, sample);
}

std::uint64_t Learner::updates() const {
  return state_->updates;
}

std::size_t Learner::next_task() const {
  return state_->turn(state_->updates, 1);
}

std::uint64_t Learner::imitated() const {
  return state_->imitated;
}

const TaskProgress& Learner::progress(std::size_t task) const {
  return state_->progress[task];
}

void Learner::save(const std::string& path) const {
  const State& state = *state_;
  Json tasks = Json::array();
  for (const TaskProgress& own : state.progress) {
    Json curve = Json::array();
    for (const LearningPoint& point : own.curve)
      curve.push_back({point.update, point.calls, point.best, point.mean, point.valid});
    Json best;
    if (own.best) {
      best = {{"time", own.best->evaluated.time.count()},
              {"devices", indices(own.best->devices)},
              {"units", indices(own.best->assignment)}};
      if (!own.best->levels.empty()) best["levels"] = own.best->levels;
    }
    tasks.push_back({{"calls", own.calls}, {"reward_sum", own.reward_sum}, {"best", best}, {"curve", curve}});
  }
  const Json learner = {{"format", kLearnerFormat},         {"seed", state.options.seed},
                        {"updates", state.updates},         {"imitated", state.imitated},
                        {"adam_steps", state.adam.steps()}, {"tasks", tasks}};
  NamedTensors tensors = state.policy.parts().weights();
  const NamedTensors moments = state.adam.state();
  tensors.insert(tensors.end(), moments.begin(), moments.end());
  write_tensors(path, tensors, {{"learner", learner.dump()}});
}

namespace {

constexpr std::int64_t kMost = std::int64_t{1} << 62;
constexpr double kAny = 1e300;

std::vector<LearningPoint> parse_curve(const JsonCursor& json) {
  std::vector<LearningPoint> curve;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const JsonCursor row = json.at(i);
    curve.push_back({static_cast<std::uint64_t>(row.at(0).integer(0, kMost)),
                     static_cast<std::uint64_t>(row.at(1).integer(0, kMost)), row.at(2).number(0, kAny),
                     row.at(3).number(0, kAny), row.at(4).number(0, 1)});
  }
  return curve;
}

NodeLevels parse_levels(const JsonCursor& json, std::size_t nodes) {
  if (json.size() != nodes) json.fail("expected " + std::to_string(nodes) + " levels: another graph's");
  NodeLevels levels;
  for (std::size_t i = 0; i < nodes; ++i) levels.push_back(narrow(json.at(i).integer(0, 63)));
  return levels;
}

TaskProgress parse_progress(const JsonCursor& json, const PlacementTask& task) {
  TaskProgress own;
  own.calls = static_cast<std::uint64_t>(json.at("calls").integer(0, kMost));
  own.reward_sum = json.at("reward_sum").number(-kAny, kAny);
  own.curve = parse_curve(json.at("curve"));
  const JsonCursor best = json.at("best");
  if (best.json().is_null()) return own;
  const auto devices = [&](const JsonCursor& list, std::size_t expected) {
    if (list.size() != expected)
      list.fail("expected " + std::to_string(expected) + " devices: another graph's");
    std::vector<DeviceId> ids;
    const auto last = static_cast<std::int64_t>(task.instance().devices()) - 1;
    for (std::size_t i = 0; i < expected; ++i)
      ids.emplace_back(static_cast<std::size_t>(list.at(i).integer(0, last)));
    return ids;
  };
  Sample sample;
  sample.devices = devices(best.at("devices"), task.input().nodes);
  sample.assignment = devices(best.at("units"), task.instance().units());
  sample.evaluated.time = best.at("time").duration();
  if (best.has("levels")) sample.levels = parse_levels(best.at("levels"), task.input().nodes);
  own.best = std::move(sample);
  return own;
}

Json learner_json(const SafetensorsReader& file, const std::string& path) {
  const auto text = std::find_if(file.metadata().begin(), file.metadata().end(),
                                 [](const auto& entry) { return entry.first == "learner"; });
  if (text == file.metadata().end())
    throw InputError(path + ": has no metadata 'learner'; expected a checkpoint of `espalier learn`");
  Json json = parse_json(text->second, path + ": learner");
  JsonCursor(json, path + ": learner").expect_format(kLearnerFormat);
  return json;
}

}  // namespace

std::vector<LearningPoint> read_learning_curve(const std::string& path) {
  const std::string bytes = read_file(path);
  const Json json = learner_json(SafetensorsReader(bytes, path), path);
  const JsonCursor tasks = JsonCursor(json, path + ": learner").at("tasks");
  std::vector<LearningPoint> points;
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    const std::vector<LearningPoint> own = parse_curve(tasks.at(i).at("curve"));
    points.insert(points.end(), own.begin(), own.end());
  }
  std::sort(points.begin(), points.end(),
            [](const LearningPoint& a, const LearningPoint& b) { return a.update < b.update; });
  return points;
}

void Learner::restore(const std::string& path) {
  State& state = *state_;
  const std::string bytes = read_file(path);
  const SafetensorsReader file(bytes, path);
  const Json json = learner_json(file, path);
  const JsonCursor cursor(json, path + ": learner");
  if (static_cast<std::uint64_t>(cursor.at("seed").integer(0, kMost)) != state.options.seed)
    cursor.at("seed").fail("expected " + std::to_string(state.options.seed) +
                           ": a checkpoint goes on with its own");
  const JsonCursor tasks = cursor.at("tasks");
  if (tasks.size() != state.tasks.size())
    tasks.fail("expected " + std::to_string(state.tasks.size()) + " graphs, as this call has");
  std::vector<TaskProgress> progress;
  for (std::size_t i = 0; i < tasks.size(); ++i)
    progress.push_back(parse_progress(tasks.at(i), *state.tasks[i]));
  read_tensors(file, path, state.policy.parts().weights());
  state.adam.restore(file, static_cast<std::uint64_t>(cursor.at("adam_steps").integer(0, kMost)));
  state.updates = static_cast<std::uint64_t>(cursor.at("updates").integer(0, kMost));
  state.imitated = static_cast<std::uint64_t>(cursor.at("imitated").integer(0, kMost));
  state.progress = std::move(progress);
}

}  // namespace espalier::placement
