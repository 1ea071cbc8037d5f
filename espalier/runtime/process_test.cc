// Preset tsan compiles this file: its suites run under ThreadSanitizer too.

// Plans in several processes. Each worker is this test program again, started with the variables of a
// launcher and a filter that selects the one disabled test that plays the worker.

#include <ATen/record_function.h>
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "espalier/base/files.h"
#include "espalier/runtime/data.h"
#include "espalier/runtime/loaded_model.h"
#include "espalier/runtime/measured_trace.h"
#include "espalier/runtime/plans_for_tests.h"
#include "espalier/runtime/runtime.h"
#include "espalier/runtime/tensor_file.h"
#include "espalier/runtime/trainer.h"
#include "espalier/runtime/workers.h"
#include "testing/cut_plan.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using espalier::testing::CutOptions;
using espalier::testing::random_cut_plan;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// For a message, where a slow host's threads may wait for seconds; and work that takes longer than that.
constexpr Duration kShortTimeout = milliseconds(6'000);
constexpr std::chrono::seconds kWork{10};

// A socket of the loopback interface that is bound to a port of its own. Worker 0 inherits it and listens.
class BoundSocket {
 public:
  BoundSocket() : file_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(file_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::getsockname(file_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
  }
  BoundSocket(const BoundSocket&) = delete;
  BoundSocket& operator=(const BoundSocket&) = delete;
  ~BoundSocket() { ::close(file_); }
  int file() const { return file_; }
  std::uint16_t port() const { return port_; }

 private:
  int file_;
  std::uint16_t port_ = 0;
};

// Two workers that are started by hand, each with these variables besides the launcher's.
class TwoWorkers {
 public:
  explicit TwoWorkers(const std::vector<std::string>& variables) {
    const BoundSocket socket;
    for (std::size_t rank = 0; rank < children_.size(); ++rank) {
      std::vector<std::string> texts = variables;
      texts.insert(texts.end(), {"RANK=" + std::to_string(rank), "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1",
                                 "MASTER_PORT=" + std::to_string(socket.port()), "OMP_NUM_THREADS=1",
                                 "ESPALIER_STORE_SOCKET=" + std::to_string(socket.file()),
                                 "GTEST_TOTAL_SHARDS=1", "GTEST_SHARD_INDEX=0"});
      std::vector<char*> environment;
      for (std::string& text : texts) environment.push_back(text.data());
      for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
      environment.push_back(nullptr);
      std::string name = "worker", filter = "--gtest_filter=Worker.DISABLED_Runs",
                  disabled = "--gtest_also_run_disabled_tests", color = "--gtest_brief=1";
      char* arguments[] = {name.data(), filter.data(), disabled.data(), color.data(), nullptr};
      EXPECT_EQ(
          posix_spawn(&children_[rank], "/proc/self/exe", nullptr, nullptr, arguments, environment.data()),
          0);
    }
  }

  std::vector<int> exit_codes() const {
    std::vector<int> codes;
    for (const pid_t child : children_) {
      int status = 0;
      EXPECT_EQ(waitpid(child, &status, 0), child);
      codes.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    }
    return codes;
  }

 private:
  std::array<pid_t, 2> children_{};
};

std::vector<int> run_workers(const std::vector<std::string>& variables) {
  return TwoWorkers(variables).exit_codes();
}

std::string losses_text(const std::vector<StepReport>& steps) {
  std::string text;
  for (const StepReport& step : steps)
    text += std::to_string(step.step) + " " + at::str(at::scalar_tensor(step.loss, at::kDouble)) + "\n";
  return text;
}

// What the workers of a test are told in variables, and do.
class WorkerOfTest {
 public:
  void run() const {
    if (role_ == "profile") return profile();
    if (role_ == "clocks") return compare_clocks();
    if (role_ == "differ") return write(name("refusal"), testing::refusal([&] { train(options()); }));
    if (role_ == "slow saving") return save_slowly();
    if (role_ == "slow reference") return verify_slowly();
    const RunResult result = train(options());
    ASSERT_EQ(result.steps.size(), 3U);
    if (rank() != 0) return;
    write("losses", losses_text(result.steps));
    ASSERT_TRUE(result.trace.has_value());
    expect_legal(*result.trace);
  }

 private:
  std::uint32_t rank() const { return world_.rank; }
  std::string name(const std::string& what) const { return what + std::to_string(rank()); }
  void write(const std::string& file, const std::string& content) const {
    write_file_atomically(folder_ + "/" + file, content);
  }
  // A plan of its own where the test wrote one, and a model.
  PlanFile plan() const {
    const std::string own = folder_ + "/" + name("plan") + ".json";
    return parse_plan_file(read_file(std::filesystem::exists(own) ? own : folder_ + "/plan.json"),
                           "plan.json");
  }
  std::string model() const {
    const std::string own = folder_ + "/" + name("model") + ".pt2";
    return std::filesystem::exists(own) ? own : kFixtures + "gpt.pt2";
  }
  RunOptions options() const {
    RunOptions options;
    options.world = world_;
    options.steps = 3;
    options.save = folder_ + "/saved.safetensors";
    options.timeout = milliseconds(60'000);
    return options;
  }
  RunResult train(const RunOptions& options) const { return run_plan(plan(), model(), options); }
  void expect_legal(const Trace& trace) const {
    const PlanFile file = plan();
    const Cluster cluster(file.cluster);
    EXPECT_THAT(
        check_trace(file.staged, cluster, make_schedule(file.staged, cluster.devices().size()), trace),
        IsEmpty());
  }

  void profile() const {
    ProfileOptions options;
    options.world = world_;
    options.rounds = 2;
    options.micro_batches = {BatchSize(2)};
    const CostTable table = profile_model(model(), options);
    EXPECT_THAT(check_cost_table(table.parts()), IsEmpty());
    ASSERT_TRUE(table.parts().link.has_value());
    EXPECT_GT(table.parts().link->bandwidth, 1'000'000);  // any machine moves a megabyte in a second
    EXPECT_GT(table.parts().link->latency, Duration());
    write(name("hash"), std::to_string(table.hash()));
  }

  // Worker 1 pretends to be another host, whose clock is an hour ahead.
  void compare_clocks() const {
    constexpr std::chrono::hours kAhead{1};
    const Duration ahead = rank() == 1 ? Duration(std::chrono::nanoseconds(kAhead).count()) : Duration();
    World world = world_;
    world.host = name("host");
    world.clock = name("clock");
    const LoadedModel model(this->model());
    const PlanFile file = plan();
    const PlannedJob job = planned_job(file, model.graph());
    Workers workers = join_workers(world, job, {.timeout = milliseconds(60'000)});
    const auto data = synthetic_data(model.exported, 1);
    Trainer trainer(model, job, *data, *workers.transport, {.optimizer = file.training.optimizer});
    TimedStep timed = timed_step(workers, trainer);
    for (Span& span : timed.outcome.spans) {
      span.start += ahead;
      span.end += ahead;
      if (span.posted) *span.posted += ahead;
    }
    for (MemorySample& sample : timed.outcome.memory) sample.time += ahead;
    const auto start = timed.start + (rank() == 1 ? kAhead : std::chrono::hours(0));
    const auto trace =
        gather_trace(workers, job, std::move(timed.outcome), start, [&] { return steady_time() + ahead; });
    if (trace) {
      expect_legal(*trace);
      EXPECT_LT(trace->iteration, milliseconds(3'000'000));
      ASSERT_EQ(trace->notes.size(), 1U);
      EXPECT_THAT(trace->notes[0],
                  ::testing::MatchesRegex("clock offset host1 [0-9]+[mun]?s ±[0-9]+[mun]?s"));
    }
    wait_for_all(workers, "the end");
  }

  // Its file is a pipe from which nobody reads yet.
  void save_slowly() const {
    RunOptions slow = options();
    slow.save = folder_ + "/pipe";
    slow.timeout = kShortTimeout;
    slow.on_step = [&](const StepReport& step) {
      if (step.step == 2) write("trained", "");
    };
    EXPECT_EQ(train(slow).steps.size(), 3U);
  }

  // Only the reference computes the loss on worker 0: its stage is the first.
  void verify_slowly() const {
    static std::atomic<bool> slept{false};
    if (rank() == 0) {
      at::addGlobalCallback(at::RecordFunctionCallback([](const at::RecordFunction& function)
                                                           -> std::unique_ptr<at::ObserverContext> {
                              if (std::string_view(function.name()) == "aten::cross_entropy_loss" &&
                                  !slept.exchange(true))
                                std::this_thread::sleep_for(kWork);
                              return nullptr;
                            }).scopes({at::RecordScope::FUNCTION}));
    }
    VerifyOptions options;
    options.world = world_;
    options.timeout = kShortTimeout;
    const VerifyResult result = verify_plan(plan(), model(), options);
    if (rank() != 0) return;
    EXPECT_TRUE(result.equal) << result.verdict;
    EXPECT_TRUE(slept);
  }

  World world_ = world_from_environment();
  std::string folder_ = std::getenv("ESPALIER_TEST_FOLDER");
  std::string role_ = std::getenv("ESPALIER_TEST_ROLE");
};

TEST(Worker, DISABLED_Runs) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // no worker outlives the test
  WorkerOfTest().run();
}

class Processes : public ::testing::Test {
 protected:
  Processes() : folder_(::testing::TempDir() + "/espalier_" + std::to_string(::getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~Processes() override { std::filesystem::remove_all(folder_); }

  // A plan of the gpt fixture for two workers.
  PlanFile plan() const {
    const LoadedModel model(kFixtures + "gpt.pt2");
    Rng rng(3);
    const PipelinePlan plan =
        random_cut_plan(model.graph(), 2, {.batch = BatchSize(8), .micro_batch = BatchSize(2)}, rng);
    const Cluster cluster = cpus(2);
    // Not Adam: it would blow up the rounding of gradients that are zero in theory (verify leaves them out).
    const Training training{plan.batch, {BatchSize(2)}, {.kind = OptimizerKind::kSgd, .momentum = 0.9}};
    PlanFile file = make_plan_file(model.graph(), cluster, training, plan,
                                   staged_for_tests(model.graph(), cluster, plan, training.optimizer));
    file.model = "gpt.pt2";
    file.seed = 11;
    return file;
  }
  void write(const std::string& name, const PlanFile& file) const {
    write_file_atomically(folder_ + "/" + name, print_plan_file(file));
  }
  std::vector<std::string> variables(const std::string& role) const {
    return {"ESPALIER_TEST_FOLDER=" + folder_, "ESPALIER_TEST_ROLE=" + role};
  }

  std::string folder_;
};

TEST_F(Processes, TwoProcessesTrainWhatOneDoes) {
  PlanFile file = plan();
  file.training.optimizer.clip_norm = 0.5;
  write("plan.json", file);
  EXPECT_THAT(run_workers(variables("train")), ElementsAre(0, 0));

  ReferenceOptions reference;
  reference.batch = file.training.batch;
  reference.micro_batch = BatchSize(2);
  reference.optimizer = file.training.optimizer;
  reference.seed = 11;
  reference.steps = 3;
  reference.save = folder_ + "/reference.safetensors";
  const RunResult expected = run_reference(kFixtures + "gpt.pt2", reference);
  EXPECT_EQ(read_file(folder_ + "/losses"), losses_text(expected.steps));
  const auto saved = read_tensors(folder_ + "/saved.safetensors");
  const auto right = read_tensors(folder_ + "/reference.safetensors");
  ASSERT_EQ(saved.size(), right.size());
  for (const auto& [name, value] : right) {
    EXPECT_LE((saved.at(name) - value).abs().max().item<double>(), 1e-6) << name;  // embed and head are tied
  }
}

TEST_F(Processes, TwoProcessesProfileTogetherAndAgree) {
  EXPECT_THAT(run_workers(variables("profile")), ElementsAre(0, 0));
  EXPECT_EQ(read_file(folder_ + "/hash0"), read_file(folder_ + "/hash1"));
}

TEST_F(Processes, WorkersWithAnotherPlanOrModelAreNamedByAll) {
  PlanFile file = plan();
  write("plan0.json", file);
  file.training.optimizer.momentum = 0.5;
  file.seed = 12;
  write("plan1.json", file);
  std::string model = read_file(kFixtures + "gpt.pt2");
  write_file_atomically(folder_ + "/model0.pt2", model);
  model[400] ^= 1;  // in the first weight
  write_file_atomically(folder_ + "/model1.pt2", model);
  EXPECT_THAT(run_workers(variables("differ")), ElementsAre(0, 0));
  const std::string refusal = read_file(folder_ + "/refusal0");
  EXPECT_EQ(refusal, read_file(folder_ + "/refusal1"));
  EXPECT_THAT(refusal, HasSubstr("worker 1 (cpu:1) differs from worker 0 (cpu:0) in its plan (fingerprint "));
  EXPECT_THAT(refusal, HasSubstr(" and in its seed (12, not 11) and in its model ("));
  EXPECT_THAT(refusal, ::testing::Not(HasSubstr("steps")));
}

TEST_F(Processes, TheTraceOfTwoHostsHasOneTime) {
  write("plan.json", plan());
  EXPECT_THAT(run_workers(variables("clocks")), ElementsAre(0, 0));
}

TEST_F(Processes, NobodyLosesPatienceWhileWorker0Saves) {
  write("plan.json", plan());
  const std::string pipe = folder_ + "/pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const TwoWorkers workers(variables("slow saving"));
  for (int i = 0; i < 6'000 && !std::filesystem::exists(folder_ + "/trained"); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  std::this_thread::sleep_for(kWork);
  EXPECT_GT(read_file(pipe).size(), 1000U);
  EXPECT_THAT(workers.exit_codes(), ElementsAre(0, 0));
}

TEST_F(Processes, NobodyLosesPatienceWhileWorker0TrainsTheReference) {
  write("plan.json", plan());
  EXPECT_THAT(run_workers(variables("slow reference")), ElementsAre(0, 0));
}

}  // namespace
}  // namespace espalier
