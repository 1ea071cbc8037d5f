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
#include "espalier/learned/rollout_objective.h"
#include "espalier/learned/torch_threads.h"

namespace espalier::placement {
namespace {

constexpr const char* kLearnerFormat = "espalier.learner/1";

// GDP's reward: -√seconds of the step, -10 where it does not fit.
double published_reward(const Evaluated& evaluated) {
  return evaluated.fits ? -std::sqrt(to_seconds(evaluated.time)) : -10;
}

std::vector<float> rows_of(const at::Tensor& logits) {
  const at::Tensor rows = at::softmax(logits, 1).to(at::kCPU).contiguous();
  return {rows.const_data_ptr<float>(), rows.const_data_ptr<float>() + rows.numel()};
}

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
  const JoinInput* join_input(std::size_t task) const {
    return policy.parts().join_input(tasks[task]->input());
  }
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
    const bool again = options.restart > 0 && updates >= options.restart;
    const std::uint64_t begin = again ? options.restart : 0;
    const std::uint64_t end = again || options.restart == 0 ? options.updates : options.restart;
    return std::min(1.0,
                    static_cast<double>(updates - begin) / std::max(1.0, static_cast<double>(end - begin)));
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

  void learn_from(std::size_t task, const RolloutObjective& of_rollouts) {
    const double part = done();
    const double rate =
        options.learning_rate * std::pow(options.last_learning_rate / options.learning_rate, part);
    const double entropy_weight = options.entropy * (1 - part);
    for (std::size_t epoch = 0; epoch < options.epochs; ++epoch) {
      const at::Tensor loss = of_rollouts.loss(heads(task), options.clip, entropy_weight);
      adam.step(loss, rate, options.most_norm);
    }
  }

  // Placements as the heads have it, judged.
  std::vector<Sample> rollouts(std::size_t task, const HeadLogits& drawn_from, ThreadPool* pool) const {
    const std::uint64_t of_devices = stream_key(options.seed, {2, updates});
    const std::size_t columns = tasks[task]->input().devices;
    std::vector<NodeDevices> devices;
    std::vector<NodeLevels> levels(options.rollouts);
    std::vector<NodeChoices> joins(options.rollouts);
    const auto entries = [&](const at::Tensor& logits, std::uint64_t stream) {
      return draw_entries(rows_of(logits), static_cast<std::size_t>(logits.size(1)), options.rollouts,
                          stream_key(options.seed, {stream, updates}));
    };
    if (drawn_from.levels.defined()) levels = entries(drawn_from.levels, 4);
    if (const JoinInput* join = join_input(task)) {
      joins = entries(drawn_from.joins, 5);
      const Groups groups = make_groups(*join, groupings_of(*join, joins));
      devices = draw_groups(rows_of(pooled(drawn_from.devices, groups)), columns, groups, of_devices);
    } else {
      devices = draw(rows_of(drawn_from.devices), columns, options.rollouts, of_devices);
    }
    std::vector<Sample> samples =
        judge(*tasks[task], std::move(devices), std::move(levels), options.repairs, pool);
    for (std::size_t i = 0; i < samples.size(); ++i) samples[i].choices = std::move(joins[i]);
    return samples;
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
  state.learn_from(turn, {samples, state.advantages(turn, samples), old, state.join_input(turn)});
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
    const HeadLogits raw = state.heads(turn);
    const at::Tensor now = log_probabilities(raw.devices);
    const auto devices = static_cast<double>(task.input().devices);
    const double rest = devices > 1 ? (1 - confidence) / (devices - 1) : 0;
    const at::Tensor chosen = now.gather(1, target.unsqueeze(1)).squeeze(1);
    // Nodes count by their work, and each a little: a wrong large one costs most.
    const at::Tensor weight = state.policy.parts().weight_of(task.input());
    at::Tensor value = chosen * (confidence - rest) + now.sum(1) * rest;
    if (raw.joins.defined() && raw.joins.requires_grad())
      value = value + kept_together(raw.joins, *state.join_input(turn), wanted);
    const at::Tensor loss = -(value * weight).sum();
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
      if (!own.best->choices.empty()) best["choices"] = own.best->choices;
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

// One curve of several tasks' own: calls are those for all of them, the best is the mean of theirs.
std::vector<LearningPoint> by_update(std::span<const std::vector<LearningPoint>> curves) {
  struct Seen {
    LearningPoint point;
    std::size_t task;
  };
  std::vector<Seen> all;
  for (std::size_t task = 0; task < curves.size(); ++task) {
    for (const LearningPoint& point : curves[task]) all.push_back({point, task});
  }
  std::sort(all.begin(), all.end(),
            [](const Seen& a, const Seen& b) { return a.point.update < b.point.update; });
  std::vector<LearningPoint> points, last(curves.size());  // last: of each task
  std::uint64_t calls = 0;
  for (const auto& [point, task] : all) {
    calls += point.calls - last[task].calls;
    last[task] = point;
    double best = 0, fitting = 0;
    for (const LearningPoint& own : last) {
      best += own.best;
      fitting += own.best > 0 ? 1 : 0;
    }
    points.push_back(point);
    points.back().calls = calls;
    points.back().best = best / std::max(1.0, fitting);
  }
  return points;
}

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

// A number below `end` for each node.
std::vector<std::uint32_t> parse_entries(const JsonCursor& best, const char* key, std::size_t nodes,
                                         std::size_t end) {
  std::vector<std::uint32_t> entries;
  if (!best.has(key)) return entries;
  const JsonCursor json = best.at(key);
  if (json.size() != nodes) json.fail("expected " + std::to_string(nodes) + " " + key + ": another graph's");
  const auto last = static_cast<std::int64_t>(end) - 1;
  for (std::size_t i = 0; i < nodes; ++i) entries.push_back(narrow(json.at(i).integer(0, last)));
  return entries;
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
  sample.levels = parse_entries(best, "levels", task.input().nodes, 64);
  sample.choices = parse_entries(best, "choices", task.input().nodes, kJoinEntries);
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

std::vector<LearningPoint> Learner::curve() const {
  std::vector<std::vector<LearningPoint>> curves;
  for (const TaskProgress& own : state_->progress) curves.push_back(own.curve);
  return by_update(curves);
}

FoundForGraph found_for(const Learner& learner, std::size_t first, std::size_t end) {
  FoundForGraph found;
  for (std::size_t task = first; task < end; ++task) {
    const TaskProgress& progress = learner.progress(task);
    found.calls += progress.calls;
    if (!progress.best) continue;
    const Duration step = progress.best->evaluated.time;
    found.best = found.best ? std::min(*found.best, step) : step;
  }
  return found;
}

std::vector<LearningPoint> read_learning_curve(const std::string& path) {
  const std::string bytes = read_file(path);
  const Json json = learner_json(SafetensorsReader(bytes, path), path);
  const JsonCursor tasks = JsonCursor(json, path + ": learner").at("tasks");
  std::vector<std::vector<LearningPoint>> curves;
  for (std::size_t i = 0; i < tasks.size(); ++i) curves.push_back(parse_curve(tasks.at(i).at("curve")));
  return by_update(curves);
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
