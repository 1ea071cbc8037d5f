#include "espalier/frontend/exported_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "espalier/base/check.h"
#include "espalier/base/files.h"
#include "espalier/base/json.h"
#include "espalier/frontend/zip.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string fixture(const std::string& name) {
  return ESPALIER_SOURCE_DIR "/tests/fixtures/" + name;
}

ExportedProgram load(const std::string& name) {
  const MappedFile file(fixture(name + ".pt2"));
  return read_exported_program(file.bytes(), name + ".pt2");
}

class Fixtures : public testing::TestWithParam<const char*> {};

TEST_P(Fixtures, AgreeWithWhatPyTorchSaysOfThem) {
  const ExportedProgram program = load(GetParam());
  const Graph& graph = program.imported.graph;
  const std::string where = std::string(GetParam()) + ".expected.json";
  const Json json = parse_json(read_file(fixture(where)), where);

  ASSERT_EQ(program.calls.size(), graph.operators().size());
  ASSERT_TRUE(graph.loss());
  EXPECT_TRUE(graph.training_mode());
  EXPECT_THAT(program.imported.warnings, IsEmpty());

  std::vector<std::string> inputs;
  for (const UserInput& input : program.inputs) inputs.push_back(input.name);
  EXPECT_EQ(inputs, json["inputs"].get<std::vector<std::string>>());

  std::vector<std::string> trained, buffers;
  Json tied = Json::object();
  for (const Parameter& parameter : graph.parameters()) {
    (parameter.trainable ? trained : buffers).push_back(parameter.names.front());
    for (std::size_t i = 1; i < parameter.names.size(); ++i)
      tied[parameter.names[i]] = parameter.names.front();
  }
  EXPECT_EQ(trained, json["gradients"].get<std::vector<std::string>>());
  EXPECT_EQ(buffers, json["buffers"].get<std::vector<std::string>>());
  EXPECT_EQ(tied, json["tied"]);

  // The numbering of the reference: its random operators are ours, by name and number. It also lists those
  // that could draw and do not (attention without dropout).
  std::vector<std::pair<std::string, std::uint32_t>> expected, found;
  for (const Json& op : json["random_operators"]) {
    const std::string name = op["name"];
    const auto id = graph.find_operator(name);
    ASSERT_TRUE(id) << name;
    EXPECT_EQ(program.calls[id->index()].original_index, op["index"].get<std::uint32_t>()) << name;
    if (graph.op(*id).random) expected.emplace_back(name, op["index"]);
  }
  for (std::size_t i = 0; i < program.calls.size(); ++i) {
    if (graph.operators()[i].random)
      found.emplace_back(graph.operators()[i].name, program.calls[i].original_index);
  }
  EXPECT_EQ(found, expected);
  EXPECT_LT(program.calls.back().original_index, json["operators"].get<std::uint32_t>());
}

INSTANTIATE_TEST_SUITE_P(All, Fixtures,
                         testing::Values("two_tower", "two_tower_fixed", "three_branch", "gpt", "resnet",
                                         "dlrm", "unet", "gpt2", "llama"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace espalier
