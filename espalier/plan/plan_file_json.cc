// The JSON form of plan files.

#include <algorithm>
#include <set>

#include "espalier/base/check.h"
#include "espalier/base/hash.h"
#include "espalier/base/json.h"
#include "espalier/cluster/json.h"
#include "espalier/cost/json.h"
#include "espalier/plan/json.h"
#include "espalier/plan/plan_file.h"

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
  const std::string& text = json.string();
  if (text.size() != 16) json.fail("is not a fingerprint of 16 hexadecimal digits");
  return parse_hex(text, json);
}

std::vector<std::uint16_t> operators_from_json(const JsonCursor& json) {
  const std::string& text = json.string();
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
  Json json = {{"name", stage.name}};
  if (stage.locked) json["locked"] = true;
  json["devices"] = stage.devices;
  json["micro_batch"] = stage.micro_batch.count();
  json["after"] = stage.after;
  json["operators"] = runs_to_json(stage.operators);
  json["recompute"] = stage.recompute;
  return json;
}

void add_runs(Fingerprint& hash, const std::vector<std::pair<std::string, std::string>>& runs) {
  hash.add(runs.size());
  for (const auto& [first, last] : runs) {
    hash.add(first);
    hash.add(last);
  }
}

// What the staged model depends on.
std::uint64_t hash_of(const PlanFile::Placed& placement) {
  Fingerprint hash;
  hash.add(static_cast<std::uint64_t>(placement.micro_batch.count()));
  hash.add(placement.operators.devices.size());
  for (const NamedPlacement::OnDevice& on : placement.operators.devices) {
    hash.add(on.device);
    if (on.level) hash.add(std::uint64_t{*on.level});
    add_runs(hash, on.operators);
  }
  return hash.value();
}
std::uint64_t hash_of(const NamedStage& stage) {
  Fingerprint hash;
  const auto add = [&hash](const std::vector<std::string>& texts) {
    hash.add(texts.size());
    for (const std::string& text : texts) hash.add(text);
  };
  hash.add(stage.name);
  hash.add(static_cast<std::uint64_t>(stage.micro_batch.count()));
  add_runs(hash, stage.operators);
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
  stage.operators = runs_from_json(json.at("operators"));
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

void check_size(const PlanFile& file, const StagedStage& staged, BatchSize micro_batch,
                const JsonCursor& root) {
  const std::int64_t size = micro_batch.count(), batch = file.training.batch.count();
  if (batch % size == 0 && batch / size == staged.micro_batches) return;
  root.fail("stage '" + staged.name.substr(0, 80) + "': " + std::to_string(staged.micro_batches) +
            " micro-batches of " + std::to_string(size) + " are not the batch " + std::to_string(batch));
}

// Each fragment stands on one device of the placement.
void check_fragments_agree(const PlanFile& file, const Cluster& cluster, const JsonCursor& root) {
  std::set<std::string> devices;
  for (const NamedPlacement::OnDevice& on : file.placement->operators.devices) devices.insert(on.device);
  for (const StagedStage& staged : file.staged.stages) {
    check_size(file, staged, file.placement->micro_batch, root);
    const bool one = staged.replicas.size() == 1 && staged.replicas[0].devices.size() == 1;
    if (one && devices.contains(cluster.device(staged.replicas[0].devices[0]).name)) continue;
    root.fail("fragment '" + staged.name.substr(0, 80) + "' does not stand on one device of the placement");
  }
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
    check_size(file, staged, stage.micro_batch, root);
  }
}

