#include "espalier/plan/plan_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "espalier/base/check.h"
#include "espalier/base/hash.h"
#include "espalier/base/json.h"
#include "espalier/base/spelling.h"
#include "espalier/cluster/json.h"
#include "espalier/cluster/text.h"
#include "espalier/cost/json.h"
#include "espalier/cost/text.h"
#include "espalier/plan/json.h"
#include "espalier/plan/text.h"

namespace espalier {
namespace {

constexpr std::string_view kPlanFormat = "espalier.plan/2";
constexpr std::string_view kPlanFormat1 = "espalier.plan/1";
constexpr std::int64_t kMax = std::int64_t{1} << 62;
constexpr std::string_view kDigits = "0123456789abcdef";

std::string hex_text(std::uint64_t value, int digits) {
  std::string text;
  for (int shift = 4 * digits - 4; shift >= 0; shift -= 4) text += kDigits[(value >> shift) & 15];
  return text;
}

std::uint64_t parse_hex(std::string_view text, const JsonCursor& place) {
  std::uint64_t value = 0;
  for (const char c : text) {
    const std::size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) place.fail("holds something else than digits and a to f");
    value = value * 16 + digit;
  }
  return value;
}

std::uint64_t fingerprint_from_json(const JsonCursor& json) {
  const std::string text = json.string();
  if (text.size() != 16) json.fail("is not a fingerprint of 16 hexadecimal digits");
  return parse_hex(text, json);
}

std::vector<std::uint16_t> operators_from_json(const JsonCursor& json) {
  const std::string text = json.string();
  if (text.size() % 4 != 0) json.fail("is not a list of fingerprints of 4 hexadecimal digits");
  std::vector<std::uint16_t> operators;
  for (std::size_t i = 0; i < text.size(); i += 4) {
    operators.push_back(static_cast<std::uint16_t>(parse_hex(std::string_view(text).substr(i, 4), json)));
  }
  return operators;
}

// Relative, so that a folder with model and plan can be moved.
std::string path_from_json(const JsonCursor& json) {
  std::string path = json.string();
  if (!path.empty() && path[0] == '/') {
    json.fail("is '" + path.substr(0, 80) + "'; expected a path relative to this file");
  }
  return path;
}

Json stage_to_json(const NamedStage& stage) {
  Json runs = Json::array();
  for (const auto& [first, last] : stage.operators) {
    runs.push_back(first == last ? Json::array({first}) : Json::array({first, last}));
  }
  Json json = {{"name", stage.name}};
  if (stage.locked) json["locked"] = true;
  json["devices"] = stage.devices;
  json["micro_batch"] = stage.micro_batch.count();
  json["after"] = stage.after;
  json["operators"] = std::move(runs);
  json["recompute"] = stage.recompute;
  return json;
}

// What the staged model depends on.
std::uint64_t hash_of(const NamedStage& stage) {
  Fingerprint hash;
  const auto add = [&hash](const std::vector<std::string>& texts) {
    hash.add(texts.size());
    for (const std::string& text : texts) hash.add(text);
  };
  hash.add(stage.name);
  hash.add(static_cast<std::uint64_t>(stage.micro_batch.count()));
  hash.add(stage.operators.size());
  for (const auto& [first, last] : stage.operators) {
    hash.add(first);
    hash.add(last);
  }
  add(stage.recompute);
  add(stage.devices);
  add(stage.after);
  return hash.value();
}

NamedStage stage_from_json(const JsonCursor& json) {
  json.only({"name", "locked", "devices", "micro_batch", "after", "operators", "recompute"});
  NamedStage stage;
  stage.name = json.at("name").string();
  if (json.has("locked")) stage.locked = json.at("locked").boolean();
  if (json.has("devices")) stage.devices = json.at("devices").strings();
  if (json.has("after")) stage.after = json.at("after").strings();
  stage.micro_batch = BatchSize(json.at("micro_batch").integer(1, kMax));
  const JsonCursor runs = json.at("operators");
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const JsonCursor run = runs.at(i);
    if (run.size() < 1 || run.size() > 2)
      run.fail("is not a run of operators: expected [first, last] or [only]");
    stage.operators.emplace_back(run.at(0).string(), run.at(run.size() - 1).string());
  }
  const JsonCursor recompute = json.at("recompute");
  for (std::size_t i = 0; i < recompute.size(); ++i) stage.recompute.push_back(recompute.at(i).string());
  return stage;
}

