// Known devices and the short form of a cluster.
//
// Peaks as the makers publish them, dense (no sparsity); docs/cost-model.md has a line with the source of
// each. Memory: what is left of the board's for a training step. f32 is the rate without TF32, which PyTorch
// does not use unless told. Kinds without bf16 units (V100,
// T4) compute it at the f32 rate. The launch overhead is the few microseconds that one small kernel takes
// from an eager framework. cpu is one core at about 3 GHz with 256-bit vectors: 2 units x 8 lanes x 2
// operations, less what such cores reach; it has no faster half precision.

#include <algorithm>
#include <array>
#include <charconv>
#include <map>

#include "espalier/base/check.h"
#include "espalier/base/spelling.h"
#include "espalier/cluster/cluster.h"

namespace espalier {
namespace {

constexpr int kMaxDevices = 4096;
constexpr std::int64_t kGiga = 1'000'000'000;

struct Peaks {  // Tflop/s
  double f32, tf32, bf16, f16;
};

// Of what the driver reports a framework takes half a GiB (its context and kernels, work space of libraries);
// the rest, rounded down to a quarter of a GiB, is for a training step.
Bytes usable(double reported_gibibytes) {
  return mebibytes(256) * static_cast<std::int64_t>((reported_gibibytes - 0.5) * 4);
}

DeviceKind gpu(const char* name, Bytes memory, Peaks peaks, std::int64_t bandwidth, int processors) {
  constexpr double kTera = 1e12;
  DeviceKind kind{.name = name,
                  .memory = memory,
                  .flops_f32 = peaks.f32 * kTera,
                  .flops_f16 = peaks.f16 * kTera,
                  .memory_bandwidth = bandwidth,
                  .launch_overhead = microseconds(5),
                  .multiprocessors = processors};
  if (peaks.tf32 != peaks.f32) kind.flops_tf32 = peaks.tf32 * kTera;
  if (peaks.bf16 != peaks.f16) kind.flops_bf16 = peaks.bf16 * kTera;
  return kind;
}

bool is_cpu(const DeviceKind& kind) {
  return kind.name == "cpu";
}

[[noreturn]] void fail(std::string_view part, const std::string& problem) {
  throw InputError("cluster: '" + std::string(part.substr(0, 80)) + "': " + problem);
}

struct Devices {
  int count = 1;
  const DeviceKind* kind = nullptr;
};

// Equal hosts, each with these devices.
struct HostsPart {
  int hosts = 1;
  std::vector<Devices> devices;
};

// Null if there is none.
const DeviceKind* find_preset(std::string_view name) {
  for (const DeviceKind& kind : device_presets()) {
    if (kind.name == name) return &kind;
  }
  return nullptr;
}

// "A100-80GB", "4xA100-80GB" or "2x4xA100-80GB"
HostsPart parse_devices(std::string_view part) {
  std::vector<int> counts;
  std::string_view rest = part;
  while (!rest.empty() && rest.front() >= '0' && rest.front() <= '9') {
    int count = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), count);
    rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
    if (error != std::errc() || count < 1 || count > kMaxDevices) {
      fail(part, "expected a count from 1 to " + std::to_string(kMaxDevices));
    }
    if (rest.empty() || rest.front() != 'x') fail(part, "expected 'x' behind the count, as in 4xA100-80GB");
    rest.remove_prefix(1);
    counts.push_back(count);
  }
  if (counts.size() > 2 || (counts.empty() && find_preset(rest) == nullptr)) {
    fail(part,
         "expected a count and a device, as in 4xA100-80GB, or hosts, count and device, as in 2x4xV100-16GB");
  }
  try {
    return {counts.size() == 2 ? counts[0] : 1, {{counts.empty() ? 1 : counts.back(), &device_preset(rest)}}};
  } catch (const InputError& error) {
    fail(part, error.what());
  }
}

// "2x4xA100-80GB", or "2xRTX4090,RTX3090": the unequal devices of one host
HostsPart parse_hosts(std::string_view part) {
  std::string_view rest = part;
  HostsPart hosts;
  while (true) {
    const std::size_t comma = rest.find(',');
    const HostsPart more = parse_devices(rest.substr(0, comma));
    if (more.hosts > 1 && (comma != std::string_view::npos || !hosts.devices.empty())) {
      fail(part, "expected one host's devices, as in 2xRTX4090,RTX3090");
    }
    hosts.hosts = more.hosts;
    hosts.devices.push_back(more.devices[0]);
    if (comma == std::string_view::npos) return hosts;
    rest.remove_prefix(comma + 1);
  }
}

