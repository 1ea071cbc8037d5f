// Planners of plain sequences of layers, of PipeDream profiles: docs/peers.md.

#include <fmt/format.h>

#include "espalier/base/check.h"
#include "espalier/cli/literal.h"
#include "espalier/planners/literal/autopipe.h"
#include "espalier/planners/literal/bapipe.h"
#include "espalier/planners/literal/block_partition.h"
#include "espalier/planners/literal/dapple.h"
#include "espalier/report/table.h"

namespace espalier::cli {

int literal_torchgpipe(Program& program, const LiteralFlags& flags) {
  refuse_options(flags, {"--cpus", "--memory", "--bandwidth", "--micro-batches", "--placement", "--without"});
  if (flags.devices.size() != 1 || flags.devices.front() < 1)
    throw InputError("literal torchgpipe: --devices says how many blocks, such as 8");
  const auto blocks = static_cast<std::size_t>(flags.devices.front());
  const PipedreamProfile profile =
      read_pipedream(read_published(flags, PublishedKind::kPipedream), flags.file);
  const literal::TorchgpipeResult result = literal::torchgpipe_balance(profile, blocks);
  refuse_violations(literal::check_torchgpipe(profile, blocks, result));
  Json json{{"planner", flags.planner}, {"file", flags.file}, {"found", result.found()}};
  if (!result.found()) return no_answer(program, flags, result.why, std::move(json));
  Table table{{{"block", "block"}, {"time", "time"}, {"count", "layers"}, {"layers", "names"}}, {}};
  Json all = Json::array();
  for (const literal::TorchgpipeBlock& block : result.blocks) {
    const std::vector<std::string> names = names_of(profile, block.nodes);
    table.rows.push_back({std::to_string(all.size()), figure(block.time),
                          static_cast<std::int64_t>(names.size()), short_names(names)});
    all.push_back({{"time", block.time}, {"layers", names}});
  }
  json["largest"] = result.largest;
  json["exact"] = result.exact;
  json["blocks"] = std::move(all);
  if (program.console.json) {
    print_json_line(program.console, json);
    return kDone;
  }
  program.console.out() << fmt::format(
                               "torchgpipe: largest block {} in the file's units; the best cut has {}\n\n",
                               figure(result.largest), figure(result.exact))
                        << print_text(table);
  return kDone;
}

int literal_dapple(Program& program, const LiteralFlags& flags) {
  refuse_options(flags, {"--cpus", "--memory", "--placement", "--without"});
  literal::DappleOptions options;
  if (flags.devices.empty() || flags.devices.size() > 2)
    throw InputError("literal dapple: --devices says how many, such as 8, or 8,2 for two machines of eight");
  if (flags.bandwidth.size() > flags.devices.size())
    throw InputError("literal dapple: --bandwidth takes one number for each level of --devices");
  options.devices_per_machine = flags.devices.front();
  if (flags.devices.size() > 1) options.machines = flags.devices.back();
  options.inner_bandwidth = flags.bandwidth.empty() ? 1e9 : flags.bandwidth.front();
  options.outer_bandwidth = flags.bandwidth.empty() ? 1e9 : flags.bandwidth.back();
  if (flags.given("--micro-batches")) options.micro_batches = flags.micro_batches;
  const PipedreamProfile profile =
      read_pipedream(read_published(flags, PublishedKind::kPipedream), flags.file);
  const literal::DappleResult result = literal::dapple(profile, options);
  refuse_violations(literal::check_dapple(profile, options, result));
  Json json{
      {"planner", flags.planner}, {"file", flags.file}, {"found", result.found()}, {"plans", result.plans}};
  if (!result.found()) return no_answer(program, flags, result.why, std::move(json));
  Table table{
      {{"stage", "stage"}, {"devices", "devices by machine"}, {"count", "layers"}, {"layers", "names"}}, {}};
  Json stages = Json::array();
  for (const literal::DappleStage& stage : result.stages) {
    const std::vector<std::string> names = names_of(profile, stage.nodes);
    table.rows.push_back({std::to_string(stages.size()), fmt::format("{}", fmt::join(stage.devices, "+")),
                          static_cast<std::int64_t>(names.size()), short_names(names)});
    stages.push_back({{"devices_by_machine", stage.devices}, {"layers", names}});
  }
  json["time_ms"] = result.time;
  json["one_device_ms"] = result.one_device;
  json["pivot"] = result.pivot;
  json["stages"] = std::move(stages);
  if (program.console.json) {
    print_json_line(program.console, json);
    return kDone;
  }
  program.console.out()
      << fmt::format("dapple: {} ms per step of {} micro-batches, {:.2f} times as fast as one device\n\n",
                     figure(result.time), options.micro_batches, result.one_device / result.time)
      << print_text(table) << fmt::format("\npivot: stage {}; {} plans priced\n", result.pivot, result.plans);
  return kDone;
}

namespace {

std::int64_t stages_of(const LiteralFlags& flags) {
  if (flags.devices.size() == 1 && flags.devices.front() >= 1) return flags.devices.front();
  throw InputError(fmt::format("literal {}: --devices says how many stages, such as 8", flags.planner));
}

}  // namespace

int literal_autopipe(Program& program, const LiteralFlags& flags) {
  refuse_options(flags, {"--cpus", "--memory", "--bandwidth", "--micro-batches", "--placement", "--without"});
  const auto stages = static_cast<std::size_t>(stages_of(flags));
  const PipedreamProfile profile =
      read_pipedream(read_published(flags, PublishedKind::kPipedream), flags.file);
  const literal::AutopipeResult result = literal::autopipe(profile, stages);
  refuse_violations(literal::check_autopipe(profile, stages, result));
  Json json{{"planner", flags.planner},
            {"file", flags.file},
            {"found", result.found()},
            {"partitions", result.partitions}};
  if (!result.found()) return no_answer(program, flags, result.why, std::move(json));
  Table table{{{"stage", "stage"},
               {"forward", "forward"},
               {"backward", "backward"},
               {"count", "layers"},
               {"layers", "names"}},
              {}};
  Json all = Json::array();
  for (const literal::AutopipeStage& stage : result.stages) {
    const std::vector<std::string> names = names_of(profile, stage.nodes);
    table.rows.push_back({std::to_string(all.size()), figure(stage.forward), figure(stage.backward),
                          static_cast<std::int64_t>(names.size()), short_names(names)});
    all.push_back({{"forward", stage.forward}, {"backward", stage.backward}, {"layers", names}});
  }
  json["time_ms"] = result.time;
  json["one_device_ms"] = result.one_device;
  json["master"] = result.master;
  json["stages"] = std::move(all);
  if (program.console.json) {
    print_json_line(program.console, json);
    return kDone;
  }
  program.console.out() << fmt::format(
                               "autopipe: {} ms per step of {} micro-batches, {:.2f} times as fast as one "
                               "device\n\n",
                               figure(result.time), 2 * stages, result.one_device / result.time)
                        << print_text(table)
                        << fmt::format("\nmaster: stage {}; {} partitions priced\n", result.master,
                                       result.partitions);
  return kDone;
}

int literal_bapipe(Program& program, const LiteralFlags& flags) {
  refuse_options(flags, {"--cpus", "--placement", "--without"});
  literal::BapipeOptions options{.devices = stages_of(flags), .streaming = flags.streaming};
  if (flags.bandwidth.size() > 1) throw InputError("literal bapipe: --bandwidth takes one number");
  if (!flags.bandwidth.empty()) options.bandwidth = flags.bandwidth.front();
  if (!flags.memory.empty()) options.memory = static_cast<double>(parse_bytes(flags.memory).count());
  if (flags.given("--micro-batches")) options.micro_batches = flags.micro_batches;
  const PipedreamProfile profile =
      read_pipedream(read_published(flags, PublishedKind::kPipedream), flags.file);
  const literal::BapipeResult result = literal::bapipe(profile, options);
  refuse_violations(literal::check_bapipe(profile, options, result));
  Json json{{"planner", flags.planner}, {"file", flags.file}, {"found", result.found()}};
  if (!result.found()) return no_answer(program, flags, result.why, std::move(json));
  Table table{{{"stage", "stage"},
               {"forward", "forward"},
               {"backward", "backward"},
               {"message", "message"},
               {"memory", "memory"},
               {"count", "layers"},
               {"layers", "names"}},
              {}};
  Json all = Json::array();
  for (const literal::BapipeStage& stage : result.stages) {
    const std::vector<std::string> names = names_of(profile, stage.nodes);
    table.rows.push_back({std::to_string(all.size()), figure(stage.times.forward),
                          figure(stage.times.backward), figure(stage.times.message),
                          Bytes(static_cast<std::int64_t>(stage.bytes)),
                          static_cast<std::int64_t>(names.size()), short_names(names)});
    all.push_back({{"forward", stage.times.forward},
                   {"backward", stage.times.backward},
                   {"message", stage.times.message},
                   {"bytes", stage.bytes},
                   {"layers", names}});
  }
  json["schedule"] = literal::to_text(result.schedule);
  json["time_ms"] = result.time;
  json["one_device_ms"] = result.one_device;
  json["stages"] = std::move(all);
  if (program.console.json) {
    print_json_line(program.console, json);
    return kDone;
  }
  program.console.out()
      << fmt::format(
             "bapipe: {} ms per step of {} micro-batches by {}, {:.2f} times as fast as one "
             "device\n\n",
             figure(result.time), options.micro_batches, literal::to_text(result.schedule),
             result.one_device / result.time)
      << print_text(table);
  return kDone;
}

}  // namespace espalier::cli
