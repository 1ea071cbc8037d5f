#include "espalier/runtime/clock_offset.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "espalier/base/check.h"

namespace espalier {

ClockOffset estimate_offset(std::span<const ClockQuestion> questions) {
  ESP_CHECK(!questions.empty());
  const auto way = [](const ClockQuestion& q) { return (q.returned - q.asked) - (q.answered - q.received); };
  const ClockQuestion& best = *std::min_element(
      questions.begin(), questions.end(), [&](const auto& a, const auto& b) { return way(a) < way(b); });
  const Duration twice = (best.received - best.asked) + (best.answered - best.returned);
  return {Duration(twice.count() / 2), Duration((std::max(way(best), Duration()).count() + 1) / 2)};
}

std::string name_of_clock(const std::string& host) {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  if (!std::getline(file, boot) || boot.empty()) return "host " + host;
  std::error_code error;
  const std::string space = std::filesystem::read_symlink("/proc/self/ns/time", error).string();
  return "boot " + boot + (space.empty() ? "" : " " + space);
}

}  // namespace espalier
