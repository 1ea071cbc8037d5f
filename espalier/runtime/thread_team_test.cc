// Preset tsan compiles this file: its suites run under ThreadSanitizer too.

#include "espalier/runtime/thread_team.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <set>
#include <vector>

namespace espalier {
namespace {

using ::testing::Contains;
using ::testing::Not;
using ::testing::SizeIs;

long this_thread() {
  return syscall(SYS_gettid);
}

TEST(ThreadTeam, EachMemberKeepsItsThread) {
  ThreadTeam team(3);
  std::vector<long> first(3), later(3);
  team.run([&](std::size_t i) { first[i] = this_thread(); });
  for (int round = 0; round < 20; ++round) {
    team.run([&](std::size_t i) { later[i] = this_thread(); });
    EXPECT_EQ(later, first);
  }
  const std::set<long> threads(first.begin(), first.end());
  EXPECT_THAT(threads, SizeIs(3));
  EXPECT_THAT(threads, Not(Contains(this_thread())));
}

TEST(ThreadTeam, AloneWorksInTheCallersThread) {
  ThreadTeam team(1);
  long thread = 0;
  team.run([&](std::size_t) { thread = this_thread(); });
  EXPECT_EQ(thread, this_thread());
}

}  // namespace
}  // namespace espalier