std::vector<HostsPart> parse_parts(std::string_view text) {
  std::vector<HostsPart> parts;
  int total = 0;
  while (true) {
    const std::size_t plus = text.find('+');
    const std::string_view part = text.substr(0, plus);
    parts.push_back(parse_hosts(part));
    for (const Devices& devices : parts.back().devices) {
      if (parts.back().hosts > kMaxDevices / devices.count) fail(part, "more than 4096 devices");
      total += parts.back().hosts * devices.count;
      if (total > kMaxDevices) fail(part, "more than 4096 devices in all");
    }
    if (plus == std::string_view::npos) return parts;
    text.remove_prefix(plus + 1);
  }
}

// A host of one kind, or of several: then the link is that of the slowest.
Group host_of(const std::vector<Devices>& devices, const std::string& name) {
  Group host = usual_host(*devices[0].kind, name);
  for (const Devices& more : devices) {
    const Group other = usual_host(*more.kind, name);
    if (*other.bandwidth < *host.bandwidth) host = other;
  }
  return host;
}

}  // namespace

std::span<const DeviceKind> device_presets() {
  constexpr Peaks kV100{15.7, 15.7, 15.7, 125}, kA100{19.5, 156, 312, 312}, kH100{67, 494.7, 989.4, 989.4};
  static const std::array<DeviceKind, 30> kPresets{
      gpu("V100-16GB", usable(15.78), kV100, 900 * kGiga, 80),
      gpu("V100-32GB", usable(31.74), kV100, 900 * kGiga, 80),
      gpu("A100-40GB", usable(39.39), kA100, 1555 * kGiga, 108),
      gpu("A100-80GB", usable(79.25), kA100, 2039 * kGiga, 108),
      gpu("H100", usable(79.11), kH100, 3350 * kGiga, 132),
      gpu("H200", usable(139.80), kH100, 4800 * kGiga, 132),
      gpu("B200", usable(178.35), {80, 1100, 2250, 2250}, 8000 * kGiga, 148),
      gpu("MI300X", usable(191.98), {163.4, 653.7, 1307.4, 1307.4}, 5300 * kGiga, 304),
      gpu("P100-16GB", usable(15.89), {9.3, 9.3, 9.3, 18.7}, 732 * kGiga, 56),
      gpu("T4", usable(14.75), {8.1, 8.1, 8.1, 65}, 320 * kGiga, 40),
      gpu("L4", usable(22.03), {30.3, 60.5, 121, 121}, 300 * kGiga, 58),
      gpu("L40S", usable(44.42), {91.6, 183, 362.05, 362.05}, 864 * kGiga, 142),
      gpu("A10", usable(22.03), {31.2, 62.5, 125, 125}, 600 * kGiga, 72),
      gpu("RTX3090", usable(23.69), {35.6, 35.6, 71, 71}, 936 * kGiga, 82),
      gpu("RTX4090", usable(23.64), {82.6, 82.6, 165.2, 165.2}, 1008 * kGiga, 128),
      gpu("RTX5090", usable(31.37), {104.8, 104.8, 209.5, 209.5}, 1792 * kGiga, 170),
      gpu("RTX5080", usable(15.46), {56.3, 56.3, 112.6, 112.6}, 960 * kGiga, 84),
      gpu("RTX4080", usable(15.70), {48.7, 48.7, 97.5, 97.5}, 717 * kGiga, 76),
      gpu("RTX4070", usable(11.72), {29.1, 29.1, 58.3, 58.3}, 504 * kGiga, 46),
      gpu("RTX3080", usable(9.78), {29.8, 29.8, 59.5, 59.5}, 760 * kGiga, 68),
      gpu("RTX3070", usable(7.78), {20.3, 20.3, 40.6, 40.6}, 448 * kGiga, 46),
      gpu("RTX3060", usable(11.75), {12.7, 12.7, 25.5, 25.5}, 360 * kGiga, 28),
      gpu("RTX2080Ti", usable(10.76), {13.4, 13.4, 13.4, 53.8}, 616 * kGiga, 68),
      gpu("GTX1080Ti", usable(10.92), {11.3, 11.3, 11.3, 11.3}, 484 * kGiga, 28),
      gpu("A6000", usable(47.54), {38.7, 77.4, 154.8, 154.8}, 768 * kGiga, 84),
      gpu("A5000", usable(23.68), {27.8, 55.6, 111.1, 111.1}, 768 * kGiga, 64),
      gpu("A4000", usable(15.73), {19.2, 38.3, 76.7, 76.7}, 448 * kGiga, 48),
      gpu("A40", usable(44.35), {37.4, 74.8, 149.7, 149.7}, 696 * kGiga, 84),
      gpu("A30", usable(23.50), {10.3, 82, 165, 165}, 933 * kGiga, 56),
      DeviceKind{.name = "cpu",
                 .memory = gibibytes(4),
                 .flops_f32 = 50e9,
                 .flops_f16 = 50e9,
                 .memory_bandwidth = 10 * kGiga,
                 .launch_overhead = microseconds(5)}};
  return kPresets;
}