// Devices and order of the stages, which older files have among the staged ones only.
void complete_stages(PlanFile& file, const Cluster& cluster, const JsonCursor& stages) {
  for (std::size_t x = 0; x < file.stages.size(); ++x) {
    NamedStage& stage = file.stages[x];
    std::vector<std::string> devices, after;
    for (const StagedReplica& replica : file.staged.stages[x].replicas) {
      devices.push_back(devices_name(cluster, replica.devices));
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

// The stages whose hash is not the one in the file, 0 for a placement; none where the file has no hashes.
std::vector<std::size_t> edited_stages(const PlanFile& file, const JsonCursor& root) {
  std::vector<std::size_t> edited;
  if (!root.has("derived_from")) return edited;
  const JsonCursor hashes = root.at("derived_from");
  if (file.placement &&
      (hashes.size() == 0 || fingerprint_from_json(hashes.at(std::size_t{0})) != hash_of(*file.placement))) {
    edited.push_back(0);
  }
  for (std::size_t x = 0; x < file.stages.size(); ++x) {
    if (x >= hashes.size() || fingerprint_from_json(hashes.at(x)) != hash_of(file.stages[x])) {
      edited.push_back(x);
    }
  }
  return edited;
}

}  // namespace

Json implementations_to_json(const std::vector<NamedImplementation>& implementations) {
  Json rows = Json::array();
  for (const NamedImplementation& one : implementations) {
    rows.push_back({{"kind", one.kind}, {"name", one.name}, {"operators", one.operators}});
  }
  return rows;
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
               {"cluster", cluster_to_json(cluster)}};
  if (file.placement) {
    json["placement"] = {{"micro_batch", file.placement->micro_batch.count()},
                         {"devices", named_placement_to_json(file.placement->operators)}};
    hashes.push_back(hex_text(hash_of(*file.placement), 16));
  } else {
    json["stages"] = std::move(stages);
  }
  json["derived_from"] = std::move(hashes);
  if (file.expansion) json["expansion"] = hex_text(*file.expansion, 16);
  json["staged"] = staged_model_to_json(file.staged, cluster);
  if (!file.implementations.empty()) json["implementations"] = implementations_to_json(file.implementations);
  json["notes"] = file.notes;
  json["operators"] = std::move(operators);
  return print_json(json);
}

namespace {

std::vector<NamedImplementation> implementations_from_json(const JsonCursor& json) {
  std::vector<NamedImplementation> all;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const JsonCursor row = json.at(i);
    row.only({"kind", "name", "operators"});
    NamedImplementation one{row.at("kind").string(), row.at("name").string(), {}};
    const JsonCursor operators = row.at("operators");
    for (std::size_t k = 0; k < operators.size(); ++k) one.operators.push_back(operators.at(k).string());
    all.push_back(std::move(one));
  }
  return all;
}

void only_known(const JsonCursor& root) {
  if (root.at("format").json() != kPlanFormat1) root.expect_format(kPlanFormat);
  root.only({"format", "model", "fingerprint", "planner", "seed", "training", "costs", "cluster", "stages",
             "placement", "derived_from", "expansion", "staged", "implementations", "notes", "operators"});
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
  if (root.has("placement")) {
    const JsonCursor placement = root.at("placement");
    if (root.has("stages")) placement.fail("stands beside 'stages'; a plan has one of them");
    placement.only({"micro_batch", "devices"});
    file.placement = PlanFile::Placed{named_placement_from_json(placement.at("devices")),
                                      BatchSize(placement.at("micro_batch").integer(1, kMax))};
    return file;
  }
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
  if (const std::vector<std::size_t> edited = edited_stages(file, root); !edited.empty()) {
    const JsonCursor place = file.placement ? root.at("placement") : root.at("stages").at(edited.front());
    place.fail("was edited since its times and memory were computed; `espalier plan MODEL --start " + where +
               "` computes them again");
  }
  file.staged = staged_model_from_json(root.at("staged").json(), root.at("staged").where(), cluster);
  if (root.has("expansion")) file.expansion = fingerprint_from_json(root.at("expansion"));
  if (root.has("implementations"))
    file.implementations = implementations_from_json(root.at("implementations"));
  const JsonCursor notes = root.at("notes");
  for (std::size_t i = 0; i < notes.size(); ++i) file.notes.push_back(notes.at(i).string());
  file.operators = operators_from_json(root.at("operators"));
  if (file.placement) {
    check_fragments_agree(file, cluster, root);
    return file;
  }
  check_agreement(file, root);
  complete_stages(file, cluster, root.at("stages"));
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
  plan.file.staged.orders = rule.parsed([](const std::string& name) { return parse_order_rule(name); });
  return plan;
}

}  // namespace espalier
