#include "espalier/runtime/launcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "espalier/base/check.h"
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

TEST(Launch, AllWorkersGetTheVariablesOfTorchrun) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / ("launch-" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  const Launched run(
      "echo $RANK/$WORLD_SIZE $MASTER_ADDR $LOCAL_RANK ${TORCHELASTIC_USE_AGENT_STORE-unset} > " +
      folder.string() + "/$RANK");
  EXPECT_EQ(run.status, 0);
  for (const int rank : {0, 1}) {
    std::ifstream in(folder / std::to_string(rank));
    std::string line;
    std::getline(in, line);
    EXPECT_EQ(line, std::to_string(rank) + "/2 127.0.0.1 " + std::to_string(rank) + " unset");
  }
  std::filesystem::remove_all(folder);
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

TEST(Launch, AnInterruptedRunIsNoFailure) {
  const Launched run("exit 130");
  EXPECT_EQ(run.status, 130);
  EXPECT_THAT(run.said, ElementsAre());
}

TEST(Launch, AProgramThatIsNotThereIsOneLine) {
  LaunchOptions options;
  options.workers = 2;
  options.command = {"/nowhere/espalier"};
  EXPECT_THAT(refusal([&] { launch(options); }), HasSubstr("/nowhere/espalier: cannot start it"));
}

}  // namespace
}  // namespace espalier
