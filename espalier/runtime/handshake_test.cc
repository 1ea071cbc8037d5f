// Preset tsan compiles this file: its suites run under ThreadSanitizer too.

#include "espalier/runtime/handshake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "espalier/base/check.h"

namespace espalier {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

// What each worker of a handshake between threads is told: the others' names, or the error.
std::vector<std::string> told(std::vector<Introduction> introductions, std::vector<World> worlds,
                              Duration timeout = milliseconds(60'000)) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::string> answers(introductions.size());
  std::vector<std::thread> workers;
  for (std::size_t i = 0; i < introductions.size(); ++i) {
    workers.emplace_back([&, i] {
      try {
        for (const Acquaintance& other : shake_hands(*store, worlds[i], introductions[i], timeout))
          answers[i] += other.worker + "@" + other.host + " ";
      } catch (const InputError& error) {
        answers[i] = std::string("InputError: ") + error.what();
      } catch (const WorkerError& error) {
        answers[i] = std::string("WorkerError: ") + error.what();
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  return answers;
}

struct Three {
  std::vector<Introduction> introductions;
  std::vector<World> worlds;
  Three() {
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      World world;
      world.rank = rank;
      world.size = 3;
      worlds.push_back(world);
      introductions.push_back({"worker " + std::to_string(rank) + " (cpu:" + std::to_string(rank) + ")",
                               3,
                               "host" + std::to_string(rank),
                               "clock",
                               {{"plan", "fingerprint a"}, {"steps", "10"}}});
    }
  }
};

TEST(Handshake, WorkersThatAgreeKnowEachOther) {
  const Three three;
  EXPECT_THAT(told(three.introductions, three.worlds),
              Each("worker 0 (cpu:0)@host0 worker 1 (cpu:1)@host1 worker 2 (cpu:2)@host2 "));
}

TEST(Handshake, EveryWorkerIsToldWhoDiffersAndInWhat) {
  Three three;
  three.introductions[2].facts[0].value = "fingerprint b";
  EXPECT_THAT(
      told(three.introductions, three.worlds),
      Each("InputError: worker 2 (cpu:2) differs from worker 0 (cpu:0) in its plan (fingerprint b, not "
           "fingerprint a): start all workers with one program, the same files and options"));
}

TEST(Handshake, AWorkerThatDoesNotComeIsNamed) {
  Three three;
  three.introductions.resize(1);
  EXPECT_THAT(told(three.introductions, three.worlds, milliseconds(50)),
              Each(HasSubstr("WorkerError: worker 1 did not come to the meeting place")));
}

TEST(Handshake, AnotherNumberOfWorkersIsTold) {
  Three three;
  three.introductions.resize(2);
  for (Introduction& introduction : three.introductions) introduction.workers = 2;
  three.introductions[1].workers = 3;
  three.worlds[0].size = 2;
  EXPECT_THAT(told(three.introductions, three.worlds),
              Each(HasSubstr("in its number of workers (3, not 2)")));
}

TEST(Handshake, TwoWorkersOfOneRankAreRefused) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  store->add("rank taken/1", 1);
  Three three;
  const auto refused = [&] {
    shake_hands(*store, three.worlds[1], three.introductions[1], milliseconds(50));
  };
  EXPECT_THROW(refused(), InputError);
}

}  // namespace
}  // namespace espalier
