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
template <class Struct, class Unit>
struct Member {
  const char* key;
  Quantity<Unit> Struct::*field;
};
constexpr Member<StageTimes, NanosecondUnit> kTimes[] = {{"forward_ns", &StageTimes::forward},
                                                         {"input_gradient_ns", &StageTimes::input_gradient},
                                                         {"weight_gradient_ns", &StageTimes::weight_gradient},
                                                         {"recompute_ns", &StageTimes::recompute},
                                                         {"update_ns", &StageTimes::update}};
constexpr Member<StageMemory, ByteUnit> kMemory[] = {
    {"parameters", &StageMemory::parameters},
    {"buffers", &StageMemory::buffers},
    {"gradients", &StageMemory::gradients},
    {"optimizer_state", &StageMemory::optimizer_state},
    {"saved", &StageMemory::saved},
    {"recomputed", &StageMemory::recomputed},
    {"between_halves", &StageMemory::between_halves},
    {"forward_workspace", &StageMemory::forward_workspace},
    {"backward_workspace", &StageMemory::backward_workspace}};

template <class Struct, class Members>
Json figures_to_json(const Struct& figures, const Members& members) {
  Json json = Json::object();
  for (const auto& [key, field] : members) json[key] = (figures.*field).count();
  return json;
}

template <class Struct, class Members>
Struct figures_from_json(const JsonCursor& json, const Members& members) {
  Struct figures;
  std::size_t known = 0;
  for (const auto& [key, field] : members) {
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
    root.only({"schedule", "tokens", "stages", "crossings", "ties"});
    StagedModel model;
    const auto schedule = parse_schedule_kind(root.at("schedule").string());
    if (!schedule) root.at("schedule").fail("is not known; expected gpipe or 1f1b");
    model.schedule = *schedule;
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
    return model;
  }

 private:
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
    json.only({"name", "after", "micro_batches", "in_flight", "replicas", "memory", "reduced"});
    StagedStage stage;
    stage.name = json.at("name").string();
    stage.after = stage_list(json.at("after"));
    stage.micro_batches = static_cast<std::uint32_t>(json.at("micro_batches").integer(1, kMaxIndex));
    stage.in_flight = static_cast<std::uint32_t>(json.at("in_flight").integer(1, kMaxIndex));
    const JsonCursor replicas = json.at("replicas");
    for (std::size_t r = 0; r < replicas.size(); ++r) stage.replicas.push_back(replica(replicas.at(r)));
    stage.memory = figures_from_json<StageMemory>(json.at("memory"), kMemory);
    stage.reduced = json.at("reduced").bytes();
    return stage;
  }

  Crossing crossing(const JsonCursor& json) const {
    json.only({"tensor", "from", "output", "saved_by_producer", "token", "returns", "readers"});
    Crossing crossing;
    crossing.tensor = json.at("tensor").string();
    crossing.from = stage_named(json.at("from"));
    crossing.output = json.at("output").bytes();
    crossing.saved_by_producer = json.at("saved_by_producer").boolean();
    crossing.token = json.at("token").boolean();
    crossing.returns = json.at("returns").boolean();
    const JsonCursor readers = json.at("readers");
    for (std::size_t i = 0; i < readers.size(); ++i) {
      const JsonCursor entry = readers.at(i);
      entry.only({"stage", "saved", "bytes", "gradient"});
      crossing.readers.push_back({stage_named(entry.at("stage")), entry.at("saved").boolean(),
                                  entry.at("bytes").bytes(), entry.at("gradient").bytes()});
    }
    return crossing;
  }

  const Cluster& cluster_;
  std::map<std::string, StageId> ids_;
};

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
    stages.push_back({{"name", stage.name},
                      {"after", names(model, stage.after)},
                      {"micro_batches", stage.micro_batches},
                      {"in_flight", stage.in_flight},
                      {"replicas", std::move(replicas)},
                      {"memory", figures_to_json(stage.memory, kMemory)},
                      {"reduced", stage.reduced.count()}});
  }
  Json crossings = Json::array();
  for (const Crossing& crossing : model.crossings) {
    Json readers = Json::array();
    for (const Crossing::Reader& reader : crossing.readers) {
      readers.push_back({{"stage", model.stages[reader.stage.index()].name},
                         {"saved", reader.saved},
                         {"bytes", reader.bytes.count()},
                         {"gradient", reader.gradient.count()}});
    }
    crossings.push_back({{"tensor", crossing.tensor},
                         {"from", model.stages[crossing.from.index()].name},
                         {"output", crossing.output.count()},
                         {"saved_by_producer", crossing.saved_by_producer},
                         {"token", crossing.token},
                         {"returns", crossing.returns},
                         {"readers", std::move(readers)}});
  }
  Json ties = Json::array();
  for (const Tie& tie : model.ties) {
    ties.push_back(
        {{"parameter", tie.parameter}, {"bytes", tie.bytes.count()}, {"stages", names(model, tie.stages)}});
  }
  return {{"schedule", to_text(model.schedule)},
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
