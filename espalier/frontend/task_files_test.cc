#include <gmock/gmock.h>

#include "espalier/frontend/imported.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
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

constexpr const char* kTimedDiamond =
    "4\n0 0 0\n1 3 1\n  0 0\n2 5 1\n  1 4\n3 2 1\n  1 6\n4 7 2\n  2 1\n  3 9\n5 0 1\n  4 0\n# with costs\n";

// Of the tensor by which one operator reads another.
Duration time_between(const Imported& model, const char* from, const char* to) {
  const Operator& reader = model.graph.op(*model.graph.find_operator(to));
  const Route route = model.cluster->route(DeviceId(0), DeviceId(1));
  for (const TensorId input : reader.inputs) {
    const Tensor& tensor = model.graph.tensor(input);
    if (tensor.producer == model.graph.find_operator(from))
      return route.latency + route.hold(tensor.bytes(BatchSize(1)));
  }
  return nanoseconds(-1);
}

TEST(Stg, WithCommunicationCostsMessagesTakeTheirTime) {
  const Imported model = import_bytes(kTimedDiamond, "d.stg");
  ASSERT_EQ(model.graph.operators().size(), 6U);
  EXPECT_EQ(time_of(model, "t4"), milliseconds(7));
  EXPECT_EQ(time_between(model, "t1", "t2"), milliseconds(4));
  EXPECT_EQ(time_between(model, "t1", "t3"), milliseconds(6));
  EXPECT_EQ(time_between(model, "t3", "t4"), milliseconds(9));
  EXPECT_EQ(time_between(model, "t4", "t5"), Duration());
  EXPECT_EQ(model.cluster->devices().size(), 4U);
  EXPECT_FALSE(model.cluster->groups().front().contention);
  EXPECT_THAT(model.warnings, ElementsAre(HasSubstr("names no machine")));
  EXPECT_FALSE(import_bytes(kDiamond, "d.stg").cluster);
  // Some files count the tasks that begin and end.
  const Imported counted = import_bytes(replaced(kTimedDiamond, "4\n0 0 0", "6\n0 0 0"), "d.stg");
  EXPECT_EQ(counted.graph.operators().size(), 6U);
}

TEST(Stg, WhatIsWrongWithCommunicationCostsIsTold) {
  const auto says = [&](const char* from, const char* to) {
    return refusal([&] { import_bytes(replaced(kTimedDiamond, from, to), "d.stg"); });
  };
  EXPECT_THAT(says("  3 9\n", ""), HasSubstr("d.stg:11: task 4 follows 2 tasks: expected one of them and"));
  EXPECT_THAT(says("  3 9\n", "  2 9\n"), HasSubstr("follows one task twice"));
  EXPECT_THAT(says("  3 9\n", "  9 9\n"), HasSubstr("d.stg:11: there is no task 9"));
  EXPECT_THAT(says("  3 9\n", "  3 90000000\n"), HasSubstr("at most 10000000"));
  EXPECT_THAT(says("4\n0 0 0", "5\n0 0 0"), HasSubstr("has 6 tasks; expected 7"));
}

// Four operators of a graph that had two more, with inputs; one edge stands there twice.
constexpr const char* kDoppler =
    "6\n0, 1, \n0, 0, 1,1, 2, 0, \n1, 2, 3, 3, 3, 2,\n10000000000,40000000000\n"
    "24999,14999,einsummable\n0,0\n5000,20000000000,formation\n";

TEST(Doppler, UnitsAreTimesOfOperatorsAndMessages) {
  const Imported model = import_bytes(kDoppler, "w.txt");
  EXPECT_EQ(model.graph.name(), "w");
  ASSERT_EQ(model.graph.operators().size(), 4U);
  EXPECT_EQ(time_of(model, "op0"), milliseconds(1));
  EXPECT_EQ(time_of(model, "op1"), nanoseconds(2));
  EXPECT_EQ(time_of(model, "op3"), nanoseconds(1));
  EXPECT_EQ(model.graph.op(*model.graph.find_operator("op3")).target, "formation");
  EXPECT_EQ(time_between(model, "op0", "op1"), milliseconds(4));
  EXPECT_EQ(time_between(model, "op1", "op3"), nanoseconds(1));
  EXPECT_EQ(model.graph.predecessors(*model.graph.find_operator("op2")).size(), 1U);
  EXPECT_EQ(model.graph.predecessors(*model.graph.find_operator("op3")).size(), 2U);
  EXPECT_EQ(model.batch, BatchSize(1));
}

TEST(Doppler, WhatIsWrongIsToldWithItsLine) {
  const auto says = [&](const char* from, const char* to) {
    return refusal([&] { import_bytes(replaced(kDoppler, from, to), "w.txt"); });
  };
  EXPECT_THAT(says("6\n", "2\n"), HasSubstr("w.txt:2: names 2 inputs; expected fewer than the 2 operators"));
  EXPECT_THAT(says("6\n", "9999999\n"), HasSubstr("w.txt:1: expected the number of operators"));
  EXPECT_THAT(says("6\n", "5\n"), HasSubstr("w.txt:4: there is no operator 3"));
  EXPECT_THAT(says("6\n", "7\n"), HasSubstr("w.txt: has 4 operators; expected 5"));
  EXPECT_THAT(says("3, 2,\n", "3,\n"), HasSubstr("w.txt:4: names 5 readers; expected 6"));
  EXPECT_THAT(says("24999,14999", "24999"), HasSubstr("w.txt:6: expected how long operator 1 takes"));
  EXPECT_THAT(says("einsummable", "ein sum"), HasSubstr("w.txt:6: has 'sum'; expected whole numbers"));
  EXPECT_THAT(says("0,0\n", "0,0\n1,1\n"), HasSubstr("expected no further operator than 4"));
  EXPECT_THAT(says("24999", "999999999999999999"), HasSubstr("has a time above"));
  EXPECT_THAT(says("1, 2, 3, 3, 3", "1, 0, 3, 3, 3"), HasSubstr("reads its own output"));
}

TEST(Doppler, ItsChainOfProductsIsRead) {
  const Imported model =
      import_file(ESPALIER_SOURCE_DIR "/workloads/doppler/compute_graph/chain_mm_112nodes.txt");
  EXPECT_EQ(model.graph.operators().size(), 76U);
  std::size_t edges = 0;
  Duration work;
  for (std::size_t i = 0; i < 76; ++i) {
    edges += model.graph.predecessors(OperatorId(i)).size();
    work += time_of(model, model.graph.op(OperatorId(i)).name.c_str());
  }
  EXPECT_EQ(edges, 80U);
  EXPECT_EQ(work, milliseconds(4800) + microseconds(280));
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
