#include "espalier/runtime/output_records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "espalier/base/rng.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

TEST(OutputRecords, WhatIsToldIsHeardToTheBit) {
  const double infinity = std::numeric_limits<double>::infinity();
  const std::vector<OutputRecord> records{{OperatorId(0), 3, ~std::uint64_t{0}, 0.1},
                                          {OperatorId(7), 0, 5, infinity}};
  const auto heard = parse_records(print_records(records), "worker 1");
  ASSERT_EQ(heard.size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(heard[i].op, records[i].op);
    EXPECT_EQ(heard[i].micro_batch, records[i].micro_batch);
    EXPECT_EQ(heard[i].bits, records[i].bits);
    EXPECT_EQ(heard[i].norm, records[i].norm);
  }
  EXPECT_TRUE(parse_records("", "worker 1").empty());
}

TEST(OutputRecords, NonsenseNamesWhoToldIt) {
  const std::string text = print_records({{OperatorId(12), 3, 99, 0.5}, {OperatorId(7), 0, 5, 2}});
  EXPECT_THAT(
      testing::refusal<WorkerError>([&] { parse_records(text.substr(0, text.size() - 1), "worker 1"); }),
      HasSubstr("worker 1 told a record of an output that cannot be read (record 1)"));
  Rng rng(2);
  for (int i = 0; i < 2000; ++i) {
    std::string bytes = text.substr(0, 1 + rng.below(text.size()));
    bytes[rng.below(bytes.size())] = static_cast<char>(rng.next());
    try {
      parse_records(bytes, "worker 1");
    } catch (const WorkerError& error) {
      EXPECT_THAT(error.what(), HasSubstr("worker 1"));
    }
  }
}

}  // namespace
}  // namespace espalier