const DeviceKind& device_preset(std::string_view name) {
  if (const DeviceKind* const kind = find_preset(name)) return *kind;
  std::vector<std::string_view> names;
  for (const DeviceKind& kind : device_presets()) names.push_back(kind.name);
  std::string known;
  for (const std::string_view n : names) known += (known.empty() ? "" : ", ") + std::string(n);
  throw InputError("'" + std::string(name.substr(0, 40)) + "' is no known device; did you mean '" +
                   std::string(nearest_word(name, names).value_or("")) + "'? Known are " + known);
}

Group usual_host(const DeviceKind& kind, std::string name) {
  Group host;
  host.name = std::move(name);
  host.bandwidth = 2 * kGiga;
  host.latency = microseconds(40);
  struct Link {
    std::string_view kind;  // begins the name
    std::int64_t gigabytes, latency_us;
  };
  constexpr std::array<Link, 20> kLinks{
      {{"V100", 150, 5},  {"A100", 300, 5}, {"H100", 450, 5}, {"H200", 450, 5},  {"B200", 900, 5},
       {"MI300X", 64, 5}, {"P100", 16, 10}, {"T4", 16, 10},   {"L4", 32, 10},  // and L40S
       {"A10-", 32, 10},  {"A30-", 32, 10}, {"A40-", 32, 10}, {"A4000", 32, 10}, {"A5000", 32, 10},
       {"A6000", 32, 10}, {"GTX", 16, 10},  {"RTX2", 16, 10}, {"RTX3", 32, 10},  {"RTX4", 32, 10},
       {"RTX5", 64, 10}}};
  for (const Link& link : kLinks) {
    if (!(kind.name + "-").starts_with(link.kind)) continue;
    host.bandwidth = link.gigabytes * kGiga;
    host.latency = microseconds(link.latency_us);
  }
  return host;
}

std::string assumed_links(std::string_view short_form) {
  const Cluster cluster = parse_cluster(short_form);
  std::string text;
  std::vector<std::string> told;
  for (const Device& device : cluster.devices()) {
    const std::string& kind = cluster.kind(device.kind).name;
    if (std::find(told.begin(), told.end(), kind) != told.end()) continue;
    told.push_back(kind);
    const Group& host = cluster.group(device.group);
    text += (text.empty() ? "" : ", ") + bandwidth_text(*host.bandwidth) + "/s and " +
            to_exact_text(host.latency) + " inside a host of " + kind;
  }
  const Group& root = cluster.group(GroupId(0));
  if (cluster.groups().size() == 1) return text;
  text += ", ";
  if (short_form.find('@') == std::string_view::npos) text += bandwidth_text(*root.bandwidth) + "/s and ";
  return text + to_exact_text(root.latency) + " between hosts";
}

