// PipeDream's graph.txt (Narayanan et al., SOSP'19): a layer profile of one training mini-batch.
//
//   node7 -- LSTM(2048, 1024) -- forward_compute_time=3.190, …, activation_size=[6291456.0; 131072.0], …
//   <tab>node1 -- node4
//
// Published oddities, and what becomes of them:
// - The forward time of `Input` nodes is data loading, more than the model in places (alexnet: 636 of 681
// ms).
//   It is dropped, and the nodes become duplicable: every stage can read its own input.
// - An activation size may be a list, for a module with several outputs; the `__getitem__(i)` nodes behind it
//   repeat its elements. The list is added up, and those nodes share the module's memory.
// - No batch is named. Where a Linear layer of 4-byte elements tells one, it is taken; all must agree.
// - Memory for backward is the output of each layer, as PipeDream counts it. A backward time is halved
// between
//   inputs and weights where there are weights.
// - ` -- stage_id=S`, which PipeDream's planner adds, makes a plan: stage S on device S.

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <unordered_map>

#include "espalier/base/check.h"
#include "espalier/frontend/decode.h"
#include "espalier/frontend/imported.h"
#include "espalier/frontend/profile.h"
#include "espalier/frontend/published.h"

namespace espalier {
namespace {

constexpr double kMostOfOne = 1e15;
constexpr std::int64_t kMostStages = 10'000;

std::vector<std::string_view> split(std::string_view text, std::string_view separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const auto at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + separator.size());
  }
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\r')) text.remove_suffix(1);
  return text;
}

using Layer = PipedreamProfile::Node;

bool is_input(const Layer& layer) {
  return layer.description.starts_with("Input");
}

class PipedreamReader {
 public:
  PipedreamReader(std::string_view text, const std::string& file) : text_(text) { profile_.file = file; }

  PipedreamProfile read() {
    for (const std::string_view line : split(text_, "\n")) {
      ++line_;
      if (trimmed(line).empty() || trimmed(line) == "\t") continue;
      if (line.front() == '\t') {
        edges_.push_back({line_, trimmed(line.substr(1))});
      } else {
        read_node(trimmed(line));
      }
    }
    for (const auto& [number, line] : edges_) {
      line_ = number;
      read_edge(line);
    }
    return std::move(profile_);
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const {
    throw InputError(profile_.file + ":" + std::to_string(line_) + ": " + problem);
  }

  double number(std::string_view text) const {
    double value = 0;
    text = trimmed(text);
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || !(value >= 0 && value <= kMostOfOne)) {
      fail(quote(text) + " is not a number from 0 to 1e15");
    }
    return value;
  }

  void read_node(std::string_view line) {
    const std::vector<std::string_view> parts = split(line, " -- ");
    if (parts.size() != 3 && parts.size() != 4) {
      fail("expected 'node -- description -- forward_compute_time=…, …', or a tab and 'node -- node'");
    }
    const std::string id(trimmed(parts[0]));
    const bool plain =
        !id.empty() && id.size() <= 100 && std::all_of(id.begin(), id.end(), [](unsigned char c) {
          return std::isalnum(c) != 0 || c == '_' || c == '.' || c == '-';
        });
    if (!plain) fail(quote(id) + " is not a node's name: letters, digits, '_', '.' and '-'");
    if (!index_.emplace(id, profile_.nodes.size()).second) fail("node " + quote(id) + " stands twice");
    Layer layer;
    layer.description = one_line(trimmed(parts[1]));
    read_fields(parts[2], layer);
    if (parts.size() == 4) {
      constexpr std::string_view kStage = "stage_id=";
      const std::string_view stage = trimmed(parts[3]);
      if (!stage.starts_with(kStage)) fail("expected 'stage_id=…' behind the figures, not " + quote(stage));
      const double value = number(stage.substr(kStage.size()));
      if (value != std::floor(value) || value >= kMostStages)
        fail(quote(stage) + " is not a stage number below 10000");
      layer.stage = static_cast<std::int64_t>(value);
    }
    layer.id = id;
    profile_.nodes.push_back(std::move(layer));
  }

  void read_fields(std::string_view text, Layer& layer) {
    std::map<std::string_view, double*> missing{{"forward_compute_time", &layer.forward},
                                                {"backward_compute_time", &layer.backward},
                                                {"activation_size", &layer.activation},
                                                {"parameter_size", &layer.parameters}};
    for (const std::string_view field : split(text, ", ")) {
      const auto equals = field.find('=');
      const auto found = missing.find(trimmed(field.substr(0, equals)));
      if (equals == std::string_view::npos || found == missing.end())
        fail(quote(field) + " is not a figure due here");
      std::string_view value = trimmed(field.substr(equals + 1));
      if (found->first == "activation_size" && value.starts_with('[')) {
        if (!value.ends_with(']')) fail(quote(value) + " has no ']'");
        layer.several_outputs = true;
        for (const std::string_view element : split(value.substr(1, value.size() - 2), ";")) {
          layer.activation += number(element);
        }
        if (layer.activation > kMostOfOne) fail("the activation sizes add up to more than 1e15");
      } else {
        *found->second = number(value);
      }
      missing.erase(found);
    }
    if (!missing.empty()) fail("'" + std::string(missing.begin()->first) + "' is missing");
  }

