// Preset tsan compiles this file: its suites run under ThreadSanitizer too.

#include "espalier/runtime/sum_thread.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace espalier {
namespace {

using ::testing::ElementsAre;

TEST(SumThread, CarriesOutSumsInOrderBesideTheCaller) {
  SumThread sums([](const std::string&) {});
  std::promise<void> may_go;
  std::vector<int> order;
  std::thread::id where;
  sums.begin([&] {
    may_go.get_future().wait();  // the caller goes on until it lets the first one go
    where = std::this_thread::get_id();
    order.push_back(1);
  });
  sums.begin([&] { order.push_back(2); });
  sums.await(0);
  EXPECT_EQ(sums.begun(), 2U);
  may_go.set_value();
  sums.await(2);
  EXPECT_THAT(order, ElementsAre(1, 2));
  EXPECT_NE(where, std::this_thread::get_id());
  sums.begin([&] { order.push_back(3); });
  sums.await(3);
  EXPECT_THAT(order, ElementsAre(1, 2, 3));
}

TEST(SumThread, WaitsForNoMoreThanAsked) {
  SumThread sums([](const std::string&) {});
  std::promise<void> may_go;
  sums.begin([] {});
  sums.begin([&] { may_go.get_future().wait(); });
  sums.await(1);
  may_go.set_value();
  sums.await(2);
}

TEST(SumThread, TellsOfTheFirstFailureAndCarriesOutNothingBehindIt) {
  std::vector<std::string> told;
  bool carried_out = false;
  {
    SumThread sums([&](const std::string& reason) { told.push_back(reason); });
    sums.begin([] { throw std::runtime_error("a peer is gone"); });
    sums.begin([&] { carried_out = true; });
    try {
      sums.await(2);
      FAIL() << "nothing was thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "a peer is gone");
    }
    EXPECT_THROW(sums.await(1), std::runtime_error);
  }
  EXPECT_THAT(told, ElementsAre("a peer is gone"));
  EXPECT_FALSE(carried_out);
}

TEST(SumThread, EndsAfterWhatWasBegun) {
  bool done = false;
  {
    SumThread sums([](const std::string&) {});
    sums.begin([&] { done = true; });
  }
  EXPECT_TRUE(done);
  SumThread never([](const std::string&) {});
  never.await(0);
}

}  // namespace
}  // namespace espalier
