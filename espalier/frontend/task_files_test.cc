#include <gmock/gmock.h>

#include "espalier/frontend/imported.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;
using testing::refusal;

constexpr const char* kDiamond =
    "4\n0 0 0\n1 3 1 0\n2 5 1 1\n3 2 1 1\n4 7 2 2 3\n5 0 1 4\n# for people: anything\n";

Duration time_of(const Imported& model, const char* name) {
  const Operator& op = model.graph.op(*model.graph.find_operator(name));
  return cost_at(*model.costs->find(op.op_class, "profiled"), BatchSize(1)).forward;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(Stg, ADiamondIsReadWithItsBeginAndEnd) {
  const Imported model = import_bytes(kDiamond, "d.stg");
  EXPECT_EQ(model.graph.name(), "d");
  ASSERT_EQ(model.graph.operators().size(), 6U);
  std::size_t edges = 0;
  for (std::size_t i = 0; i < 6; ++i) edges += model.graph.successors(OperatorId(i)).size();
  EXPECT_EQ(edges, 6U);
  EXPECT_EQ(time_of(model, "t2"), milliseconds(5));
  EXPECT_EQ(time_of(model, "t0"), Duration());
  EXPECT_EQ(model.graph.predecessors(*model.graph.find_operator("t4")).size(), 2U);
}

TEST(Stg, WhatIsWrongIsToldWithItsLine) {
  const auto says = [&](const char* from, const char* to) {
    return refusal([&] { import_bytes(replaced(kDiamond, from, to), "d.stg"); });
  };
  EXPECT_THAT(says("2 5 1 1", "3 5 1 1"), HasSubstr("d.stg:4: expected task 2"));
  EXPECT_THAT(says("4 7 2 2 3", "4 7 3 2 3"), HasSubstr("d.stg:6: task 4 follows 3 tasks and names 2"));
  EXPECT_THAT(says("4 7 2 2 3", "4 7 2 2 9"), HasSubstr("d.stg:6: there is no task 9"));
  EXPECT_THAT(says("4 7 2 2 3", "4 7 2 2 2"), HasSubstr("follows one task twice"));
  EXPECT_THAT(says("4 7 2 2 3", "4 7 2 2 x"), HasSubstr("expected whole numbers"));
  EXPECT_THAT(says("4 7 2 2 3", "4 70000000 2 2 3"), HasSubstr("its time is above"));
  EXPECT_THAT(says("5 0 1 4\n", ""), HasSubstr("has 5 tasks; expected 6"));
  EXPECT_THAT(says("# for", "6 0 1 5\n# for"), HasSubstr("expected no further task"));
  EXPECT_THAT(says("1 3 1 0", "1 3 1 4"), HasSubstr("reads its own output"));
  EXPECT_THAT(refusal([] { import_bytes("99999999999\n0 0 0\n", "d.stg"); }),
              HasSubstr("expected the number"));
}

constexpr const char* kWorkflow =
    R"({"workflow":{"specification":{"tasks":[)"
    R"({"id":"split","name":"s","children":["left","right"],"outputFiles":["a","b"]},)"
    R"({"id":"left","parents":["split"],"inputFiles":["a"]},)"
    R"({"id":"right","parents":["split"],"inputFiles":["a","b"]}],)"
    R"("files":[{"id":"a","sizeInBytes":100},{"id":"b","sizeInBytes":20}]},)"
    R"("execution":{"tasks":[{"id":"split","runtimeInSeconds":1.5},{"id":"left","runtimeInSeconds":2},)"
    R"({"id":"right","runtimeInSeconds":0.25}]}}})";

TEST(WfFormat, EdgesCarryTheFilesThatPass) {
  const Imported model = import_bytes(kWorkflow, "w.json");
  ASSERT_EQ(model.graph.operators().size(), 3U);
  EXPECT_EQ(time_of(model, "split"), milliseconds(1500));
  EXPECT_EQ(time_of(model, "right"), milliseconds(250));
  const auto read_by = [&](const char* name) {
    const Operator& op = model.graph.op(*model.graph.find_operator(name));
    return model.graph.tensor(op.inputs.front()).bytes(BatchSize(1));
  };
  EXPECT_EQ(read_by("left"), Bytes(100));
  EXPECT_EQ(read_by("right"), Bytes(120));
}

TEST(WfFormat, WhatIsWrongIsToldWithItsPlace) {
  const auto says = [&](const char* from, const char* to) {
    return refusal([&] { import_bytes(replaced(kWorkflow, from, to), "w.json"); });
  };
  EXPECT_THAT(says(R"("parents":["split"])", R"("parents":["spilt"])"), HasSubstr("is not the id of a task"));
  EXPECT_THAT(says(R"("inputFiles":["a"])", R"("inputFiles":["c"])"), HasSubstr("is not the id of a file"));
  EXPECT_THAT(says(R"("id":"left","parents")", R"("id":"split","parents")"), HasSubstr("another task"));
  EXPECT_THAT(says(R"("runtimeInSeconds":2)", R"("runtimeInSeconds":-2)"), HasSubstr("runtimeInSeconds"));
  EXPECT_THAT(says(R"({"id":"left","runtimeInSeconds":2},)", ""), HasSubstr("has no time of task 'left'"));
  EXPECT_THAT(says(R"("specification")", R"("tasks")"), HasSubstr("expected WfFormat 1.5"));
  EXPECT_THAT(says(R"("execution")", R"("ran")"), HasSubstr("has no \"execution\""));
  EXPECT_THAT(says(R"({"id":"left","parents":["split"])", R"({"id":"left","children":["split"])"),
              HasSubstr("reads its own output"));
  EXPECT_THAT(says(R"("sizeInBytes":100)", R"("sizeInBytes":1e99)"), HasSubstr("sizeInBytes"));
}

}  // namespace
}  // namespace espalier
