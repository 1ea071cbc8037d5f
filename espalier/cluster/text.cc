#include "espalier/cluster/text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>

#include "espalier/base/check.h"
#include "espalier/base/spelling.h"
#include "espalier/base/words.h"

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
    if (words[0].is("link")) return read_link(rest_of(words, 1));
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
      throw InputError("'" + words[0].text + "' begins no line: expected kind, group, device or link");
    }
  }

  void read_kind(const std::string& name, const Rest& rest) {
    only(rest.settings, {"preset", "f32", "tf32", "bf16", "f16", "mem", "launch", "sms", "speed", "price"});
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
    if (given("price")) kind.price_per_hour = parse_number(need(rest.settings, "price"));
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
    only(rest.settings, {"memory", "price"});
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
    device.price_per_hour = rest.settings.contains("price")
                                ? std::optional(parse_number(need(rest.settings, "price")))
                                : parts_.kinds[kind].price_per_hour;
    parts_.devices.push_back(std::move(device));
  }

  void read_link(const Rest& rest) {
    only(rest.settings, {"latency", "lanes", "send", "receive"});
    if (rest.plain.size() != 3)
      throw InputError("expected `link FROM TO BANDWIDTH`, such as `link gpu:0 gpu:1 50GB`");
    NamedLink link = usual_link(parts_, find_member(rest.plain[0]), find_member(rest.plain[1]));
    link.bandwidth = parse_bandwidth(rest.plain[2]);
    for (const auto& [key, value] : rest.settings) {
      if (key == "latency") link.latency = parse_duration(value);
      if (key == "send") link.send = parse_cost(value);
      if (key == "receive") link.receive = parse_cost(value);
      if (key == "lanes") {
        if (value != "unlimited") throw InputError("expected lanes=unlimited or nothing");
        link.contention = false;
      }
    }
    parts_.links.push_back(link);
  }

  Member find_member(const std::string& name) const {
    for (std::size_t d = 0; d < parts_.devices.size(); ++d) {
      if (parts_.devices[d].name == name) return DeviceId(d);
    }
    const auto found = groups_.find(name);
    if (found != groups_.end()) return GroupId(found->second);
    throw InputError("no device or group '" + name + "' is defined above");
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

std::string link_text(const Cluster& cluster, const NamedLink& link) {
  const NamedLink usual = usual_link(cluster.parts(), link.from, link.to);
  std::string text = "link " + word(cluster.name_of(link.from)) + " " + word(cluster.name_of(link.to)) + " " +
                     bandwidth_text(link.bandwidth) + " latency=" + to_exact_text(link.latency);
  if (!link.contention) text += " lanes=unlimited";
  if (link.send != usual.send) text += " send=" + cost_text(link.send);
  if (link.receive != usual.receive) text += " receive=" + cost_text(link.receive);
  return text + "\n";
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
    if (kind.price_per_hour) text += " price=" + number_text(*kind.price_per_hour);
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
    if (device.price_per_hour && device.price_per_hour != cluster.kind(device.kind).price_per_hour)
      text += " price=" + number_text(*device.price_per_hour);
    text += '\n';
  }
  for (const NamedLink& link : cluster.links()) text += link_text(cluster, link);
  return text;
}

}  // namespace espalier
