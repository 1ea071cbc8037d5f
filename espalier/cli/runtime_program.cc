#include "espalier/cli/runtime_program.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "espalier/base/check.h"

namespace espalier::cli {

std::string runtime_program(const std::string& verb) {
  if (!runtime_torch_version()) {
    throw InputError(
        "this build of espalier has no runtime, which `" + verb +
        "` needs. Build one: scripts/setup, then cmake --preset release && cmake --build build/release "
        "--target espalier");
  }
  std::error_code error;
  const std::filesystem::path own = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) throw InputError("cannot find this program's own file through /proc/self/exe");
  std::string path = own.parent_path() / "espalier-runtime";
  if (!std::filesystem::exists(path, error)) {
    throw InputError(path + ": is missing, and `" + verb +
                     "` needs it; it is built and installed together with espalier");
  }
  return path;
}

void hand_over(const std::string& verb, const std::vector<std::string>& arguments) {
  static constexpr std::array<std::string_view, 5> kOfWorkers{"run", "verify", "profile", "calibrate",
                                                              "launch"};
  if (std::find(kOfWorkers.begin(), kOfWorkers.end(), verb) != kOfWorkers.end()) {
    // Read once, when libtorch is loaded. Threads that compute are told how many they have.
    ::setenv("OMP_NUM_THREADS", "1", 0);
  }
  std::vector<std::string> words{runtime_program(verb)};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  ::execv(words[0].c_str(), pointers.data());
  throw InputError(words[0] + ": cannot start it: " + std::strerror(errno));
}

std::optional<std::string_view> runtime_torch_version() {
#ifdef ESPALIER_TORCH_VERSION
  return ESPALIER_TORCH_VERSION;
#else
  return std::nullopt;
#endif
}

}  // namespace espalier::cli
