#pragma once

// For benchmarks that run plans: the program starts itself again, once per worker.

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "espalier/app/launcher.h"

namespace espalier {

// This program with those arguments as so many workers; their exit status.
inline int start_workers(std::uint32_t workers, const std::vector<std::string>& arguments) {
  LaunchOptions options;
  options.workers = workers;
  options.command = {std::filesystem::read_symlink("/proc/self/exe").string()};
  options.command.insert(options.command.end(), arguments.begin(), arguments.end());
  options.say = [](const std::string& line) { std::fputs((line + "\n").c_str(), stderr); };
  return launch(options);
}

}  // namespace espalier
