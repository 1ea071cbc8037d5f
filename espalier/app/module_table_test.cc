#include "espalier/app/module_table.h"

#include <gmock/gmock.h>

#include <filesystem>

#include "espalier/base/files.h"
#include "espalier/graph/module_names.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;

class ModuleTable : public ::testing::Test {
 protected:
  ModuleTable() {
    folder_ =
        std::filesystem::path(::testing::TempDir()) /
        (std::string("espalier_modules_") + ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
  }
  ~ModuleTable() override { std::filesystem::remove_all(folder_); }

  // Each operator takes 1 ms forward and 2 ms backward.
  PlanningJob job(const std::string& graph) {
    const auto write = [&](const std::string& name, const std::string& text) {
      std::string path = (folder_ / name).string();
      write_file_atomically(path, text);
      return path;
    };
    JobOptions options;
    options.model = write("model.txt", graph);
    options.cluster = write("cluster.txt", "group g 1GB\ndevice d T4 in g\n");
    options.costs = write("costs.txt", "cost c T4 batch=1 f=1ms i=1ms w=1ms origin=measured\n");
    options.batch = BatchSize(1);
    return prepare_job(options);
  }

  static std::vector<std::string> lines(const ModuleRows& rows) {
    std::vector<std::string> result;
    for (const ModuleRow& row : rows.rows) {
      result.push_back(std::to_string(row.level) + " " + row.name + " " + std::to_string(row.operators) +
                       " " + to_text(row.time));
    }
    return result;
  }

  std::filesystem::path folder_;
};

// Layers 0 and 1 are alike, layer 2 has one operator more.
constexpr const char* kLayered =
    "batch 1..4\nx = input() : f32[b]\nw = parameter(w) : f32[2]\n"
    "e = f(x, w) : f32[b] @class=c @module=m.embed\n"
    "a0 = f(e, w) : f32[b] @class=c @module=m.h.0.up\nb0 = f(a0) : f32[b] @class=c @module=m.h.0.down\n"
    "a1 = f(b0, w) : f32[b] @class=c @module=m.h.1.up\nb1 = f(a1) : f32[b] @class=c @module=m.h.1.down\n"
    "a2 = f(b1, w) : f32[b] @class=c @module=m.h.2.up\nb2 = f(a2) : f32[b] @class=c @module=m.h.2.down\n"
    "r2 = f(b2) : f32[b] @class=c @module=m.h.2\nlast = f(r2) : f32[b] @class=c\n";

TEST_F(ModuleTable, LayersThatAreAlikeShareARow) {
  const PlanningJob layered = job(kLayered);
  const ModuleRows rows = module_rows(layered, {});
  EXPECT_THAT(lines(rows), ElementsAre("1 m 8 24.0 ms", "2 m.embed 1 3.00 ms", "2 m.h 7 21.0 ms",
                                       "3 m.h.0-1 4 12.0 ms", "3 m.h.2 3 9.00 ms"));
  EXPECT_THAT(rows.without_module, ElementsAre("last"));
  EXPECT_EQ(rows.rows[1].parameters, Bytes(8));
  EXPECT_NEAR(rows.rows[3].share, 4.0 / 9, 1e-9);
}

TEST_F(ModuleTable, DepthSaysHowManyLevelsBelowWhatAllHaveInCommon) {
  const PlanningJob layered = job(kLayered);
  EXPECT_THAT(lines(module_rows(layered, {.depth = 1})),
              ElementsAre("1 m 8 24.0 ms", "2 m.embed 1 3.00 ms", "2 m.h 7 21.0 ms"));
  EXPECT_THAT(lines(module_rows(layered, {.depth = 9})),
              ElementsAre("1 m 8 24.0 ms", "2 m.embed 1 3.00 ms", "2 m.h 7 21.0 ms", "3 m.h.0-1 4 12.0 ms",
                          "4 m.h.0-1.up 2 6.00 ms", "4 m.h.0-1.down 2 6.00 ms", "3 m.h.2 3 9.00 ms",
                          "4 m.h.2.up 1 3.00 ms", "4 m.h.2.down 1 3.00 ms"));
  EXPECT_EQ(module_rows(layered, {.depth = 9, .alike = ModuleRowOptions::Alike::kOneRowEach}).rows.size(),
            12U);
}

TEST_F(ModuleTable, EachNameMeansTheOperatorsOfItsRow) {
  const PlanningJob layered = job(kLayered);
  const ModuleNames names(layered.graph);
  for (const ModuleRow& row : module_rows(layered, {.depth = 9}).rows) {
    EXPECT_EQ(names.find(row.name).size(), row.operators) << row.name;
  }
}

TEST_F(ModuleTable, WithoutModulesNumbersAreTakenTogether) {
  std::string text = "batch 1..4\nx = input() : f32[b]\nn0 = f(x) : f32[b] @class=c\n";
  for (int i = 1; i < 30; ++i) {
    text += "n" + std::to_string(i) + " = f(n" + std::to_string(i - 1) + ") : f32[b] @class=c\n";
  }
  const PlanningJob flat = job(text + "last = f(n29) : f32[b] @class=c\n");
  const ModuleRows rows = module_rows(flat, {});
  ASSERT_EQ(rows.rows.size(), 11U);
  EXPECT_EQ(lines(rows)[0], "1 n[0-29] 30 30.0 ms");
  EXPECT_EQ(lines(rows)[1], "2 n[0-2] 3 3.00 ms");
  EXPECT_EQ(lines(rows)[10], "2 n[27-29] 3 3.00 ms");
  EXPECT_THAT(rows.without_module, ElementsAre("last"));
  const ModuleNames names(flat.graph);
  for (const ModuleRow& row : rows.rows) EXPECT_EQ(names.find(row.name).size(), row.operators) << row.name;
}

}  // namespace
}  // namespace espalier
