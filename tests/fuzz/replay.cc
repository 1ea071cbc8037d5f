// Runs a fuzz target on every file of its corpus: what fuzzing once found stays fixed in every build. At
// least one file must be accepted, or fuzzing would start from nothing that its reader knows. Then on
// mutations of the files, the same in every run: a short look where the fuzz preset looks for hours.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/fuzz/fuzz.h"

namespace {

constexpr std::size_t kMutations = 2000;
constexpr std::size_t kMostBytes = 4096;  // of a file that is mutated

// One to four changes: a byte, a bit, a piece left out, a piece said twice, a piece of another file.
std::string mutated(std::string bytes, const std::string& other, std::mt19937_64& random) {
  const auto below = [&random](std::size_t n) {
    return static_cast<std::size_t>(random() % std::max<std::size_t>(n, 1));
  };
  for (std::size_t left = 1 + below(4); left > 0; --left) {
    const std::size_t at = below(bytes.size());
    const std::size_t length = 1 + below(std::min<std::size_t>(bytes.size() - at, 64));
    switch (below(5)) {
      case 0:
        if (!bytes.empty()) bytes[at] = static_cast<char>(below(256));
        break;
      case 1:
        if (!bytes.empty())
          bytes[at] = static_cast<char>(static_cast<unsigned char>(bytes[at]) ^ (1U << below(8)));
        break;
      case 2:
        bytes.erase(at, length);
        break;
      case 3:
        bytes.insert(at, bytes.substr(at, length));
        break;
      default:
        bytes.insert(at, other.substr(below(other.size()), length));
        break;
    }
  }
  return bytes;
}

void run(espalier::FuzzTarget target, const std::string& bytes) {
  target(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
}

}  // namespace

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
  std::vector<std::string> small;
  for (const auto& file : files) {
    std::printf("%s\n", file.c_str());
    std::fflush(stdout);  // the last line names the culprit of a crash
    std::ifstream in(file, std::ios::binary);
    std::string bytes{std::istreambuf_iterator<char>(in), {}};
    run(target->second, bytes);
    if (bytes.size() <= kMostBytes) small.push_back(std::move(bytes));
  }
  if (espalier::accepted_inputs == 0) {
    std::fprintf(stderr, "no file of %s is accepted\n", argv[2]);
    return 1;
  }
  std::mt19937_64 random(1);
  for (std::size_t i = 0; i < kMutations && !small.empty(); ++i) {
    const std::string bytes = mutated(small[random() % small.size()], small[random() % small.size()], random);
    std::ofstream(argv[1] + std::string(".mutation"), std::ios::binary) << bytes;  // what a crash leaves
    run(target->second, bytes);
  }
  std::filesystem::remove(argv[1] + std::string(".mutation"));
}