Cluster parse_cluster(std::string_view short_form) {
  if (short_form.empty()) throw InputError("cluster: the text is empty; expected such as 4xA100-80GB@25Gb");
  const std::size_t at = short_form.find('@');
  const std::vector<HostsPart> hosts = parse_parts(short_form.substr(0, at));

  ClusterParts parts;
  const bool network = at != std::string_view::npos || hosts.size() > 1 || hosts[0].hosts > 1;
  if (network) {
    const std::string_view rate = at == std::string_view::npos ? "100Gb" : short_form.substr(at + 1);
    parts.groups.push_back(
        {.name = "network", .parent = {}, .bandwidth = parse_bandwidth(rate), .latency = microseconds(10)});
  }
  std::map<std::string, std::size_t> kind_ids;
  int host_count = 0;
  int gpus = 0;
  int cpus = 0;
  for (const HostsPart& part : hosts) {
    for (int host = 0; host < part.hosts; ++host) {
      parts.groups.push_back(host_of(part.devices, "host" + std::to_string(host_count++)));
      if (network) parts.groups.back().parent = GroupId(0);
      for (const auto& [count, kind] : part.devices) {
        const auto [known, is_new] = kind_ids.try_emplace(kind->name, parts.kinds.size());
        if (is_new) parts.kinds.push_back(*kind);
        for (int i = 0; i < count; ++i) {
          const std::string name =
              is_cpu(*kind) ? "cpu:" + std::to_string(cpus++) : "gpu:" + std::to_string(gpus++);
          parts.devices.push_back(
              {name, KindId(known->second), GroupId(parts.groups.size() - 1), kind->memory});
        }
      }
    }
  }
  return Cluster(std::move(parts));
}

namespace {

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words(1);
  for (const char c : text) {
    if (c != ' ' && c != '-') {
      words.back() += c;
    } else if (!words.back().empty()) {
      words.emplace_back();
    }
  }
  if (words.back().empty()) words.pop_back();
  return words;
}

// "RTX 3080 Ti" is another device than "RTX 3080".
bool tells_apart(const std::string& word) {
  return word == "Ti" || word == "SUPER" || word == "Laptop" || word == "Max" || word == "Ada";
}

// Each wanted word is one of the words or up to three neighbours joined, and none is left that tells apart.
bool means(const std::vector<std::string>& words, const std::vector<std::string>& wanted) {
  std::vector<bool> used(words.size());
  const auto find = [&](const std::string& one) {
    for (std::size_t first = 0; first < words.size(); ++first) {
      std::string joined;
      for (std::size_t last = first; last < std::min(first + 3, words.size()); ++last) {
        joined += words[last];
        if (joined != one) continue;
        std::fill(used.begin() + static_cast<std::ptrdiff_t>(first),
                  used.begin() + static_cast<std::ptrdiff_t>(last) + 1, true);
        return true;
      }
    }
    return false;
  };
  if (!std::all_of(wanted.begin(), wanted.end(), find)) return false;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (!used[i] && tells_apart(words[i])) return false;
  }
  return true;
}

}  // namespace

std::string kind_called(std::string_view product) {
  const std::vector<std::string> words = words_of(product);
  std::string best;
  std::size_t most = 0;
  for (const DeviceKind& preset : device_presets()) {
    const std::vector<std::string> wanted = words_of(preset.name);
    if (wanted.size() <= most || !means(words, wanted)) continue;
    most = wanted.size();
    best = preset.name;
  }
  if (!best.empty()) return best;
  for (const std::string& word : words) best += (best.empty() ? "" : "-") + word;
  return best;
}

Cluster local_cluster(const LocalMachine& machine) {
  if (machine.devices < 1 || machine.devices > kMaxDevices) {
    throw InputError("cluster: a local machine with " + std::to_string(machine.devices) +
                     " devices; expected 1 to " + std::to_string(kMaxDevices));
  }
  DeviceKind kind = device_presets().back();
  kind.name = machine.kind;
  if (machine.memory_each > Bytes()) kind.memory = machine.memory_each;
  if (machine.flops_f32_each > 0) kind.flops_f32 = kind.flops_f16 = machine.flops_f32_each;
  if (machine.memory_bandwidth_each > 0) kind.memory_bandwidth = machine.memory_bandwidth_each;
  ClusterParts parts;
  parts.groups.push_back(usual_host(kind, "host0"));
  for (int i = 0; i < machine.devices; ++i) {
    parts.devices.push_back({"cpu:" + std::to_string(i), KindId(0), GroupId(0), kind.memory});
  }
  parts.kinds.push_back(std::move(kind));
  return Cluster(std::move(parts));
}

}  // namespace espalier
