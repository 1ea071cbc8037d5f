#pragma once

// Files of workloads/ for the tests of this folder.

#include <cmath>
#include <string>

#include "espalier/base/files.h"
#include "espalier/frontend/published.h"

namespace espalier::literal {

inline std::string workload(const std::string& name) {
  return read_file(ESPALIER_SOURCE_DIR "/workloads/" + name);
}
inline MsrProfile throughput_input(const std::string& name) {
  const std::string file = "dnn-partitioning/throughput-inputs/" + name + ".json";
  return read_msr(workload(file), file);
}
inline MsrPlacement expert_placement(const std::string& name) {
  const std::string file = "dnn-partitioning/human-experts/" + name + "_expert.json";
  return read_msr_placement(workload(file), file);
}
inline PiperProfile piper_input(const std::string& name) {
  const std::string file = "piper/inputs/" + name + ".json";
  return read_piper(workload(file), file);
}
inline PipedreamProfile pipedream_input(const std::string& name) {
  const std::string folder = name == "gnmt" ? "translation" : "image_classification";
  const std::string file = "pipedream/" + folder + "/profiles/" + name + "/graph.txt";
  return read_pipedream(workload(file), file);
}

// Whether a program would print `value` so, but for the order in which it adds up: within half a unit of the
// text's last digit.
inline bool rounds_to(double value, const std::string& text) {
  const auto point = text.find('.');
  const std::size_t decimals = point == std::string::npos ? 0 : text.size() - point - 1;
  const double printed = std::stod(text);
  return std::abs(value - printed) <= 0.5 * std::pow(10.0, -static_cast<double>(decimals)) + 1e-9 * printed;
}
// The same for programs that print six significant digits and leave out zeros at the end.
inline bool rounds_to_six_digits(double value, const std::string& text) {
  const double printed = std::stod(text);
  return std::abs(value - printed) <=
         0.5 * std::pow(10.0, std::floor(std::log10(printed)) - 5) + 1e-9 * printed;
}

}  // namespace espalier::literal
