#include "espalier/cluster/json.h"

#include <map>

#include "espalier/base/check.h"
#include "espalier/base/json.h"

namespace espalier {
namespace {

Json endpoint_to_json(const EndpointCost& cost) {
  return {{"fixed_ns", cost.fixed.count()}, {"ps_per_byte", cost.picoseconds_per_byte}};
}

EndpointCost endpoint_from_json(const JsonCursor& cursor) {
  cursor.only({"fixed_ns", "ps_per_byte"});
  EndpointCost cost;
  cost.fixed = cursor.at("fixed_ns").duration();
  cost.picoseconds_per_byte = cursor.at("ps_per_byte").integer(0, std::int64_t{1} << 62);
  return cost;
}

// Of a kind or a device; none where nothing is said.
std::optional<double> price_from_json(const JsonCursor& cursor) {
  if (!cursor.has("price_per_hour")) return std::nullopt;
  return cursor.at("price_per_hour").number(0, kMaxRate);
}

DeviceKind kind_from_json(const JsonCursor& cursor) {
  cursor.only({"name", "preset", "memory_bytes", "flops_f32", "flops_tf32", "flops_bf16", "flops_f16",
               "memory_bytes_per_second", "launch_ns", "multiprocessors", "speed", "price_per_hour"});
  DeviceKind kind;
  const bool preset = cursor.has("preset");
  if (preset) {
    try {
      kind = device_preset(cursor.at("preset").string());
    } catch (const InputError& error) {
      cursor.at("preset").fail(error.what());
    }
  }
  const auto given = [&](const char* key) { return !preset || cursor.has(key); };
  kind.name = cursor.at("name").string();
  if (given("memory_bytes")) kind.memory = cursor.at("memory_bytes").bytes();
  if (given("flops_f32")) {
    kind.flops_f32 = kind.flops_f16 = cursor.at("flops_f32").number(0, kMaxRate);
    kind.flops_tf32 = kind.flops_bf16 = std::nullopt;
  }
  if (cursor.has("flops_tf32")) kind.flops_tf32 = cursor.at("flops_tf32").number(0, kMaxRate);
  if (cursor.has("flops_bf16")) kind.flops_bf16 = cursor.at("flops_bf16").number(0, kMaxRate);
  if (given("flops_f16")) kind.flops_f16 = cursor.at("flops_f16").number(0, kMaxRate);
  if (given("memory_bytes_per_second"))
    kind.memory_bandwidth = cursor.at("memory_bytes_per_second").bytes().count();
  if (given("launch_ns")) kind.launch_overhead = cursor.at("launch_ns").duration();
  if (given("multiprocessors"))
    kind.multiprocessors = static_cast<int>(cursor.at("multiprocessors").integer(1, kMaxMultiprocessors));
  if (cursor.has("speed")) kind.speed = cursor.at("speed").number(0, kMaxRate);
  kind.price_per_hour = price_from_json(cursor);
  return kind;
}

Group group_from_json(const JsonCursor& cursor, const std::map<std::string, std::size_t>& groups) {
  cursor.only({"name", "in", "bytes_per_second", "latency_ns", "lanes", "send", "receive"});
  Group group;
  group.name = cursor.at("name").string();
  if (cursor.has("in")) {
    const auto found = groups.find(cursor.at("in").string());
    if (found == groups.end()) cursor.at("in").fail("is no group above");
    group.parent = GroupId(found->second);
  }
  if (cursor.has("bytes_per_second")) group.bandwidth = cursor.at("bytes_per_second").bytes().count();
  group.latency = cursor.at("latency_ns").duration();
  if (cursor.has("lanes")) {
    if (cursor.at("lanes").string() != "unlimited")
      cursor.at("lanes").fail("expected \"unlimited\" or nothing");
    group.contention = false;
  }
  if (cursor.has("send")) group.send = endpoint_from_json(cursor.at("send"));
  if (cursor.has("receive")) group.receive = endpoint_from_json(cursor.at("receive"));
  return group;
}

// A kind of the file, or else a preset, which joins the file's.
std::size_t find_kind(const JsonCursor& name, ClusterParts& parts,
                      std::map<std::string, std::size_t>& kinds) {
  const auto found = kinds.find(name.string());
  if (found != kinds.end()) return found->second;
  try {
    parts.kinds.push_back(device_preset(name.string()));
  } catch (const InputError& error) {
    name.fail(std::string("is no kind of this file, and ") + error.what());
  }
  return kinds[name.string()] = parts.kinds.size() - 1;
}

NamedLink link_from_json(const JsonCursor& cursor, const ClusterParts& parts,
                         const std::map<std::string, Member>& members) {
  cursor.only({"from", "to", "bytes_per_second", "latency_ns", "lanes", "send", "receive"});
  const auto end = [&](const char* key) {
    const auto found = members.find(cursor.at(key).string());
    if (found == members.end()) cursor.at(key).fail("is no device or group");
    return found->second;
  };
  NamedLink link = usual_link(parts, end("from"), end("to"));
  link.bandwidth = cursor.at("bytes_per_second").bytes().count();
  if (cursor.has("latency_ns")) link.latency = cursor.at("latency_ns").duration();
  if (cursor.has("lanes")) {
    if (cursor.at("lanes").string() != "unlimited")
      cursor.at("lanes").fail("expected \"unlimited\" or nothing");
    link.contention = false;
  }
  if (cursor.has("send")) link.send = endpoint_from_json(cursor.at("send"));
  if (cursor.has("receive")) link.receive = endpoint_from_json(cursor.at("receive"));
  return link;
}

Json link_to_json(const Cluster& cluster, const NamedLink& link) {
  const NamedLink usual = usual_link(cluster.parts(), link.from, link.to);
  Json json = {{"from", cluster.name_of(link.from)},
               {"to", cluster.name_of(link.to)},
               {"bytes_per_second", link.bandwidth},
               {"latency_ns", link.latency.count()}};
  if (!link.contention) json["lanes"] = "unlimited";
  if (link.send != usual.send) json["send"] = endpoint_to_json(link.send);
  if (link.receive != usual.receive) json["receive"] = endpoint_to_json(link.receive);
  return json;
}

}  // namespace

Json cluster_to_json(const Cluster& cluster) {
  Json kinds = Json::array();
  for (const DeviceKind& kind : cluster.kinds()) {
    kinds.push_back({{"name", kind.name},
                     {"memory_bytes", kind.memory.count()},
                     {"flops_f32", kind.flops_f32},
                     {"flops_f16", kind.flops_f16},
                     {"memory_bytes_per_second", kind.memory_bandwidth},
                     {"launch_ns", kind.launch_overhead.count()},
                     {"multiprocessors", kind.multiprocessors}});
    if (kind.flops_tf32) kinds.back()["flops_tf32"] = *kind.flops_tf32;
    if (kind.flops_bf16) kinds.back()["flops_bf16"] = *kind.flops_bf16;
    if (kind.speed != 1) kinds.back()["speed"] = kind.speed;
    if (kind.price_per_hour) kinds.back()["price_per_hour"] = *kind.price_per_hour;
  }
  Json groups = Json::array();
  for (const Group& group : cluster.groups()) {
    Json json = {{"name", group.name}};
    if (group.parent) json["in"] = cluster.group(*group.parent).name;
    if (group.bandwidth) json["bytes_per_second"] = *group.bandwidth;
    json["latency_ns"] = group.latency.count();
    if (!group.contention) json["lanes"] = "unlimited";
    if (group.send != EndpointCost()) json["send"] = endpoint_to_json(group.send);
    if (group.receive != EndpointCost()) json["receive"] = endpoint_to_json(group.receive);
    groups.push_back(std::move(json));
  }
  Json devices = Json::array();
  for (const Device& device : cluster.devices()) {
    devices.push_back({{"name", device.name},
                       {"kind", cluster.kind(device.kind).name},
                       {"in", cluster.group(device.group).name}});
    if (device.memory != cluster.kind(device.kind).memory)
      devices.back()["memory_bytes"] = device.memory.count();
    if (device.price_per_hour && device.price_per_hour != cluster.kind(device.kind).price_per_hour)
      devices.back()["price_per_hour"] = *device.price_per_hour;
  }
  Json json;
  json["format"] = "espalier.cluster/1";
  json["kinds"] = std::move(kinds);
  json["groups"] = std::move(groups);
  json["devices"] = std::move(devices);
  if (!cluster.links().empty()) {
    Json links = Json::array();
    for (const NamedLink& link : cluster.links()) links.push_back(link_to_json(cluster, link));
    json["links"] = std::move(links);
  }
  return json;
}

Cluster cluster_from_json(const Json& json, const std::string& where) {
  const JsonCursor root(json, where);
  root.expect_format("espalier.cluster/1");
  root.only({"format", "kinds", "groups", "devices", "links"});
  ClusterParts parts;
  std::map<std::string, std::size_t> kind_ids;
  std::map<std::string, std::size_t> group_ids;
  const JsonCursor kinds = root.at("kinds");
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    parts.kinds.push_back(kind_from_json(kinds.at(i)));
    kind_ids.emplace(parts.kinds.back().name, i);
  }
  const JsonCursor groups = root.at("groups");
  for (std::size_t i = 0; i < groups.size(); ++i) {
    parts.groups.push_back(group_from_json(groups.at(i), group_ids));
    group_ids.emplace(parts.groups.back().name, i);
  }
  const JsonCursor devices = root.at("devices");
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const JsonCursor cursor = devices.at(i);
    cursor.only({"name", "kind", "in", "memory_bytes", "price_per_hour"});
    Device device;
    device.name = cursor.at("name").string();
    device.kind = KindId(find_kind(cursor.at("kind"), parts, kind_ids));
    const auto group = group_ids.find(cursor.at("in").string());
    if (group == group_ids.end()) cursor.at("in").fail("is no group");
    device.group = GroupId(group->second);
    device.memory = cursor.has("memory_bytes") ? cursor.at("memory_bytes").bytes()
                                               : parts.kinds[device.kind.index()].memory;
    device.price_per_hour = cursor.has("price_per_hour") ? price_from_json(cursor)
                                                         : parts.kinds[device.kind.index()].price_per_hour;
    parts.devices.push_back(std::move(device));
  }
  if (root.has("links")) {
    std::map<std::string, Member> members;
    for (std::size_t d = 0; d < parts.devices.size(); ++d)
      members.emplace(parts.devices[d].name, DeviceId(d));
    for (const auto& [name, id] : group_ids) members.emplace(name, GroupId(id));
    const JsonCursor links = root.at("links");
    for (std::size_t i = 0; i < links.size(); ++i) {
      parts.links.push_back(link_from_json(links.at(i), parts, members));
    }
  }
  if (const auto violations = check_cluster(parts); !violations.empty()) root.fail(violations[0]);
  return Cluster(std::move(parts));
}

}  // namespace espalier
