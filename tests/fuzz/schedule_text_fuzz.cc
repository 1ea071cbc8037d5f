#include "espalier/schedule/schedule.h"
#include "tests/fuzz/fuzz.h"

using namespace espalier;  // NOLINT: a target is one function

namespace {

StagedModel chain_of_two() {
  StagedModel model;
  for (std::size_t i = 0; i < 2; ++i) {
    StagedStage stage;
    stage.name = i == 0 ? "a" : "b";
    stage.micro_batches = 2;
    StagedReplica replica;
    replica.devices = {DeviceId(i)};
    replica.micro_batches = {0, 1};
    stage.replicas = {replica};
    model.stages.push_back(stage);
  }
  return model;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return accepts_or_refuses(data, size, [](std::string_view text) {
    static const Cluster kCluster = parse_cluster("2xV100-16GB");
    static const StagedModel kModel = chain_of_two();
    const Schedule schedule = parse_schedule(text, kModel, kCluster);
    check_schedule(kModel, schedule);
    if (!(parse_schedule(print_schedule(kModel, kCluster, schedule), kModel, kCluster) == schedule))
      std::abort();
  });
}
