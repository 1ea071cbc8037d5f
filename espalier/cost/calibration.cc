#include "espalier/cost/calibration.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "espalier/base/json.h"
#include "espalier/cost/json.h"

namespace espalier {
namespace {

constexpr std::string_view kCalibrationFormat = "espalier.calibration/1";
constexpr std::int64_t kMostPerSecond = std::int64_t{1} << 60;

bool same_key(const Calibration& a, std::string_view machine, std::uint32_t threads,
              std::string_view version) {
  return a.machine == machine && a.threads == threads && a.torch_version == version;
}

}  // namespace

nlohmann::ordered_json calibrations_to_json(const std::vector<Calibration>& calibrations) {
  Json list = Json::array();
  for (const Calibration& c : calibrations) {
    list.push_back({{"machine", c.machine},
                    {"threads", c.threads},
                    {"torch_version", c.torch_version},
                    {"flops_f32", c.flops_f32},
                    {"memory_bytes_per_second", c.memory_bandwidth},
                    {"launch_ns", c.launch_overhead.count()},
                    {"costs", costs_to_json(c.costs)}});
  }
  return {{"format", kCalibrationFormat}, {"calibrations", std::move(list)}};
}

std::vector<Calibration> calibrations_from_json(const nlohmann::ordered_json& json,
                                                const std::string& where) {
  const JsonCursor root(json, where);
  root.expect_format(kCalibrationFormat);
  root.only({"format", "calibrations"});
  const JsonCursor list = root.at("calibrations");
  std::vector<Calibration> result;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const JsonCursor one = list.at(i);
    one.only({"machine", "threads", "torch_version", "flops_f32", "memory_bytes_per_second", "launch_ns",
              "costs"});
    Calibration c;
    c.machine = one.at("machine").string();
    c.threads = static_cast<std::uint32_t>(one.at("threads").integer(1, 1 << 20));
    c.torch_version = one.at("torch_version").string();
    c.flops_f32 = one.at("flops_f32").number(1, kMaxRate);
    c.memory_bandwidth = one.at("memory_bytes_per_second").integer(1, kMostPerSecond);
    c.launch_overhead = one.at("launch_ns").duration();
    c.costs = costs_from_json(one.at("costs").json(), one.at("costs").where());
    result.push_back(std::move(c));
  }
  return result;
}

std::optional<Calibration> find_calibration(const std::vector<Calibration>& calibrations,
                                            std::string_view machine, std::uint32_t threads,
                                            std::string_view torch_version) {
  for (const Calibration& c : calibrations) {
    if (same_key(c, machine, threads, torch_version)) return c;
  }
  return std::nullopt;
}

std::vector<Calibration> with_calibration(std::vector<Calibration> calibrations, Calibration fresh) {
  std::erase_if(calibrations, [&](const Calibration& c) {
    return same_key(c, fresh.machine, fresh.threads, fresh.torch_version);
  });
  calibrations.push_back(std::move(fresh));
  return calibrations;
}

}  // namespace espalier
