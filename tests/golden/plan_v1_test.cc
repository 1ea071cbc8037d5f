// Plan files of version 1 stand for the schedules that they stood for when they were written. The files and
// their schedules were made by the last program that wrote version 1: random staged models (several stages on
// a device, replicas with odd shares, tensor-parallel pairs, unequal micro-batches, limits of any sort).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "espalier/base/files.h"
#include "espalier/base/hash.h"
#include "espalier/schedule/json.h"
#include "espalier/schedule/order_file.h"

namespace espalier {
namespace {

const std::string kFolder = std::string(ESPALIER_SOURCE_DIR) + "/tests/golden/plan_v1/";

std::vector<std::string> plans() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Its lists, and a hash of lists and channels.
std::string described(const StagedModel& model, const Cluster& cluster, const Schedule& schedule) {
  return print_schedule(model, cluster, schedule) + "hash " +
         hex_text(content_hash(schedule_to_json(model, cluster, schedule).dump())) + "\n";
}

class PlanOfVersion1 : public ::testing::TestWithParam<std::string> {};

TEST_P(PlanOfVersion1, StandsForTheSameSchedule) {
  const std::string path = kFolder + GetParam() + ".json";
  const PlanFile file = parse_plan_file(read_file(path), path);
  const Cluster cluster(file.cluster);
  ASSERT_NE(file.staged.orders.rule(), nullptr);
  EXPECT_EQ(file.staged.orders.rule()->edition, OrderRule::Edition::kFirst);
  const Schedule schedule = schedule_of(file, path);
  EXPECT_EQ(described(file.staged, cluster, schedule), read_file(kFolder + GetParam() + ".schedule"));

  // Written again it is of version 2, and still stands for it.
  PlanFile again = file;
  again.expansion = schedule_hash(schedule);
  const PlanFile read = parse_plan_file(print_plan_file(again), "again");
  EXPECT_EQ(read, again);
  EXPECT_EQ(schedule_of(read, "again"), schedule);

  // As lists it is the same schedule, too.
  PlanFile listed = file;
  listed.staged.orders = Orders(lists_of(file.staged, schedule));
  EXPECT_EQ(schedule_of(parse_plan_file(print_plan_file(listed), "listed"), "listed"), schedule);
}

INSTANTIATE_TEST_SUITE_P(All, PlanOfVersion1, ::testing::ValuesIn(plans()),
                         [](const auto& param) { return param.param; });

TEST(PlanOfVersion1, ThereAreSome) {
  EXPECT_GE(plans().size(), 15u);
}

}  // namespace
}  // namespace espalier
