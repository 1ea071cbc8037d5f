#include "espalier/planners/pipeline/part_splits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "espalier/planners/toy_for_tests.h"

namespace espalier {
namespace {

using ::testing::IsEmpty;
using ::testing::Not;

// A chain of six operators on two fast and two slow devices.
Toy chain_on_unequal_devices() {
  std::string graph = "x = input() : f32[b]\n", previous = "x";
  for (const std::string n : {"1", "2", "3", "4", "5", "6"}) {
    const std::string before = previous;
    previous = "h" + n;
    graph += previous + " = f(" + before + ") : f32[" + (n == "6" ? "" : "b") + "] @class=c" + n + "\n";
  }
  const std::string devices =
      "kind fast 1GiB f32=1e12 f16=1e12 mem=100GB launch=0ns sms=1 speed=2\n"
      "kind slow 1GiB f32=1e12 f16=1e12 mem=100GB launch=0ns sms=1\n"
      "group network latency=500us lanes=unlimited\n"
      "device a fast in network\ndevice b fast in network\n"
      "device c slow in network\ndevice d slow in network\n";
  return Toy(graph + "return h6\n", devices, 8);
}

// What splits of its parts refer to.
struct Asked {
  Toy toy = chain_on_unequal_devices();
  Problem problem = toy.problem();
  Linearization line{problem, chain_order(problem.graph)};
  DeviceTable table{problem};
  OperatorCosts costs{problem.graph, problem.cluster, problem.costs, BatchSize(1)};

  PartSplits over(std::vector<DeviceId> row) const {
    return {line, table, std::move(row), BatchSize(1), costs, {}};
  }
};

TEST(PartSplits, ThatTakeAnotherRowAnswerAsIfTheyHadBegunWithIt) {
  const Asked asked;
  const std::vector<DeviceId> forwards{DeviceId(0), DeviceId(1), DeviceId(2), DeviceId(3)};
  const std::vector<DeviceId> backwards(forwards.rbegin(), forwards.rend());
  Context context;
  PartSplits taken = asked.over(forwards), begun = asked.over(backwards);
  std::vector<std::vector<PartSplits::Question>> questions(2);
  for (PartSplits* const parts : {&taken, &begun}) {
    for (const Places& places : {Places{0, 3}, Places{3, 6}, Places{0, 6}}) {
      const std::size_t part = parts->part({places});
      for (std::size_t first = 0; first < 4; ++first) {
        questions[parts == &begun].push_back({part, first, std::min<std::size_t>(2, 4 - first)});
      }
    }
  }
  const std::vector<PartSplits::Question> of_first_row = questions[0];
  taken.answer(of_first_row, Duration::max(), context);
  const auto drafts = taken.drafts(of_first_row.front(), taken.splits(of_first_row.front(), context).front());
  taken.take_row(backwards);
  for (PartSplits* const parts : {&taken, &begun}) {
    parts->answer(questions[parts == &begun], Duration::max(), context);
  }
  for (std::size_t q = 0; q < questions[0].size(); ++q) {
    const auto &again = taken.splits(questions[0][q], context),
               &fresh = begun.splits(questions[1][q], context);
    ASSERT_THAT(again, Not(IsEmpty()));
    ASSERT_EQ(again.size(), fresh.size());
    for (std::size_t s = 0; s < again.size(); ++s) {
      EXPECT_EQ(again[s].bottleneck, fresh[s].bottleneck);
      EXPECT_EQ(taken.drafts(questions[0][q], again[s]), begun.drafts(questions[1][q], fresh[s]));
    }
  }
  EXPECT_NE(drafts, taken.drafts(questions[0].front(), taken.splits(questions[0].front(), context).front()));
}

TEST(PartSplits, NothingSlowerThanTheLimitIsLookedFor) {
  const Asked asked;
  Context context;
  PartSplits parts = asked.over({DeviceId(0), DeviceId(1)});
  const PartSplits::Question question{parts.part({{0, 6}}), 0, 2};
  parts.answer({question}, milliseconds(1), context);  // nothing is as fast as that
  EXPECT_THAT(parts.splits(question, context), IsEmpty());
}

}  // namespace
}  // namespace espalier
