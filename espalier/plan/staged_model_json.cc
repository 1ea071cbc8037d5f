#include <map>
#include <nlohmann/json.hpp>

#include "espalier/base/check.h"
#include "espalier/base/json.h"
#include "espalier/plan/json.h"
#include "espalier/plan/text.h"

namespace espalier {
namespace {

constexpr std::int64_t kMaxIndex = 0xffffffff;

// Members of a struct of figures, under the names they have in the file.
// Those of version 2 are left out where they are 0, as in files of version 1.
enum class Since : std::uint8_t { kVersion1, kVersion2 };
template <class Struct, class Unit>
struct Member {
  const char* key;
  Quantity<Unit> Struct::*field;
  Since since = Since::kVersion1;
};
constexpr Member<StageTimes, NanosecondUnit> kTimes[] = {
    {"forward_ns", &StageTimes::forward},
    {"input_gradient_ns", &StageTimes::input_gradient},
    {"weight_gradient_ns", &StageTimes::weight_gradient},
    {"recompute_ns", &StageTimes::recompute},
    {"update_ns", &StageTimes::update},
    {"overhead_ns", &StageTimes::overhead, Since::kVersion2}};
constexpr Member<StageMemory, ByteUnit> kMemory[] = {
    {"parameters", &StageMemory::parameters},
    {"buffers", &StageMemory::buffers},
    {"gradients", &StageMemory::gradients},
    {"optimizer_state", &StageMemory::optimizer_state},
    {"saved", &StageMemory::saved},
    {"recomputed", &StageMemory::recomputed},
    {"between_halves", &StageMemory::between_halves},
    {"forward_workspace", &StageMemory::forward_workspace},
    {"backward_workspace", &StageMemory::backward_workspace},
    {"saved_for_input", &StageMemory::saved_for_input, Since::kVersion2},
    {"recomputed_for_input", &StageMemory::recomputed_for_input, Since::kVersion2},
    {"update_workspace", &StageMemory::update_workspace, Since::kVersion2}};

template <class Struct, class Members>
Json figures_to_json(const Struct& figures, const Members& members) {
  Json json = Json::object();
  for (const auto& [key, field, since] : members) {
    const std::int64_t count = (figures.*field).count();
    if (since == Since::kVersion1 || count != 0) json[key] = count;
  }
  return json;
}

template <class Struct, class Members>
Struct figures_from_json(const JsonCursor& json, const Members& members) {
  Struct figures;
  std::size_t known = 0;
  for (const auto& [key, field, since] : members) {
    if (since == Since::kVersion2 && !json.has(key)) continue;
    figures.*field = std::remove_reference_t<decltype(figures.*field)>(json.at(key).bytes().count());
    ++known;
  }
  if (json.json().size() == known) return figures;
  for (const auto& [key, cursor] : json.members()) {
    bool found = false;
    for (const auto& member : members) found = found || key == member.key;
    if (!found) json.fail("'" + key.substr(0, 80) + "' is not known here");
  }
  return figures;
}

class Reader {
 public:
  explicit Reader(const Cluster& cluster) : cluster_(cluster) {}

  StagedModel model(const JsonCursor& root) {
    root.only({"schedule", "orders", "tokens", "stages", "crossings", "ties"});
    StagedModel model;
    const auto tokens = parse_token_rule(root.at("tokens").string());
    if (!tokens) root.at("tokens").fail("is not known; expected both, forward, free or none");
    model.tokens = *tokens;
    const JsonCursor stages = root.at("stages");
    for (std::size_t x = 0; x < stages.size(); ++x) {
      const std::string name = stages.at(x).at("name").string();
      if (!ids_.try_emplace(name, StageId(x)).second)
        stages.at(x).fail("a second stage is called '" + name + "'");
    }
    for (std::size_t x = 0; x < stages.size(); ++x) model.stages.push_back(stage(stages.at(x)));
    const JsonCursor crossings = root.at("crossings");
    for (std::size_t i = 0; i < crossings.size(); ++i) model.crossings.push_back(crossing(crossings.at(i)));
    const JsonCursor ties = root.at("ties");
    for (std::size_t i = 0; i < ties.size(); ++i) {
      ties.at(i).only({"parameter", "bytes", "stages"});
      model.ties.push_back({ties.at(i).at("parameter").string(), ties.at(i).at("bytes").bytes(),
                            stage_list(ties.at(i).at("stages"))});
    }
    const bool version_1 = root.has("schedule");
    if (version_1 && root.has("orders"))
      root.at("orders").fail("stands beside 'schedule', of which it took the place");
    model.orders = version_1 ? schedule_of_version_1(root.at("schedule")) : orders(root.at("orders"), model);
    return model;
  }

