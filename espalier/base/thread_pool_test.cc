// Preset tsan compiles this file: its suites run under ThreadSanitizer too.

#include "espalier/base/thread_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace espalier {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

TEST(ThreadPool, EachNumberIsCalledOnce) {
  for (const std::size_t threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const std::size_t count : {0, 1, 2, 5, 1000}) {
      std::vector<std::atomic<int>> calls(count);
      pool.for_each(count, [&](std::size_t i) { ++calls[i]; });
      for (const auto& times : calls) EXPECT_EQ(times, 1);
    }
  }
}

TEST(ThreadPool, ThreadsWorkAtOneTime) {
  // Each number waits until all three have begun: with fewer threads this would not end.
  ThreadPool pool(3);
  std::latch all(3);
  pool.for_each(3, [&](std::size_t) { all.arrive_and_wait(); });
}

TEST(ThreadPool, WhoWaitsHelps) {
  // Both threads have a number; the one that did not call opens an inner batch whose numbers wait for each
  // other. So this does not end unless the caller, which has nothing left but to wait, takes one of them.
  ThreadPool pool(2);
  const std::thread::id caller = std::this_thread::get_id();
  std::latch both(2), inner(2);
  pool.for_each(2, [&](std::size_t) {
    both.arrive_and_wait();
    if (std::this_thread::get_id() == caller) return;
    pool.for_each(2, [&](std::size_t) { inner.arrive_and_wait(); });
  });
}

TEST(ThreadPool, WithoutOneAllIsDoneInOrder) {
  std::vector<std::size_t> order;
  on_threads(nullptr, 4, [&](std::size_t i) { order.push_back(i); });
  EXPECT_THAT(order, ElementsAre(0, 1, 2, 3));
  ThreadPool pool(3);
  std::vector<std::atomic<int>> calls(10);
  on_threads(&pool, calls.size(), [&](std::size_t i) { ++calls[i]; });
  for (const auto& times : calls) EXPECT_EQ(times, 1);
}

TEST(ThreadPool, AFunctionMayCallItAgain) {
  for (const std::size_t threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    std::vector<std::vector<int>> sums(20, std::vector<int>(30));
    pool.for_each(sums.size(), [&](std::size_t i) {
      pool.for_each(sums[i].size(), [&](std::size_t j) {
        std::vector<int> parts(4);
        pool.for_each(parts.size(), [&](std::size_t k) { parts[k] = 1; });
        for (const int part : parts) sums[i][j] += part;
      });
    });
    for (const auto& row : sums) EXPECT_THAT(row, Each(4));
  }
}

TEST(ThreadPool, SeveralThreadsMayCallItAtATime) {
  ThreadPool pool(3);
  std::vector<int> sums(4);
  std::vector<std::thread> callers;
  for (int& sum : sums) {
    callers.emplace_back([&pool, &sum] {
      std::vector<int> parts(100);
      for (int round = 0; round < 10; ++round)
        pool.for_each(parts.size(), [&](std::size_t i) { ++parts[i]; });
      for (const int part : parts) sum += part;
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_THAT(sums, Each(1000));
}

TEST(ThreadPool, TheExceptionOfTheSmallestNumberIsThrownOn) {
  for (const std::size_t threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    for (int round = 0; round < 50; ++round) {
      std::string thrown;
      try {
        pool.for_each(64, [&](std::size_t i) {
          if (i % 5 == 3) throw std::runtime_error("number " + std::to_string(i));
        });
      } catch (const std::runtime_error& error) {
        thrown = error.what();
      }
      EXPECT_EQ(thrown, "number 3");
    }
    std::atomic<int> calls = 0;  // and it works on
    pool.for_each(10, [&](std::size_t) { ++calls; });
    EXPECT_EQ(calls, 10);
  }
}

}  // namespace
}  // namespace espalier
