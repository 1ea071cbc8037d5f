// Devices of one process: what they hand each other, what they share, what a step leaves behind. Tests order
// the actions of two devices by hooks that wait for each other, where a race would only sometimes show a
// mistake.

#include "espalier/runtime/device_worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "espalier/runtime/plans_for_tests.h"
#include "espalier/runtime/trainer.h"
#include "espalier/runtime/whole_state.h"
#include "testing/cut_plan.h"

namespace espalier {
namespace {

using espalier::testing::CutOptions;
using espalier::testing::plan_from_stages;
using ::testing::SizeIs;

const Optimizer kSgd{.kind = OptimizerKind::kSgd, .learning_rate = 0.1};

// Operators named in `second` stand in stage 1, the others in stage 0; two micro-batches of two samples. Each
// stage on a device of its own, or both on both.
PlannedJob two_stages(const Graph& graph, const std::function<bool(const std::string&)>& second,
                      bool on_both = false) {
  std::vector<std::size_t> stage_of;
  for (const Operator& op : graph.operators()) stage_of.push_back(second(op.name) ? 1 : 0);
  PipelinePlan plan = plan_from_stages(graph, stage_of, {.batch = BatchSize(4), .micro_batch = BatchSize(2)});
  for (Stage& stage : plan.stages) {
    if (!on_both) continue;
    stage.replicas = {{{DeviceId(0)}, {0}}, {{DeviceId(1)}, {1}}};
    stage.in_flight = 1;
  }
  const Cluster cluster = cpus(2);
  EXPECT_THAT(check_plan(graph, cluster, plan), ::testing::IsEmpty());
  return planned_job(make_plan_file(graph, cluster, {plan.batch, {BatchSize(2)}, kSgd}, plan,
                                    staged_for_tests(graph, cluster, plan, kSgd)),
                     graph);
}

struct Trained {
  std::vector<StepOutcome> outcomes;
  std::map<std::string, at::Tensor> state;
};

Trained train(const LoadedModel& model, const PlannedJob& planned, const Optimizer& optimizer, int steps,
              const ExecutorOptions& options = {.keep_gradients = true}) {
  const auto data = synthetic_data(model.exported, 3);
  Workers workers = join_workers({}, planned, {.timeout = milliseconds(60'000)});
  Trainer trainer(model, planned, *data, *workers.transport,
                  {.optimizer = optimizer, .seed = 3, .executor = options});
  Trained trained;
  for (int step = 0; step < steps; ++step) trained.outcomes.push_back(trainer.executor().step());
  trained.state = gather_state(workers, model.graph(), trainer.executor());
  for (auto& [name, value] : trained.state) value = value.clone();
  return trained;
}

class Order : public StepHooks {  // `later` is done only after `earlier` has been
 public:
  Order(const Action& earlier, const Action& later) : earlier_(earlier), later_(later) {}

  void around(const Action& action, Holding* holding, const std::function<void()>& run) override {
    if (action == later_) happened_.get_future().wait();
    look(action, holding);
    run();
    if (action == earlier_) happened_.set_value();
  }
  virtual void look(const Action&, Holding*) {}

 private:
  Action earlier_, later_;
  std::promise<void> happened_;
};

constexpr Action kForwardOfFirst{ActionKind::kForward, StageId(0), 0};
constexpr Action kBackwardOfFirst{ActionKind::kBackward, StageId(0), 0};
constexpr Action kUpdateOfFirst{ActionKind::kUpdate, StageId(0), 0};
constexpr Action kForwardOfSecond{ActionKind::kForward, StageId(1), 0};

TEST(DeviceWorker, AStageThatReadsAWeightAfterItsUpdateSeesItAsItWas) {
  class Look final : public Order {
   public:
    Look() : Order(kUpdateOfFirst, kForwardOfSecond) {}
    void look(const Action& action, Holding* holding) override {
      if (action != kForwardOfFirst) return;
      for (const Variable& variable : holding->parameters) {
        if (variable.value.dim() == 2 && variable.value.size(1) == 3) {
          before = variable.value.detach().clone();
        }
      }
    }
    void received(const Action& action, std::vector<at::Tensor>& tensors) override {
      if (action == kForwardOfSecond) read = tensors.at(0).clone();
    }
    at::Tensor before, read;
  };
  const LoadedModel model(kFixtures + "alias_of_weight.pt2");
  const PlannedJob planned =
      two_stages(model.graph(), [](const std::string& name) { return name == "t" || name == "mul"; });
  Look hooks;
  const Trained trained = train(model, planned, kSgd, 1, {.hooks = &hooks});
  EXPECT_TRUE(at::equal(hooks.read, hooks.before));
  EXPECT_FALSE(at::equal(trained.state.at("first.weight"), hooks.before)) << "nothing was updated";
}

TEST(DeviceWorker, AGradientOnItsWayDoesNotGrowWithTheNextMicroBatch) {
  const LoadedModel model(kFixtures + "alias_of_gradient.pt2");
  const PlannedJob planned =
      two_stages(model.graph(), [](const std::string& name) { return name != "linear"; });
  Order hooks({ActionKind::kBackward, StageId(1), 1}, kBackwardOfFirst);
  const Trained actual = train(model, planned, kSgd, 1, {.hooks = &hooks});
  const Trained expected = train(model, one_stage_job(model.graph(), BatchSize(4), BatchSize(2)), kSgd, 1);
  for (const auto& [name, value] : expected.state)
    EXPECT_TRUE(at::equal(actual.state.at(name), value)) << name;
}

TEST(DeviceWorker, TheMemoryOfDevicesInOneProcessDoesNotGrowFromStepToStep) {
  const LoadedModel model(kFixtures + "alias_of_gradient.pt2");
  const PlannedJob planned =
      two_stages(model.graph(), [](const std::string& name) { return name != "linear"; });
  const Trained trained = train(model, planned, kSgd, 4, {});
  const auto at_start = [&](int step, DeviceId device) {
    for (const MemorySample& sample : trained.outcomes[static_cast<std::size_t>(step)].memory) {
      if (sample.device == device) return sample.held.total();
    }
    return Bytes();
  };
  for (const DeviceId device : {DeviceId(0), DeviceId(1)}) {
    EXPECT_GT(at_start(1, device), Bytes());
    EXPECT_EQ(at_start(3, device), at_start(1, device)) << device.index();
  }
}

TEST(DeviceWorker, KeepsItsThreadFromStepToStep) {
  class Threads final : public StepHooks {
   public:
    void around(const Action& action, Holding*, const std::function<void()>& run) override {
      run();
      const std::lock_guard guard(lock);
      of_stage[action.stage()].insert(syscall(SYS_gettid));
    }
    std::mutex lock;
    std::map<StageId, std::set<long>> of_stage;
  };
  const LoadedModel model(kFixtures + "alias_of_gradient.pt2");
  const PlannedJob planned =
      two_stages(model.graph(), [](const std::string& name) { return name != "linear"; });
  Threads hooks;
  train(model, planned, kSgd, 3, {.hooks = &hooks});
  for (const auto& [stage, threads] : hooks.of_stage) EXPECT_THAT(threads, SizeIs(1)) << stage.index();
}

// The sum of stage 1 is over only after both devices have gone back through stage 0: a device that waited for
// it would never do that.
class SumAfterBackwards final : public StepHooks {
 public:
  void around(const Action& action, Holding*, const std::function<void()>& run) override {
    std::unique_lock guard(lock_);
    const auto done = [&] { return backwards_ == 2; };
    if (action == Action(ActionKind::kAllReduce, StageId(1), 0)) {
      in_time += changed_.wait_for(guard, std::chrono::seconds(20), done) ? 1 : 0;
    }
    guard.unlock();
    run();
    guard.lock();
    if (action.kind == ActionKind::kBackward && action.stage() == StageId(0)) ++backwards_;
    changed_.notify_all();
  }
  int in_time = 0;  // devices

 private:
  std::mutex lock_;
  std::condition_variable changed_;
  int backwards_ = 0;
};

TEST(DeviceWorker, SumsOfGradientsGoOnBesideTheList) {
  const LoadedModel model(kFixtures + "alias_of_gradient.pt2");
  const PlannedJob planned = two_stages(
      model.graph(), [](const std::string& name) { return name != "linear"; }, true);
  SumAfterBackwards hooks;
  const Trained actual = train(model, planned, kSgd, 1, {.hooks = &hooks});
  EXPECT_EQ(hooks.in_time, 2);
  const Trained expected = train(model, one_stage_job(model.graph(), BatchSize(4), BatchSize(2)), kSgd, 1);
  for (const auto& [name, value] : expected.state)
    EXPECT_TRUE(at::allclose(actual.state.at(name), value, 1e-5, 1e-7)) << name;
}

// As torch.nn.utils.clip_grad_norm_: one factor for all gradients, from the norm of all of them together.
TEST(Clipping, ScalesTheGradientsOfEveryDeviceByTheNormOfAll) {
  const LoadedModel model(kFixtures + "alias_of_gradient.pt2");
  const PlannedJob two = two_stages(model.graph(), [](const std::string& name) { return name != "linear"; });
  const PlannedJob one = one_stage_job(model.graph(), BatchSize(4), BatchSize(2));
  const StepOutcome free = train(model, one, kSgd, 1).outcomes[0];
  double squares = 0;
  for (const auto& [id, gradient] : free.gradients) {
    squares += gradient.to(at::kDouble).square().sum().item<double>();
  }
  Optimizer clipping = kSgd;
  clipping.clip_norm = std::sqrt(squares) / 4;
  const double factor = *clipping.clip_norm / (std::sqrt(squares) + 1e-6);
  const Trained apart = train(model, two, clipping, 2);
  const Trained alone = train(model, one, clipping, 2);
  ASSERT_EQ(apart.outcomes[0].gradients.size(), free.gradients.size());
  for (const auto& [id, gradient] : free.gradients) {
    EXPECT_TRUE(at::allclose(apart.outcomes[0].gradients.at(id), gradient * factor, 1e-6, 0)) << id.index();
  }
  for (const auto& [name, value] : alone.state) EXPECT_TRUE(at::equal(apart.state.at(name), value)) << name;
  // What is reported is the norm before clipping.
  double reported = 0;
  for (const auto& [id, square] : apart.outcomes[0].squares) reported += square;
  EXPECT_NEAR(reported / squares, 1, 1e-6);

  clipping.clip_norm = std::sqrt(squares) * 4;  // nothing to clip
  const StepOutcome roomy = train(model, two, clipping, 1).outcomes[0];
  for (const auto& [id, gradient] : free.gradients) {
    EXPECT_TRUE(at::equal(roomy.gradients.at(id), gradient)) << id.index();
  }
}

}  // namespace
}  // namespace espalier
