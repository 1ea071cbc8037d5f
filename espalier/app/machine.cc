#include "espalier/app/machine.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace espalier {
namespace {

int usable_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(CPU_COUNT(&set), 1);
  return static_cast<int>(std::max<long>(sysconf(_SC_NPROCESSORS_ONLN), 1));
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

}  // namespace

Machine this_machine() {
  Machine machine;
  machine.local.devices = usable_processors();
  const std::int64_t pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  if (pages > 0 && page > 0) machine.local.memory_each = Bytes(pages / 10 * 9 * page / machine.local.devices);
  machine.description = fmt::format("{}, {} cores", processor_name(), machine.local.devices);
  return machine;
}

}  // namespace espalier
