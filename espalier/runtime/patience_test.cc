// Preset tsan compiles this file: its suites run under ThreadSanitizer too.

#include "espalier/runtime/patience.h"

#include <gtest/gtest.h>

namespace espalier {
namespace {

TEST(Patience, AWaitLastsTheTimeOut) {
  const Patience patience{milliseconds(800)};
  Waited waited;
  for (int i = 0; i < 7; ++i) waited.add(patience, milliseconds(100));
  EXPECT_FALSE(waited.too_long(patience));
  waited.add(patience, milliseconds(100));
  EXPECT_TRUE(waited.too_long(patience));
}

TEST(Patience, TimeDoesNotCountWhileSomebodyIsBusy) {
  const auto busy = std::make_shared<std::atomic<bool>>(true);
  const Patience patience{milliseconds(800), busy};
  Waited waited;
  for (int i = 0; i < 1000; ++i) waited.add(patience, milliseconds(100));
  EXPECT_FALSE(waited.too_long(patience));
  busy->store(false);
  for (int i = 0; i < 8; ++i) waited.add(patience, milliseconds(100));
  EXPECT_TRUE(waited.too_long(patience));
}

TEST(Patience, ADayInWhichTheProcessStoodStillCountsAsTwoLooks) {
  const Patience patience{milliseconds(300'000)};
  Waited waited;
  waited.add(patience, milliseconds(86'400'000));
  EXPECT_FALSE(waited.too_long(patience));
}

TEST(Patience, LooksAreNeitherTooFewNorTooMany) {
  EXPECT_EQ(Patience{milliseconds(300'000)}.between_looks(), milliseconds(500));
  EXPECT_EQ(Patience{milliseconds(80)}.between_looks(), milliseconds(10));
  EXPECT_EQ(Patience{Duration()}.between_looks(), milliseconds(1));
}

}  // namespace
}  // namespace espalier
