#include "espalier/schedule/json.h"

#include "espalier/base/json.h"
#include "espalier/schedule/names.h"

namespace espalier {
namespace {

constexpr std::string_view kFormat = "espalier.schedule/1";
constexpr std::int64_t kMaxIndex = 0xfffffffe;

// ["F", crossing, "reader", producer micro-batch, consumer micro-batch]; "B" travels back.
Json message_to_json(const StagedModel& model, const Message& message) {
  return Json::array({message.direction == Message::Direction::kForward ? "F" : "B", message.crossing,
                      model.stages.at(message.reader.index()).name, message.producer_micro_batch,
                      message.consumer_micro_batch});
}

StageId stage_at(const JsonCursor& cursor, const StagedModel& model) {
  const std::string& name = cursor.string();
  for (std::size_t s = 0; s < model.stages.size(); ++s) {
    if (model.stages[s].name == name) return StageId(s);
  }
  cursor.fail("stage '" + name + "' is not in the plan");
}

DeviceId device_at(const JsonCursor& cursor, const Cluster& cluster) {
  const std::string& name = cursor.string();
  const auto device = cluster.find_device(name);
  if (!device) cursor.fail("device '" + name + "' is not in the cluster");
  return *device;
}

std::uint32_t index_at(const JsonCursor& cursor) {
  return static_cast<std::uint32_t>(cursor.integer(0, kMaxIndex));
}

Message message_from_json(const JsonCursor& cursor, const StagedModel& model) {
  if (cursor.size() != 5)
    cursor.fail("expected [\"F\" or \"B\", crossing, reader, micro-batch, micro-batch]");
  Message message;
  const std::string direction = cursor.at(std::size_t{0}).string();
  if (direction != "F" && direction != "B") cursor.at(std::size_t{0}).fail("expected \"F\" or \"B\"");
  message.direction = direction == "F" ? Message::Direction::kForward : Message::Direction::kBackward;
  message.crossing = index_at(cursor.at(1));
  if (message.crossing >= model.crossings.size()) cursor.at(1).fail("the plan has no such crossing");
  message.reader = stage_at(cursor.at(2), model);
  message.producer_micro_batch = index_at(cursor.at(3));
  message.consumer_micro_batch = index_at(cursor.at(4));
  return message;
}

}  // namespace

nlohmann::ordered_json schedule_to_json(const StagedModel& model, const Cluster& cluster,
                                        const Schedule& schedule) {
  Json devices = Json::array();
  for (std::size_t d = 0; d < schedule.devices.size(); ++d) {
    if (schedule.devices[d].empty()) continue;
    Json actions = Json::array();
    for (const Action& action : schedule.devices[d])
      actions.push_back(action_name(model, action, StageName::kShown));
    devices.push_back({{"device", cluster.device(DeviceId(d)).name}, {"actions", std::move(actions)}});
  }
  Json channels = Json::array();
  for (const Channel& channel : schedule.channels) {
    Json messages = Json::array();
    for (const Message& message : channel.messages) messages.push_back(message_to_json(model, message));
    channels.push_back({{"from", cluster.device(channel.from).name},
                        {"to", cluster.device(channel.to).name},
                        {"messages", std::move(messages)}});
  }
  Json json = Json::object();
  json["format"] = kFormat;
  json["devices"] = std::move(devices);
  json["channels"] = std::move(channels);
  return json;
}

Schedule schedule_from_json(const nlohmann::ordered_json& json, const std::string& where,
                            const StagedModel& model, const Cluster& cluster) {
  const JsonCursor root(json, where);
  root.expect_format(kFormat);
  root.only({"format", "devices", "channels"});
  Schedule schedule;
  schedule.devices.resize(cluster.devices().size());
  const JsonCursor devices = root.at("devices");
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const JsonCursor entry = devices.at(i);
    entry.only({"device", "actions"});
    const JsonCursor actions = entry.at("actions");
    std::vector<Action>& list = schedule.devices[device_at(entry.at("device"), cluster).index()];
    if (!list.empty()) entry.fail("this device stands here twice");
    for (std::size_t a = 0; a < actions.size(); ++a) {
      list.push_back(actions.at(a).parsed(
          [&](const std::string& action) { return parse_action(action, model, std::nullopt); }));
    }
  }
  const JsonCursor channels = root.at("channels");
  for (std::size_t i = 0; i < channels.size(); ++i) {
    const JsonCursor entry = channels.at(i);
    entry.only({"from", "to", "messages"});
    Channel channel{device_at(entry.at("from"), cluster), device_at(entry.at("to"), cluster), {}};
    const JsonCursor messages = entry.at("messages");
    for (std::size_t m = 0; m < messages.size(); ++m)
      channel.messages.push_back(message_from_json(messages.at(m), model));
    schedule.channels.push_back(std::move(channel));
  }
  return schedule;
}

}  // namespace espalier