  void read_edge(std::string_view line) {
    const std::vector<std::string_view> ends = split(line, " -- ");
    if (ends.size() != 2) fail("expected an edge 'node -- node' behind the tab");
    std::size_t node[2];
    for (std::size_t i = 0; i < 2; ++i) {
      const auto found = index_.find(std::string(trimmed(ends[i])));
      if (found == index_.end()) fail("there is no node " + quote(ends[i]));
      node[i] = found->second;
    }
    profile_.edges.push_back({node[0], node[1]});
  }

  std::string_view text_;
  PipedreamProfile profile_;
  std::vector<std::pair<std::size_t, std::string_view>> edges_;
  std::unordered_map<std::string, std::size_t> index_;
  std::size_t line_ = 0;
};

class PipedreamImporter {
 public:
  PipedreamImporter(const PipedreamProfile& published, const ImportOptions& options)
      : layers_(published.nodes), options_(options) {
    profile_.file = published.file;
    profile_.name = file_stem(published.file);
    for (const Layer& layer : layers_) {
      ProfileNode node;
      node.name = layer.id;
      profile_.nodes.push_back(std::move(node));
    }
    for (const PipedreamProfile::Edge& edge : published.edges)
      profile_.edges.push_back({edge.from, edge.to, Bytes()});
  }

  Imported make() {
    find_batch();
    for (std::size_t i = 0; i < layers_.size(); ++i) describe(i);
    if (loading_ > 0) {
      warnings_.push_back("the forward time of Input nodes is data loading and left out: " +
                          to_text(round_duration(loading_ * 1e6)));
    }
    const std::vector<ProfileEdge> edges = profile_.edges;
    const BatchSize batch = profile_.batch;
    BuiltProfile built = build_profile(std::move(profile_));
    Imported result{.graph = std::move(built.graph)};
    result.costs = std::move(built.costs);
    add_cluster_and_plan(result, built.order, edges, batch);
    result.warnings = std::move(warnings_);
    return result;
  }

 private:
  // Samples = bytes / 4 / out_features of every Linear layer, if all give one whole number.
  void find_batch() {
    std::optional<std::int64_t> batch;
    constexpr std::string_view kFeatures = "out_features=";
    for (const Layer& layer : layers_) {
      const auto at = layer.description.find(kFeatures);
      if (!layer.description.starts_with("Linear(") || at == std::string::npos) continue;
      std::int64_t features = 0;
      const char* const begin = layer.description.data() + at + kFeatures.size();
      const auto [end, error] =
          std::from_chars(begin, layer.description.data() + layer.description.size(), features);
      if (error != std::errc() || features <= 0 || features > (1 << 30)) continue;
      const auto bytes = static_cast<std::int64_t>(layer.activation);
      const std::int64_t samples = bytes / 4 / features;
      const bool whole = samples >= 1 && samples * 4 * features == bytes;
      if (!whole || (batch && *batch != samples)) {
        batch.reset();
        break;
      }
      batch = samples;
    }
    if (batch && *batch <= 1'000'000) {
      profile_.batch = BatchSize(*batch);
    } else {
      warnings_.push_back("the profile does not tell its mini-batch: one mini-batch counts as one sample");
    }
  }

  // Costs, memory and part-of relation of a node, once edges are known.
  void describe(std::size_t i) {
    const Layer& layer = layers_[i];
    ProfileNode& node = profile_.nodes[i];
    const bool repair = options_.repair == Repair::kRepair;
    const bool loads_data = is_input(layer) && repair;
    node.target = layer.description;
    node.stored = round_bytes(layer.parameters);
    node.trainable = true;
    node.output = round_bytes(layer.activation);
    node.duplicable = loads_data && node.stored.count() == 0 && !has_input(i);
    if (repair && layer.description.starts_with("__getitem__")) node.part_of = list_behind(i);
    OperatorCost cost;
    if (loads_data) loading_ += layer.forward;
    cost.forward = loads_data ? Duration() : round_duration(layer.forward * 1e6);
    const Duration backward = round_duration(layer.backward * 1e6);
    cost.weight_gradient = node.stored.count() > 0 ? backward / 2 : Duration();
    cost.input_gradient = backward - cost.weight_gradient;
    cost.saved = {{.side = SavedTensor::Side::kOutput, .index = 0}};
    cost.origin = Origin::kProfile;
    CostRow row;
    row.kind = kProfiledKind;
    row.points.push_back({profile_.batch, cost});
    node.costs.push_back(std::move(row));
  }

