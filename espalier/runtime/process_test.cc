// Plans in several processes. Each worker is this test program again, started with the variables of a
// launcher and a filter that selects the one disabled test that plays the worker.

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "espalier/base/files.h"
#include "espalier/runtime/checkpoint.h"
#include "espalier/runtime/loaded_model.h"
#include "espalier/runtime/plans_for_tests.h"
#include "espalier/runtime/runtime.h"
#include "testing/cut_plan.h"

namespace espalier {
namespace {

using espalier::testing::CutOptions;
using espalier::testing::random_cut_plan;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A port that nobody listens on now.
std::uint16_t free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  EXPECT_EQ(::bind(socket, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size), 0);
  ::close(socket);
  return ntohs(address.sin_port);
}

// Starts one worker per rank with these variables besides the launcher's; their exit codes.
std::vector<int> run_workers(int size, const std::vector<std::string>& variables) {
  const std::string port = std::to_string(free_port());
  std::vector<pid_t> children(static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    std::vector<std::string> texts = variables;
    texts.insert(texts.end(), {"RANK=" + std::to_string(rank), "WORLD_SIZE=" + std::to_string(size),
                               "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + port, "OMP_NUM_THREADS=1"});
    std::vector<char*> environment;
    for (std::string& text : texts) environment.push_back(text.data());
    for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
    environment.push_back(nullptr);
    std::string name = "worker", filter = "--gtest_filter=Worker.DISABLED_Runs",
                disabled = "--gtest_also_run_disabled_tests", color = "--gtest_brief=1";
    char* arguments[] = {name.data(), filter.data(), disabled.data(), color.data(), nullptr};
    EXPECT_EQ(posix_spawn(&children[static_cast<std::size_t>(rank)], "/proc/self/exe", nullptr, nullptr,
                          arguments, environment.data()),
              0);
  }
  std::vector<int> codes;
  for (const pid_t child : children) {
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    codes.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : -1);
  }
  return codes;
}

std::string losses_text(const std::vector<StepReport>& steps) {
  std::string text;
  for (const StepReport& step : steps)
    text += std::to_string(step.step) + " " + at::str(at::scalar_tensor(step.loss, at::kDouble)) + "\n";
  return text;
}

void profile_as_worker(const std::string& folder) {
  ProfileOptions options;
  options.world = world_from_environment();
  options.rounds = 2;
  options.micro_batches = {BatchSize(2)};
  const CostTable table = profile_model(kFixtures + "gpt.pt2", options);
  EXPECT_THAT(check_cost_table(table.parts()), IsEmpty());
  ASSERT_TRUE(table.parts().link.has_value());
  EXPECT_GT(table.parts().link->bandwidth, 1'000'000);  // any machine moves a megabyte in a second
  EXPECT_GT(table.parts().link->latency, Duration());
  write_file_atomically(folder + "/hash" + std::to_string(options.world.rank), std::to_string(table.hash()));
}

TEST(Worker, DISABLED_Runs) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // no worker outlives the test
  const std::string folder = std::getenv("ESPALIER_TEST_FOLDER");
  if (std::getenv("ESPALIER_TEST_PROFILE") != nullptr) return profile_as_worker(folder);
  const PlanFile plan = parse_plan_file(read_file(folder + "/plan.json"), "plan.json");
  RunOptions options;
  options.world = world_from_environment();
  options.steps = 3;
  options.save = folder + "/saved.safetensors";
  options.timeout = milliseconds(60'000);
  const RunResult result = run_plan(plan, kFixtures + plan.model, options);
  ASSERT_EQ(result.steps.size(), 3U);
  if (options.world.rank != 0) return;
  write_file_atomically(folder + "/losses", losses_text(result.steps));
  ASSERT_TRUE(result.trace.has_value());
  const Cluster cluster(plan.cluster);
  EXPECT_THAT(
      check_trace(plan.staged, cluster, make_schedule(plan.staged, cluster.devices().size()), *result.trace),
      IsEmpty());
}

class Processes : public ::testing::Test {
 protected:
  Processes() : folder_(::testing::TempDir() + "/espalier_" + std::to_string(::getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~Processes() override { std::filesystem::remove_all(folder_); }
  std::string folder_;
};

TEST_F(Processes, TwoProcessesTrainWhatOneDoes) {
  const std::string path = kFixtures + "gpt.pt2";
  const LoadedModel model(path);
  Rng rng(3);
  const PipelinePlan plan =
      random_cut_plan(model.graph(), 2, {.batch = BatchSize(8), .micro_batch = BatchSize(2)}, rng);
  const Cluster cluster = cpus(2);
  // Not Adam: it would blow up the rounding of gradients that are zero in theory (verify leaves them out).
  Training training{plan.batch, {BatchSize(2)}, {.kind = OptimizerKind::kSgd, .momentum = 0.9}};
  PlanFile file = make_plan_file(model.graph(), cluster, training, plan,
                                 staged_for_tests(model.graph(), cluster, plan, training.optimizer));
  file.model = "gpt.pt2";
  file.seed = 11;
  write_file_atomically(folder_ + "/plan.json", print_plan_file(file));
  EXPECT_THAT(run_workers(2, {"ESPALIER_TEST_FOLDER=" + folder_}), ElementsAre(0, 0));

  ReferenceOptions reference;
  reference.batch = plan.batch;
  reference.micro_batch = BatchSize(2);
  reference.optimizer = training.optimizer;
  reference.seed = 11;
  reference.steps = 3;
  reference.save = folder_ + "/reference.safetensors";
  const RunResult expected = run_reference(path, reference);
  EXPECT_EQ(read_file(folder_ + "/losses"), losses_text(expected.steps));
  const auto saved = read_tensors(folder_ + "/saved.safetensors");
  const auto right = read_tensors(folder_ + "/reference.safetensors");
  ASSERT_EQ(saved.size(), right.size());
  for (const auto& [name, value] : right) {
    EXPECT_LE((saved.at(name) - value).abs().max().item<double>(), 1e-6) << name;  // embed and head are tied
  }
}

TEST_F(Processes, TwoProcessesProfileTogetherAndAgree) {
  EXPECT_THAT(run_workers(2, {"ESPALIER_TEST_FOLDER=" + folder_, "ESPALIER_TEST_PROFILE=1"}),
              ElementsAre(0, 0));
  EXPECT_EQ(read_file(folder_ + "/hash0"), read_file(folder_ + "/hash1"));
}

}  // namespace
}  // namespace espalier
