#include "espalier/plan/checkpoint_manifest.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "espalier/base/check.h"
#include "espalier/base/hash.h"
#include "espalier/base/json.h"
#include "espalier/base/safetensors.h"
#include "espalier/plan/json.h"
#include "espalier/plan/plan_file.h"

namespace espalier {
namespace {

constexpr std::string_view kCheckpointFormat = "espalier.checkpoint/1";
constexpr std::int64_t kMostCounted = std::int64_t{1} << 62;

std::uint64_t hash_from_json(const JsonCursor& json) {
  const std::optional<std::uint64_t> value = parse_hex_text(json.string());
  if (!value) json.fail("is not 16 hexadecimal digits");
  return *value;
}

std::uint64_t count_from_json(const JsonCursor& json) {
  return static_cast<std::uint64_t>(json.integer(0, kMostCounted));
}

Json content_to_json(const StoredContent& content) {
  return {{"dtype", content.dtype}, {"shape", content.shape}, {"hash", hex_text(content.hash)}};
}

StoredContent content_from_json(const JsonCursor& json) {
  StoredContent content;
  content.dtype = json.at("dtype").string();
  if (safetensors_element_size(content.dtype) == 0) json.at("dtype").fail("is no type of safetensors files");
  const JsonCursor shape = json.at("shape");
  for (std::size_t i = 0; i < shape.size(); ++i)
    content.shape.push_back(shape.at(i).integer(0, kMostCounted));
  content.hash = hash_from_json(json.at("hash"));
  return content;
}

Json variables_to_json(const std::vector<CheckpointVariable>& variables) {
  Json rows = Json::array();
  for (const CheckpointVariable& variable : variables) {
    Json row{{"name", variable.name}, {"shard", variable.shard}};
    row.update(content_to_json(variable.value));
    if (!variable.state.empty()) {
      row["state"] = Json::array();
      for (const StoredContent& content : variable.state) row["state"].push_back(content_to_json(content));
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<CheckpointVariable> variables_from_json(const JsonCursor& rows) {
  std::vector<CheckpointVariable> variables;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const JsonCursor row = rows.at(i);
    row.only({"name", "shard", "dtype", "shape", "hash", "state"});
    CheckpointVariable variable;
    variable.name = row.at("name").string();
    variable.shard = static_cast<std::size_t>(row.at("shard").integer(0, 1 << 20));
    variable.value = content_from_json(row);
    if (row.has("state")) {
      const JsonCursor state = row.at("state");
      for (std::size_t k = 0; k < state.size(); ++k) {
        state.at(k).only({"dtype", "shape", "hash"});
        variable.state.push_back(content_from_json(state.at(k)));
      }
    }
    variables.push_back(std::move(variable));
  }
  return variables;
}

Json data_to_json(const DataPosition& data) {
  Json json{{"seed", data.seed}};
  if (data.samples) json["samples"] = *data.samples;
  json["epoch"] = data.epoch;
  json["position"] = data.position;
  return json;
}

std::uint64_t seed_from_json(const JsonCursor& json) {
  return json.json().is_number_unsigned() ? json.json().get<std::uint64_t>() : count_from_json(json);
}

DataPosition data_from_json(const JsonCursor& json) {
  json.only({"seed", "samples", "epoch", "position"});
  DataPosition data;
  data.seed = seed_from_json(json.at("seed"));
  if (json.has("samples")) data.samples = count_from_json(json.at("samples"));
  data.epoch = count_from_json(json.at("epoch"));
  data.position = count_from_json(json.at("position"));
  return data;
}

std::vector<CheckpointShard> shards_from_json(const JsonCursor& rows) {
  std::vector<CheckpointShard> shards;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const JsonCursor row = rows.at(i);
    row.only({"file", "bytes"});
    const std::string file = row.at("file").string();
    if (file.empty() || file[0] == '.' || file.find_first_of("/\\") != std::string::npos)
      row.at("file").fail("is not the name of a file beside this one");
    shards.push_back({file, count_from_json(row.at("bytes"))});
  }
  return shards;
}

void check_variables(const CheckpointManifest& manifest, const JsonCursor& root) {
  for (std::size_t i = 0; i < manifest.variables.size(); ++i) {
    const CheckpointVariable& variable = manifest.variables[i];
    if (i > 0 && !(manifest.variables[i - 1].name < variable.name))
      root.at("variables").at(i).fail("does not stand behind the one before it by name");
    if (variable.shard >= manifest.shards.size())
      root.at("variables").at(i).at("shard").fail("names a shard that is not listed");
  }
}

std::string shape_text(const StoredContent& content) {
  std::string text;
  for (const std::int64_t size : content.shape) text += (text.empty() ? "" : ",") + std::to_string(size);
  return content.dtype + "[" + text + "]";
}

const Parameter* parameter_named(const Graph& graph, const std::string& name) {
  for (const Parameter& parameter : graph.parameters()) {
    if (parameter.names[0] == name) return &parameter;
  }
  return nullptr;
}

// What is kept beside a parameter, in words.
std::string kept_by(const Optimizer& optimizer) {
  const std::string kind(to_text(optimizer.kind));
  if (optimizer.kind != OptimizerKind::kSgd) return kind + " (two moments)";
  return optimizer.momentum != 0 ? kind + " with momentum" : kind + " without momentum";
}

std::string number_text(double value) {
  char buffer[40];
  const auto [end, error] = std::to_chars(std::begin(buffer), std::end(buffer), value);
  return error == std::errc() ? std::string(buffer, end) : "?";
}

std::string clip_text(const Optimizer& optimizer) {
  return optimizer.clip_norm ? number_text(*optimizer.clip_norm) : "none";
}

std::string schedule_text(const LearningRateSchedule& schedule) {
  return std::string(to_text(schedule.shape)) + " over " + std::to_string(schedule.steps) +
         " steps with a warm-up of " + std::to_string(schedule.warm_up);
}

}  // namespace

std::string state_name(const std::string& variable, std::size_t index) {
  return "optimizer.state." + std::to_string(index) + "/" + variable;
}

const CheckpointVariable* find_variable(const CheckpointManifest& manifest, std::string_view name) {
  const auto found =
      std::lower_bound(manifest.variables.begin(), manifest.variables.end(), name,
                       [](const CheckpointVariable& row, std::string_view n) { return row.name < n; });
  return found != manifest.variables.end() && found->name == name ? &*found : nullptr;
}

std::string print_checkpoint(const CheckpointManifest& manifest) {
  Json operators = Json::array(), shards = Json::array();
  for (const std::uint16_t print : manifest.operators) operators.push_back(print);
  for (const CheckpointShard& shard : manifest.shards)
    shards.push_back({{"file", shard.file}, {"bytes", shard.bytes}});
  return print_json({{"format", kCheckpointFormat},
                     {"model", manifest.model},
                     {"fingerprint", hex_text(manifest.fingerprint)},
                     {"step", manifest.step},
                     {"seed", manifest.seed},
                     {"training", training_to_json(manifest.training)},
                     {"data", data_to_json(manifest.data)},
                     {"shards", std::move(shards)},
                     {"variables", variables_to_json(manifest.variables)},
                     {"operators", std::move(operators)}});
}

CheckpointManifest parse_checkpoint(std::string_view text, const std::string& where) {
  const Json json = parse_json(text, where);
  const JsonCursor root(json, where);
  root.expect_format(kCheckpointFormat);
  root.only({"format", "model", "fingerprint", "step", "seed", "training", "data", "shards", "variables",
             "operators"});
  CheckpointManifest manifest;
  manifest.model = root.at("model").string();
  manifest.fingerprint = hash_from_json(root.at("fingerprint"));
  manifest.step = count_from_json(root.at("step"));
  manifest.seed = seed_from_json(root.at("seed"));
  manifest.training = training_from_json(root.at("training").json(), root.at("training").where());
  manifest.data = data_from_json(root.at("data"));
  manifest.shards = shards_from_json(root.at("shards"));
  manifest.variables = variables_from_json(root.at("variables"));
  const JsonCursor operators = root.at("operators");
  for (std::size_t i = 0; i < operators.size(); ++i)
    manifest.operators.push_back(static_cast<std::uint16_t>(operators.at(i).integer(0, 65535)));
  check_variables(manifest, root);
  return manifest;
}

std::string print_variables(const std::vector<CheckpointVariable>& variables) {
  return variables_to_json(variables).dump();
}

std::vector<CheckpointVariable> parse_variables(std::string_view text, const std::string& where) {
  const Json json = parse_json(text, where);
  return variables_from_json(JsonCursor(json, where));
}

void check_model(const CheckpointManifest& manifest, const Graph& graph, const std::string& where) {
  const auto refuse = [&](const std::string& difference) {
    throw InputError(where + ": is a checkpoint of another model than '" + graph.name() + "' ('" +
                     manifest.model + "'): " + difference +
                     "; resume with the model that it was written for");
  };
  for (const CheckpointVariable& variable : manifest.variables) {
    const Parameter* const parameter = parameter_named(graph, variable.name);
    if (parameter == nullptr) refuse("it has '" + variable.name + "', which this model has not");
    if (parameter->sizes != variable.value.shape)
      refuse("'" + variable.name + "' is " + shape_text(variable.value) +
             " there and has another shape here");
    if (!parameter->trainable && !variable.state.empty())
      refuse("'" + variable.name + "' was trained there and is frozen here (--freeze)");
  }
  for (const Parameter& parameter : graph.parameters()) {
    if (parameter.persistent && find_variable(manifest, parameter.names[0]) == nullptr)
      refuse("it has no '" + parameter.names[0] + "'");
  }
  if (manifest.fingerprint == graph.fingerprint()) return;
  const std::size_t count = graph.operators().size();
  for (std::size_t i = 0; i < std::min(count, manifest.operators.size()); ++i) {
    if (operator_fingerprint(graph, OperatorId(i)) != manifest.operators[i])
      refuse("operator '" + graph.operators()[i].name + "' (number " + std::to_string(i) +
             ") is the first that differs");
  }
  if (manifest.operators.size() != count)
    refuse("it has " + std::to_string(manifest.operators.size()) + " operators, this one " +
           std::to_string(count));
  refuse("tensors or parameters differ, or which of them are trained");
}

void check_optimizer(const CheckpointManifest& manifest, const Optimizer& optimizer,
                     const std::string& where) {
  const Optimizer& before = manifest.training.optimizer;
  const bool momentum_fits = before.kind != OptimizerKind::kSgd ||
                             (before.momentum != 0) == (optimizer.momentum != 0) || manifest.step == 0;
  if (before.kind == optimizer.kind && momentum_fits) return;
  throw InputError(where + ": was trained by " + kept_by(before) + ", whose state does not fit " +
                   kept_by(optimizer) + ": plan with --optimizer " + std::string(to_text(before.kind)) +
                   (before.kind == OptimizerKind::kSgd ? " --momentum " + number_text(before.momentum) : "") +
                   ", or start anew from its weights");
}

std::vector<std::string> training_changes(const CheckpointManifest& manifest, const Training& training) {
  const Training& old = manifest.training;
  const Optimizer &before = old.optimizer, &now = training.optimizer;
  std::vector<std::string> changes;
  const auto tell = [&](const std::string& what, const std::string& value, const std::string& old_value) {
    if (value != old_value) changes.push_back(what + " " + value + ", " + old_value + " before");
  };
  tell("batch", std::to_string(training.batch.count()), std::to_string(old.batch.count()));
  tell("learning rate", number_text(now.learning_rate), number_text(before.learning_rate));
  tell("momentum", number_text(now.momentum), number_text(before.momentum));
  tell("beta1", number_text(now.beta1), number_text(before.beta1));
  tell("beta2", number_text(now.beta2), number_text(before.beta2));
  tell("epsilon", number_text(now.epsilon), number_text(before.epsilon));
  tell("weight decay", number_text(now.weight_decay), number_text(before.weight_decay));
  tell("clip norm", clip_text(now), clip_text(before));
  tell("learning-rate schedule", schedule_text(now.schedule), schedule_text(before.schedule));
  if (now.no_decay != before.no_decay) changes.emplace_back("other parameters are without weight decay");
  return changes;
}

}  // namespace espalier
