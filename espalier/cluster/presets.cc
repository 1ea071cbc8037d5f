// Known devices and the short form of a cluster.
//
// Peaks, as published by the maker for the SXM boards, dense (no sparsity):
//   V100  NVIDIA Tesla V100 data sheet          f32 15.7, f16 125 TFLOP/s, 900 GB/s, 80 multiprocessors
//   A100  NVIDIA A100 data sheet                f32 19.5, f16 312 TFLOP/s, 1555 GB/s (40 GB) and 2039 GB/s
//                                               (80 GB), 108 multiprocessors
//   H100  NVIDIA H100 data sheet                f32 67, f16 989.4 TFLOP/s, 3350 GB/s, 132 multiprocessors
//   H200  NVIDIA H200 data sheet                as H100, 4800 GB/s, 141 GB
// f32 is the rate without TF32, which PyTorch does not use unless told. The launch overhead is the few
// microseconds that one small kernel takes from an eager framework.
// cpu is one core at about 3 GHz with 256-bit vectors: 2 units x 8 lanes x 2 operations, less what such
// cores reach; it has no faster half precision.

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

DeviceKind gpu(const char* name, Bytes memory, double f32, double f16, std::int64_t bandwidth,
               int processors) {
  return {.name = name,
          .memory = memory,
          .flops_f32 = f32,
          .flops_f16 = f16,
          .memory_bandwidth = bandwidth,
          .launch_overhead = microseconds(5),
          .multiprocessors = processors};
}

bool is_cpu(const DeviceKind& kind) {
  return kind.name == "cpu";
}

[[noreturn]] void fail(std::string_view part, const std::string& problem) {
  throw InputError("cluster: '" + std::string(part.substr(0, 80)) + "': " + problem);
}

const DeviceKind& preset(std::string_view name, std::string_view part) {
  std::vector<std::string_view> names;
  for (const DeviceKind& kind : device_presets()) {
    if (kind.name == name) return kind;
    names.push_back(kind.name);
  }
  std::string known;
  for (const std::string_view n : names) known += (known.empty() ? "" : ", ") + std::string(n);
  const std::string shown(name.substr(0, 40));
  fail(part, "'" + shown + "' is no known device; did you mean '" +
                 std::string(nearest_word(name, names).value_or("")) + "'? Known are " + known);
}

struct HostsPart {
  int hosts = 1;
  int devices = 1;
  const DeviceKind* kind = nullptr;
};

// "4xA100-80GB" or "2x4xA100-80GB"
HostsPart parse_hosts(std::string_view part) {
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
  if (counts.empty() || counts.size() > 2) {
    fail(part,
         "expected a count and a device, as in 4xA100-80GB, or hosts, count and device, as in 2x4xV100-16GB");
  }
  return {counts.size() == 2 ? counts[0] : 1, counts.back(), &preset(rest, part)};
}

std::vector<HostsPart> parse_parts(std::string_view text) {
  std::vector<HostsPart> parts;
  int total = 0;
  while (true) {
    const std::size_t plus = text.find('+');
    const std::string_view part = text.substr(0, plus);
    parts.push_back(parse_hosts(part));
    if (parts.back().hosts > kMaxDevices / parts.back().devices) fail(part, "more than 4096 devices");
    total += parts.back().hosts * parts.back().devices;
    if (total > kMaxDevices) fail(part, "more than 4096 devices in all");
    if (plus == std::string_view::npos) return parts;
    text.remove_prefix(plus + 1);
  }
}

}  // namespace

std::span<const DeviceKind> device_presets() {
  static const std::array<DeviceKind, 7> kPresets{
      gpu("V100-16GB", gibibytes(16), 15.7e12, 125e12, 900 * kGiga, 80),
      gpu("V100-32GB", gibibytes(32), 15.7e12, 125e12, 900 * kGiga, 80),
      gpu("A100-40GB", gibibytes(40), 19.5e12, 312e12, 1555 * kGiga, 108),
      gpu("A100-80GB", gibibytes(80), 19.5e12, 312e12, 2039 * kGiga, 108),
      gpu("H100", gibibytes(80), 67e12, 989.4e12, 3350 * kGiga, 132),
      gpu("H200", Bytes(141 * kGiga), 67e12, 989.4e12, 4800 * kGiga, 132),
      DeviceKind{.name = "cpu",
                 .memory = gibibytes(4),
                 .flops_f32 = 50e9,
                 .flops_f16 = 50e9,
                 .memory_bandwidth = 10 * kGiga,
                 .launch_overhead = microseconds(5)}};
  return kPresets;
}

Group usual_host(const DeviceKind& kind, std::string name) {
  Group host;
  host.name = std::move(name);
  host.bandwidth = 2 * kGiga;
  host.latency = microseconds(40);
  const auto nvlink = [&](std::string_view prefix, std::int64_t gigabytes) {
    if (kind.name.rfind(prefix, 0) != 0) return;
    host.bandwidth = gigabytes * kGiga;
    host.latency = microseconds(5);
  };
  nvlink("V100", 150);
  nvlink("A100", 300);
  nvlink("H100", 450);
  nvlink("H200", 450);
  return host;
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
    const auto [known, is_new] = kind_ids.try_emplace(part.kind->name, parts.kinds.size());
    if (is_new) parts.kinds.push_back(*part.kind);
    for (int host = 0; host < part.hosts; ++host) {
      parts.groups.push_back(usual_host(*part.kind, "host" + std::to_string(host_count++)));
      if (network) parts.groups.back().parent = GroupId(0);
      for (int i = 0; i < part.devices; ++i) {
        const std::string name =
            is_cpu(*part.kind) ? "cpu:" + std::to_string(cpus++) : "gpu:" + std::to_string(gpus++);
        parts.devices.push_back(
            {name, KindId(known->second), GroupId(parts.groups.size() - 1), part.kind->memory});
      }
    }
  }
  return Cluster(std::move(parts));
}

Cluster local_cluster(const LocalMachine& machine) {
  if (machine.devices < 1 || machine.devices > kMaxDevices) {
    throw InputError("cluster: a local machine with " + std::to_string(machine.devices) +
                     " devices; expected 1 to " + std::to_string(kMaxDevices));
  }
  DeviceKind kind = device_presets().back();
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
