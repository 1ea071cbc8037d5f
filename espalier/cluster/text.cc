#include "espalier/cluster/text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>

#include "espalier/base/check.h"
#include "espalier/base/json.h"
#include "espalier/base/spelling.h"
#include "espalier/base/words.h"
#include "espalier/cluster/json.h"

namespace espalier {
namespace {

constexpr std::string_view kPunctuation = "=";

// The shortest text that reads back as the same number.
std::string number_text(double value) {
  std::array<char, 32> buffer{};
  const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  return {buffer.data(), end};
}

double parse_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw InputError("'" + std::string(text.substr(0, 60)) + "' is not a number");
  }
  return value;
}

std::string cost_text(const EndpointCost& cost) {
  std::string text = to_exact_text(cost.fixed);
  if (cost.picoseconds_per_byte != 0) text += "+" + std::to_string(cost.picoseconds_per_byte) + "ps/B";
  return text;
}

// "100us", "100us+400ps/B"
EndpointCost parse_cost(std::string_view text) {
  const std::size_t plus = text.find('+');
  EndpointCost cost;
  cost.fixed = parse_duration(text.substr(0, plus));
  if (plus == std::string_view::npos) return cost;
  constexpr std::string_view kUnit = "ps/B";
  const std::string_view rate = text.substr(plus + 1);
  if (rate.size() <= kUnit.size() || rate.substr(rate.size() - kUnit.size()) != kUnit) {
    throw InputError("'" + std::string(text.substr(0, 60)) +
                     "' is not a cost: expected such as 100us+400ps/B");
  }
  cost.picoseconds_per_byte =
      parse_integer(rate.substr(0, rate.size() - kUnit.size()), 0, std::int64_t{1} << 62);
  return cost;
}

class ClusterReader {
 public:
  Cluster read(std::string_view text) {
    for (const auto& [number, words] : split_lines(text, kPunctuation)) {
      try {
        read_line(words);
      } catch (const InputError& error) {
        throw InputError("line " + std::to_string(number) + ": " + error.what());
      }
    }
    return Cluster(std::move(parts_));
  }

 private:
  using Settings = std::map<std::string, std::string, std::less<>>;

  // Plain words first, then key=value. Takes the words from `from` on.
  struct Rest {
    std::vector<std::string> plain;
    Settings settings;
  };
  static Rest rest_of(const std::vector<Word>& words, std::size_t from) {
    Rest rest;
    for (std::size_t i = from; i < words.size(); ++i) {
      if (i + 1 < words.size() && words[i + 1].is("=")) {
        if (i + 2 == words.size()) throw InputError("'" + words[i].text + "=' has no value");
        if (!rest.settings.emplace(words[i].text, words[i + 2].text).second) {
          throw InputError("'" + words[i].text + "' stands twice");
        }
        i += 2;
      } else {
        rest.plain.push_back(words[i].text);
      }
    }
    return rest;
  }
  static void only(const Settings& settings, std::initializer_list<std::string_view> keys) {
    for (const auto& [key, value] : settings) {
      if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
      throw InputError("'" + key + "' is not known here; did you mean '" +
                       std::string(nearest_word(key, {keys.begin(), keys.size()}).value_or("")) + "'?");
    }
  }
  static std::string_view need(const Settings& settings, std::string_view key) {
    const auto found = settings.find(key);
    if (found == settings.end()) throw InputError("'" + std::string(key) + "=' is missing");
    return found->second;
  }

  void read_line(const std::vector<Word>& words) {
    if (words.size() < 2) throw InputError("expected a name behind '" + words[0].text + "'");
    const std::string& name = words[1].text;
    const Rest rest = rest_of(words, 2);
    if (words[0].is("kind")) {
      read_kind(name, rest);
    } else if (words[0].is("group")) {
      read_group(name, rest);
    } else if (words[0].is("device")) {
      read_device(name, rest);
    } else {
      throw InputError("'" + words[0].text + "' begins no line: expected kind, group or device");
    }
  }

