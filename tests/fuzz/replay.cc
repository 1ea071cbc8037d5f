// Runs a fuzz target on every file of its corpus: what fuzzing once found stays fixed in every build. At
// least one file must be accepted, or fuzzing would start from nothing that its reader knows.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/fuzz/fuzz.h"

int main(int argc, char** argv) {
  std::vector<std::filesystem::path> files;
  const auto& targets = espalier::fuzz_targets();
  const auto target = argc == 3 ? targets.find(argv[1]) : targets.end();
  if (target != targets.end() && std::filesystem::is_directory(argv[2])) {
    for (const auto& entry : std::filesystem::directory_iterator(argv[2])) files.push_back(entry.path());
  }
  if (files.empty()) {
    std::fprintf(stderr, "usage: %s target folder-with-its-corpus\ntargets:", argv[0]);
    for (const auto& [name, function] : targets) std::fprintf(stderr, " %s", std::string(name).c_str());
    std::fprintf(stderr, "\n");
    return 2;
  }
  std::ranges::sort(files);
  for (const auto& file : files) {
    std::printf("%s\n", file.c_str());
    std::fflush(stdout);  // the last line names the culprit of a crash
    std::ifstream in(file, std::ios::binary);
    std::string bytes{std::istreambuf_iterator<char>(in), {}};
    target->second(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  }
  if (espalier::accepted_inputs == 0) std::fprintf(stderr, "no file of %s is accepted\n", argv[2]);
  return espalier::accepted_inputs == 0 ? 1 : 0;
}