 private:
  static Orders schedule_of_version_1(const JsonCursor& json) {
    const auto kind = parse_schedule_kind(json.string());
    if (!kind) json.fail("is not known; expected gpipe or 1f1b");
    OrderRule rule(*kind);
    rule.edition = OrderRule::Edition::kFirst;
    return rule;
  }

  Orders orders(const JsonCursor& json, const StagedModel& model) const {
    json.only({"rule", "lists"});
    if (json.has("rule")) {
      if (json.has("lists")) json.at("lists").fail("stand beside a rule; expected one of the two");
      return json.at("rule").parsed([](const std::string& rule) { return parse_order_rule(rule); });
    }
    const OrderNames names = order_names(model, cluster_);
    OrderLists lists(names.devices.size());
    const JsonCursor all = json.at("lists");
    const std::string where = all.where() + ".";
    for (const auto& [device, list] : all.members()) {
      const auto id = cluster_.find_device(device);
      if (!id) list.fail("is no device");
      lists[id->index()] = parse_order(list.string(), *id, names, where + device);
    }
    return Orders(std::move(lists));
  }

  StageId stage_named(const JsonCursor& json) const {
    const auto id = ids_.find(json.string());
    if (id == ids_.end()) json.fail("is '" + json.string().substr(0, 80) + "', which is no stage");
    return id->second;
  }

  std::vector<StageId> stage_list(const JsonCursor& json) const {
    std::vector<StageId> stages;
    for (std::size_t i = 0; i < json.size(); ++i) stages.push_back(stage_named(json.at(i)));
    return stages;
  }

  StagedReplica replica(const JsonCursor& json) const {
    json.only({"devices", "micro_batches", "times"});
    StagedReplica replica;
    const JsonCursor devices = json.at("devices");
    for (std::size_t i = 0; i < devices.size(); ++i) {
      const auto id = cluster_.find_device(devices.at(i).string());
      if (!id) devices.at(i).fail("is '" + devices.at(i).string().substr(0, 80) + "', which is no device");
      replica.devices.push_back(*id);
    }
    const JsonCursor share = json.at("micro_batches");
    for (std::size_t i = 0; i < share.size(); ++i) {
      replica.micro_batches.push_back(static_cast<std::uint32_t>(share.at(i).integer(0, kMaxIndex)));
    }
    replica.times = figures_from_json<StageTimes>(json.at("times"), kTimes);
    return replica;
  }

  StagedStage stage(const JsonCursor& json) const {
    json.only({"name", "after", "micro_batches", "in_flight", "slots", "replicas", "memory", "reduced"});
    StagedStage stage;
    stage.name = json.at("name").string();
    stage.after = stage_list(json.at("after"));
    stage.micro_batches = static_cast<std::uint32_t>(json.at("micro_batches").integer(1, kMaxIndex));
    stage.in_flight = static_cast<std::uint32_t>(json.at("in_flight").integer(1, kMaxIndex));
    if (json.has("slots")) stage.slots = static_cast<std::uint32_t>(json.at("slots").integer(1, kMaxIndex));
    const JsonCursor replicas = json.at("replicas");
    for (std::size_t r = 0; r < replicas.size(); ++r) stage.replicas.push_back(replica(replicas.at(r)));
    stage.memory = figures_from_json<StageMemory>(json.at("memory"), kMemory);
    stage.reduced = json.at("reduced").bytes();
    return stage;
  }

