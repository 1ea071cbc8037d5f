// Training settings as JSON: a part of plan files and of checkpoints.

#include "espalier/base/json.h"
#include "espalier/plan/json.h"

namespace espalier {
namespace {

constexpr std::int64_t kMostSteps = std::int64_t{1} << 62;

LearningRateSchedule schedule_from_json(const JsonCursor& json) {
  json.only({"shape", "warm_up", "steps"});
  LearningRateSchedule schedule;
  const auto shape = parse_schedule_shape(json.at("shape").string());
  if (!shape) json.at("shape").fail("is not known; expected constant, linear or cosine");
  schedule.shape = *shape;
  schedule.warm_up = static_cast<std::uint64_t>(json.at("warm_up").integer(0, kMostSteps));
  schedule.steps = static_cast<std::uint64_t>(json.at("steps").integer(0, kMostSteps));
  return schedule;
}

Json optimizer_to_json(const Optimizer& o) {
  Json json = {{"kind", to_text(o.kind)},
               {"learning_rate", o.learning_rate},
               {"momentum", o.momentum},
               {"beta1", o.beta1},
               {"beta2", o.beta2},
               {"epsilon", o.epsilon},
               {"weight_decay", o.weight_decay}};
  if (o.schedule != LearningRateSchedule()) {
    json["schedule"] = {
        {"shape", to_text(o.schedule.shape)}, {"warm_up", o.schedule.warm_up}, {"steps", o.schedule.steps}};
  }
  if (o.clip_norm) json["clip_norm"] = *o.clip_norm;
  if (!o.no_decay.empty()) json["no_decay"] = o.no_decay;
  if (o.master_weights) json["master_weights"] = true;
  return json;
}

Optimizer optimizer_from_json(const JsonCursor& json) {
  json.only({"kind", "learning_rate", "momentum", "beta1", "beta2", "epsilon", "weight_decay", "schedule",
             "clip_norm", "no_decay", "master_weights"});
  const auto kind = parse_optimizer(json.at("kind").string());
  if (!kind) json.at("kind").fail("is not known; expected sgd, adam or adamw");
  Optimizer optimizer;
  optimizer.kind = *kind;
  optimizer.learning_rate = json.at("learning_rate").number(0, 1e9);
  optimizer.momentum = json.at("momentum").number(0, 1);
  optimizer.beta1 = json.at("beta1").number(0, 1);
  optimizer.beta2 = json.at("beta2").number(0, 1);
  optimizer.epsilon = json.at("epsilon").number(0, 1e9);
  optimizer.weight_decay = json.at("weight_decay").number(0, 1e9);
  if (json.has("schedule")) optimizer.schedule = schedule_from_json(json.at("schedule"));
  if (json.has("clip_norm")) optimizer.clip_norm = json.at("clip_norm").number(0, 1e300);
  if (json.has("no_decay")) optimizer.no_decay = json.at("no_decay").strings();
  if (json.has("master_weights")) optimizer.master_weights = json.at("master_weights").boolean();
  return optimizer;
}

}  // namespace

nlohmann::ordered_json training_to_json(const Training& training) {
  Json sizes = Json::array();
  for (const BatchSize size : training.micro_batches) sizes.push_back(size.count());
  Json json = {{"batch", training.batch.count()},
               {"micro_batches", std::move(sizes)},
               {"optimizer", optimizer_to_json(training.optimizer)},
               {"precision", to_text(training.precision)}};
  if (!training.frozen.empty()) json["frozen"] = training.frozen;
  for (const auto& [name, size] : training.dims) json["dims"][name] = size.text();
  return json;
}

Training training_from_json(const nlohmann::ordered_json& value, const std::string& where) {
  const JsonCursor json(value, where);
  json.only({"batch", "micro_batches", "optimizer", "precision", "frozen", "dims"});
  Training training;
  training.batch = BatchSize(json.at("batch").integer(1, kMostSteps));
  const JsonCursor sizes = json.at("micro_batches");
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    training.micro_batches.push_back(BatchSize(sizes.at(i).integer(1, kMostSteps)));
    if (training.batch.count() % training.micro_batches.back().count() != 0) {
      sizes.at(i).fail("does not divide the batch " + std::to_string(training.batch.count()));
    }
    if (i > 0 && !(training.micro_batches[i - 1] < training.micro_batches[i])) {
      sizes.at(i).fail("is not above the one before it");
    }
  }
  training.optimizer = optimizer_from_json(json.at("optimizer"));
  if (json.has("frozen")) training.frozen = json.at("frozen").strings();
  if (json.has("dims")) {
    for (const auto& [name, size] : json.at("dims").members())
      training.dims.emplace(name, size.parsed(parse_size_expr));
  }
  const auto precision = parse_precision(json.at("precision").string());
  if (!precision) json.at("precision").fail("is not known; expected f32, tf32 or bf16");
  training.precision = *precision;
  return training;
}

}  // namespace espalier
