// The JSON of msr-fiddle/piper (Tarnawski, Narayanan, Phanishayee, NeurIPS'21).
//
// A layer has, per degree of tensor parallelism, a way to run it plainly and one that recomputes its
// activations: variants of its cost rows. The unit of batch is one micro-batch; a batch has `mbsInBatch`.
//
// Published oddities, and what becomes of them:
// - `timePerSample` is the forward and backward time of one micro-batch: in seconds in bert32a100.json, in
//   milliseconds in gnmt.json. A mean above half a second per layer is taken for milliseconds, and repaired.
// - It is one figure. Recomputing runs the forward part once more, so the difference of the two ways is the
//   forward time; where that is no plausible share (a tenth to three quarters), a third is taken. The
//   backward part is halved between inputs and weights; a layer without weights has none for weights.
// - Memory A·y + B with y micro-batches in flight: A is kept for backward; B holds weights and gradients (the
//   parameters here) and the rest, which becomes workspace.
// - Bytes are charged per edge. Equal bytes from one source are one tensor, sent once to each device;
//   literally read, each edge has its own.
// - syncTimeFw and syncTimeBw (bytes, despite the name) have no counterpart and are left out with a warning.

#include <algorithm>

#include "espalier/base/check.h"
#include "espalier/base/json.h"
#include "espalier/frontend/decode.h"
#include "espalier/frontend/imported.h"
#include "espalier/frontend/profile.h"

namespace espalier {
namespace {

constexpr double kMostSeconds = 1e9;

// One way to run a layer.
struct Way {
  Variant variant;
  double time = 0;
  Bytes parameters, per_micro_batch, fixed;
};

class PiperReader {
 public:
  PiperReader(const Json& json, const std::string& name, const ImportOptions& options)
      : root_(json, name), options_(options) {
    profile_.file = name;
    profile_.name = file_stem(name);
    if (options.repair == Repair::kLiteral) profile_.tensors = EdgeTensors::kPerEdge;
  }

