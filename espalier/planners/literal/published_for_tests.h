#pragma once

// Files of workloads/ for the tests of this folder.

#include <cstdio>
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
inline PiperProfile piper_input(const std::string& name) {
  const std::string file = "piper/inputs/" + name + ".json";
  return read_piper(workload(file), file);
}
inline PipedreamProfile pipedream_input(const std::string& name) {
  const std::string folder = name == "gnmt" ? "translation" : "image_classification";
  const std::string file = "pipedream/" + folder + "/profiles/" + name + "/graph.txt";
  return read_pipedream(workload(file), file);
}

// As the authors' programs print: six significant digits.
inline std::string six_digits(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}
inline std::string fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

}  // namespace espalier::literal