  void read_kind(const std::string& name, const Rest& rest) {
    only(rest.settings, {"preset", "f32", "tf32", "bf16", "f16", "mem", "launch", "sms", "speed"});
    const auto given = [&](std::string_view key) { return rest.settings.contains(key); };
    const bool preset = given("preset") || (rest.plain.empty() && rest.settings.empty());
    if (rest.plain.size() > 1 || (rest.plain.empty() && !preset)) {
      throw InputError("expected `kind NAME MEMORY f32=… f16=… mem=…`, or `kind NAME preset=A100-80GB`");
    }
    DeviceKind kind;
    if (preset) kind = device_preset(given("preset") ? need(rest.settings, "preset") : name);
    kind.name = name;
    if (!rest.plain.empty()) kind.memory = parse_bytes(rest.plain[0]);
    if (!preset || given("f32")) {  // the other rates of a preset go with its f32 rate
      kind.flops_f32 = kind.flops_f16 = parse_number(need(rest.settings, "f32"));
      kind.flops_tf32 = kind.flops_bf16 = std::nullopt;
    }
    if (given("tf32")) kind.flops_tf32 = parse_number(need(rest.settings, "tf32"));
    if (given("bf16")) kind.flops_bf16 = parse_number(need(rest.settings, "bf16"));
    if (given("f16")) kind.flops_f16 = parse_number(need(rest.settings, "f16"));
    if (!preset || given("mem")) kind.memory_bandwidth = parse_bandwidth(need(rest.settings, "mem"));
    if (given("launch")) kind.launch_overhead = parse_duration(need(rest.settings, "launch"));
    if (given("sms")) {
      kind.multiprocessors =
          static_cast<int>(parse_integer(need(rest.settings, "sms"), 1, kMaxMultiprocessors));
    }
    if (given("speed")) kind.speed = parse_number(need(rest.settings, "speed"));
    add_kind(std::move(kind));
  }

  std::size_t add_kind(DeviceKind kind) {
    kinds_.emplace(kind.name, parts_.kinds.size());
    parts_.kinds.push_back(std::move(kind));
    return parts_.kinds.size() - 1;
  }

  // One that stands above, or else a preset.
  std::size_t find_kind(const std::string& name) {
    const auto kind = kinds_.find(name);
    if (kind != kinds_.end()) return kind->second;
    try {
      return add_kind(device_preset(name));
    } catch (const InputError& error) {
      throw InputError("kind '" + name + "' is not defined above, and " + error.what());
    }
  }

  void read_group(const std::string& name, const Rest& rest) {
    only(rest.settings, {"latency", "lanes", "send", "receive"});
    Group group;
    group.name = name;
    std::size_t next = 0;
    if (rest.plain.size() >= 2 && rest.plain[0] == "in") {
      group.parent = find_group(rest.plain[1]);
      next = 2;
    }
    if (rest.plain.size() > next) group.bandwidth = parse_bandwidth(rest.plain[next++]);
    if (rest.plain.size() > next) throw InputError("'" + rest.plain[next] + "' is not expected here");
    for (const auto& [key, value] : rest.settings) {
      if (key == "latency") group.latency = parse_duration(value);
      if (key == "send") group.send = parse_cost(value);
      if (key == "receive") group.receive = parse_cost(value);
      if (key == "lanes") {
        if (value != "unlimited") throw InputError("expected lanes=unlimited or nothing");
        group.contention = false;
      }
    }
    groups_.emplace(name, parts_.groups.size());
    parts_.groups.push_back(std::move(group));
  }

  void read_device(const std::string& name, const Rest& rest) {
    only(rest.settings, {"memory"});
    const auto& plain = rest.plain;
    if (plain.size() != 1 && (plain.size() != 3 || plain[1] != "in")) {
      throw InputError("expected `device NAME KIND in GROUP`");
    }
    const std::size_t kind = find_kind(plain[0]);
    if (plain.size() == 1 && parts_.groups.size() != 1) {
      throw InputError("expected `device NAME KIND in GROUP`: there is more than one group, or none");
    }
    Device device;
    device.name = name;
    device.kind = KindId(kind);
    device.group = plain.size() == 1 ? GroupId(0) : find_group(plain[2]);
    device.memory = rest.settings.count("memory") != 0 ? parse_bytes(need(rest.settings, "memory"))
                                                       : parts_.kinds[kind].memory;
    parts_.devices.push_back(std::move(device));
  }

