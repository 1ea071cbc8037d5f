#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "espalier/sim/simulate.h"
#include "espalier/trace/trace.h"
#include "testing/random_staged_model.h"
#include "testing/worked_example.h"

namespace espalier {
namespace {

using espalier::testing::random_staged_model;
using espalier::testing::RandomModelOptions;
using ::testing::IsEmpty;

TEST(CheckTraceProperty, EverySimulatedTraceIsAccepted) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    Rng rng(seed * 3'000'017 + 2);
    RandomModelOptions options;
    options.unequal_sizes = seed % 4 == 1;
    options.random_limits = seed % 4 == 2;
    const auto [model, cluster] = random_staged_model(rng, options);
    const Schedule schedule = make_schedule(model, cluster.devices().size());
    ASSERT_THAT(check_trace(model, cluster, schedule, simulate(model, cluster, schedule)), IsEmpty()) << seed;
  }
}

}  // namespace
}  // namespace espalier
