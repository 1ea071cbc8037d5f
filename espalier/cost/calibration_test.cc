#include "espalier/cost/calibration.h"

#include <gmock/gmock.h>

#include "espalier/base/json.h"
#include "espalier/cost/json.h"
#include "espalier/cost/text.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;
using testing::refusal;

Calibration calibration(const std::string& machine, std::uint32_t threads, double flops) {
  Calibration c;
  c.machine = machine;
  c.threads = threads;
  c.torch_version = "2.13.0";
  c.flops_f32 = flops;
  c.memory_bandwidth = 7'000'000'000;
  c.launch_overhead = microseconds(4);
  c.costs = parse_costs(
      "overhead cpu action=20us adam=1us+10ps/B\nlink 2GB latency=40us send=100us receive=20us\n");
  return c;
}

TEST(Calibration, ReadsBackAsItWasWritten) {
  const std::vector<Calibration> all{calibration("a", 1, 5e10), calibration("b", 2, 1e11)};
  const std::string text = print_json(calibrations_to_json(all));
  EXPECT_EQ(calibrations_from_json(parse_json(text, "c"), "c"), all);
}

TEST(Calibration, IsFoundByMachineThreadsAndVersionAndReplacedByAFreshOne) {
  std::vector<Calibration> all{calibration("a", 1, 5e10)};
  all = with_calibration(all, calibration("a", 2, 6e10));
  all = with_calibration(all, calibration("a", 1, 7e10));
  EXPECT_EQ(all.size(), 2U);
  ASSERT_TRUE(find_calibration(all, "a", 1, "2.13.0").has_value());
  EXPECT_EQ(find_calibration(all, "a", 1, "2.13.0")->flops_f32, 7e10);
  EXPECT_FALSE(find_calibration(all, "b", 1, "2.13.0").has_value());
  EXPECT_FALSE(find_calibration(all, "a", 4, "2.13.0").has_value());
  EXPECT_FALSE(find_calibration(all, "a", 1, "2.14.0").has_value());
}

TEST(Calibration, AWrongFigureIsRefusedWithItsPlace) {
  std::string text = print_json(calibrations_to_json({calibration("a", 1, 5e10)}));
  text.replace(text.find("7000000000"), 10, "0000000000");
  EXPECT_THAT(refusal([&] { calibrations_from_json(parse_json(text, "c"), "c"); }), HasSubstr("c"));
  text = print_json(calibrations_to_json({calibration("a", 1, 5e10)}));
  text.replace(text.find("\"threads\": 1"), 12, "\"threads\": 0");
  EXPECT_THAT(refusal([&] { calibrations_from_json(parse_json(text, "c"), "c"); }),
              HasSubstr("calibrations[0].threads"));
}

}  // namespace
}  // namespace espalier