  GroupId find_group(const std::string& name) const {
    const auto found = groups_.find(name);
    if (found == groups_.end()) throw InputError("group '" + name + "' is not defined above");
    return GroupId(found->second);
  }

  ClusterParts parts_;
  std::map<std::string, std::size_t> kinds_, groups_;
};

std::string word(std::string_view text) {
  return quote_word(text, kPunctuation, {"in"});
}

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

DeviceKind kind_from_json(const JsonCursor& cursor) {
  cursor.only({"name", "preset", "memory_bytes", "flops_f32", "flops_tf32", "flops_bf16", "flops_f16",
               "memory_bytes_per_second", "launch_ns", "multiprocessors", "speed"});
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

}  // namespace

Cluster parse_cluster_lines(std::string_view text) {
  return ClusterReader().read(text);
}

std::string print_cluster(const Cluster& cluster) {
  std::string text;
  for (const DeviceKind& kind : cluster.kinds()) {
    text += "kind " + word(kind.name) + " " + to_exact_text(kind.memory) +
            " f32=" + number_text(kind.flops_f32) +
            (kind.flops_tf32 ? " tf32=" + number_text(*kind.flops_tf32) : "") +
            (kind.flops_bf16 ? " bf16=" + number_text(*kind.flops_bf16) : "") +
            " f16=" + number_text(kind.flops_f16) + " mem=" + bandwidth_text(kind.memory_bandwidth) +
            " launch=" + to_exact_text(kind.launch_overhead) + " sms=" + std::to_string(kind.multiprocessors);
    if (kind.speed != 1) text += " speed=" + number_text(kind.speed);
    text += '\n';
  }
  for (const Group& group : cluster.groups()) {
    text += "group " + word(group.name);
    if (group.parent) text += " in " + word(cluster.group(*group.parent).name);
    if (group.bandwidth) text += " " + bandwidth_text(*group.bandwidth);
    text += " latency=" + to_exact_text(group.latency);
    if (!group.contention) text += " lanes=unlimited";
    if (group.send != EndpointCost()) text += " send=" + cost_text(group.send);
    if (group.receive != EndpointCost()) text += " receive=" + cost_text(group.receive);
    text += '\n';
  }
  for (const Device& device : cluster.devices()) {
    text += "device " + word(device.name) + " " + word(cluster.kind(device.kind).name) + " in " +
            word(cluster.group(device.group).name);
    if (device.memory != cluster.kind(device.kind).memory) text += " memory=" + to_exact_text(device.memory);
    text += '\n';
  }
  return text;
}

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
  }
  Json json;
  json["format"] = "espalier.cluster/1";
  json["kinds"] = std::move(kinds);
  json["groups"] = std::move(groups);
  json["devices"] = std::move(devices);
  return json;
}

Cluster cluster_from_json(const Json& json, const std::string& where) {
  const JsonCursor root(json, where);
  root.expect_format("espalier.cluster/1");
  root.only({"format", "kinds", "groups", "devices"});
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
    cursor.only({"name", "kind", "in", "memory_bytes"});
    const auto find = [&](const char* key, const auto& ids) {
      const auto found = ids.find(cursor.at(key).string());
      if (found == ids.end()) cursor.at(key).fail(std::string("is no ") + (key[0] == 'k' ? "kind" : "group"));
      return found->second;
    };
    Device device;
    device.name = cursor.at("name").string();
    device.kind = KindId(find("kind", kind_ids));
    device.group = GroupId(find("in", group_ids));
    device.memory = cursor.has("memory_bytes") ? cursor.at("memory_bytes").bytes()
                                               : parts.kinds[device.kind.index()].memory;
    parts.devices.push_back(std::move(device));
  }
  if (const auto violations = check_cluster(parts); !violations.empty()) root.fail(violations[0]);
  return Cluster(std::move(parts));
}

}  // namespace espalier
