// The literature's planners in their authors' own cost models: docs/peers.md.

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "espalier/base/check.h"
#include "espalier/base/files.h"
#include "espalier/base/host.h"
#include "espalier/base/json.h"
#include "espalier/base/words.h"
#include "espalier/cli/literal.h"
#include "espalier/cli/workers.h"
#include "espalier/frontend/published.h"
#include "espalier/planners/literal/latency.h"
#include "espalier/planners/literal/latency_greedy.h"
#include "espalier/planners/literal/local_search.h"
#include "espalier/planners/literal/max_load.h"
#include "espalier/planners/literal/max_load_search.h"
#include "espalier/planners/literal/pipedream_optimizer.h"
#include "espalier/planners/literal/piper.h"
#include "espalier/report/table.h"

namespace espalier::cli {
namespace {

const char* kind_text(PublishedKind kind) {
  switch (kind) {
    case PublishedKind::kMsr:
      return "a dnn-partitioning input";
    case PublishedKind::kPiper:
      return "a Piper input";
    case PublishedKind::kPipedream:
      break;
  }
  return "a PipeDream profile";
}

}  // namespace

std::string read_published(const LiteralFlags& flags, PublishedKind expected) {
  std::string text = read_file(flags.file);
  const std::optional<PublishedKind> kind = published_kind(text);
  if (kind == expected) return text;
  throw InputError(fmt::format("{}: is {}; `literal {}` reads {}", flags.file,
                               kind ? kind_text(*kind) : "no published profile", flags.planner,
                               kind_text(expected)));
}

void refuse_options(const LiteralFlags& flags, std::initializer_list<const char*> options) {
  for (const char* option : options) {
    if (flags.given(option))
      throw InputError(fmt::format("literal {}: {} is no part of its model", flags.planner, option));
  }
}

void refuse_violations(const std::vector<std::string>& violations) {
  ESP_CHECK(violations.empty(), violations.front());
}

std::string figure(double value) {
  return fmt::format("{:.6g}", value);
}

std::vector<std::string> names_of(const PipedreamProfile& profile, const std::vector<std::size_t>& nodes) {
  std::vector<std::string> names;
  for (const std::size_t node : nodes) names.push_back(profile.nodes[node].id);
  return names;
}

std::string short_names(const std::vector<std::string>& names) {
  if (names.size() <= 6) return fmt::format("{}", fmt::join(names, " "));
  return fmt::format("{} ... {}", fmt::join(names.begin(), names.begin() + 3, " "), names.back());
}

int no_answer(Program& program, const LiteralFlags& flags, const std::string& why, Json json) {
  if (program.console.json) {
    json["why"] = why;
    print_json_line(program.console, json);
  } else {
    program.console.out() << fmt::format("{}: no answer: {}\n", flags.planner, why);
  }
  return kNoAnswer;
}

namespace {

// What --without may name for a planner.
void refuse_without(const LiteralFlags& flags, const std::vector<std::string>& known) {
  for (const std::string& word : flags.without) {
    if (std::find(known.begin(), known.end(), word) != known.end()) continue;
    std::string words;
    for (const std::string& other : known) words += (words.empty() ? "" : ", ") + other;
    throw InputError(fmt::format("literal {}: --without {}: expected {}", flags.planner, word, words));
  }
}
bool is_without(const LiteralFlags& flags, const char* word) {
  return std::find(flags.without.begin(), flags.without.end(), word) != flags.without.end();
}

std::optional<std::int64_t> one_count(const LiteralFlags& flags) {
  if (flags.devices.empty()) return std::nullopt;
  if (flags.devices.size() > 1)
    throw InputError(
        fmt::format("literal {}: --devices takes one number; levels are `pipedream`'s", flags.planner));
  return flags.devices.front();
}
std::optional<double> memory_of(const LiteralFlags& flags) {
  if (flags.memory.empty()) return std::nullopt;
  return static_cast<double>(parse_bytes(flags.memory).count());
}

// "1-4, 7, 9-12": runs of names that count up by one.
std::string runs(const std::vector<std::int64_t>& sorted) {
  std::string text;
  for (std::size_t i = 0; i < sorted.size();) {
    std::size_t end = i + 1;
    while (end < sorted.size() && sorted[end] == sorted[end - 1] + 1) ++end;
    text += fmt::format("{}{}", text.empty() ? "" : ",", sorted[i]);
    if (end > i + 1) text += fmt::format("-{}", sorted[end - 1]);
    i = end;
  }
  return text;
}

template <class Profile>
std::vector<std::int64_t> ids_of(const Profile& profile, const std::vector<std::size_t>& nodes) {
  std::vector<std::int64_t> ids;
  for (const std::size_t node : nodes) ids.push_back(profile.nodes[node].id);
  std::sort(ids.begin(), ids.end());
  return ids;
}

// By annealing, or by the authors' local search.
literal::MaxLoadResult searched(const LiteralFlags& flags, const MsrProfile& profile,
                                const literal::MaxLoadOptions& options) {
  constexpr std::uint64_t kChanges = 12'000'000, kChangesOfLocalSearch = 1'000'000'000;
  ThreadPool pool(static_cast<std::size_t>(this_host().usable));
  Context context;
  context.pool = &pool;
  context.cancelled = &watch_for_interrupts();
  const bool local = flags.planner == "local-search";
  context.budget.max_states = local ? kChangesOfLocalSearch : kChanges;
  if (local) return literal::local_search(profile, {.machine = options}, context);
  return literal::max_load_search(profile, {.machine = options}, context);
}

int literal_latency(Program& program, const LiteralFlags& flags) {
  const bool greedy = flags.planner == "greedy";
  refuse_options(flags, {"--bandwidth", "--micro-batches", "--without", "--cpus"});
  if (greedy) refuse_options(flags, {"--placement"});
  if (!greedy) refuse_options(flags, {"--devices", "--memory"});
  if (!greedy && flags.placement.empty())
    throw InputError("literal expert: --placement names the file to price");
  const MsrProfile profile = read_msr(read_published(flags, PublishedKind::kMsr), flags.file);
  const MsrPlacement placement =
      greedy
          ? literal::greedy_placement(profile, {.accelerators = one_count(flags), .memory = memory_of(flags)})
          : read_msr_placement(read_file(flags.placement), flags.placement);
  const literal::LatencyResult result = literal::price_latency(profile, placement);
  refuse_violations(literal::check_latency(profile, result));
  const double bound = literal::latency_bound(profile);
  Json pieces = Json::array();
  Table table{{{"device", "device"},
               {"start", "start"},
               {"end", "end"},
               {"communication", "communication"},
               {"nodes", "nodes"}},
              {}};
  for (const literal::LatencyPiece& piece : result.pieces) {
    const std::string name = fmt::format("{}:{}", piece.accelerator ? "accelerator" : "cpu", piece.device);
    const std::vector<std::int64_t> ids = ids_of(profile, piece.nodes);
    table.rows.push_back(
        {name, figure(piece.start), figure(piece.end), figure(piece.communication), runs(ids)});
    pieces.push_back({{"device", name},
                      {"start", piece.start},
                      {"end", piece.end},
                      {"communication", piece.communication},
                      {"nodes", ids}});
  }
  if (program.console.json) {
    print_json_line(program.console, {{"planner", flags.planner},
                                      {"file", flags.file},
                                      {"objective", "latency"},
                                      {"latency", result.latency},
                                      {"bound", bound},
                                      {"lack_bytes", result.lack},
                                      {"pieces", std::move(pieces)}});
    return kDone;
  }
  program.console.out() << fmt::format("{}: latency {} in the file's units, the longest path {}\n\n",
                                       flags.planner, figure(result.latency), figure(bound))
                        << print_text(table);
  if (result.lack > 0) {
    program.console.warnings(
        {fmt::format("accelerators lack {}", to_text(Bytes(static_cast<std::int64_t>(result.lack))))});
  }
  return kDone;
}

int literal_max_load(Program& program, const LiteralFlags& flags) {
  if (flags.given("--objective")) {
    if (flags.objective == "latency") return literal_latency(program, flags);
    if (flags.objective != "max-load")
      throw InputError("literal expert: --objective " + flags.objective + ": expected max-load or latency");
  }
  refuse_options(flags, {"--bandwidth", "--micro-batches", "--without"});
  literal::MaxLoadOptions options;
  options.space = flags.planner == "dpl" ? literal::MaxLoadSpace::kLinear : literal::MaxLoadSpace::kDownsets;
  options.accelerators = one_count(flags);
  if (flags.given("--cpus")) options.cpus = flags.cpus;
  options.memory = memory_of(flags);
  const MsrProfile profile = read_msr(read_published(flags, PublishedKind::kMsr), flags.file);
  literal::MaxLoadResult result;
  if (flags.planner == "expert") {
    if (flags.placement.empty()) throw InputError("literal expert: --placement names the file to price");
    result = literal::price_placement(
        profile, read_msr_placement(read_file(flags.placement), flags.placement), options);
  } else {
    refuse_options(flags, {"--placement"});
    const bool local = flags.planner == "local-search", anywhere = local || flags.planner == "search";
    if (local) {
      refuse_options(flags, {"--cpus", "--memory"});  // it does not look at them
      options.cpus = 0;
      options.memory = std::numeric_limits<double>::max();
    }
    if (anywhere) options.space = literal::MaxLoadSpace::kAnywhere;
    result = anywhere ? searched(flags, profile, options) : literal::max_load(profile, options);
    refuse_violations(literal::check_max_load(profile, options, result));
  }
  Json json{{"planner", flags.planner}, {"file", flags.file},          {"found", result.found()},
            {"items", result.items},    {"downsets", result.downsets}, {"pairs", result.pairs}};
  if (!result.found()) return no_answer(program, flags, result.why, std::move(json));
  Table table{{{"device", "device"},
               {"load", "load"},
               {"communication", "communication"},
               {"memory", "memory"},
               {"nodes", "nodes"}},
              {}};
  Json devices = Json::array();
  std::size_t accelerators = 0, cpus = 0;
  for (const literal::MaxLoadDevice& device : result.devices) {
    const std::string name =
        device.accelerator ? fmt::format("accelerator:{}", accelerators++) : fmt::format("cpu:{}", cpus++);
    const std::vector<std::int64_t> ids = ids_of(profile, device.nodes);
    table.rows.push_back({name, figure(device.load), figure(device.communication),
                          Bytes(static_cast<std::int64_t>(device.bytes)), runs(ids)});
    devices.push_back({{"device", name},
                       {"load", device.load},
                       {"communication", device.communication},
                       {"bytes", device.bytes},
                       {"nodes", ids}});
  }
  json["max_load"] = result.max_load;
  json["devices"] = std::move(devices);
  if (program.console.json) {
    print_json_line(program.console, json);
    return kDone;
  }
  program.console.out() << fmt::format("{}: max-load {} in the file's units\n\n", flags.planner,
                                       figure(result.max_load))
                        << print_text(table);
  if (flags.planner == "dp" || flags.planner == "dpl") {
    program.console.out() << fmt::format("\n{} items, {} downsets, {} pairs priced\n", result.items,
                                         result.downsets, result.pairs);
  }
  return kDone;
}

int literal_piper(Program& program, const LiteralFlags& flags) {
  refuse_options(flags, {"--cpus", "--placement"});
  refuse_without(flags, {"data", "tensor", "recompute"});
  literal::PiperOptions options;
  options.devices = one_count(flags);
  if (flags.given("--micro-batches")) options.micro_batches = flags.micro_batches;
  options.memory = memory_of(flags);
  if (flags.bandwidth.size() > 1) throw InputError("literal piper: --bandwidth takes one number");
  if (!flags.bandwidth.empty()) options.bandwidth = flags.bandwidth.front();
  options.data_parallel = !is_without(flags, "data");
  options.tensor_parallel = !is_without(flags, "tensor");
  options.recompute = !is_without(flags, "recompute");
  const PiperProfile profile = read_piper(read_published(flags, PublishedKind::kPiper), flags.file);
  const bool equal = flags.planner == "equal";
  const literal::PiperResult result =
      equal ? literal::piper_equal_split(profile, options) : literal::piper(profile, options);
  refuse_violations(literal::check_piper(profile, options, result));
  Json json{{"planner", flags.planner},    {"file", flags.file},    {"found", result.found()},
            {"downsets", result.downsets}, {"pairs", result.pairs}, {"searches", result.searches}};
  if (!result.found()) return no_answer(program, flags, result.why, std::move(json));
  Table table{{{"stage", "stage"},
               {"data", "data"},
               {"tensor", "tensor"},
               {"in_flight", "in flight"},
               {"time", "time"},
               {"memory", "memory"},
               {"layers", "layers"},
               {"recomputed", "recomputed"}},
              {}};
  Json stages = Json::array();
  for (const literal::PiperStage& stage : result.stages) {
    const std::vector<std::int64_t> ids = ids_of(profile, stage.nodes),
                                    again = ids_of(profile, stage.recomputed);
    table.rows.push_back({std::to_string(stages.size()), std::int64_t{stage.data}, std::int64_t{stage.tensor},
                          stage.in_flight, figure(stage.time), Bytes(static_cast<std::int64_t>(stage.bytes)),
                          runs(ids), again.empty() ? Cell() : Cell(runs(again))});
    stages.push_back({{"data_parallel", stage.data},
                      {"tensor_parallel", stage.tensor},
                      {"in_flight", stage.in_flight},
                      {"time", stage.time},
                      {"bytes", stage.bytes},
                      {"layers", ids},
                      {"recomputed", again}});
  }
  json["time_per_sample"] = result.time_per_sample;
  json["devices"] = result.devices;
  json["stages"] = std::move(stages);
  if (program.console.json) {
    print_json_line(program.console, json);
    return kDone;
  }
  program.console.out() << fmt::format(
                               "{}: time per sample {} in the file's units, {} stages on {} devices\n\n",
                               flags.planner, figure(result.time_per_sample), result.stages.size(),
                               result.devices)
                        << print_text(table);
  if (!equal) {
    program.console.out() << fmt::format("\n{} downsets, {} thresholds, {} pairs looked at\n",
                                         result.downsets, result.searches, result.pairs);
  }
  return kDone;
}

int literal_pipedream(Program& program, const LiteralFlags& flags) {
  refuse_options(flags, {"--cpus", "--micro-batches", "--placement"});
  refuse_without(flags, {"transfers", "replicas"});
  literal::PipedreamOptions options;
  if (flags.devices.empty())
    throw InputError(
        "literal pipedream: --devices says how many, such as 8, or 4,2 for two levels, innermost first");
  if (flags.bandwidth.size() > 1 && flags.bandwidth.size() != flags.devices.size())
    throw InputError("literal pipedream: --bandwidth takes one number, or one for each level of --devices");
  for (std::size_t l = 0; l < flags.devices.size(); ++l) {
    const double bandwidth =
        flags.bandwidth.empty() ? 1e9 : flags.bandwidth[flags.bandwidth.size() == 1 ? 0 : l];
    options.levels.push_back({flags.devices[l], bandwidth});
  }
  if (is_without(flags, "transfers")) options.compression.reset();
  options.straight = is_without(flags, "replicas");
  options.memory = memory_of(flags);
  const PipedreamProfile profile =
      read_pipedream(read_published(flags, PublishedKind::kPipedream), flags.file);
  const literal::PipedreamResult result = literal::pipedream_optimizer(profile, options);
  refuse_violations(literal::check_pipedream_optimizer(profile, options, result));
  Json json{{"planner", flags.planner},
            {"file", flags.file},
            {"found", result.found()},
            {"states", result.states},
            {"splits", result.splits}};
  if (!result.found()) return no_answer(program, flags, result.why, std::move(json));
  Table table{{{"stage", "stage"}, {"replicas", "replicas"}, {"count", "nodes"}, {"nodes", "names"}}, {}};
  Json stages = Json::array();
  for (const literal::PipedreamStage& stage : result.stages) {
    const std::vector<std::string> names = names_of(profile, stage.nodes);
    std::string replicas;
    for (const std::int64_t count : stage.replicas)
      replicas += fmt::format("{}{}", replicas.empty() ? "" : "x", count);
    table.rows.push_back({std::to_string(stages.size()), replicas, static_cast<std::int64_t>(names.size()),
                          short_names(names)});
    stages.push_back({{"replicas", stage.replicas}, {"segment", stage.segment}, {"nodes", names}});
  }
  json["time_s"] = result.time;
  json["one_device_s"] = result.one_device;
  json["data_parallel_s"] = result.data_parallel;
  json["stages"] = std::move(stages);
  json["unplaced"] = names_of(profile, result.unplaced);
  if (program.console.json) {
    print_json_line(program.console, json);
    return kDone;
  }
  program.console.out() << fmt::format(
                               "pipedream: {} s per mini-batch; one device {} s, data parallel {} s\n\n",
                               figure(result.time), figure(result.one_device), figure(result.data_parallel))
                        << print_text(table)
                        << fmt::format("\n{} antichains, {} splits looked at\n", result.states,
                                       result.splits);
  return kDone;
}

int literal_planner(Program& program, const LiteralFlags& flags) {
  if (flags.planner != "expert") refuse_options(flags, {"--objective"});
  if (flags.planner != "bapipe") refuse_options(flags, {"--streaming"});
  if (flags.planner == "dp" || flags.planner == "dpl" || flags.planner == "expert" ||
      flags.planner == "search" || flags.planner == "local-search")
    return literal_max_load(program, flags);
  if (flags.planner == "greedy") return literal_latency(program, flags);
  if (flags.planner == "piper" || flags.planner == "equal") return literal_piper(program, flags);
  if (flags.planner == "pipedream") return literal_pipedream(program, flags);
  if (flags.planner == "torchgpipe") return literal_torchgpipe(program, flags);
  if (flags.planner == "dapple") return literal_dapple(program, flags);
  if (flags.planner == "autopipe") return literal_autopipe(program, flags);
  if (flags.planner == "bapipe") return literal_bapipe(program, flags);
  throw InputError("literal: there is no planner '" + flags.planner +
                   "'; expected dp, dpl, search, local-search, expert, greedy, piper, equal, pipedream, "
                   "torchgpipe, dapple, autopipe or bapipe");
}

}  // namespace

void add_literal(Program& program) {
  auto flags = std::make_shared<LiteralFlags>();
  CLI::App* verb =
      add_verb(program, "literal", "planners of the literature in their authors' own cost models",
               "espalier literal dpl workloads/dnn-partitioning/throughput-inputs/LayerGraphs/"
               "bert24_inference.json --devices 6");
  flags->verb = verb;
  verb->add_option(
          "planner", flags->planner,
          "dp, dpl, search, local-search, expert, greedy (dnn-partitioning; expert prices a placement, "
          "greedy "
          "is for latency), piper, equal (Piper's baseline of equal stages), pipedream, torchgpipe, dapple, "
          "autopipe or bapipe")
      ->required()
      ->type_name("PLANNER");
  verb->add_option("file", flags->file, "a published profile of the planner's own kind")
      ->required()
      ->type_name("FILE");
  verb->add_option("-d,--devices", flags->devices,
                   "accelerators; default: the file's; pipedream, dapple: of each level, innermost first; "
                   "torchgpipe: blocks; autopipe, bapipe: stages")
      ->delimiter(',')
      ->type_name("N,...");
  verb->add_option("--cpus", flags->cpus, "dp, dpl, search: CPUs; default: the file's")->type_name("N");
  verb->add_option("--memory", flags->memory,
                   "of a device, such as 8GiB; default: the file's; pipedream, bapipe: no limit")
      ->type_name("SIZE");
  verb->add_option("--bandwidth", flags->bandwidth,
                   "bytes per second; piper, equal: default the file's; pipedream, dapple: of each level, "
                   "default 1e9; "
                   "bapipe: default 1e9")
      ->delimiter(',')
      ->type_name("B,...");
  verb->add_option("--micro-batches", flags->micro_batches,
                   "in a batch; piper, equal: default the file's; dapple, bapipe: 8")
      ->type_name("N");
  verb->add_option("--placement", flags->placement,
                   "expert: nodes by device, as dnn-partitioning writes them")
      ->type_name("FILE");
  verb->add_option("--objective", flags->objective,
                   "expert: max-load, the time per sample of a full pipeline, or latency, the time of one "
                   "sample; default: max-load")
      ->type_name("NAME");
  verb->add_flag("--streaming", flags->streaming,
                 "bapipe: devices that compute while a message is still coming in");
  verb->add_option("--without", flags->without,
                   "piper, equal: data, tensor or recompute; pipedream: transfers (as its program without "
                   "compression) or replicas")
      ->delimiter(',')
      ->type_name("WORD,...");
  verb->callback(
      [&program, flags] { program.chosen = [&program, flags] { return literal_planner(program, *flags); }; });
}

}  // namespace espalier::cli
