// Links that a cluster names beside its tree: engine, full simulation, reference simulation and the checker
// of traces agree about them.

#include <gtest/gtest.h>

#include "espalier/base/rng.h"
#include "espalier/bound/bound.h"
#include "espalier/cluster/text.h"
#include "espalier/sim/list_engine.h"
#include "espalier/sim/simulate.h"
#include "testing/random_staged_model.h"
#include "testing/reference_simulator.h"

namespace espalier {
namespace {

// Up to four links between devices or groups that are side by side.
Cluster with_random_links(const Cluster& cluster, Rng& rng) {
  ClusterParts parts = cluster.parts();
  const auto member = [&]() -> Member {
    if (rng.below(4) > 0 || parts.groups.size() == 1) return DeviceId(rng.below(parts.devices.size()));
    return GroupId(1 + rng.below(parts.groups.size() - 1));
  };
  for (std::size_t i = 1 + rng.below(4); i-- > 0;) {
    NamedLink link = usual_link(parts, member(), member());
    link.bandwidth = 10'000'000 * static_cast<std::int64_t>(1 + rng.below(40));
    if (rng.below(2) == 0) link.latency = microseconds(static_cast<std::int64_t>(rng.below(50)));
    if (rng.below(3) == 0) link.send = {microseconds(static_cast<std::int64_t>(rng.below(9))), 100};
    link.contention = rng.below(4) > 0;
    parts.links.push_back(link);
    if (!check_cluster(parts).empty()) parts.links.pop_back();
  }
  return Cluster(std::move(parts));
}

TEST(NamedLinks, EngineSimulationAndReferenceAgree) {
  Rng rng(23);
  internal::ListEngine engine;
  std::size_t runs = 0, moved = 0;
  for (int trial = 0; trial < 150; ++trial) {
    const auto [model, plain] = testing::random_staged_model(rng, {.max_stages = 4, .max_micro_batches = 4});
    if (plain.devices().size() < 2) continue;
    const Cluster cluster = with_random_links(plain, rng);
    const Schedule schedule = make_schedule(model, cluster.devices().size());
    if (!check_schedule(model, schedule).empty()) continue;
    SCOPED_TRACE(print_cluster(cluster));
    const Trace trace = simulate(model, cluster, schedule);
    const std::vector<std::string> violations = check_trace(model, cluster, schedule, trace);
    ASSERT_TRUE(violations.empty()) << violations.front();
    ASSERT_EQ(trace.iteration, testing::reference_simulate(model, cluster, schedule).iteration);
    ASSERT_LE(stages_bound(model, cluster).time, trace.iteration);
    internal::RouteTable routes(cluster);
    const internal::ListStructure structure =
        internal::make_list_structure(model, schedule, routes, cluster.link_count());
    ASSERT_TRUE(engine.run(structure, internal::costs_of(model)));
    ASSERT_EQ(engine.iteration(), trace.iteration.count());
    ++runs;
    moved += trace.iteration != simulate(model, plain, schedule).iteration;
  }
  EXPECT_GT(runs, 80U);
  EXPECT_GT(moved, 30U) << "the links change what a step takes";
}

}  // namespace
}  // namespace espalier
