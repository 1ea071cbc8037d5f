#include "espalier/base/host.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <vector>

namespace espalier {
namespace {

std::optional<std::string> first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return line;
}

std::optional<std::int64_t> parse_positive(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value <= 0) return std::nullopt;
  return value;
}

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const auto begin = line.find_first_not_of(" \t", line.find(':') + 1);
    if (begin != std::string::npos) return line.substr(begin);
  }
  return "unknown processor";
}

int processors_by_affinity(int all) {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? std::max(CPU_COUNT(&set), 1) : all;
}

// The folder of this process's control group in a hierarchy, and those above it, as paths below its root.
std::vector<std::string> control_groups(std::string_view controller) {
  std::vector<std::string> groups;
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {  // "4:memory:/a/b", or "0::/a/b" of version 2
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string_view names = std::string_view(line).substr(first + 1, second - first - 1);
    if (names != controller) continue;
    for (std::string path = line.substr(second + 1); !path.empty() && path != "/";
         path.erase(path.rfind('/'))) {
      groups.push_back(path);
    }
    groups.emplace_back();
  }
  return groups;
}

int limit_by_quota(int processors) {
  const auto limit = [&processors](const std::optional<std::string>& cpu_max) {
    if (!cpu_max) return;
    if (const auto quota = processors_of_quota(*cpu_max)) processors = std::min(processors, *quota);
  };
  for (const std::string& group : control_groups(""))
    limit(first_line("/sys/fs/cgroup" + group + "/cpu.max"));
  for (const std::string controller : {"cpu", "cpu,cpuacct", "cpuacct,cpu"}) {
    for (const std::string& group : control_groups(controller)) {
      const std::string folder = "/sys/fs/cgroup/" + controller + group;
      const auto quota = first_line(folder + "/cpu.cfs_quota_us");
      const auto period = first_line(folder + "/cpu.cfs_period_us");
      if (quota && period) limit(*quota + " " + *period);
    }
  }
  return processors;
}

Bytes limit_of_memory(Bytes memory) {
  const auto limit = [&memory](const std::optional<std::string>& text) {
    const auto bytes = text ? parse_positive(*text) : std::nullopt;
    if (bytes) memory = std::min(memory, Bytes(*bytes));
  };
  for (const std::string& group : control_groups(""))
    limit(first_line("/sys/fs/cgroup" + group + "/memory.max"));
  for (const std::string& group : control_groups("memory")) {
    limit(first_line("/sys/fs/cgroup/memory" + group + "/memory.limit_in_bytes"));
  }
  return memory;
}

}  // namespace

std::optional<int> processors_of_quota(std::string_view cpu_max) {
  const auto space = cpu_max.find(' ');
  if (space == std::string_view::npos) return std::nullopt;
  const auto quota = parse_positive(cpu_max.substr(0, space));
  const auto period = parse_positive(cpu_max.substr(space + 1));
  if (!quota || !period) return std::nullopt;
  return static_cast<int>(std::clamp<std::int64_t>(*quota / *period, 1, 1 << 20));
}

std::string Host::text() const {
  return processor + ", " + std::to_string(processors) + " cores";
}

Host this_host() {
  Host host;
  host.processor = processor_name();
  host.processors = static_cast<int>(std::max<long>(sysconf(_SC_NPROCESSORS_ONLN), 1));
  host.usable = limit_by_quota(processors_by_affinity(host.processors));
  const std::int64_t pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  if (pages > 0 && page > 0) host.memory = limit_of_memory(Bytes(pages * page));
  return host;
}

}  // namespace espalier
