#include "espalier/runtime/process_placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Cores, AreSharedOutEquallyInTheirOrder) {
  World world;
  world.local_size = 2;
  EXPECT_THAT(own_cores({0, 1, 4, 5, 6}, world, 1), ElementsAre(0, 1));
  world.local_rank = 1;
  EXPECT_THAT(own_cores({0, 1, 4, 5, 6}, world, 1), ElementsAre(4, 5, 6));
  EXPECT_THAT(own_cores({0, 1, 4, 5, 6}, world, 3), IsEmpty());  // two times three threads do not fit
  EXPECT_THAT(own_cores({7}, world, 1), IsEmpty());
  EXPECT_THAT(own_cores({0, 1}, World{}, 1), IsEmpty());  // alone
}

}  // namespace
}  // namespace espalier
