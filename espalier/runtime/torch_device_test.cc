#include "espalier/runtime/torch_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "testing/refusal.h"

namespace espalier {
namespace {

using espalier::testing::refusal;
using ::testing::HasSubstr;

World third_of_four() {
  World world;
  world.local_rank = 2;
  world.local_size = 4;
  return world;
}

std::string device(const std::string& text, int gpus) {
  return device_of_worker(text, third_of_four(), gpus).str();
}

TEST(TorchDevice, WorkersOfAHostTakeItsGpusInTurn) {
  EXPECT_EQ(device("", 4), "cuda:2");
  EXPECT_EQ(device("cuda", 8), "cuda:2");
  EXPECT_EQ(device("cuda", 2), "cuda:0");
}

TEST(TorchDevice, OneThatIsNamedIsTaken) {
  EXPECT_EQ(device("cuda:1", 4), "cuda:1");
  EXPECT_EQ(device("cpu", 4), "cpu");
  EXPECT_EQ(device("", 0), "cpu");
}

TEST(TorchDevice, OneThatIsNotThereIsRefused) {
  EXPECT_THAT(refusal([] { device("cuda", 0); }), HasSubstr("no GPU that this libtorch can use; use cpu"));
  EXPECT_THAT(refusal([] { device("cuda:4", 4); }), HasSubstr("can use 4 GPUs, counted from 0"));
  EXPECT_THAT(refusal([] { device("cuda:0", 0); }), HasSubstr("can use 0 GPUs; use cpu"));
  EXPECT_THAT(refusal([] { device("gpu", 4); }), HasSubstr("expected cpu, cuda or cuda:1"));
}

TEST(TorchDevice, TheClockOfACpuReadsAtOnce) {
  const auto before = Clock::now();
  const auto read = DeviceClock(at::kCPU).now();
  EXPECT_LE(before, read);
  EXPECT_LE(read, Clock::now());
}

}  // namespace
}  // namespace espalier