Json costs_to_json(const PlanFile& file) {
  Json json = {{"file", file.cost_file}, {"hash", hex_text(file.cost_hash, 16)}};
  if (file.measured) {
    json["machine"] = file.measured->machine;
    json["threads"] = file.measured->threads;
    add_scatter(json, file.measured->scatter);
  }
  return json;
}

// What file.stages and file.staged say twice must agree.
void check_agreement(const PlanFile& file, const JsonCursor& root) {
  if (file.stages.size() != file.staged.stages.size()) {
    root.fail("there are " + std::to_string(file.stages.size()) + " stages, but " +
              std::to_string(file.staged.stages.size()) + " staged ones");
  }
  for (std::size_t x = 0; x < file.stages.size(); ++x) {
    const NamedStage& stage = file.stages[x];
    const StagedStage& staged = file.staged.stages[x];
    if (stage.name != staged.name) {
      root.fail("stage '" + stage.name.substr(0, 80) + "' is called '" + staged.name.substr(0, 80) +
                "' among the staged ones");
    }
    const std::int64_t size = stage.micro_batch.count();
    const std::int64_t batch = file.training.batch.count();
    if (batch % size != 0 || batch / size != staged.micro_batches) {
      root.fail("stage '" + stage.name.substr(0, 80) + "': " + std::to_string(staged.micro_batches) +
                " micro-batches of " + std::to_string(size) + " are not the batch " + std::to_string(batch));
    }
  }
}

std::string devices_text(const Cluster& cluster, const std::vector<DeviceId>& devices) {
  std::string text;
  for (const DeviceId device : devices) text += (text.empty() ? "" : "+") + cluster.device(device).name;
  return text;
}

// Devices and order of the stages, which older files have among the staged ones only.
void complete_stages(PlanFile& file, const Cluster& cluster, const JsonCursor& stages) {
  for (std::size_t x = 0; x < file.stages.size(); ++x) {
    NamedStage& stage = file.stages[x];
    std::vector<std::string> devices, after;
    for (const StagedReplica& replica : file.staged.stages[x].replicas) {
      devices.push_back(devices_text(cluster, replica.devices));
    }
    for (const StageId before : file.staged.stages[x].after) {
      after.push_back(file.staged.stages[before.index()].name);
    }
    if (!stages.at(x).has("devices")) stage.devices = devices;
    if (!stages.at(x).has("after")) stage.after = after;
    if (stage.devices != devices) stages.at(x).at("devices").fail("are not those among the staged ones");
    if (stage.after != after) stages.at(x).at("after").fail("is not what stands among the staged ones");
  }
}

// The stages whose hash is not the one in the file; none where the file has no hashes.
std::vector<std::size_t> edited_stages(const PlanFile& file, const JsonCursor& root) {
  std::vector<std::size_t> edited;
  if (!root.has("derived_from")) return edited;
  const JsonCursor hashes = root.at("derived_from");
  for (std::size_t x = 0; x < file.stages.size(); ++x) {
    if (x >= hashes.size() || fingerprint_from_json(hashes.at(x)) != hash_of(file.stages[x])) {
      edited.push_back(x);
    }
  }
  return edited;
}

std::vector<std::pair<std::string, std::string>> runs_of(const Graph& graph,
                                                         const std::vector<OperatorId>& operators) {
  std::vector<std::pair<std::string, std::string>> runs;
  for (std::size_t i = 0; i < operators.size();) {
    std::size_t last = i;
    while (last + 1 < operators.size() && operators[last + 1].index() == operators[last].index() + 1) ++last;
    runs.emplace_back(graph.op(operators[i]).name, graph.op(operators[last]).name);
    i = last + 1;
  }
  return runs;
}

OperatorId operator_named(const Graph& graph, const std::string& stage, const std::string& name) {
  if (const auto id = graph.find_operator(name)) return *id;
  throw InputError("stage '" + stage + "': operator '" + name.substr(0, 80) + "' is not in the model");
}

