#include "espalier/app/memory_account.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "espalier/app/job_for_tests.h"
#include "espalier/app/what_if.h"

namespace espalier {
namespace {

// Two linears and a gelu in front, the loss behind, on two devices.
PlanningJob small_job() {
  return job_for_tests(
      "batch 1..4096\nx = input() : f32[b,64]\nw = parameter(w) : f32[64,64]\nv = parameter(v) : f32[64,64]\n"
      "a = linear(x, w) : f32[b,64] @module=front.a @source=model.py:3\n"
      "g = gelu(a) : f32[b,64] @module=front.act @source=model.py:4\n"
      "c = linear(g, v) : f32[b,64] @module=front.c @source=model.py:5\n"
      "loss = mean(c) : f32[] @module=loss\n",
      "2xV100-16GB", BatchSize(2048), BatchSize(512));
}

PipelinePlan two_stages() {
  PipelinePlan plan;
  plan.batch = BatchSize(2048);
  for (std::size_t s = 0; s < 2; ++s) {
    Stage stage;
    stage.name = s == 0 ? "front" : "back";
    stage.operators = s == 0 ? std::vector<OperatorId>{OperatorId(0), OperatorId(1), OperatorId(2)}
                             : std::vector<OperatorId>{OperatorId(3)};
    stage.replicas = {{{DeviceId(s)}, round_robin(4, 0, 1)}};
    if (s == 1) stage.after = {StageId(0)};
    stage.micro_batch = BatchSize(512);
    stage.in_flight = s == 0 ? 2 : 1;
    plan.stages.push_back(std::move(stage));
  }
  return plan;
}

TEST(MemoryAccount, NamesWhoHoldsThePeak) {
  const PlanningJob job = small_job();
  const Judged judged = judge(job, two_stages());
  const MemoryAccount account = memory_account(job, judged, DeviceId(0));
  EXPECT_EQ(account.peak, judged.peak[0].total());
  EXPECT_EQ(account.has, job.cluster.device(DeviceId(0)).memory);
  // a: 64 · 64 · 4 bytes, once more as gradient and twice for Adam. Its input is the user's, so nobody counts
  // it as kept. The gelu keeps a: 512 samples of 64 · 4 bytes in each of two micro-batches; c keeps the
  // gelu's.
  const Bytes weights(64 * 64 * 4), kept(2 * 512 * 64 * 4);
  ASSERT_EQ(account.holders.size(), 3u);
  Bytes sum = account.rest;
  for (const MemoryHolder& holder : account.holders) sum += holder.total();
  EXPECT_EQ(sum, account.peak);
  EXPECT_GE(account.rest, Bytes());
  EXPECT_EQ(account.holders[0].module, "front.c");
  EXPECT_EQ(account.holders[0].source, "model.py:5");
  EXPECT_EQ(account.holders[0].parameters, weights);
  EXPECT_EQ(account.holders[0].training, 3 * weights);
  EXPECT_EQ(account.holders[0].kept, kept);
  EXPECT_EQ(account.holders[1].module, "front.act");
  EXPECT_EQ(account.holders[1].kept, kept);
  EXPECT_EQ(account.holders[1].parameters, Bytes());
  EXPECT_EQ(account.holders[2].module, "front.a");
  EXPECT_EQ(account.holders[2].kept, Bytes());
  EXPECT_EQ(account.holders[2].parameters, weights);

  const Table table = memory_account_table(account, 2);
  ASSERT_EQ(table.rows.size(), 4u);
  EXPECT_EQ(table.rows[2][0], Cell(std::string("1 other")));
}

TEST(MemoryAccount, FrozenParametersAndBuffersBelongToTheirModules) {
  const PlanningJob job = job_for_tests(
      "batch 1..4096\nx = input() : f32[b,64]\nw = parameter(w, frozen) : f32[64,64]\ns = buffer(s) : "
      "f32[64]\n"
      "v = parameter(v) : f32[64,64]\n"
      "a = linear(x, w) : f32[b,64] @module=base\n"
      "g = mul(a, s) : f32[b,64] @module=norm\n"
      "c = linear(g, v) : f32[b,64] @module=adapter\n"
      "loss = mean(c) : f32[] @module=loss\n",
      "2xV100-16GB", BatchSize(2048), BatchSize(512));
  const MemoryAccount account = memory_account(job, judge(job, two_stages()), DeviceId(0));
  Bytes sum = account.rest;
  for (const MemoryHolder& holder : account.holders) sum += holder.total();
  EXPECT_EQ(sum, account.peak);
  const auto holder = [&](const std::string& module) {
    for (const MemoryHolder& one : account.holders) {
      if (one.module == module) return one;
    }
    return MemoryHolder();
  };
  EXPECT_EQ(holder("base").parameters, Bytes(64 * 64 * 4));
  EXPECT_EQ(holder("base").training, Bytes());
  EXPECT_EQ(holder("norm").parameters, Bytes(64 * 4));
  EXPECT_EQ(holder("adapter").training, Bytes(3 * 64 * 64 * 4));
}

TEST(WhatIf, PlansAgainForEachChangeAndSaysWhatBinds) {
  const PlanningJob job = small_job();
  const PlanOptions options{.planner = "even"};
  const Planned planned = plan_model(job, options);
  ASSERT_TRUE(planned.judged.has_value());
  const std::vector<WhatIf> usual = usual_changes(job, planned);
  ASSERT_EQ(usual.size(), 4u);
  const std::vector<WhatIf> found = what_if(job, usual, options);
  const Duration now = planned.judged->trace.iteration;
  for (const WhatIf& change : found) {
    ASSERT_TRUE(change.iteration.has_value()) << change.change;
    EXPECT_LE(*change.iteration, now) << change.change;
  }
  EXPECT_EQ(what_if_table(found, now).rows.size(), 4u);
  // Half of everything is faster by more than any figure of a table could hide.
  std::vector<WhatIf> asked(1);
  asked[0].change = "gpu:0=0.1x";
  EXPECT_GT(what_if(job, asked, options)[0].iteration, now);
  asked[0].change = "gpu:0=+1,gpu:9=gone";
  EXPECT_THROW(check_changes(job, asked), InputError);
}

TEST(WhatIf, FromAPlanNoChangeForTheBetterIsSlower) {
  const PlanningJob job = small_job();
  const PlanOptions options{.budget = {.max_states = 2000}};
  const Planned planned = plan_model(job, options);
  ASSERT_TRUE(planned.judged.has_value());
  for (const WhatIf& change : what_if(job, usual_changes(job, planned), options, &planned)) {
    ASSERT_TRUE(change.iteration.has_value()) << change.change;
    EXPECT_LE(*change.iteration, planned.judged->trace.iteration) << change.change;
  }
}

TEST(WhatIf, AnswersAreTheSameSideBySideAndOneListenerHearsOfAll) {
  const PlanningJob job = small_job();
  PlanOptions options{.budget = {.max_states = 2000}};
  const Planned planned = plan_model(job, options);
  ASSERT_TRUE(planned.judged.has_value());
  const std::vector<WhatIf> asked = usual_changes(job, planned);
  const std::vector<WhatIf> in_turn = what_if(job, asked, options, &planned);
  double farthest = 0;
  options.search.threads = 3;
  options.search.progress = [&](const SearchProgress& all) {
    EXPECT_LE(all.fraction, 1 + 1e-9);
    farthest = std::max(farthest, all.fraction);
  };
  const std::vector<WhatIf> beside = what_if(job, asked, options, &planned);
  ASSERT_EQ(beside.size(), in_turn.size());
  for (std::size_t i = 0; i < beside.size(); ++i) {
    EXPECT_EQ(beside[i].iteration, in_turn[i].iteration) << asked[i].change;
    EXPECT_EQ(beside[i].status, in_turn[i].status) << asked[i].change;
  }
  EXPECT_GT(farthest, 0.3);  // one of four alone comes to a quarter
}

TEST(WhatIf, WhatBindsIsTheChangeThatGivesMost) {
  WhatIf memory, links;
  memory.text = "1 GiB more on each device";
  memory.binds = "memory";
  links.text = "links twice as fast";
  links.binds = "the links";
  memory.iteration = milliseconds(8);
  links.iteration = milliseconds(9);
  EXPECT_EQ(binding_text({memory, links}, milliseconds(10)),
            "memory: with 1 GiB more on each device 1.25x as fast");
  EXPECT_EQ(binding_text({memory, links}, std::nullopt), "memory: with 1 GiB more on each device it fits");
  memory.iteration = links.iteration = milliseconds(10);
  EXPECT_EQ(binding_text({memory, links}, milliseconds(10)), "none of these alone: each gives less than 2 %");
  memory.iteration.reset();
  links.iteration.reset();
  EXPECT_EQ(binding_text({memory, links}, std::nullopt), "none of these changes makes it fit");
}

}  // namespace
}  // namespace espalier
