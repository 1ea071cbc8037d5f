#include "testing/worked_example.h"

#include <utility>

namespace espalier::testing {
namespace {

StagedStage stage(const char* name, std::size_t device, std::vector<StageId> after, std::uint32_t in_flight,
                  int forward_ms) {
  StagedReplica replica;
  replica.devices = {DeviceId(device)};
  replica.micro_batches = {0, 1, 2, 3};
  replica.times.forward = milliseconds(forward_ms);
  replica.times.input_gradient = milliseconds(forward_ms);
  replica.times.weight_gradient = milliseconds(forward_ms);
  StagedStage result;
  result.name = name;
  result.after = std::move(after);
  result.micro_batches = 4;
  result.in_flight = in_flight;
  result.replicas = {std::move(replica)};
  return result;
}

Crossing tensor(const char* name, std::size_t from, std::size_t to) {
  Crossing crossing;
  crossing.tensor = name;
  crossing.from = StageId(from);
  crossing.readers = {{StageId(to), true, mebibytes(1), mebibytes(1)}};
  crossing.output = mebibytes(1);
  return crossing;
}

Crossing token(std::size_t from, std::size_t to, TokenRule rule) {
  Crossing crossing;
  crossing.tensor = "after";
  crossing.from = StageId(from);
  crossing.readers = {{StageId(to), false, Bytes(), Bytes()}};
  crossing.token = true;
  crossing.returns = rule != TokenRule::kForwardOnly;
  return crossing;
}

Cluster three_devices() {
  ClusterParts parts;
  DeviceKind kind;
  kind.name = "worker";
  kind.memory = gibibytes(16);
  kind.flops_f32 = 1e12;
  kind.flops_f16 = 1e12;
  kind.memory_bandwidth = 100'000'000'000;
  parts.kinds = {kind};
  Group network;
  network.name = "network";
  network.latency = microseconds(500);
  network.contention = false;
  parts.groups = {network};
  for (const char* name : {"dev0", "dev1", "dev2"}) {
    parts.devices.push_back({name, KindId(0), GroupId(0), gibibytes(16)});
  }
  return Cluster(std::move(parts));
}

}  // namespace

WorkedExampleParts worked_example(WorkedExample which, TokenRule tokens) {
  const bool chain = which == WorkedExample::kChain;
  StagedModel model;
  model.tokens = tokens;
  model.stages.push_back(stage("img", 0, {}, chain ? 3 : 2, 2));
  model.stages.push_back(stage("txt", 1, chain ? std::vector{StageId(0)} : std::vector<StageId>{}, 2, 2));
  model.stages.push_back(stage("head", 2, {StageId(0), StageId(1)}, 1, 1));
  model.crossings.push_back(tensor("img", 0, 2));
  if (chain && tokens != TokenRule::kNone) model.crossings.push_back(token(0, 1, tokens));
  model.crossings.push_back(tensor("txt", 1, 2));
  return {std::move(model), three_devices()};
}

std::string_view worked_example_orders(WorkedExample which) {
  if (which == WorkedExample::kChain) {
    return "dev0  F0 F1 F2 B0 F3 B1 B2 B3\n"
           "dev1  F0 F1 B0 F2 B1 F3 B2 B3\n"
           "dev2  F0 B0 F1 B1 F2 B2 F3 B3\n";
  }
  return "dev0  F0 F1 B0 F2 B1 F3 B2 B3\n"
         "dev1  F0 F1 B0 F2 B1 F3 B2 B3\n"
         "dev2  F0 B0 F1 B1 F2 B2 F3 B3\n";
}

}  // namespace espalier::testing