std::vector<OperatorId> resolve_runs(const Graph& graph, const NamedStage& stage) {
  std::vector<OperatorId> operators;
  for (const auto& [first_name, last_name] : stage.operators) {
    const OperatorId first = operator_named(graph, stage.name, first_name);
    const OperatorId last = operator_named(graph, stage.name, last_name);
    if (last < first || (!operators.empty() && !(operators.back() < first))) {
      throw InputError("stage '" + stage.name + "': the run from '" + first_name + "' to '" + last_name +
                       "' is not in the model's order");
    }
    for (std::size_t i = first.index(); i <= last.index(); ++i) operators.push_back(OperatorId(i));
  }
  return operators;
}

[[noreturn]] void refuse_model(const PlanFile& file, const Graph& graph) {
  const std::size_t count = graph.operators().size();
  std::string difference = "its tensors or parameters differ";
  if (file.operators.size() != count) {
    difference =
        "it has " + std::to_string(count) + " operators, not " + std::to_string(file.operators.size());
  }
  for (std::size_t i = 0; i < std::min(count, file.operators.size()); ++i) {
    if (operator_fingerprint(graph, OperatorId(i)) == file.operators[i]) continue;
    difference = "operator '" + graph.operators()[i].name + "' (number " + std::to_string(i) +
                 ") is the first that differs";
    break;
  }
  throw InputError("the model is not the one this plan was made for: " + difference +
                   "; plan again, or give that model");
}

}  // namespace

std::uint16_t operator_fingerprint(const Graph& graph, OperatorId id) {
  const Operator& op = graph.op(id);
  Fingerprint hash;
  hash.add(op.name);
  hash.add(op.target);
  hash.add(op.op_class);
  hash.add(static_cast<std::uint64_t>(op.role));
  for (const std::vector<TensorId>* tensors : {&op.inputs, &op.outputs, &op.mutates}) {
    hash.add(tensors->size());
    for (const TensorId tensor : *tensors) {
      const Tensor& t = graph.tensor(tensor);
      hash.add(t.name);
      hash.add(static_cast<std::uint64_t>(t.dtype));
      hash.add(t.sizes.size());
      for (const SizeExpr& size : t.sizes) hash.add(size.text());
    }
  }
  const std::uint64_t value = hash.value();
  return static_cast<std::uint16_t>(value ^ (value >> 16) ^ (value >> 32) ^ (value >> 48));
}

PlanFile make_plan_file(const Graph& graph, const Cluster& cluster, const Training& training,
                        const PipelinePlan& plan, StagedModel staged) {
  PlanFile file;
  file.fingerprint = graph.fingerprint();
  for (std::size_t i = 0; i < graph.operators().size(); ++i) {
    file.operators.push_back(operator_fingerprint(graph, OperatorId(i)));
  }
  file.cluster = cluster.parts();
  file.training = training;
  for (const Stage& stage : plan.stages) {
    NamedStage named;
    named.name = stage.name;
    named.operators = runs_of(graph, stage.operators);
    for (const OperatorId op : stage.recompute) named.recompute.push_back(graph.op(op).name);
    named.micro_batch = stage.micro_batch;
    for (const Replica& replica : stage.replicas) {
      named.devices.push_back(devices_text(cluster, replica.devices));
    }
    for (const StageId before : stage.after) named.after.push_back(plan.stages[before.index()].name);
    file.stages.push_back(std::move(named));
  }
  file.staged = std::move(staged);
  return file;
}

std::string print_plan_file(const PlanFile& file) {
  const Cluster cluster(file.cluster);
  std::string operators;
  for (const std::uint16_t fingerprint : file.operators) operators += hex_text(fingerprint, 4);
  Json stages = Json::array();
  Json hashes = Json::array();
  for (const NamedStage& stage : file.stages) {
    stages.push_back(stage_to_json(stage));
    hashes.push_back(hex_text(hash_of(stage), 16));
  }
  Json json = {{"format", kPlanFormat},
               {"model", file.model},
               {"fingerprint", hex_text(file.fingerprint, 16)},
               {"planner", file.planner},
               {"seed", file.seed},
               {"training", training_to_json(file.training)},
               {"costs", costs_to_json(file)},
               {"cluster", cluster_to_json(cluster)},
               {"stages", std::move(stages)},
               {"derived_from", std::move(hashes)}};
  if (file.expansion) json["expansion"] = hex_text(*file.expansion, 16);
  json["staged"] = staged_model_to_json(file.staged, cluster);
  json["notes"] = file.notes;
  json["operators"] = std::move(operators);
  return print_json(json);
}

