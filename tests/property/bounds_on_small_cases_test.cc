// Lower bounds against everything small that can be simulated: no step may be shorter than its bound.

#include <gtest/gtest.h>

#include <string>

#include "espalier/bound/bound.h"
#include "espalier/sim/simulate.h"
#include "testing/small_cases.h"

namespace espalier {
namespace {

using espalier::testing::Features;
using espalier::testing::kOneIn;
using espalier::testing::small_case;
using espalier::testing::SmallCase;

TEST(StagesBound, IsNeverAboveASimulatedStepOnAllDagsOfUpToFourStages) {
  // All mixes of features for up to three stages, every fifth for four: orders with shared devices, split
  // backwards, replicas, unequal micro-batches, endpoint costs, contention.
  std::size_t compared = 0, reached = 0;
  for (std::size_t stages = 1; stages <= 4; ++stages) {
    const unsigned every = stages == 4 ? 5 * kOneIn : 1;
    for (unsigned edges = 0; edges < 1u << (stages * (stages - 1) / 2); ++edges) {
      for (unsigned bits = edges % every; bits < Features::kAll; bits += every) {
        const SmallCase small =
            small_case(stages, edges, Features(bits), (std::uint64_t{edges} << 8) + bits + 77'777);
        if (!check_schedule(small.model, small.schedule).empty()) continue;
        const Duration bound = stages_bound(small.model, small.cluster).time;
        const Duration step = simulate(small.model, small.cluster, small.schedule).iteration;
        ASSERT_LE(bound, step) << stages << " stages, edges " << edges << ", features " << bits;
        ++compared;
        reached += bound == step ? 1 : 0;
      }
    }
  }
  EXPECT_GT(compared, 5'000u / kOneIn);
  EXPECT_GT(reached, compared / 20);  // it is worth something
}

}  // namespace
}  // namespace espalier
