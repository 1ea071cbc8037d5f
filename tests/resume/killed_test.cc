// A process that dies while it writes a checkpoint leaves the one before it, or the new one, whole.
//
// This program replaces the calls that change files (open, write, fsync, rename, unlink, mkdir, rmdir, and
// their kin). A child process writes a checkpoint and kills itself by SIGKILL at the n-th of them, half way
// through if it writes, for every n there is. So no moment is left to chance.

#include <dlfcn.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdarg>
#include <filesystem>
#include <string>
#include <vector>

#include "espalier/graph/text.h"
#include "espalier/runtime/checkpoint.h"
#include "espalier/runtime/checkpoint_folder.h"

namespace {

long calls_left = -1;  // until the process dies; negative: it does not
long calls_made = 0;
bool counting = false;

enum class Moment { kBefore, kWithin };

// Counts one call; true if the process is to die within it.
bool dies_now() {
  if (!counting) return false;
  ++calls_made;
  return calls_left >= 0 && calls_left-- == 0;
}

void die() {
  ::kill(::getpid(), SIGKILL);
}

template <class Function>
Function real(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

ssize_t write(int file, const void* data, size_t size) {
  static const auto call = real<ssize_t (*)(int, const void*, size_t)>("write");
  if (!dies_now()) return call(file, data, size);
  call(file, data, size / 2);
  die();
  return -1;
}

int fsync(int file) {
  static const auto call = real<int (*)(int)>("fsync");
  if (dies_now()) die();
  return call(file);
}

int rename(const char* from, const char* to) noexcept {
  static const auto call = real<int (*)(const char*, const char*)>("rename");
  if (dies_now()) die();
  return call(from, to);
}

int unlink(const char* path) noexcept {
  static const auto call = real<int (*)(const char*)>("unlink");
  if (dies_now()) die();
  return call(path);
}

int unlinkat(int folder, const char* path, int flags) noexcept {
  static const auto call = real<int (*)(int, const char*, int)>("unlinkat");
  if (dies_now()) die();
  return call(folder, path, flags);
}

int remove(const char* path) noexcept {
  static const auto call = real<int (*)(const char*)>("remove");
  if (dies_now()) die();
  return call(path);
}

int mkdir(const char* path, mode_t mode) noexcept {
  static const auto call = real<int (*)(const char*, mode_t)>("mkdir");
  if (dies_now()) die();
  return call(path, mode);
}

}  // extern "C"

namespace espalier {
namespace {

using ::testing::IsEmpty;
using ::testing::Not;

constexpr const char* kModel =
    "x = input() : f32[b,3]\n"
    "w = parameter(w) : f32[3,3]\n"
    "m = buffer(m) : f32[3]\n"
    "y = linear(x, w) : f32[b,3]\n"
    "z = add(y, m) : f32[b,3]\n"
    "loss = mean(z) : f32[]\n";

std::vector<VariableCopy> values_at(std::uint64_t step, std::uint32_t rank) {
  const auto value = static_cast<double>(step);
  if (rank == 1) return {{"m", at::full({3}, value), {}}};
  return {{"w", at::full({3, 3}, value), {at::full({3, 3}, value + 0.25), at::full({3, 3}, value + 0.5)}}};
}

// What two workers and worker 0 do for a checkpoint, one after the other.
void write_checkpoint(const Graph& graph, const std::string& folder, std::uint64_t step) {
  const std::string path = checkpoint_path(folder, step);
  CheckpointManifest manifest;
  manifest.model = "tiny";
  manifest.fingerprint = graph.fingerprint();
  manifest.step = step;
  manifest.training.batch = BatchSize(2);
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    make_checkpoint_folder(path);
    const WrittenShard written = write_shard(path, rank, 2, values_at(step, rank));
    manifest.shards.push_back(written.shard);
    manifest.variables.insert(manifest.variables.begin(), written.variables.begin(), written.variables.end());
  }
  complete_checkpoint(path, manifest);
  remove_older_checkpoints(folder, step, 1);
}

// Everything in the newest checkpoint, read and checked; its step.
std::uint64_t read_newest(const Graph& graph, const std::string& folder) {
  const Checkpoint checkpoint(folder, graph);
  const std::uint64_t step = checkpoint.manifest().step;
  for (const std::uint32_t rank : {0U, 1U}) {
    for (const VariableCopy& right : values_at(step, rank)) {
      const ParameterId id(graph.parameter(ParameterId(0)).names[0] == right.name ? 0 : 1);
      EXPECT_TRUE(at::equal(checkpoint.value(id), right.value)) << right.name;
      const std::vector<at::Tensor> state = checkpoint.state(id);
      EXPECT_EQ(state.size(), right.state.size());
      for (std::size_t i = 0; i < state.size(); ++i) EXPECT_TRUE(at::equal(state[i], right.state[i]));
    }
  }
  return step;
}

class Killed : public ::testing::Test {
 protected:
  Killed() : folder_(::testing::TempDir() + "/espalier_killed_" + std::to_string(::getpid())) {}
  ~Killed() override { std::filesystem::remove_all(folder_); }

  // Whether the child was killed at its n-th call; false: it made fewer.
  bool dies_at(long call, std::uint64_t step) {
    const pid_t child = ::fork();
    if (child == 0) {
      calls_left = call;
      counting = true;
      write_checkpoint(graph_, folder_, step);
      ::_exit(0);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status)) {
      EXPECT_EQ(WTERMSIG(status), SIGKILL);
      return true;
    }
    EXPECT_EQ(WEXITSTATUS(status), 0);
    return false;
  }

  Graph graph_ = parse_graph(kModel);
  std::string folder_;
};

TEST_F(Killed, AtAnyCallThatChangesAFileACompleteCheckpointIsLeft) {
  write_checkpoint(graph_, folder_, 1);
  std::uint64_t newest = 1;
  long calls = 0;
  std::uint64_t left_old = 0;
  for (; dies_at(calls, newest + 1); ++calls) {
    const std::uint64_t found = read_newest(graph_, folder_);
    ASSERT_TRUE(found == newest || found == newest + 1) << "killed at call " << calls;
    left_old += found == newest;
    newest = found;
  }
  EXPECT_EQ(read_newest(graph_, folder_), newest + 1);
  // Folder, two shards and a manifest, each with its flushes, and the one before removed.
  EXPECT_GT(calls, 20);
  EXPECT_GT(left_old, 15U);
  EXPECT_LT(left_old, static_cast<std::uint64_t>(calls));  // some died after the new one was complete
  // The last attempt left nothing of those before it.
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder_))
    names.push_back(entry.path().filename());
  EXPECT_THAT(names,
              ::testing::ElementsAre(std::filesystem::path(checkpoint_path(folder_, newest + 1)).filename()));
}

}  // namespace
}  // namespace espalier