  Crossing crossing(const JsonCursor& json) const {
    json.only(
        {"tensor", "from", "output", "saved_by_producer", "for_input_only", "token", "returns", "readers"});
    Crossing crossing;
    crossing.tensor = json.at("tensor").string();
    crossing.from = stage_named(json.at("from"));
    crossing.output = json.at("output").bytes();
    crossing.saved_by_producer = json.at("saved_by_producer").boolean();
    if (json.has("for_input_only")) crossing.for_input_only = json.at("for_input_only").boolean();
    crossing.token = json.at("token").boolean();
    crossing.returns = json.at("returns").boolean();
    const JsonCursor readers = json.at("readers");
    for (std::size_t i = 0; i < readers.size(); ++i) {
      const JsonCursor entry = readers.at(i);
      entry.only({"stage", "saved", "for_input_only", "bytes", "gradient"});
      crossing.readers.push_back({stage_named(entry.at("stage")), entry.at("saved").boolean(),
                                  entry.at("bytes").bytes(), entry.at("gradient").bytes(),
                                  entry.has("for_input_only") && entry.at("for_input_only").boolean()});
    }
    return crossing;
  }

  const Cluster& cluster_;
  std::map<std::string, StageId> ids_;
};

Json orders_to_json(const StagedModel& model, const Cluster& cluster) {
  if (const OrderRule* rule = model.orders.rule()) return {{"rule", to_text(*rule)}};
  const OrderNames names = order_names(model, cluster);
  const OrderLists& orders = *model.orders.lists();
  Json lists = Json::object();
  for (std::size_t d = 0; d < orders.size(); ++d) {
    if (orders[d].empty()) continue;
    lists[names.devices.at(d)] = print_order(orders[d], DeviceId(d), names);
  }
  return {{"lists", std::move(lists)}};
}

Json names(const StagedModel& model, const std::vector<StageId>& stages) {
  Json list = Json::array();
  for (const StageId stage : stages) list.push_back(model.stages[stage.index()].name);
  return list;
}

}  // namespace

nlohmann::ordered_json staged_model_to_json(const StagedModel& model, const Cluster& cluster) {
  Json stages = Json::array();
  for (const StagedStage& stage : model.stages) {
    Json replicas = Json::array();
    for (const StagedReplica& replica : stage.replicas) {
      Json devices = Json::array();
      for (const DeviceId device : replica.devices) devices.push_back(cluster.device(device).name);
      replicas.push_back({{"devices", std::move(devices)},
                          {"micro_batches", replica.micro_batches},
                          {"times", figures_to_json(replica.times, kTimes)}});
    }
    Json json = {{"name", stage.name},
                 {"after", names(model, stage.after)},
                 {"micro_batches", stage.micro_batches},
                 {"in_flight", stage.in_flight}};
    if (stage.slots) json["slots"] = *stage.slots;
    json["replicas"] = std::move(replicas);
    json["memory"] = figures_to_json(stage.memory, kMemory);
    json["reduced"] = stage.reduced.count();
    stages.push_back(std::move(json));
  }
  Json crossings = Json::array();
  for (const Crossing& crossing : model.crossings) {
    Json readers = Json::array();
    for (const Crossing::Reader& reader : crossing.readers) {
      readers.push_back({{"stage", model.stages[reader.stage.index()].name},
                         {"saved", reader.saved},
                         {"bytes", reader.bytes.count()},
                         {"gradient", reader.gradient.count()}});
      if (reader.for_input_only) readers.back()["for_input_only"] = true;
    }
    crossings.push_back({{"tensor", crossing.tensor},
                         {"from", model.stages[crossing.from.index()].name},
                         {"output", crossing.output.count()},
                         {"saved_by_producer", crossing.saved_by_producer},
                         {"token", crossing.token},
                         {"returns", crossing.returns},
                         {"readers", std::move(readers)}});
    if (crossing.for_input_only) crossings.back()["for_input_only"] = true;
  }
  Json ties = Json::array();
  for (const Tie& tie : model.ties) {
    ties.push_back(
        {{"parameter", tie.parameter}, {"bytes", tie.bytes.count()}, {"stages", names(model, tie.stages)}});
  }
  return {{"orders", orders_to_json(model, cluster)},
          {"tokens", to_text(model.tokens)},
          {"stages", std::move(stages)},
          {"crossings", std::move(crossings)},
          {"ties", std::move(ties)}};
}

StagedModel staged_model_from_json(const nlohmann::ordered_json& json, const std::string& where,
                                   const Cluster& cluster) {
  const JsonCursor root(json, where);
  StagedModel model = Reader(cluster).model(root);
  const std::vector<std::string> violations = check_staged_model(model, cluster);
  if (!violations.empty()) root.fail(violations.front());
  return model;
}

}  // namespace espalier
