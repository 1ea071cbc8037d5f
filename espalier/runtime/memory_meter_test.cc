// Preset tsan compiles this file: its suites run under ThreadSanitizer too.

#include "espalier/runtime/memory_meter.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <thread>

namespace espalier {
namespace {

at::Tensor of_bytes(std::int64_t bytes) {
  return at::empty({bytes}, at::kByte);
}

TEST(MemoryMeter, CountsInItsScopesWhatWasAskedFor) {
  MemoryMeter meter;
  at::Tensor outside = of_bytes(5000);
  at::Tensor kept;
  {
    const MemoryMeter::Scope scope(meter);
    at::Tensor first = of_bytes(1001);
    kept = of_bytes(300);
    const at::Tensor none = of_bytes(0);
    EXPECT_EQ(meter.live(), Bytes(1301));
    first.reset();
    outside.reset();  // it was never counted
    EXPECT_EQ(meter.live(), Bytes(300));
    EXPECT_EQ(meter.restart_peak(), Bytes(1301));
    EXPECT_EQ(meter.restart_peak(), Bytes(300)) << "since the last call";
  }
  outside = of_bytes(7000);
  EXPECT_EQ(meter.live(), Bytes(300));
  kept.reset();
  EXPECT_EQ(meter.live(), Bytes()) << "freed outside of its scopes";
}

TEST(MemoryMeter, ScopesNestAndBlocksKnowTheirMeter) {
  MemoryMeter outer, inner;
  const MemoryMeter::Scope scope(outer);
  at::Tensor of_outer = of_bytes(64);
  {
    const MemoryMeter::Scope nested(inner);
    const at::Tensor of_inner = of_bytes(32);
    of_outer.reset();
    EXPECT_EQ(inner.live(), Bytes(32));
  }
  EXPECT_EQ(inner.live(), Bytes());
  EXPECT_EQ(outer.live(), Bytes()) << "freed under another meter";
}

TEST(MemoryMeter, WhatAnotherDevicesThreadFreesLeavesTheCountOfWhoAllocatedIt) {
  MemoryMeter sender, receiver;
  at::Tensor message;
  for (int step = 0; step < 3; ++step) {
    std::thread([&] {
      const MemoryMeter::Scope scope(sender);
      message = of_bytes(100);
    }).join();
    EXPECT_EQ(sender.live(), Bytes(100)) << "step " << step;
    std::thread([&] {
      const MemoryMeter::Scope scope(receiver);
      message.reset();
    }).join();
    EXPECT_EQ(sender.live(), Bytes()) << "step " << step;
    EXPECT_EQ(receiver.live(), Bytes()) << "step " << step;
  }
}

TEST(MemoryMeter, ABlockMayOutliveItsMeter) {
  at::Tensor kept;
  {
    MemoryMeter meter;
    const MemoryMeter::Scope scope(meter);
    kept = of_bytes(100);
  }
  kept.fill_(1);
  kept.reset();
}

TEST(MemoryMeter, OtherThreadsDoNotCount) {
  MemoryMeter meter;
  const MemoryMeter::Scope scope(meter);
  at::Tensor made_there;
  std::thread([&] { made_there = of_bytes(100); }).join();
  EXPECT_EQ(meter.live(), Bytes());
  made_there.reset();
  EXPECT_EQ(meter.live(), Bytes());
}

TEST(MemoryMeter, BlocksAreAlignedAndHoldTheirData) {
  MemoryMeter meter;
  const MemoryMeter::Scope scope(meter);
  for (std::int64_t bytes = 1; bytes < 300; ++bytes) {
    at::Tensor tensor = of_bytes(bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.data_ptr()) % 64, 0u);
    tensor.fill_(255);  // does not touch what the block knows of itself
    tensor.resize_({2 * bytes});
    EXPECT_EQ(tensor[bytes - 1].item<std::uint8_t>(), 255);
  }
  EXPECT_EQ(meter.live(), Bytes());
}

// torch's allocator for GPUs gives multiples of 512 bytes.
at::Tensor of_gpu_bytes(std::int64_t bytes) {
  return at::empty({bytes}, at::TensorOptions(at::kByte).device(at::kCUDA));
}

TEST(CudaMemoryMeter, CountsItsBlocksAlone) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU that this libtorch can use";
  MemoryMeter meter(at::kCUDA);
  at::Tensor kept, freed_elsewhere;
  {
    const MemoryMeter::Scope scope(meter);
    const at::Tensor here = of_bytes(1000);
    at::Tensor first = of_gpu_bytes(1024);
    kept = of_gpu_bytes(512);
    first.reset();
    EXPECT_EQ(meter.live(), Bytes(512));
    EXPECT_EQ(meter.restart_peak(), Bytes(1536));
    EXPECT_EQ(meter.restart_peak(), Bytes(512)) << "since the last call";
    freed_elsewhere = of_gpu_bytes(2048);
  }
  const at::Tensor outside = of_gpu_bytes(4096);
  EXPECT_EQ(meter.live(), Bytes(2560));
  MemoryMeter other(at::kCUDA);
  const MemoryMeter::Scope scope(other);
  freed_elsewhere.reset();
  EXPECT_EQ(meter.live(), Bytes(512)) << "freed under another meter";
  EXPECT_EQ(other.live(), Bytes());
}

TEST(CudaMemoryMeter, CountsWhatBackwardAllocatesInItsOwnThread) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU that this libtorch can use";
  MemoryMeter meter(at::kCUDA);
  const MemoryMeter::Scope scope(meter);
  at::Tensor weight = at::ones({1024}, at::TensorOptions(at::kFloat).device(at::kCUDA));
  weight.set_requires_grad(true);
  const at::Tensor loss = (weight * weight).sum();
  meter.restart_peak();
  const Bytes before = meter.live();
  loss.backward();
  EXPECT_GE(meter.restart_peak() - before, Bytes(4096));
  EXPECT_GE(meter.live() - before, Bytes(4096 - 512)) << "the gradient stays";
  weight.mutable_grad() = at::Tensor();
  EXPECT_LE(meter.live(), before);
}

}  // namespace
}  // namespace espalier