  Imported read() {
    const std::int64_t devices = root_.at("maxDevices").integer(1, 10'000);
    const Bytes memory = round_bytes(root_.at("maxMemoryPerDevice").number(1, kMostProfiledBytes));
    const Bytes bandwidth = round_bytes(root_.at("bandwidth").number(1, kMostProfiledBytes));
    const BatchSize batch(root_.at("mbsInBatch").integer(1, 1'000'000'000));
    const JsonCursor nodes = root_.at("nodes");
    for (std::size_t i = 0; i < nodes.size(); ++i) read_node(nodes.at(i));
    find_unit();
    for (std::size_t i = 0; i < ways_.size(); ++i) add_costs(i);
    const JsonCursor edges = root_.at("edges");
    for (std::size_t i = 0; i < edges.size(); ++i) {
      const JsonCursor in = edges.at(i);
      profile_.edges.push_back({numbers_.at(in.at("sourceId")), numbers_.at(in.at("destId")),
                                round_bytes(in.at("communicationCost").number(0, kMostProfiledBytes))});
    }
    if (syncs_ > 0) {
      warnings_.push_back(
          std::to_string(syncs_) +
          " figures of extra exchange among tensor-parallel devices at stage borders (syncTimeFw, "
          "syncTimeBw) are left out");
    }
    BuiltProfile built = build_profile(std::move(profile_));
    Imported result{.graph = std::move(built.graph)};
    result.costs = std::move(built.costs);
    result.cluster =
        flat_cluster(kProfiledKind, static_cast<std::size_t>(devices), memory, bandwidth.count());
    result.batch = batch;
    result.warnings = std::move(warnings_);
    return result;
  }

 private:
  void read_node(const JsonCursor& in) {
    ProfileNode node;
    node.name = "n" + std::to_string(numbers_.add(in.at("id")));
    node.target = one_line(in.at("name").string());
    std::vector<Way> ways;
    for (const auto& [degree, list] : in.at("TMPCs").members()) {
      if (degree.empty() || degree.size() > 4 ||
          degree.find_first_not_of("0123456789") != std::string::npos || degree[0] == '0') {
        list.fail("is no degree of tensor parallelism; expected a number such as \"2\"");
      }
      const auto devices = static_cast<std::uint32_t>(std::stoul(degree));
      for (std::size_t w = 0; w < list.size(); ++w) ways.push_back(read_way(list.at(w), devices));
    }
    if (ways.empty()) in.at("TMPCs").fail("has no way to run the layer");
    const auto by_variant = [](const Way& a, const Way& b) { return a.variant < b.variant; };
    std::sort(ways.begin(), ways.end(), by_variant);
    const auto twice = std::adjacent_find(ways.begin(), ways.end(),
                                          [](const Way& a, const Way& b) { return a.variant == b.variant; });
    if (twice != ways.end()) in.at("TMPCs").fail("has one way to run the layer twice");
    // The whole layer's weights; at a degree they are shared.
    node.stored = Bytes(ways.front().parameters.count() * ways.front().variant.tensor_parallel);
    node.trainable = node.stored.count() > 0;
    profile_.nodes.push_back(std::move(node));
    ways_.push_back(std::move(ways));
  }

  Way read_way(const JsonCursor& in, std::uint32_t devices) {
    const std::string id = in.at("id").string();
    if (id != "vanilla" && id != "activation recomp") {
      in.at("id").fail("is " + quote(id) + "; expected 'vanilla' or 'activation recomp'");
    }
    for (const char* key : {"syncTimeFw", "syncTimeBw"}) {
      if (!in.has(key)) continue;
      for (const auto& [peer, bytes] : in.at(key).members())
        syncs_ += bytes.number(0, kMostProfiledBytes) > 0 ? 1 : 0;
    }
    return {.variant = {.tensor_parallel = devices, .recompute = id != "vanilla"},
            .time = in.at("timePerSample").number(0, kMostSeconds),
            .parameters = round_bytes(in.at("parameterSize").number(0, kMostProfiledBytes)),
            .per_micro_batch = round_bytes(in.at("memoryUsageA").number(0, kMostProfiledBytes)),
            .fixed = round_bytes(in.at("memoryUsageB").number(0, kMostProfiledBytes))};
  }

  void find_unit() {
    double sum = 0;
    std::size_t layers = 0;
    for (const std::vector<Way>& ways : ways_) {
      if (ways.front().time <= 0) continue;
      sum += ways.front().time;
      ++layers;
    }
    if (options_.repair == Repair::kLiteral || layers == 0 || sum / static_cast<double>(layers) <= 0.5)
      return;
    nanoseconds_ = 1e6;
    warnings_.push_back(
        "times are in milliseconds beside a bandwidth per second (the mean layer would take over "
        "half a second): read as milliseconds");
  }

  // The time of the forward part: what recomputing adds, where that is plausible.
  Duration forward_time(const std::vector<Way>& ways, std::uint32_t degree, Duration plain) const {
    const auto recomputing = std::find_if(ways.begin(), ways.end(), [&](const Way& way) {
      return way.variant == Variant{.tensor_parallel = degree, .recompute = true};
    });
    if (recomputing != ways.end()) {
      const Duration added = round_duration(recomputing->time * nanoseconds_) - plain;
      if (added * 10 >= plain && added * 4 <= plain * 3) return added;
    }
    return plain / 3;
  }

  void add_costs(std::size_t i) {
    const std::vector<Way>& ways = ways_[i];
    for (const Way& way : ways) {
      const auto plain = std::find_if(ways.begin(), ways.end(), [&](const Way& other) {
        return other.variant == Variant{.tensor_parallel = way.variant.tensor_parallel, .recompute = false};
      });
      const Duration total = round_duration(way.time * nanoseconds_);
      const Duration basis = plain == ways.end() ? total : round_duration(plain->time * nanoseconds_);
      OperatorCost cost;
      cost.forward = std::min(total, forward_time(ways, way.variant.tensor_parallel, basis));
      const Duration backward = total - cost.forward;
      cost.weight_gradient = way.parameters.count() > 0 ? backward / 2 : Duration();
      cost.input_gradient = backward - cost.weight_gradient;
      cost.private_bytes = way.per_micro_batch;
      cost.workspace = Bytes(std::max<std::int64_t>(0, way.fixed.count() - 2 * way.parameters.count()));
      cost.origin = Origin::kProfile;
      CostRow row;
      row.kind = kProfiledKind;
      row.variant = way.variant;
      row.points.push_back({BatchSize(1), cost});
      profile_.nodes[i].costs.push_back(std::move(row));
    }
  }

  JsonCursor root_;
  ImportOptions options_;
  Profile profile_;
  std::vector<std::vector<Way>> ways_;
  NodeNumbers numbers_;
  std::vector<std::string> warnings_;
  std::size_t syncs_ = 0;
  double nanoseconds_ = 1e9;  // in one unit of timePerSample
};

}  // namespace

Imported import_piper(std::string_view text, const std::string& name, const ImportOptions& options) {
  const Json json = parse_json(text, name);
  return PiperReader(json, name, options).read();
}

}  // namespace espalier
