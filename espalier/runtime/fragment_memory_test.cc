#include "espalier/runtime/fragment_memory.h"

#include <gmock/gmock.h>

#include <optional>
#include <string>

#include "espalier/graph/text.h"
#include "espalier/plan/fragments.h"
#include "espalier/plan/text.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kRuns = "(nothing was refused)";

std::string verdict(const std::string& graph_text, const std::string& placement_text,
                    std::optional<BatchSize> micro_batch = {}) {
  const Graph graph = parse_graph(graph_text);
  const Cluster cluster = parse_cluster("2xV100-16GB");
  const Placement placement = parse_placement(placement_text, graph, cluster);
  EXPECT_THAT(check_placement(graph, cluster, placement), ::testing::IsEmpty());
  const PipelinePlan plan = fragments_of(graph, placement, BatchSize(4), {micro_batch, Orders()});
  return testing::refusal([&] { require_whole_memory(graph, plan); });
}

// `far` moves what reads it into a later fragment of gpu:0.
const std::string kFar = "x = input()\na = f(x)\nfar = f(x)\n";

TEST(FragmentMemory, WhatIsReadThroughTheOutputOfItsWriterIsTheSameAnywhere) {
  EXPECT_EQ(verdict(kFar + "w = add_(a, far) @inplace\nr = relu_(w) @inplace\ny = f(r)\n",
                    "gpu:0 { a w r }\ngpu:1 { far y }\n"),
            kRuns);
}

TEST(FragmentMemory, WhatWasReadBeforeTheWriteIsTheSameAnywhere) {
  EXPECT_EQ(verdict(kFar + "b = f(a)\nw = add_(a, far) @inplace\ny = f(b, w)\n",
                    "gpu:0 { a b w y }\ngpu:1 { far }\n"),
            kRuns);
}

TEST(FragmentMemory, ATensorThatIsReadAfterItsMemoryWasWrittenElsewhereIsRefused) {
  const std::string graph = kFar + "v = select(a) @view\nw = add_(v, far) @inplace\ny = f(a)\n";
  EXPECT_EQ(verdict(graph, "gpu:0 { a v w y far }\n"), kRuns);
  EXPECT_THAT(verdict(graph, "gpu:0 { a v w y }\ngpu:1 { far }\n"),
              AllOf(HasSubstr("operator 'y' reads 'a', whose memory 'w' writes in another fragment")));
  EXPECT_THAT(verdict(graph, "gpu:0 { a v w }\ngpu:1 { far y }\n"), HasSubstr("operator 'y' reads 'a'"));
}

TEST(FragmentMemory, WhatIsWrittenWhereItIsMadeMayBeReadAnywhere) {
  const std::string graph = "x = input()\na = f(x)\nv = select(a) @view\nw = relu_(v) @inplace\ny = f(a)\n";
  EXPECT_EQ(verdict(graph, "gpu:0 { a v w }\ngpu:1 { y }\n"), kRuns);
}

TEST(FragmentMemory, WhatArrivesIsOneMemoryAndTwoAliasesThatArriveAreTwo) {
  const std::string one = kFar + "v = select(a, far) @view\nw = relu_(v) @inplace\ny = f(a)\n";
  EXPECT_EQ(verdict(one, "gpu:0 { a v w y }\ngpu:1 { far }\n"), kRuns);
  const std::string two = kFar + "v = select(a) @view\nw = add_(v, far) @inplace\ny = f(a)\n";
  EXPECT_THAT(verdict(two, "gpu:0 { a v w y }\ngpu:1 { far }\n"), HasSubstr("operator 'y' reads 'a'"));
}

TEST(FragmentMemory, AnInputThatIsWrittenIsEachFragmentsOwn) {
  const std::string graph = "x = input()\nz = input()\nfar = f(z)\nw = relu_(x) @inplace\ny = f(x, far)\n";
  EXPECT_EQ(verdict(graph, "gpu:0 { far w y }\n"), kRuns);
  EXPECT_THAT(verdict(graph, "gpu:0 { w y }\ngpu:1 { far }\n"), HasSubstr("operator 'y' reads 'x'"));
}

// BatchNorm that is applied twice: its statistics move once in each fragment.
const std::string kTwice =
    "x = input()\ns = buffer(mean)\na = norm(x, s) @mutates=s\nfar = f(a)\nb = norm(far, s) @mutates=s\n";

TEST(FragmentMemory, ABufferIsOneMemoryOnADevice) {
  EXPECT_EQ(verdict(kTwice, "gpu:0 { a b }\ngpu:1 { far }\n"), kRuns);
}

TEST(FragmentMemory, ABufferThatTwoFragmentsWriteNeedsOneMicroBatch) {
  EXPECT_THAT(verdict(kTwice, "gpu:0 { a b }\ngpu:1 { far }\n", BatchSize(2)),
              AllOf(HasSubstr("operator 'a' writes a buffer that 2 fragments of the placement touch"),
                    HasSubstr("--micro-batch")));
  EXPECT_EQ(verdict(kTwice, "gpu:0 { a b far }\n", BatchSize(2)), kRuns);
}

TEST(FragmentMemory, ABufferIsNotWrittenThroughAnAliasThatArrived) {
  const std::string graph =
      kFar + "s = buffer(count)\nv = select(s) @view\nu = f(a, v)\nw = add_(v, far) @inplace\ny = f(u)\n";
  EXPECT_EQ(verdict(graph, "gpu:0 { a far v u w y }\n"), kRuns);
  EXPECT_THAT(verdict(graph, "gpu:0 { a v u w y }\ngpu:1 { far }\n"),
              HasSubstr("operator 'w' writes a parameter or buffer through 'v'"));
}

}  // namespace
}  // namespace espalier
