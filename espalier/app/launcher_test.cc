// Preset tsan compiles this file: its suites run under ThreadSanitizer too.

#include "espalier/app/launcher.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <thread>

#include "espalier/base/check.h"
#include "espalier/base/files.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::refusal;

// Runs `script` with /bin/sh in every worker.
struct Launched {
  std::vector<std::string> said;
  int status = 0;
  double seconds = 0;

  explicit Launched(const std::string& script, std::uint32_t workers = 2) {
    LaunchOptions options;
    options.workers = workers;
    options.command = {"/bin/sh", "-c", script};
    options.grace = milliseconds(500);
    options.stopped = milliseconds(300);
    options.say = [this](const std::string& line) { said.push_back(line); };
    const auto start = std::chrono::steady_clock::now();
    status = launch(options);
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
};

class LaunchFolder {
 public:
  LaunchFolder() {
    std::string name = ::testing::TempDir() + "/espalier-launch-XXXXXX";
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  LaunchFolder(const LaunchFolder&) = delete;
  LaunchFolder& operator=(const LaunchFolder&) = delete;
  ~LaunchFolder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

TEST(Launch, AllWorkersGetTheVariablesOfTorchrun) {
  const LaunchFolder folder;
  const Launched run(
      "echo $RANK/$WORLD_SIZE $MASTER_ADDR $LOCAL_RANK ${TORCHELASTIC_USE_AGENT_STORE-unset} > " +
      folder / "$RANK");
  EXPECT_EQ(run.status, 0);
  for (const int rank : {0, 1}) {
    std::ifstream in(folder / std::to_string(rank));
    std::string line;
    std::getline(in, line);
    EXPECT_EQ(line, std::to_string(rank) + "/2 127.0.0.1 " + std::to_string(rank) + " unset");
  }
}

TEST(Launch, TheFirstFailureIsNamedWithItsOwnWordsAndTheOthersEnd) {
  const Launched run(
      "if [ $RANK = 1 ]; then echo '{\"message\": {\"message\": \"tower.pt2: no such file\"}}' > "
      "$TORCHELASTIC_ERROR_FILE; exit 2; fi; "
      "exec sleep 60");
  EXPECT_EQ(run.status, 2);
  EXPECT_THAT(run.said.at(0), "worker 1 failed with exit status 2: tower.pt2: no such file");
  EXPECT_THAT(run.said.at(1), HasSubstr("are killed"));
  EXPECT_LT(run.seconds, 10);
}

TEST(Launch, AKilledWorkerIsNamedWithItsSignal) {
  const Launched run("if [ $RANK = 0 ]; then kill -9 $$; fi; exec sleep 60");
  EXPECT_EQ(run.status, 128 + SIGKILL);
  EXPECT_THAT(run.said.at(0), "worker 0 was killed by Killed (signal 9)");
}

TEST(Launch, AStoppedWorkerIsAFailure) {
  const Launched run("if [ $RANK = 1 ]; then kill -STOP $$; fi; exec sleep 60");
  EXPECT_EQ(run.status, 128 + SIGKILL);
  EXPECT_THAT(run.said.at(0), HasSubstr("worker 1 was stopped by a signal"));
}

// In a copy of this process: writes what it knows of itself to a file of its rank. Worker 1 fails.
int say_who_i_am(const std::string& folder, const std::string& inherited) {
  const char* rank = std::getenv("RANK");
  const char* other = std::getenv("ESPALIER_TEST_INHERITED");
  std::ofstream(folder + "/" + (rank != nullptr ? rank : "none"))
      << std::getenv("WORLD_SIZE") << ' ' << inherited << ' ' << (other != nullptr ? other : "unset") << ' '
      << std::getenv("OMP_NUM_THREADS") << ' ' << read_file("/proc/self/comm", 100);
  return rank != nullptr && rank[0] == '1' ? 3 : 0;
}

TEST(Launch, CopiesOfThisProcessHaveItsMemoryAndTheirOwnVariables) {
  const LaunchFolder folder;
  const std::string inherited = "known before";
  ::setenv("ESPALIER_TEST_INHERITED", "a=b", 1);
  std::vector<std::string> said;
  LaunchOptions options;
  options.workers = 2;
  options.copy = [&] { return say_who_i_am(folder / "", inherited); };
  options.say = [&](const std::string& line) { said.push_back(line); };
  EXPECT_EQ(launch(options), 3);
  ::unsetenv("ESPALIER_TEST_INHERITED");
  EXPECT_THAT(said, ElementsAre("worker 1 failed with exit status 3"));
  EXPECT_EQ(read_file(folder / "0", 100), "2 known before a=b 1 espalier:0\n");
  EXPECT_EQ(read_file(folder / "1", 100), "2 known before a=b 1 espalier:1\n");
  EXPECT_EQ(std::getenv("RANK"), nullptr);
}

TEST(Launch, AnInterruptedRunIsNoFailure) {
  const Launched run("exit 130");
  EXPECT_EQ(run.status, 130);
  EXPECT_THAT(run.said, ElementsAre());
}

bool comes_true(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

// What a worker wrote with `echo $WHAT > file.part; mv file.part file`: whole where it is there.
std::string line_of(const std::string& path) {
  if (!std::filesystem::exists(path)) return "";
  std::string text = read_file(path);
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

bool can_bind(std::uint16_t port) {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  const bool bound = ::bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  ::close(socket);
  return bound;
}

TEST(Launch, ManyAtOnceHaveAPortEachThatNobodyElseGets) {
  constexpr int kLaunches = 6;
  const LaunchFolder folder;
  std::vector<std::thread> launches;
  std::vector<int> statuses(kLaunches, -1);
  for (int i = 0; i < kLaunches; ++i) {
    launches.emplace_back([&, i] {
      const std::string mine = folder / std::to_string(i);
      statuses[static_cast<std::size_t>(i)] =
          Launched("echo $MASTER_PORT > " + mine + ".$RANK.part; mv " + mine + ".$RANK.part " + mine +
                   ".$RANK; until [ -e " + (folder / "end") + " ]; do sleep 0.02; done")
              .status;
    });
  }
  std::set<std::string> ports;
  for (int i = 0; i < kLaunches; ++i) {
    const std::string name = folder / std::to_string(i);
    ASSERT_TRUE(comes_true([&] { return !line_of(name + ".0").empty() && !line_of(name + ".1").empty(); }));
    EXPECT_EQ(line_of(name + ".0"), line_of(name + ".1"));
    EXPECT_FALSE(can_bind(static_cast<std::uint16_t>(std::stoi(line_of(name + ".0")))));
    ports.insert(line_of(name + ".0"));
  }
  EXPECT_EQ(ports.size(), std::size_t{kLaunches});
  write_file_atomically(folder / "end", "");
  for (std::thread& launch : launches) launch.join();
  EXPECT_THAT(statuses, ::testing::Each(0));
}

// The launcher of the test below, in a process of its own. A worker is one process that waits for somebody to
// open its `end`: a shell that starts others would not count as stopped while a child of it is stopped
// between vfork and exec.
TEST(Launcher, DISABLED_RunsAsAJob) {
  const std::string folder = std::getenv("ESPALIER_TEST_FOLDER");
  const Launched run("echo $$ > " + folder + "/$RANK.part; mv " + folder + "/$RANK.part " + folder +
                     "/$RANK; exec cat " + folder + "/end.$RANK");
  write_file_atomically(folder + "/result",
                        std::to_string(run.status) + (run.said.empty() ? "" : run.said[0]));
}

char state_of(const std::string& pid) {  // 'S' sleeping, 'R' running, 'T' stopped
  std::ifstream in("/proc/" + pid + "/stat");
  std::string text((std::istreambuf_iterator<char>(in)), {});
  const std::size_t end = text.rfind(')');
  return end == std::string::npos ? '?' : text.at(end + 2);
}

TEST(Launch, CtrlZStopsTheJobAndFgLetsItGoOn) {
  const LaunchFolder folder;
  const std::string ends[] = {folder / "end.0", folder / "end.1"};
  for (const std::string& end : ends) ASSERT_EQ(::mkfifo(end.c_str(), 0600), 0);
  std::string name = "launcher", filter = "--gtest_filter=Launcher.DISABLED_RunsAsAJob",
              disabled = "--gtest_also_run_disabled_tests", brief = "--gtest_brief=1";
  char* arguments[] = {name.data(), filter.data(), disabled.data(), brief.data(), nullptr};
  ASSERT_EQ(::setenv("ESPALIER_TEST_FOLDER", (folder / "").c_str(), 1), 0);
  // The other process runs that test, whichever part of the tests is this one's.
  for (const char* variable : {"GTEST_TOTAL_SHARDS", "GTEST_SHARD_INDEX"}) ::unsetenv(variable);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);  // as a shell with job control does
  posix_spawnattr_setpgroup(&attributes, 0);
  pid_t job = -1;
  ASSERT_EQ(posix_spawn(&job, "/proc/self/exe", nullptr, &attributes, arguments, environ), 0);
  posix_spawnattr_destroy(&attributes);
  ::unsetenv("ESPALIER_TEST_FOLDER");
  ASSERT_TRUE(comes_true([&] { return !line_of(folder / "0").empty() && !line_of(folder / "1").empty(); }));
  const std::string workers[] = {line_of(folder / "0"), line_of(folder / "1")};
  const auto all_are = [&](bool stopped) {
    return comes_true(
        [&] { return (state_of(workers[0]) == 'T') == stopped && (state_of(workers[1]) == 'T') == stopped; });
  };

  ASSERT_EQ(::kill(-job, SIGTSTP), 0);
  int status = 0;
  ASSERT_EQ(::waitpid(job, &status, WUNTRACED), job);
  EXPECT_TRUE(WIFSTOPPED(status));
  EXPECT_TRUE(all_are(true));
  std::this_thread::sleep_for(std::chrono::milliseconds(700));  // longer than a worker alone may be stopped
  ASSERT_EQ(::kill(-job, SIGCONT), 0);
  EXPECT_TRUE(all_are(false));
  for (const std::string& end : ends) std::ofstream(end).close();  // waits for its reader
  ASSERT_EQ(::waitpid(job, &status, 0), job);
  EXPECT_EQ(line_of(folder / "result"), "0");
}

TEST(Launch, AProgramThatIsNotThereIsOneLine) {
  LaunchOptions options;
  options.workers = 2;
  options.command = {"/nowhere/espalier"};
  EXPECT_THAT(refusal([&] { launch(options); }), HasSubstr("/nowhere/espalier: cannot start it"));
}

}  // namespace
}  // namespace espalier
