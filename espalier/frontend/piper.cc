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
#include "espalier/frontend/published.h"

namespace espalier {
namespace {

constexpr double kMostSeconds = 1e9;

using Way = PiperProfile::Way;

bool is_way(const Way& way, std::uint32_t degree, bool recompute) {
  return way.degree == degree && way.recompute == recompute;
}

class PiperImporter {
 public:
  PiperImporter(const PiperProfile& published, const ImportOptions& options)
      : published_(published), options_(options) {
    profile_.file = published.file;
    profile_.name = file_stem(published.file);
    if (options.repair == Repair::kLiteral) profile_.tensors = EdgeTensors::kPerEdge;
  }

  Imported make() {
    for (const PiperProfile::Node& node : published_.nodes) add_node(node);
    find_unit();
    for (std::size_t i = 0; i < published_.nodes.size(); ++i) add_costs(i);
    for (const PiperProfile::Edge& edge : published_.edges)
      profile_.edges.push_back({edge.from, edge.to, round_bytes(edge.bytes)});
    if (syncs_ > 0) {
      warnings_.push_back(
          std::to_string(syncs_) +
          " figures of extra exchange among tensor-parallel devices at stage borders (syncTimeFw, "
          "syncTimeBw) are left out");
    }
    BuiltProfile built = build_profile(std::move(profile_));
    Imported result{.graph = std::move(built.graph)};
    result.costs = std::move(built.costs);
    result.cluster = flat_cluster(kProfiledKind, static_cast<std::size_t>(published_.devices),
                                  round_bytes(published_.memory), round_bytes(published_.bandwidth).count());
    result.batch = BatchSize(published_.micro_batches);
    result.warnings = std::move(warnings_);
    return result;
  }

 private:
  void add_node(const PiperProfile::Node& in) {
    ProfileNode node;
    node.name = "n" + std::to_string(in.id);
    node.target = in.name;
    // The whole layer's weights; at a degree they are shared.
    node.stored = Bytes(round_bytes(in.ways.front().parameters).count() * in.ways.front().degree);
    node.trainable = node.stored.count() > 0;
    profile_.nodes.push_back(std::move(node));
    for (const Way& way : in.ways) {
      for (const auto* peers : {&way.sync_forward, &way.sync_backward}) {
        syncs_ += static_cast<std::size_t>(
            std::count_if(peers->begin(), peers->end(), [](const auto& peer) { return peer.bytes > 0; }));
      }
    }
  }

