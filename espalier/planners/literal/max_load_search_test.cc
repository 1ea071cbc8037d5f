#include "espalier/planners/literal/max_load_search.h"

#include <gmock/gmock.h>

#include <limits>

#include "espalier/base/rng.h"

namespace espalier::literal {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

MsrProfile some_profile(std::size_t nodes, std::int64_t accelerators, std::int64_t cpus, Rng& rng) {
  MsrProfile profile;
  profile.file = "random.json";
  profile.accelerators = accelerators;
  profile.cpus = cpus;
  profile.memory = 90;
  for (std::size_t i = 0; i < nodes; ++i) {
    MsrProfile::Node node;
    node.id = static_cast<std::int64_t>(i);
    node.accelerator = static_cast<double>(rng.below(9));
    node.cpu = 3 * node.accelerator;
    node.bytes = static_cast<double>(rng.below(40));
    node.on_accelerator = cpus == 0 || rng.below(8) != 0;
    if (rng.below(4) == 0) node.colour = static_cast<std::int64_t>(rng.below(2));
    profile.nodes.push_back(node);
    const auto cost = static_cast<double>(1 + i % 3);
    for (std::size_t from = 0; from < i; ++from) {
      if (rng.below(3) == 0) profile.edges.push_back({from, i, static_cast<double>(1 + from % 3), cost});
    }
  }
  return profile;
}

// The least max-load of all placements, by the definition that prices given ones.
double least_of_all(const MsrProfile& profile) {
  const auto devices = static_cast<std::size_t>(profile.accelerators + profile.cpus);
  double least = std::numeric_limits<double>::infinity();
  std::vector<std::size_t> place(profile.nodes.size());
  for (;;) {
    MsrPlacement placement;
    for (std::size_t d = 0; d < devices; ++d)
      placement.devices.push_back(
          {.accelerator = d < static_cast<std::size_t>(profile.accelerators), .nodes = {}});
    bool divided = false;
    for (std::size_t i = 0; i < place.size(); ++i) {
      placement.devices[place[i]].nodes.push_back(profile.nodes[i].id);
      for (std::size_t j = 0; j < i; ++j)
        divided = divided || (profile.nodes[i].colour && profile.nodes[i].colour == profile.nodes[j].colour &&
                              place[i] != place[j]);
    }
    if (!divided) {
      const MaxLoadResult result = price_placement(profile, placement);
      if (check_max_load(profile, {.space = MaxLoadSpace::kAnywhere}, result).empty())
        least = std::min(least, result.max_load);
    }
    std::size_t i = 0;
    while (i < place.size() && ++place[i] == devices) place[i++] = 0;
    if (i == place.size()) return least;
  }
}

MaxLoadResult searched(const MsrProfile& profile, std::uint64_t changes, std::size_t threads = 1) {
  ThreadPool pool(threads);
  Context context;
  context.budget.max_states = changes;
  context.pool = &pool;
  return max_load_search(profile, {}, context);
}

TEST(MaxLoadSearch, FindsTheLeastOfAllPlacementsOfSmallGraphs) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Rng rng(seed);
    const auto accelerators = static_cast<std::int64_t>(1 + rng.below(2));
    const MsrProfile profile =
        some_profile(2 + rng.below(5), accelerators, static_cast<std::int64_t>(rng.below(2)), rng);
    const double least = least_of_all(profile);
    const MaxLoadResult found = searched(profile, 20'000);
    if (!found.found()) {
      EXPECT_EQ(least, std::numeric_limits<double>::infinity()) << seed;
      continue;
    }
    EXPECT_THAT(check_max_load(profile, {.space = MaxLoadSpace::kAnywhere}, found), IsEmpty());
    EXPECT_NEAR(found.max_load, least, 1e-9) << seed;
  }
}

TEST(MaxLoadSearch, SameBytesForAnyNumberOfThreads) {
  Rng rng(7);
  MsrProfile profile = some_profile(40, 3, 1, rng);
  profile.memory = 500;
  const MaxLoadResult one = searched(profile, 30'000);
  ASSERT_TRUE(one.found());
  for (const std::size_t threads : {2U, 3U, 7U})
    EXPECT_EQ(searched(profile, 30'000, threads).devices, one.devices);
}

TEST(MaxLoadSearch, SaysThatANodeHasNoDevice) {
  Rng rng(8);
  MsrProfile profile = some_profile(3, 2, 0, rng);
  profile.nodes[1].on_accelerator = false;
  EXPECT_THAT(searched(profile, 1'000).why, HasSubstr("CPUs only"));
}

TEST(MaxLoadSearch, IsNoWorseThanLinearOrders) {
  Rng rng(9);
  for (int i = 0; i < 10; ++i) {
    MsrProfile profile = some_profile(30, 3, 0, rng);
    for (MsrProfile::Node& node : profile.nodes) node.colour.reset();
    profile.memory = 1'000;
    EXPECT_LE(searched(profile, 20'000).max_load,
              max_load(profile, {.space = MaxLoadSpace::kLinear}).max_load + 1e-9);
  }
}

}  // namespace
}  // namespace espalier::literal
