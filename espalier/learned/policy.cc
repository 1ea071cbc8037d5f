#include "espalier/learned/policy.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/detail/CUDAHooksInterface.h>

#include <array>
#include <map>

#include "espalier/base/check.h"
#include "espalier/base/files.h"
#include "espalier/base/json.h"
#include "espalier/learned/policy_parts.h"
#include "espalier/learned/torch_threads.h"

namespace espalier::placement {
namespace {

constexpr const char* kFormat = "espalier.policy/1";
constexpr std::array<std::pair<Gate, std::string_view>, 3> kGates{
    {{Gate::kNone, "none"}, {Gate::kNode, "node"}, {Gate::kGraph, "graph"}}};
constexpr std::array<std::pair<Coarsening, std::string_view>, 3> kCoarsenings{
    {{Coarsening::kNone, "none"}, {Coarsening::kLearned, "learned"}, {Coarsening::kRandom, "random"}}};

template <class Names, class Value>
std::string_view text_in(const Names& names, Value value) {
  for (const auto& [each, text] : names) {
    if (each == value) return text;
  }
  ESP_CHECK(false);
  return {};
}

template <class Names>
auto parsed_in(const Names& names, std::string_view text) -> std::optional<decltype(names[0].first)> {
  for (const auto& [each, name] : names) {
    if (name == text) return each;
  }
  return std::nullopt;
}

at::Device device_named(const std::string& text) {
  std::optional<at::Device> device;
  try {
    device.emplace(text);
  } catch (const c10::Error&) {
    throw InputError("there is no device '" + text + "'; expected cpu, cuda or cuda:N");
  }
  const int gpus = at::hasCUDA() ? static_cast<int>(at::detail::getCUDAHooks().deviceCount()) : 0;
  const bool known = device->is_cpu() || (device->is_cuda() && device->index() < gpus && gpus > 0);
  if (!known) {
    throw InputError("this machine has no device '" + text + "'; expected cpu" +
                     (gpus > 0 ? " or cuda:0 … cuda:" + std::to_string(gpus - 1) : ""));
  }
  return *device;
}

std::string text_of(const PolicyShape& shape) {
  Json json = {{"format", kFormat},
               {"width", shape.width},
               {"sage_layers", shape.sage_layers},
               {"attention_layers", shape.attention_layers},
               {"heads", shape.heads},
               {"segment", shape.segment},
               {"refinements", shape.refinements},
               {"gate", to_text(shape.gate)},
               {"centred", shape.centred}};
  if (shape.spectral != 0) json["spectral"] = shape.spectral;
  if (shape.priorities != 0) json["priorities"] = shape.priorities;
  if (shape.coarsening != Coarsening::kNone) json["coarsening"] = to_text(shape.coarsening);
  if (shape.told_order) json["told_order"] = true;
  return json.dump();
}

PolicyShape parse_shape(const std::string& text, const std::string& where) {
  const Json json = parse_json(text, where);
  const JsonCursor cursor(json, where);
  cursor.expect_format(kFormat);
  cursor.only({"format", "width", "sage_layers", "attention_layers", "heads", "segment", "refinements",
               "gate", "centred", "spectral", "priorities", "coarsening", "told_order"});
  PolicyShape shape;
  shape.width = cursor.at("width").integer(1, 4096);
  shape.sage_layers = cursor.at("sage_layers").integer(0, 64);
  shape.attention_layers = cursor.at("attention_layers").integer(0, 64);
  shape.heads = cursor.at("heads").integer(1, 64);
  shape.segment = cursor.at("segment").integer(1, 65'536);
  shape.refinements = cursor.at("refinements").integer(0, 64);
  const std::optional<Gate> gate = parse_gate(cursor.at("gate").string());
  if (!gate) cursor.at("gate").fail("expected none, node or graph");
  shape.gate = *gate;
  shape.centred = cursor.at("centred").boolean();
  if (cursor.has("spectral")) shape.spectral = cursor.at("spectral").integer(0, 64);
  if (cursor.has("priorities")) shape.priorities = cursor.at("priorities").integer(0, 64);
  if (cursor.has("coarsening")) {
    const std::optional<Coarsening> coarsening = parse_coarsening(cursor.at("coarsening").string());
    if (!coarsening) cursor.at("coarsening").fail("expected none, learned or random");
    shape.coarsening = *coarsening;
  }
  if (cursor.has("told_order")) shape.told_order = cursor.at("told_order").boolean();
  if (shape.width % shape.heads != 0) cursor.at("heads").fail("expected a divisor of width");
  return shape;
}

}  // namespace

std::string_view to_text(Gate gate) {
  return text_in(kGates, gate);
}
std::optional<Gate> parse_gate(std::string_view text) {
  return parsed_in(kGates, text);
}

std::string_view to_text(Coarsening coarsening) {
  return text_in(kCoarsenings, coarsening);
}
std::optional<Coarsening> parse_coarsening(std::string_view text) {
  return parsed_in(kCoarsenings, text);
}

Policy::Parts::Entry& Policy::Parts::entry(const PolicyInput& input) {
  for (Entry& known : entries_) {
    if (known.of == &input) return known;
  }
  const at::Device device = net ? net->device() : at::Device(at::kCPU);
  const PolicyShape shape = net ? net->shape() : PolicyShape{};
  Entry& made = entries_.emplace_back(Entry{&input, {input, shape, device}, {}, {}, {}});
  const auto empty_table = [&](std::int64_t columns) {
    return at::zeros({made.input.nodes, columns}, at::TensorOptions(at::kFloat).device(device))
        .set_requires_grad(true);
  };
  if (!net || with_tables) made.table = empty_table(made.input.devices);
  if (net && with_tables && shape.priorities > 0) made.level_table = empty_table(shape.priorities);
  if (net && with_tables && shape.coarsening == Coarsening::kLearned)
    made.join_table = empty_table(static_cast<std::int64_t>(kJoinEntries));
  return made;
}

at::Tensor Policy::Parts::device_logits(const Entry& known, const at::Tensor& of_net) const {
  if (!known.table.defined()) return of_net;
  const at::Tensor table = centred(known.table, known.input);
  if (net) return of_net + table;
  return known.input.any_barred ? table + known.input.barred : table;
}

at::Tensor Policy::Parts::logits(const PolicyInput& input) {
  const Entry& known = entry(input);
  return device_logits(known, net ? net->logits(known.input) : at::Tensor());
}

HeadLogits Policy::Parts::heads(const PolicyInput& input) {
  if (!net || (net->shape().priorities == 0 && net->shape().coarsening == Coarsening::kNone))
    return {logits(input), {}, {}};
  const Entry& known = entry(input);
  const NetAnswer answer = net->answer(known.input);
  HeadLogits heads{device_logits(known, answer.logits), {}, {}};
  if (net->shape().priorities > 0) heads.levels = net->levels(known.input, answer, heads.devices);
  if (known.level_table.defined()) heads.levels = heads.levels + known.level_table;
  if (net->shape().coarsening != Coarsening::kNone) heads.joins = net->joins(known.input, answer);
  if (known.join_table.defined()) heads.joins = heads.joins + known.join_table;
  return heads;
}

const JoinInput* Policy::Parts::join_input(const PolicyInput& input) {
  const std::optional<JoinInput>& known = entry(input).input.join;
  return known ? &*known : nullptr;
}

at::Tensor Policy::Parts::most_probable_rows(const PolicyInput& input) {
  const JoinInput* join = join_input(input);
  if (!join) return at::softmax(logits(input), 1);
  const HeadLogits all = heads(input);
  Grouping grouping = groups_of(join->target, best_choices(all.joins));
  const Groups groups = make_groups(*join, {std::move(grouping)});
  return at::softmax(pooled(all.devices, groups), 1).index_select(0, groups.of_node);
}

at::Tensor Policy::Parts::weight_of(const PolicyInput& input) {
  return at::tensor(node_weights(input), at::kFloat).to(entry(input).input.work.device());
}

void Policy::Parts::forget(const PolicyInput& input) {
  std::erase_if(entries_, [&](const Entry& known) { return known.of == &input; });
}

NamedTensors Policy::Parts::weights() const {
  NamedTensors all = net ? net->weights() : NamedTensors{};
  std::size_t tables = 0;
  for (const Entry& entry : entries_) {
    if (!entry.table.defined()) continue;
    const std::string name = "table." + std::to_string(tables++);
    all.emplace_back(name, entry.table);
    if (entry.level_table.defined()) all.emplace_back(name + ".levels", entry.level_table);
    if (entry.join_table.defined()) all.emplace_back(name + ".joins", entry.join_table);
  }
  return all;
}

Policy::Policy() : parts_(std::make_unique<Parts>()) {}
Policy::Policy(Policy&&) noexcept = default;
Policy& Policy::operator=(Policy&&) noexcept = default;
Policy::~Policy() = default;

Policy::Policy(const PolicyShape& shape, std::uint64_t seed, const std::string& device) : Policy() {
  parts_->device_name = device;
  parts_->net.emplace(shape, seed, device_named(device));
}

Policy Policy::clone() const {
  return is_table() ? table() : with_heads(shape(), 0);
}

Policy Policy::with_heads(const PolicyShape& heads, std::uint64_t seed) const {
  PolicyShape both = shape();
  if (both.priorities == 0) both.priorities = heads.priorities;
  if (both.coarsening == Coarsening::kNone) both.coarsening = heads.coarsening;
  Policy other(both, seed, device());
  std::map<std::string_view, at::Tensor> own(parts_->net->weights().begin(), parts_->net->weights().end());
  at::NoGradGuard guard;
  for (const auto& [name, weight] : other.parts_->net->weights()) {
    if (const auto known = own.find(name); known != own.end()) weight.copy_(known->second);
  }
  return other;
}

const std::string& Policy::device() const {
  return parts_->device_name;
}

Policy Policy::table() {
  return {};
}

Policy Policy::read(const std::string& path, const std::string& device) {
  return parse(read_file(path), path, device);
}

Policy Policy::parse(std::string_view bytes, const std::string& path, const std::string& device) {
  const SafetensorsReader file(bytes, path);
  for (const auto& [key, value] : file.metadata()) {
    if (key != "policy") continue;
    const PolicyShape shape = parse_shape(value, path + ": policy");
    // Before a net of that size is made: the file must hold its weights.
    const double least = 4.0 * static_cast<double>(shape.width) * static_cast<double>(shape.width) *
                         static_cast<double>(3 * shape.sage_layers + 8 * shape.attention_layers + 2);
    if (least > static_cast<double>(bytes.size()))
      throw InputError(path + ": is too short for the net that it describes; expected a whole policy file");
    Policy policy(shape, 0, device);
    read_tensors(file, path, policy.parts_->weights());
    return policy;
  }
  throw InputError(path + ": has no metadata 'policy'; expected a file that `espalier learn` wrote");
}

void Policy::write(const std::string& path, const SafetensorsMetadata& remarks) const {
  ESP_CHECK(!is_table());
  SafetensorsMetadata metadata{{"policy", text_of(shape())}};
  metadata.insert(metadata.end(), remarks.begin(), remarks.end());
  write_tensors(path, parts_->weights(), metadata);
}

bool Policy::is_table() const {
  return !parts_->net;
}

const PolicyShape& Policy::shape() const {
  ESP_CHECK(parts_->net.has_value());
  return parts_->net->shape();
}

std::size_t Policy::weights() const {
  std::size_t count = 0;
  for (const auto& [name, weight] : parts_->weights()) count += static_cast<std::size_t>(weight.numel());
  return count;
}

std::vector<float> Policy::probabilities(const PolicyInput& input) const {
  const FewTorchThreads few(input.nodes);
  at::NoGradGuard guard;
  const bool kept = is_table();
  const at::Tensor rows = parts_->most_probable_rows(input).to(at::kCPU, at::kFloat).contiguous();
  if (!kept) parts_->forget(input);
  const float* begin = rows.const_data_ptr<float>();
  return {begin, begin + rows.numel()};
}

}  // namespace espalier::placement
