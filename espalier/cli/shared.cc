// What several verbs share: options and lines.

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "espalier/app/catalog.h"
#include "espalier/base/check.h"
#include "espalier/base/files.h"
#include "espalier/base/json.h"
#include "espalier/cli/calibrate.h"
#include "espalier/cli/verbs.h"
#include "espalier/report/svg.h"
#include "espalier/report/table_json.h"
#include "espalier/trace/json.h"

namespace espalier::cli {

namespace fs = std::filesystem;

CLI::App* add_verb(Program& program, const std::string& name, const std::string& what,
                   const std::string& example) {
  CLI::App* verb = program.app.add_subcommand(name, what);
  verb->add_flag("--json", program.console.json, "JSON on standard output");
  verb->add_flag("--no-color", program.console.no_colour)->group("");  // the program's own help names it
  verb->footer("Example:\n  " + example);
  return verb;
}

CLI::Validator positive() {
  const auto check = [](const std::string& text) -> std::string {
    double value = 0;
    if (CLI::detail::lexical_cast(text, value) && value > 0) return "";
    return "'" + text + "' is not a number above 0";
  };
  return {check, ""};
}
CLI::Validator worker_count() {
  const auto check = [](const std::string& text) -> std::string {
    int value = 0;
    if (CLI::detail::lexical_cast(text, value) && value >= 1 && value <= 4096) return "";
    return "'" + text + "' is not a number from 1 to 4096";
  };
  return {check, ""};
}

void JobFlags::add_model(CLI::App* verb) {
  verb->add_option("model", options.model, "a .pt2 or ONNX file, a published profile or an Espalier graph")
      ->required()
      ->type_name("FILE");
  add_reading(verb);
}

void JobFlags::add_reading(CLI::App* verb) {
  verb->add_option("--loss", options.import.loss, "the output that is the loss, if there are several scalars")
      ->type_name("NAME");
  verb->add_flag("--literal", literal, "read a published file exactly as it is, without repairs");
  training.add_frozen(verb);
  verb->add_option("--dim", dims,
                   "how large a size is that an ONNX file leaves open, such as seq=128; repeatable")
      ->type_name("NAME=SIZE")
      ->allow_extra_args(false);
}

void JobFlags::add_planning(CLI::App* verb) {
  verb->add_option("-c,--cluster", options.cluster,
                   "local, local:4, 4xA100-80GB+2xV100-16GB@25Gb, a file, or file:8 (so many of the model "
                   "file's own devices); default: local")
      ->type_name("CLUSTER");
  verb->add_option("-b,--batch", batch,
                   "samples of one step; default: the model file's own, else eight of the exported size, or "
                   "one for each device")
      ->type_name("N")
      ->check(positive());
  verb->add_option("-m,--micro-batch", micro_batches,
                   "sizes that a plan may use, such as 4 or 2,4,8; default: up to six, halved")
      ->delimiter(',')
      ->type_name("N,...")
      ->check(positive());
  verb->add_option("--costs", options.costs, "measured costs, from `espalier profile`")->type_name("FILE");
  verb->add_option("--precision", precision,
                   "f32, tf32 or bf16: what is supposed where nobody measured; default: f32")
      ->type_name("NAME");
  verb->add_option("--threads", options.threads, "threads of each worker")->type_name("N")->check(positive());
}

void JobFlags::add_order(CLI::App* verb) {
  verb->add_option("--order", order,
                   "in which placers that take operators one after the other visit them, such as alpha or "
                   "dfs_preorder (see `espalier planners`); default: topo_generations")
      ->type_name("NAME");
}

void JobFlags::add_training(CLI::App* verb) {
  verb->add_option(
          "--pin", options.pins,
          "a module or pattern and its device, such as 'vision.*=cpu:0' or 'h.[0-5]=gpu:1'; repeatable")
      ->type_name("PATTERN=DEVICE");
  verb->add_option(
          "--stages", options.stages,
          "a split by hand: modules (`inspect --modules`) for each stage, perhaps with devices, such as "
          "h.0-5,h.6-11 or wte+h.0-5=gpu:0,h.6-11=gpu:1+gpu:2")
      ->type_name("MODULES,...");
  training.add_optimizer(verb);
  training.add_rate(verb);
  verb->add_flag("--replicate-buffers", replicate_buffers,
                 "stages that write buffers (BatchNorm) may have replicas, each with buffers of its own");
  verb->add_option("--seed", options.seed, "of dropout and of made-up data")->type_name("N");
}

JobOptions JobFlags::to_options(const Machine& machine) const {
  JobOptions result = options;
  result.machine = machine;
  if (batch > 0) result.batch = BatchSize(batch);
  for (const std::int64_t size : micro_batches) result.micro_batches.push_back(BatchSize(size));
  if (!precision.empty()) {
    result.precision = parse_precision(precision);
    if (!result.precision) throw InputError("--precision " + precision + ": expected f32, tf32 or bf16");
  }
  if (replicate_buffers) result.written_buffers = WrittenBuffers::kReplicated;
  if (!order.empty()) result.order = find_order(order);
  if (literal) result.import.repair = Repair::kLiteral;
  result.optimizer = training.over({});
  result.import.frozen = training.frozen();
  for (const std::string& dim : dims) {
    const auto equals = dim.find('=');
    if (equals == 0 || equals == std::string::npos)
      throw InputError("--dim " + dim + ": expected NAME=SIZE, such as seq=128");
    try {
      const SizeExpr size = parse_size_expr(std::string_view(dim).substr(equals + 1));
      if (size.at(BatchSize(1)) < 1) throw InputError("is below 1");
      result.import.dims.insert_or_assign(dim.substr(0, equals), size);
    } catch (const InputError& error) {
      throw InputError("--dim " + dim + ": expected NAME=SIZE, such as seq=128 (" + error.what() + ")");
    }
  }
  return result;
}

JobOptions JobFlags::to_options(Program& program) const {
  JobOptions result = to_options(program.machine);
  calibrate_local(program, result);
  return result;
}

std::vector<std::string> JobFlags::inputs() const {
  return {options.model, options.cluster, options.costs, options.start, options.placement};
}

void warn_of_measurement(Program& program, const OpenedPlan& opened, std::optional<std::uint32_t> threads) {
  if (!opened.file.measured) return;
  const std::string costs = opened.file.cost_file.empty() ? "the cost file" : opened.file.cost_file;
  program.console.warnings(
      measurement_warnings(costs, *opened.file.measured, program.machine.description, threads));
}

std::string verdict_text(const Trace& trace, BatchSize batch) {
  const double rate =
      trace.iteration.count() > 0 ? static_cast<double>(batch.count()) / to_seconds(trace.iteration) : 0;
  const std::string samples = rate < 1000 ? fmt::format("{:.4g}", rate) : fmt::format("{:.0f}", rate);
  return fmt::format("{} per iteration of {} sample{}, {} samples/s, devices {:.1f} % idle",
                     to_text(trace.iteration), batch.count(), batch.count() == 1 ? "" : "s", samples,
                     100 * bubble_ratio(trace));
}

std::string price_text(const std::optional<StepPrice>& price) {
  if (!price) return {};
  return fmt::format("price: {:.4g} a step, {:.4g} a million samples; {} device{} at {:.4g} an hour\n",
                     price->step, price->million_samples, price->devices, price->devices == 1 ? "" : "s",
                     price->hour);
}

std::string expected_text(Duration expected, const std::optional<MeasuredOn>& measured) {
  if (!measured || measured->scatter == ActionScatter()) return {};
  const std::string devices =
      measured->scatter.device_per_mille > 0
          ? fmt::format(" and devices by {:.1f} %", measured->scatter.device_per_mille / 10.0)
          : "";
  return fmt::format(
      "{} expected in a run, where action times scatter by {:.1f} %{} as they did when measured\n",
      to_text(expected), measured->scatter.spread_per_mille / 10.0, devices);
}

std::string scope_text(Bound::Scope scope) {
  switch (scope) {
    case Bound::Scope::kTheseStages:
      return "these stages";
    case Bound::Scope::kAnyPlan:
      return "any plan";
    case Bound::Scope::kOfferedSizes:
      return "any plan with the micro-batches offered";
    case Bound::Scope::kOneSize:
      return "any plan with one of the micro-batches offered";
  }
  return "";
}

std::string bound_text(Duration iteration, const Bound& bound) {
  const std::string scope = scope_text(bound.scope);
  const std::string whose =
      bound.scope == Bound::Scope::kTheseStages ? scope + " cannot" : "no" + scope.substr(3) + " can";
  return fmt::format("{} take less than {} ({}): at most {:.1f} % above that", whose, to_text(bound.time),
                     bound.why, 100 * relative_difference(iteration, bound.time));
}

namespace {

// Whether both name one file, which need not exist yet.
bool same_file(const fs::path& a, const fs::path& b) {
  std::error_code ignored;
  if (fs::exists(a, ignored) && fs::exists(b, ignored)) return fs::equivalent(a, b, ignored);
  return fs::weakly_canonical(fs::absolute(a), ignored) == fs::weakly_canonical(fs::absolute(b), ignored);
}

}  // namespace

void check_outputs(const std::vector<NamedFile>& outputs, const std::vector<std::string>& inputs) {
  std::error_code ignored;
  for (const NamedFile& file : outputs) {
    if (file.path.empty()) continue;
    const std::string what = file.option + " " + file.path;
    if (fs::is_directory(file.path, ignored)) throw InputError(what + ": is a folder; expected a file");
    const fs::path parent = fs::path(file.path).parent_path();
    const std::string folder = parent.empty() ? "." : parent.string();
    if (!fs::is_directory(folder, ignored)) {
      throw InputError(fmt::format("{}: there is no folder '{}'", what, folder));
    }
    if (::access(folder.c_str(), W_OK | X_OK) != 0) {
      throw InputError(fmt::format("{}: the folder '{}' may not be written to", what, folder));
    }
    for (const std::string& input : inputs) {
      if (!input.empty() && same_file(file.path, input)) {
        throw InputError(fmt::format("{}: is read, too, and would be lost; name another file", what));
      }
    }
    for (const NamedFile& other : outputs) {
      if (&other == &file) break;
      if (!other.path.empty() && same_file(file.path, other.path)) {
        throw InputError(fmt::format("{}: {} writes this file, too; name another", what, other.option));
      }
    }
  }
}

void TraceOutputs::add(CLI::App* verb, const std::string& trace_flag) {
  verb->add_option(trace_flag, trace, "write the trace (Espalier's JSON)")->type_name("FILE");
  verb->add_option("--svg", svg, "write the timeline as a picture")->type_name("FILE");
  verb->add_option("--chrome", chrome, "write a Chrome trace, for ui.perfetto.dev")->type_name("FILE");
}

std::vector<NamedFile> TraceOutputs::files() const {
  return {{"--trace", trace}, {"--svg", svg}, {"--chrome", chrome}};
}

void TraceOutputs::write(Console& console, const Trace& value, const std::string& title) const {
  const auto write_one = [&console](const std::string& path, const std::string& content) {
    if (path.empty()) return;
    write_file_atomically(path, content);
    if (!console.json) console.out() << "wrote " << path << '\n';
  };
  if (!trace.empty()) write_one(trace, print_json(trace_to_json(value)));
  if (!svg.empty()) {
    const SvgPanel panel{value, title, ""};
    write_one(svg, svg_timeline(std::span(&panel, 1)));
  }
  if (!chrome.empty()) write_one(chrome, chrome_trace(value));
}

Json memory_json(const Trace& trace) {
  return to_json(memory_table(trace));
}

Json bound_json(const Bound& bound) {
  return {{"scope", scope_text(bound.scope)}, {"time_ns", bound.time.count()}, {"why", bound.why}};
}

Json price_json(const StepPrice& price) {
  return {{"devices", price.devices},
          {"per_hour", price.hour},
          {"per_step", price.step},
          {"per_million_samples", price.million_samples}};
}

Json judged_json(const Judged& judged, const Cluster& cluster) {
  Json stages = Json::array();
  for (std::size_t s = 0; s < judged.staged.stages.size(); ++s) {
    const StagedStage& stage = judged.staged.stages[s];
    Json devices = Json::array(), after = Json::array();
    for (const StagedReplica& replica : stage.replicas) {
      for (const DeviceId device : replica.devices) devices.push_back(cluster.device(device).name);
    }
    for (const StageId before : stage.after) after.push_back(judged.staged.stages[before.index()].name);
    stages.push_back({{"name", stage.name},
                      {"devices", std::move(devices)},
                      {"after", std::move(after)},
                      {"operators", judged.plan.stages[s].operators.size()},
                      {"micro_batch", judged.plan.stages[s].micro_batch.count()},
                      {"in_flight", stage.in_flight},
                      {"forward_ns", stage.replicas.front().times.forward.count()},
                      {"backward_ns", stage.replicas.front().times.backward().count()}});
  }
  Json json{{"iteration_ns", judged.trace.iteration.count()},
            {"expected_ns", judged.expected.count()},
            {"bubble", judged.bubble},
            {"fits", !judged.overflow.has_value()},
            {"schedule", to_text(judged.plan.orders)},
            {"batch", judged.plan.batch.count()},
            {"bounds", Json::array({bound_json(judged.any_bound), bound_json(judged.stages_bound)})},
            {"gap", judged.gap()},
            {"stages", std::move(stages)},
            {"memory", memory_json(judged.trace)}};
  if (const auto price = step_price(cluster, judged.staged, judged.trace.iteration, judged.plan.batch))
    json["price"] = price_json(*price);
  return json;
}

void print_json_line(Console& console, const Json& json) {
  console.out() << print_json(json);
}

}  // namespace espalier::cli