  void find_unit() {
    double sum = 0;
    std::size_t layers = 0;
    for (const PiperProfile::Node& node : published_.nodes) {
      if (node.ways.front().time <= 0) continue;
      sum += node.ways.front().time;
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
    const auto recomputing =
        std::find_if(ways.begin(), ways.end(), [&](const Way& way) { return is_way(way, degree, true); });
    if (recomputing != ways.end()) {
      const Duration added = round_duration(recomputing->time * nanoseconds_) - plain;
      if (added * 10 >= plain && added * 4 <= plain * 3) return added;
    }
    return plain / 3;
  }

  void add_costs(std::size_t i) {
    const std::vector<Way>& ways = published_.nodes[i].ways;
    for (const Way& way : ways) {
      const auto plain = std::find_if(ways.begin(), ways.end(),
                                      [&](const Way& other) { return is_way(other, way.degree, false); });
      const Bytes parameters = round_bytes(way.parameters);
      const Duration total = round_duration(way.time * nanoseconds_);
      const Duration basis = plain == ways.end() ? total : round_duration(plain->time * nanoseconds_);
      OperatorCost cost;
      cost.forward = std::min(total, forward_time(ways, way.degree, basis));
      const Duration backward = total - cost.forward;
      cost.weight_gradient = parameters.count() > 0 ? backward / 2 : Duration();
      cost.input_gradient = backward - cost.weight_gradient;
      cost.private_bytes = round_bytes(way.memory_per_micro_batch);
      cost.workspace =
          Bytes(std::max<std::int64_t>(0, round_bytes(way.memory_fixed).count() - 2 * parameters.count()));
      cost.origin = Origin::kProfile;
      CostRow row;
      row.kind = kProfiledKind;
      row.variant = {.tensor_parallel = way.degree, .recompute = way.recompute};
      row.points.push_back({BatchSize(1), cost});
      profile_.nodes[i].costs.push_back(std::move(row));
    }
  }

  const PiperProfile& published_;
  ImportOptions options_;
  Profile profile_;
  std::vector<std::string> warnings_;
  std::size_t syncs_ = 0;
  double nanoseconds_ = 1e9;  // in one unit of timePerSample
};

std::vector<PiperProfile::PeerBytes> read_peers(const JsonCursor& in, const char* key) {
  std::vector<PiperProfile::PeerBytes> result;
  if (!in.has(key)) return result;
  for (const auto& [peer, bytes] : in.at(key).members())
    result.push_back({peer, bytes.number(0, kMostProfiledBytes)});
  return result;
}

Way read_way(const JsonCursor& in, std::uint32_t degree) {
  const std::string id = in.at("id").string();
  if (id != "vanilla" && id != "activation recomp")
    in.at("id").fail("is " + quote(id) + "; expected 'vanilla' or 'activation recomp'");
  return {.degree = degree,
          .recompute = id != "vanilla",
          .time = in.at("timePerSample").number(0, kMostSeconds),
          .parameters = in.at("parameterSize").number(0, kMostProfiledBytes),
          .memory_per_micro_batch = in.at("memoryUsageA").number(0, kMostProfiledBytes),
          .memory_fixed = in.at("memoryUsageB").number(0, kMostProfiledBytes),
          .sync_forward = read_peers(in, "syncTimeFw"),
          .sync_backward = read_peers(in, "syncTimeBw")};
}

std::vector<Way> read_ways(const JsonCursor& in) {
  std::vector<Way> ways;
  for (const auto& [degree, list] : in.members()) {
    if (degree.empty() || degree.size() > 4 || degree.find_first_not_of("0123456789") != std::string::npos ||
        degree[0] == '0') {
      list.fail("is no degree of tensor parallelism; expected a number such as \"2\"");
    }
    const auto devices = static_cast<std::uint32_t>(std::stoul(degree));
    for (std::size_t w = 0; w < list.size(); ++w) ways.push_back(read_way(list.at(w), devices));
  }
  if (ways.empty()) in.fail("has no way to run the layer");
  const auto key = [](const Way& way) { return std::pair(way.degree, way.recompute); };
  std::stable_sort(ways.begin(), ways.end(), [&](const Way& a, const Way& b) { return key(a) < key(b); });
  const auto twice = std::adjacent_find(ways.begin(), ways.end(),
                                        [&](const Way& a, const Way& b) { return key(a) == key(b); });
  if (twice != ways.end()) in.fail("has one way to run the layer twice");
  return ways;
}

}  // namespace

PiperProfile read_piper(std::string_view text, const std::string& file) {
  const Json json = parse_json(text, file);
  const JsonCursor root(json, file);
  PiperProfile result;
  result.file = file;
  result.devices = root.at("maxDevices").integer(1, 10'000);
  result.memory = root.at("maxMemoryPerDevice").number(1, kMostProfiledBytes);
  result.bandwidth = root.at("bandwidth").number(1, kMostProfiledBytes);
  result.micro_batches = root.at("mbsInBatch").integer(1, 1'000'000'000);
  NodeNumbers numbers;
  const JsonCursor nodes = root.at("nodes");
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const JsonCursor in = nodes.at(i);
    const std::int64_t id = numbers.add(in.at("id"));
    result.nodes.push_back(
        {.id = id, .name = one_line(in.at("name").string()), .ways = read_ways(in.at("TMPCs"))});
  }
  const JsonCursor edges = root.at("edges");
  for (std::size_t i = 0; i < edges.size(); ++i) {
    const JsonCursor in = edges.at(i);
    result.edges.push_back({numbers.at(in.at("sourceId")), numbers.at(in.at("destId")),
                            in.at("communicationCost").number(0, kMostProfiledBytes)});
  }
  return result;
}

Imported import_piper(std::string_view text, const std::string& name, const ImportOptions& options) {
  const PiperProfile published = read_piper(text, name);
  return PiperImporter(published, options).make();
}

}  // namespace espalier