  bool has_input(std::size_t node) {
    if (readers_.empty()) {
      readers_.assign(layers_.size(), 0);
      source_.assign(layers_.size(), 0);
      for (const ProfileEdge& edge : profile_.edges) ++readers_[edge.to], source_[edge.to] = edge.from;
    }
    return readers_[node] > 0;
  }

  // The module with several outputs that a __getitem__ node reads, if that is all it reads.
  std::optional<std::size_t> list_behind(std::size_t node) {
    if (!has_input(node) || readers_[node] != 1) return std::nullopt;
    const std::size_t source = source_[node];
    const bool part = source != node && layers_[source].several_outputs &&
                      layers_[source].activation >= layers_[node].activation;
    return part ? std::optional(source) : std::nullopt;
  }

  void add_cluster_and_plan(Imported& result, const std::vector<OperatorId>& order,
                            const std::vector<ProfileEdge>& edges, BatchSize batch) {
    std::map<std::int64_t, std::size_t> stages;  // number in the file → ours
    std::size_t without = 0;
    for (const Layer& layer : layers_) {
      if (layer.stage) stages.emplace(*layer.stage, 0);
      without += layer.stage ? 0 : 1;
    }
    const std::size_t devices = stages.empty() ? 4 : stages.size();
    result.cluster = flat_cluster(kProfiledKind, devices, gibibytes(16), 3'125'000'000);
    warnings_.push_back("the profile names no machine: without --cluster, " + std::to_string(devices) +
                        " devices of 16 GiB joined at 25 Gb/s are assumed");
    if (stages.empty()) return;
    if (without > 0) {
      warnings_.push_back(std::to_string(without) +
                          " nodes have no stage_id: the plan in the file is left out");
      return;
    }
    std::size_t next = 0;
    for (auto& [number, stage] : stages) stage = next++;
    PipelinePlan plan = make_plan(stages, order, edges, batch);
    const std::vector<std::string> violations = check_plan(result.graph, *result.cluster, plan);
    if (violations.empty()) {
      result.plan = std::move(plan);
    } else {
      warnings_.push_back("the plan in the file is left out: " + violations.front());
    }
  }

  PipelinePlan make_plan(const std::map<std::int64_t, std::size_t>& stages,
                         const std::vector<OperatorId>& order, const std::vector<ProfileEdge>& edges,
                         BatchSize batch) const {
    PipelinePlan plan;
    plan.batch = batch * static_cast<std::int64_t>(stages.size());
    plan.stages.resize(stages.size());
    const auto stage_of = [&](std::size_t node) { return stages.at(*layers_[node].stage); };
    for (std::size_t i = 0; i < layers_.size(); ++i) plan.stages[stage_of(i)].operators.push_back(order[i]);
    for (const ProfileEdge& edge : edges) {
      const std::size_t from = stage_of(edge.from), to = stage_of(edge.to);
      if (from == to) continue;
      const bool copied = options_.repair == Repair::kRepair && is_input(layers_[edge.from]);
      if (copied) {
        plan.stages[to].operators.push_back(order[edge.from]);
      } else {
        plan.stages[to].after.push_back(StageId(from));
      }
    }
    for (std::size_t s = 0; s < plan.stages.size(); ++s) {
      Stage& stage = plan.stages[s];
      const auto tidy = [](auto& ids) {
        std::sort(ids.begin(), ids.end());
        ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
      };
      tidy(stage.operators);
      tidy(stage.after);
      stage.name = "s" + std::to_string(s);
      stage.micro_batch = batch;
      stage.replicas = {{.devices = {DeviceId(s)},
                         .micro_batches = round_robin(static_cast<std::uint32_t>(stages.size()), 0, 1)}};
    }
    const std::vector<std::uint32_t> limits = in_flight_limits(plan);
    for (std::size_t s = 0; s < plan.stages.size(); ++s) plan.stages[s].in_flight = limits[s];
    return plan;
  }

  const std::vector<Layer>& layers_;
  ImportOptions options_;
  Profile profile_;
  std::vector<std::size_t> readers_, source_;  // by node: edges into it, and where the last comes from
  std::vector<std::string> warnings_;
  double loading_ = 0;  // ms
};

}  // namespace

PipedreamProfile read_pipedream(std::string_view text, const std::string& file) {
  return PipedreamReader(text, file).read();
}

Imported import_pipedream(std::string_view text, const std::string& name, const ImportOptions& options) {
  const PipedreamProfile published = read_pipedream(text, name);
  return PipedreamImporter(published, options).make();
}

}  // namespace espalier
