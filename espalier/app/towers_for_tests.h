#pragma once

// A folder with the worked example of docs/semantics.md, for tests of verbs: two towers and a head, 2 ms and
// 4 ms (forward, backward) a tower, 1 and 2 the head.

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <string_view>

#include "espalier/app/planning_job.h"
#include "espalier/base/files.h"
#include "espalier/planners/context.h"

namespace espalier {

// For tests in which any plan of the planner does.
inline constexpr Budget kSmall{.max_states = 1'000'000};

class Towers : public ::testing::Test {
 protected:
  // Costs are those of micro-batches of `measured_at`; messages go over a link of `bandwidth`.
  Towers(std::int64_t measured_at, const std::string& bandwidth)
      : cluster_("kind dev 1GiB f32=1e12 f16=1e12 mem=100GB launch=1us sms=1\ngroup net " + bandwidth +
                 " latency=500us lanes=unlimited\n"
                 "device dev0 dev in net\ndevice dev1 dev in net\ndevice dev2 dev in net\n") {
    const std::string at = " dev batch=" + std::to_string(measured_at);
    costs_ = "cost tower" + at + " f=2ms i=2ms w=2ms origin=measured\n" + "cost head" + at +
             " f=1ms i=1ms w=1ms origin=measured\n" + "cost mean" + at +
             " f=0ns i=0ns w=0ns origin=measured\n";
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::path(::testing::TempDir()) /
              (std::string("espalier_") + test->test_suite_name() + "_" + test->name());
    std::filesystem::create_directories(folder_);
    options_.model = write("model.txt", kModel);
    options_.cluster = write("cluster.txt", cluster_);
    options_.costs = write("costs.txt", costs_);
    options_.batch = BatchSize(4);
  }
  ~Towers() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string write(const std::string& name, std::string_view content) const {
    write_file_atomically(path(name), content);
    return path(name);
  }

  static constexpr const char* kModel =
      "batch 1..8\n"
      "x = input() : f32[b,4]\n"
      "y = input() : f32[b,4]\n"
      "w = parameter(img.weight) : f32[4,4]\n"
      "v = parameter(txt.weight) : f32[4,4]\n"
      "img = linear(x, w) : f32[b,4] @module=img @class=tower\n"
      "txt = linear(y, v) : f32[b,4] @module=txt @class=tower\n"
      "head = matmul(img, txt) : f32[b,4] @module=head @class=head\n"
      "loss = mean(head) : f32[] @module=head @class=mean\n"
      "return loss\n";

  std::string cluster_, costs_;  // texts of the files
  std::filesystem::path folder_;
  JobOptions options_;
};

}  // namespace espalier