namespace {

void only_known(const JsonCursor& root) {
  if (root.at("format").json() != kPlanFormat1) root.expect_format(kPlanFormat);
  root.only({"format", "model", "fingerprint", "planner", "seed", "training", "costs", "cluster", "stages",
             "derived_from", "expansion", "staged", "notes", "operators"});
}

// What stands in the file because somebody chose it.
PlanFile chosen_from_json(const JsonCursor& root, const Cluster& cluster) {
  PlanFile file;
  file.model = path_from_json(root.at("model"));
  file.fingerprint = fingerprint_from_json(root.at("fingerprint"));
  file.planner = root.at("planner").string();
  const JsonCursor seed = root.at("seed");
  file.seed = seed.json().is_number_unsigned() ? seed.json().get<std::uint64_t>()
                                               : static_cast<std::uint64_t>(seed.integer(0, kMax));
  file.training = training_from_json(root.at("training").json(), root.at("training").where());
  const JsonCursor costs = root.at("costs");
  costs.only({"file", "hash", "machine", "threads", "spread_per_mille", "device_spread_per_mille",
              "first_action_ns"});
  file.cost_file = path_from_json(costs.at("file"));
  file.cost_hash = fingerprint_from_json(costs.at("hash"));
  if (costs.has("machine") || costs.has("threads")) {
    file.measured = {costs.at("machine").string(),
                     static_cast<std::uint32_t>(costs.at("threads").integer(1, 1 << 20))};
    file.measured->scatter = scatter_from_json(costs);
  }
  file.cluster = cluster.parts();
  const JsonCursor stages = root.at("stages");
  for (std::size_t x = 0; x < stages.size(); ++x) file.stages.push_back(stage_from_json(stages.at(x)));
  return file;
}

Cluster cluster_of(const JsonCursor& root) {
  return cluster_from_json(root.at("cluster").json(), root.at("cluster").where());
}

}  // namespace

PlanFile parse_plan_file(std::string_view text, const std::string& where) {
  const Json json = parse_json(text, where);
  const JsonCursor root(json, where);
  only_known(root);
  const Cluster cluster = cluster_of(root);
  PlanFile file = chosen_from_json(root, cluster);
  const JsonCursor stages = root.at("stages");
  if (const std::vector<std::size_t> edited = edited_stages(file, root); !edited.empty()) {
    stages.at(edited.front())
        .fail("was edited since its times and memory were computed; `espalier plan MODEL --start " + where +
              "` computes them again");
  }
  file.staged = staged_model_from_json(root.at("staged").json(), root.at("staged").where(), cluster);
  if (root.has("expansion")) file.expansion = fingerprint_from_json(root.at("expansion"));
  const JsonCursor notes = root.at("notes");
  for (std::size_t i = 0; i < notes.size(); ++i) file.notes.push_back(notes.at(i).string());
  file.operators = operators_from_json(root.at("operators"));
  check_agreement(file, root);
  complete_stages(file, cluster, stages);
  return file;
}

EditedPlan parse_edited_plan(std::string_view text, const std::string& where) {
  const Json json = parse_json(text, where);
  const JsonCursor root(json, where);
  only_known(root);
  EditedPlan plan{chosen_from_json(root, cluster_of(root)), false, {}};
  plan.edited = edited_stages(plan.file, root);
  if (!root.has("staged")) return plan;
  const JsonCursor staged = root.at("staged");
  const bool version_1 = staged.has("schedule");
  if (!version_1 && !staged.has("orders")) return plan;
  plan.had_lists = !version_1 && staged.at("orders").has("lists");
  if (plan.had_lists) return plan;
  const JsonCursor rule = version_1 ? staged.at("schedule") : staged.at("orders").at("rule");
  try {
    plan.file.staged.orders = parse_order_rule(rule.string());
  } catch (const InputError& error) {
    rule.fail(error.what());
  }
  return plan;
}

Stage resolve_stage(const PlanFile& file, std::size_t number, const Graph& graph, const Cluster& cluster,
                    const std::string& where) {
  const NamedStage& named = file.stages[number];
  const std::string place = where + ": stages[" + std::to_string(number) + "]";
  const auto fail = [&](const std::string& member, std::size_t i, const std::string& problem) {
    throw InputError(place + "." + member + "[" + std::to_string(i) + "]: " + problem);
  };
  std::vector<std::string_view> names;
  for (const Operator& op : graph.operators()) names.push_back(op.name);
  const auto find = [&](const std::string& name, const std::string& member, std::size_t i) {
    const auto id = graph.find_operator(name);
    if (!id) {
      fail(member, i,
           "'" + name.substr(0, 80) + "' is no operator of the model; did you mean '" +
               std::string(nearest_word(name, names).value_or("")) + "'?");
    }
    return *id;
  };
  Stage stage;
  stage.name = named.name;
  stage.micro_batch = named.micro_batch;
  for (std::size_t i = 0; i < named.operators.size(); ++i) {
    const OperatorId first = find(named.operators[i].first, "operators", i);
    const OperatorId last = find(named.operators[i].second, "operators", i);
    if (last < first) fail("operators", i, "runs against the model's order");
    for (std::size_t op = first.index(); op <= last.index(); ++op) stage.operators.push_back(OperatorId(op));
  }
  std::sort(stage.operators.begin(), stage.operators.end());
  stage.operators.erase(std::unique(stage.operators.begin(), stage.operators.end()), stage.operators.end());
  if (stage.operators.empty()) throw InputError(place + ".operators: has none; expected at least one");
  for (std::size_t i = 0; i < named.recompute.size(); ++i) {
    const OperatorId op = find(named.recompute[i], "recompute", i);
    if (!std::binary_search(stage.operators.begin(), stage.operators.end(), op)) {
      fail("recompute", i, "'" + named.recompute[i] + "' is not one of the stage's operators");
    }
    stage.recompute.push_back(op);
  }
  std::sort(stage.recompute.begin(), stage.recompute.end());
  const std::int64_t batch = file.training.batch.count(), size = named.micro_batch.count();
  if (batch % size != 0) {
    throw InputError(place + ".micro_batch: " + std::to_string(size) + " does not divide the batch " +
                     std::to_string(batch));
  }
  if (named.devices.empty()) throw InputError(place + ".devices: has none; expected at least one");
  for (std::size_t i = 0; i < named.devices.size(); ++i) {
    const auto device = cluster.find_device(named.devices[i]);
    if (!device) {
      fail("devices", i,
           "'" + named.devices[i].substr(0, 80) + "' is no device of the cluster" +
               (named.devices[i].find('+') != std::string::npos
                    ? ": groups of devices cannot be planned again"
                    : "; its first is '" + cluster.devices().front().name + "'"));
    }
    stage.replicas.push_back(
        {{*device},
         round_robin(static_cast<std::uint32_t>(std::min<std::int64_t>(batch / size, kMaxMicroBatches)), i,
                     named.devices.size())});
  }
  return stage;
}

PipelinePlan resolve_plan(const PlanFile& file, const Graph& graph) {
  if (file.fingerprint != graph.fingerprint()) refuse_model(file, graph);
  ESP_CHECK(file.stages.size() == file.staged.stages.size(), file.stages.size(), file.staged.stages.size());
  PipelinePlan plan;
  plan.batch = file.training.batch;
  plan.orders = file.staged.orders;
  plan.tokens = file.staged.tokens;
  std::vector<bool> placed(graph.operators().size());
  for (std::size_t x = 0; x < file.stages.size(); ++x) {
    const NamedStage& named = file.stages[x];
    const StagedStage& staged = file.staged.stages[x];
    Stage stage;
    stage.name = named.name;
    stage.operators = resolve_runs(graph, named);
    for (const OperatorId op : stage.operators) {
      if (placed[op.index()] && !graph.op(op).duplicable) {
        throw InputError("operator '" + graph.op(op).name + "' stands in two stages of the plan");
      }
      placed[op.index()] = true;
    }
    for (const std::string& name : named.recompute) {
      stage.recompute.push_back(operator_named(graph, named.name, name));
    }
    for (const StagedReplica& replica : staged.replicas) {
      stage.replicas.push_back({replica.devices, replica.micro_batches});
    }
    stage.after = staged.after;
    stage.micro_batch = named.micro_batch;
    stage.in_flight = staged.in_flight;
    stage.slots = staged.slots;
    plan.stages.push_back(std::move(stage));
  }
  const std::vector<std::string> violations = check_plan(graph, Cluster(file.cluster), plan);
  if (!violations.empty()) throw InputError("the plan breaks a rule: " + violations.front());
  return plan;
}

}  // namespace espalier
