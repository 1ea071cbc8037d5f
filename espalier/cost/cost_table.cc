#include "espalier/cost/cost_table.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <iterator>
#include <set>
#include <tuple>
#include <unordered_map>

#include "espalier/base/check.h"
#include "espalier/base/hash.h"
#include "espalier/cost/analytic.h"
#include "espalier/cost/implementations.h"

namespace espalier {
namespace {

constexpr std::int64_t kLimit = std::int64_t{1} << 62;
// Cells stay below this (4.9 hours, 16 TiB), so that sums over a hundred thousand operators stay exact.
constexpr std::int64_t kCellLimit = std::int64_t{1} << 44;

auto group_of(const CostRow& row) {
  return std::tuple<std::string_view, std::string_view, Variant>(row.op_class, row.kind, row.variant);
}

auto key_of(const CostRow& row) {
  return std::tuple_cat(group_of(row), std::tuple<std::string_view>(row.implementation));
}

std::string name_of(const CostRow& row) {
  std::string name = "cost of '" + row.op_class + "' on '" + row.kind + "'";
  if (row.variant.tensor_parallel != 1) {
    name += ", tensor-parallel " + std::to_string(row.variant.tensor_parallel);
  }
  if (row.variant.recompute) name += ", recompute";
  return row.implementation.empty() ? name : name + ", by '" + row.implementation + "'";
}

bool is_plain_name(std::string_view name) {
  return std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-';
  });
}

bool in_range(std::int64_t value) {
  return value >= 0 && value <= kCellLimit;
}

void check_point(const std::string& row, const CostRow::Point& point, std::vector<std::string>& found) {
  const std::string where = row + " at batch " + std::to_string(point.batch.count());
  if (point.batch.count() < 1) found.push_back(where + ": a batch is at least 1");
  const OperatorCost& cost = point.cost;
  const std::pair<const char*, std::int64_t> figures[] = {
      {"forward", cost.forward.count()},
      {"input gradient", cost.input_gradient.count()},
      {"weight gradient", cost.weight_gradient.count()},
      {"private bytes", cost.private_bytes.count()},
      {"bytes between halves", cost.between_halves.count()},
      {"workspace", cost.workspace.count()},
      {"private bytes for the input half", cost.private_for_input.count()},
      {"bytes reduced in forward", cost.reduced_forward.count()},
      {"bytes reduced in backward", cost.reduced_backward.count()},
  };
  for (const auto& [name, value] : figures) {
    if (in_range(value)) continue;
    found.push_back(where + ": " + name + " is " + std::to_string(value) + "; expected 0 to 2^44");
  }
  if (cost.private_bytes < cost.private_for_input) {
    found.push_back(where + ": more private bytes are for the input half than there are");
  }
  if (std::adjacent_find(cost.saved.begin(), cost.saved.end(), [](auto a, auto b) {
        return std::pair(a.side, a.index) >= std::pair(b.side, b.index);
      }) != cost.saved.end()) {
    found.push_back(where + ": saved tensors are not ascending, each once");
  }
}

void check_overhead(const KindOverhead& overhead, std::vector<std::string>& found) {
  const std::string where = "overhead of '" + overhead.kind + "'";
  if (overhead.kind.empty()) found.push_back("an overhead has no device kind");
  if (!in_range(overhead.per_action.count())) found.push_back(where + ": per action is out of range");
  if (overhead.neighbour_per_mille < 0 || overhead.neighbour_per_mille > 1'000'000) {
    found.push_back(where + ": neighbour is " + std::to_string(overhead.neighbour_per_mille) +
                    " per mille; expected 0 to 1000000");
  }
  const ActionScatter& scatter = overhead.scatter;
  for (const auto& [name, per_mille] : {std::pair("spread", scatter.spread_per_mille),
                                        std::pair("device spread", scatter.device_per_mille)}) {
    if (per_mille >= 0 && per_mille <= 1000) continue;
    found.push_back(where + ": " + name + " is " + std::to_string(per_mille) +
                    " per mille; expected 0 to 1000");
  }
  if (!in_range(scatter.first.count())) found.push_back(where + ": first action is out of range");
  for (std::size_t i = 0; i < overhead.updates.size(); ++i) {
    const KindOverhead::Update& update = overhead.updates[i];
    if (!in_range(update.fixed.count()) || !in_range(update.picoseconds_per_byte)) {
      found.push_back(where + ": update by " + std::string(to_text(update.optimizer)) + " is out of range");
    }
    if (i > 0 && !(overhead.updates[i - 1].optimizer < update.optimizer)) {
      found.push_back(where + ": updates are not sorted by optimizer, each once");
    }
  }
}

// ⌊(a·(x1-x) + b·(x-x0)) / (x1-x0) + rounding⌋ through (x0, a) and (x1, b), clamped to [0, 2^44].
enum class Round : std::uint8_t { kHalfUp, kUp };
std::int64_t line_at(std::int64_t x0, std::int64_t a, std::int64_t x1, std::int64_t b, std::int64_t x,
                     Round round) {
  __extension__ using Wide = __int128;
  const Wide width = static_cast<Wide>(x1) - x0;
  // a·width + (b-a)·(x-x0): |b-a| ≤ 2^44 and batches below 2^62 keep it below 2^107.
  const Wide scaled = static_cast<Wide>(a) * width + (static_cast<Wide>(b) - a) * (static_cast<Wide>(x) - x0);
  if (scaled <= 0) return 0;
  const Wide value = round == Round::kUp ? (scaled + width - 1) / width : (2 * scaled + width) / (2 * width);
  return value > kCellLimit ? kCellLimit : static_cast<std::int64_t>(value);
}

Duration divided(Duration time, double speed) {
  return speed == 1 ? time : round_duration(static_cast<double>(time.count()) / speed);
}

void add_cost(Fingerprint& hash, const OperatorCost& cost) {
  for (const Duration time : {cost.forward, cost.input_gradient, cost.weight_gradient}) {
    hash.add(static_cast<std::uint64_t>(time.count()));
  }
  for (const Bytes bytes : {cost.private_bytes, cost.between_halves, cost.workspace}) {
    hash.add(static_cast<std::uint64_t>(bytes.count()));
  }
  hash.add(cost.saved.size());
  for (const SavedTensor& saved : cost.saved) {
    hash.add(std::uint64_t{saved.index} * 2 + (saved.side == SavedTensor::Side::kOutput ? 1 : 0));
    if (saved.for_input_only) hash.add("for input only");  // tables without it keep their hashes
  }
  if (cost.private_for_input != Bytes()) {
    hash.add("private for input");
    hash.add(static_cast<std::uint64_t>(cost.private_for_input.count()));
  }
  if (cost.reduced_forward != Bytes() || cost.reduced_backward != Bytes()) {
    hash.add("reduced");
    hash.add(static_cast<std::uint64_t>(cost.reduced_forward.count()));
    hash.add(static_cast<std::uint64_t>(cost.reduced_backward.count()));
  }
  hash.add(static_cast<std::uint64_t>(cost.origin) * 2 + (cost.extrapolated ? 1 : 0));
}

// Which part of its class's cell an operator runs. The first four stand in a forward graph, the others in a
// training graph.
enum class Part : std::uint8_t {
  kForward,         // no gradient flows through it
  kForwardWeights,  // with the weight half of its backward
  kForwardInputs,   // with its input half
  kForwardBoth,
  kForwardAlone,  // its backward is an operator of its own
  kBackwardWeights,
  kBackwardInputs,
  kBackwardBoth,
  kUpdate,
};
constexpr std::size_t kParts = 9;

Part part_in_forward_graph(const Graph& graph, const Operator& op) {
  const BackwardHalves halves = backward_halves(graph, op);
  if (!halves.input && !halves.weights) return Part::kForward;
  if (!halves.input) return Part::kForwardWeights;
  return halves.weights ? Part::kForwardBoth : Part::kForwardInputs;
}

// `differentiated`, by tensor: its gradient, or a part of it, is a tensor of the graph.
Part part_in_training_graph(const Graph& graph, const Operator& op, const std::vector<bool>& differentiated) {
  switch (op.role) {
    case OperatorRole::kForward: {
      const bool any = std::any_of(op.outputs.begin(), op.outputs.end(),
                                   [&](TensorId id) { return differentiated[id.index()]; });
      return any ? Part::kForwardAlone : Part::kForward;
    }
    case OperatorRole::kBackward: {
      const auto is_of_parameter = [&](TensorId id) {
        const auto of = graph.tensor(id).gradient_of;
        return of && graph.tensor(*of).parameter;
      };
      if (std::all_of(op.outputs.begin(), op.outputs.end(), is_of_parameter)) return Part::kBackwardWeights;
      const bool any = std::any_of(op.outputs.begin(), op.outputs.end(), is_of_parameter);
      return any ? Part::kBackwardBoth : Part::kBackwardInputs;
    }
    case OperatorRole::kUpdate:
      break;
  }
  return Part::kUpdate;
}

std::vector<Part> parts_of(const Graph& graph) {
  std::vector<Part> parts;
  parts.reserve(graph.operators().size());
  if (!is_training_graph(graph.operators())) {
    for (const Operator& op : graph.operators()) parts.push_back(part_in_forward_graph(graph, op));
    return parts;
  }
  std::vector<bool> differentiated(graph.tensors().size());
  for (const Tensor& tensor : graph.tensors()) {
    if (tensor.gradient_of) differentiated[tensor.gradient_of->index()] = true;
  }
  for (const Operator& op : graph.operators()) {
    parts.push_back(part_in_training_graph(graph, op, differentiated));
  }
  return parts;
}

OperatorCost part_of(OperatorCost cost, Part part, double speed) {
  cost.forward = divided(cost.forward, speed);
  cost.input_gradient = divided(cost.input_gradient, speed);
  cost.weight_gradient = divided(cost.weight_gradient, speed);
  const bool weights = part == Part::kForwardWeights || part == Part::kBackwardWeights;
  const bool inputs = part == Part::kForwardInputs || part == Part::kBackwardInputs;
  if (weights && cost.origin == Origin::kAnalytic) cost.input_gradient = Duration();
  if (inputs && cost.origin == Origin::kAnalytic) {
    cost.weight_gradient = Duration();
    cost.between_halves = Bytes();
    for (SavedTensor& saved : cost.saved) saved.for_input_only = true;
    cost.private_for_input = cost.private_bytes;
  }
  if (part == Part::kForwardWeights || part == Part::kForwardInputs || part == Part::kForwardBoth)
    return cost;
  if (part == Part::kBackwardWeights || part == Part::kBackwardInputs || part == Part::kBackwardBoth) {
    cost.forward = cost.backward();
    cost.reduced_forward = cost.reduced_backward;
  }
  if (part == Part::kUpdate) cost.forward = Duration(), cost.reduced_forward = Bytes();
  cost.reduced_backward = Bytes();
  cost.input_gradient = cost.weight_gradient = Duration();
  cost.saved.clear();
  cost.between_halves = cost.private_for_input = Bytes();
  if (part != Part::kForwardAlone) cost.private_bytes = Bytes();
  return cost;
}

// One column per operator class and part of its cell; the first operator of each speaks for it.
struct Columns {
  explicit Columns(const Graph& graph) {
    constexpr std::uint32_t kUnseen = 0xffffffff;
    std::array<std::uint32_t, kParts> unseen{};
    unseen.fill(kUnseen);
    std::unordered_map<std::string_view, std::array<std::uint32_t, kParts>> known;
    const std::vector<Part> parts = parts_of(graph);
    of_operator.reserve(parts.size());
    for (std::size_t i = 0; i < parts.size(); ++i) {
      auto& column = known.try_emplace(graph.operators()[i].op_class, unseen)
                         .first->second[static_cast<std::size_t>(parts[i])];
      if (column == kUnseen) {
        column = static_cast<std::uint32_t>(first.size());
        first.emplace_back(i, parts[i]);
      }
      of_operator.push_back(column);
    }
  }

  std::vector<std::uint32_t> of_operator;
  std::vector<std::pair<std::size_t, Part>> first;  // by column
};

}  // namespace

std::string_view to_text(Origin origin) {
  constexpr std::string_view kNames[] = {"measured", "profile", "interpolated", "analytic"};
  return kNames[static_cast<std::size_t>(origin)];
}

std::string_view to_text(OptimizerKind kind) {
  constexpr std::string_view kNames[] = {"sgd", "adam", "adamw"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::optional<OptimizerKind> parse_optimizer(std::string_view text) {
  for (const OptimizerKind kind : {OptimizerKind::kSgd, OptimizerKind::kAdam, OptimizerKind::kAdamW}) {
    if (to_text(kind) == text) return kind;
  }
  return std::nullopt;
}

std::vector<std::string> check_cost_table(const CostTableParts& parts) {
  std::vector<std::string> found;
  if (parts.threads < 1) found.push_back("threads is 0; expected at least 1");
  for (std::size_t i = 0; i < parts.rows.size(); ++i) {
    const CostRow& row = parts.rows[i];
    const std::string name = name_of(row);
    if (row.op_class.empty()) found.push_back("a row has no operator class");
    if (row.kind.empty()) found.push_back(name + ": the device kind is empty");
    if (row.variant.tensor_parallel < 1) found.push_back(name + ": tensor-parallel degree is 0");
    if (!is_plain_name(row.implementation)) {
      found.push_back(name + ": an implementation's name has letters, digits, '.', '_' and '-' alone");
    }
    if (row.points.empty()) found.push_back(name + ": has no point");
    for (std::size_t p = 0; p < row.points.size(); ++p) {
      check_point(name, row.points[p], found);
      if (p > 0 && !(row.points[p - 1].batch < row.points[p].batch)) {
        found.push_back(name + ": batch " + std::to_string(row.points[p].batch.count()) +
                        " is not above the one before it");
      }
    }
    if (i > 0 && !(key_of(parts.rows[i - 1]) < key_of(row))) {
      found.push_back(name + ": rows are not sorted, each once");
    }
  }
  for (std::size_t i = 0; i < parts.overheads.size(); ++i) {
    check_overhead(parts.overheads[i], found);
    if (i > 0 && !(parts.overheads[i - 1].kind < parts.overheads[i].kind)) {
      found.push_back("overhead of '" + parts.overheads[i].kind + "': overheads are not sorted, each once");
    }
  }
  if (parts.link) {
    const MeasuredLink& link = *parts.link;
    if (link.bandwidth < 1) found.push_back("link: bandwidth is not positive");
    const std::int64_t figures[] = {link.latency.count(), link.send.fixed.count(), link.receive.fixed.count(),
                                    link.send.picoseconds_per_byte, link.receive.picoseconds_per_byte};
    if (!std::all_of(std::begin(figures), std::end(figures), in_range)) {
      found.push_back("link: a time is out of range");
    }
  }
  return found;
}

CostTable::CostTable(CostTableParts parts) : parts_(std::move(parts)) {
  for (CostRow& row : parts_.rows) {
    std::stable_sort(row.points.begin(), row.points.end(),
                     [](const auto& a, const auto& b) { return a.batch < b.batch; });
  }
  std::stable_sort(parts_.rows.begin(), parts_.rows.end(),
                   [](const CostRow& a, const CostRow& b) { return key_of(a) < key_of(b); });
  std::stable_sort(parts_.overheads.begin(), parts_.overheads.end(),
                   [](const auto& a, const auto& b) { return a.kind < b.kind; });
  for (KindOverhead& overhead : parts_.overheads) {
    std::stable_sort(overhead.updates.begin(), overhead.updates.end(),
                     [](const auto& a, const auto& b) { return a.optimizer < b.optimizer; });
  }
  const std::vector<std::string> violations = check_cost_table(parts_);
  if (!violations.empty()) throw InputError(violations.front());
}

std::span<const CostRow> CostTable::rows(std::string_view op_class, std::string_view kind,
                                         Variant variant) const {
  const auto wanted = std::tuple(op_class, kind, variant);
  const auto first = std::lower_bound(parts_.rows.begin(), parts_.rows.end(), wanted,
                                      [](const CostRow& r, const auto& key) { return group_of(r) < key; });
  auto last = first;
  while (last != parts_.rows.end() && group_of(*last) == wanted) ++last;
  return {first, last};
}

const CostRow* CostTable::find(std::string_view op_class, std::string_view kind, Variant variant) const {
  const std::span<const CostRow> found = rows(op_class, kind, variant);
  return found.empty() ? nullptr : &found.front();
}

KindOverhead CostTable::overhead(std::string_view kind) const {
  const auto found = std::lower_bound(parts_.overheads.begin(), parts_.overheads.end(), kind,
                                      [](const KindOverhead& o, std::string_view k) { return o.kind < k; });
  if (found != parts_.overheads.end() && found->kind == kind) return *found;
  KindOverhead none;
  none.kind = std::string(kind);
  return none;
}

std::uint64_t CostTable::hash() const {
  Fingerprint hash;
  hash.add(parts_.machine);
  hash.add(parts_.threads);
  hash.add(parts_.torch_version);
  hash.add(parts_.rows.size());
  for (const CostRow& row : parts_.rows) {
    hash.add(row.op_class);
    hash.add(row.kind);
    hash.add(std::uint64_t{row.variant.tensor_parallel} * 2 + (row.variant.recompute ? 1 : 0));
    if (!row.implementation.empty()) hash.add(row.implementation);  // tables without names keep their hashes
    hash.add(row.points.size());
    for (const CostRow::Point& point : row.points) {
      hash.add(static_cast<std::uint64_t>(point.batch.count()));
      add_cost(hash, point.cost);
    }
  }
  hash.add(parts_.overheads.size());
  for (const KindOverhead& overhead : parts_.overheads) {
    hash.add(overhead.kind);
    hash.add(static_cast<std::uint64_t>(overhead.per_action.count()));
    hash.add(static_cast<std::uint64_t>(overhead.neighbour_per_mille));
    if (overhead.scatter != ActionScatter()) {
      hash.add(static_cast<std::uint64_t>(overhead.scatter.spread_per_mille));
      hash.add(static_cast<std::uint64_t>(overhead.scatter.device_per_mille));
      hash.add(static_cast<std::uint64_t>(overhead.scatter.first.count()));
    }
    hash.add(overhead.updates.size());
    for (const KindOverhead::Update& update : overhead.updates) {
      hash.add(static_cast<std::uint64_t>(update.optimizer));
      hash.add(static_cast<std::uint64_t>(update.fixed.count()));
      hash.add(static_cast<std::uint64_t>(update.picoseconds_per_byte));
    }
  }
  if (parts_.link) {
    hash.add(static_cast<std::uint64_t>(parts_.link->bandwidth));
    hash.add(static_cast<std::uint64_t>(parts_.link->latency.count()));
    for (const EndpointCost& end : {parts_.link->send, parts_.link->receive}) {
      hash.add(static_cast<std::uint64_t>(end.fixed.count()));
      hash.add(static_cast<std::uint64_t>(end.picoseconds_per_byte));
    }
  }
  return hash.value();
}

OperatorCost cost_at(const CostRow& row, BatchSize batch) {
  const std::vector<CostRow::Point>& points = row.points;
  ESP_CHECK(!points.empty(), row.op_class);
  const auto above = std::lower_bound(points.begin(), points.end(), batch,
                                      [](const CostRow::Point& p, BatchSize b) { return p.batch < b; });
  if (above != points.end() && above->batch == batch) return above->cost;

  // The segment that holds the batch or is nearest to it; with a single point, the line to the origin.
  static const CostRow::Point kOrigin{BatchSize(0), OperatorCost{}};
  const std::size_t i = static_cast<std::size_t>(above - points.begin());
  const std::size_t right = points.size() == 1 ? 0 : std::clamp<std::size_t>(i, 1, points.size() - 1);
  const CostRow::Point& b = points[right];
  const CostRow::Point& a = points.size() == 1 ? kOrigin : points[right - 1];
  const bool outside = above == points.begin() || above == points.end();

  const auto time = [&](Duration OperatorCost::*field) {
    return Duration(line_at(a.batch.count(), (a.cost.*field).count(), b.batch.count(),
                            (b.cost.*field).count(), batch.count(), Round::kHalfUp));
  };
  const auto bytes = [&](Bytes OperatorCost::*field) {
    return Bytes(line_at(a.batch.count(), (a.cost.*field).count(), b.batch.count(), (b.cost.*field).count(),
                         batch.count(), Round::kUp));
  };
  OperatorCost result;
  result.forward = time(&OperatorCost::forward);
  result.input_gradient = time(&OperatorCost::input_gradient);
  result.weight_gradient = time(&OperatorCost::weight_gradient);
  result.private_bytes = bytes(&OperatorCost::private_bytes);
  result.between_halves = bytes(&OperatorCost::between_halves);
  result.workspace = bytes(&OperatorCost::workspace);
  result.private_for_input = std::min(bytes(&OperatorCost::private_for_input), result.private_bytes);
  result.reduced_forward = bytes(&OperatorCost::reduced_forward);
  result.reduced_backward = bytes(&OperatorCost::reduced_backward);
  result.saved = merged(a.cost.saved, b.cost.saved);
  const bool analytic =
      b.cost.origin == Origin::kAnalytic || (points.size() > 1 && a.cost.origin == Origin::kAnalytic);
  result.origin = analytic ? Origin::kAnalytic : Origin::kInterpolated;
  result.extrapolated = outside;
  return result;
}

std::vector<SavedTensor> merged(const std::vector<SavedTensor>& a, const std::vector<SavedTensor>& b) {
  std::vector<SavedTensor> all;
  std::merge(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(all));
  // Of two entries for one tensor the first, which ascends before, is not for the input alone.
  all.erase(std::unique(all.begin(), all.end(),
                        [](const SavedTensor& x, const SavedTensor& y) {
                          return x.side == y.side && x.index == y.index;
                        }),
            all.end());
  return all;
}

Duration reduce_time(const Cluster& cluster, std::span<const DeviceId> group, Bytes bytes) {
  if (bytes == Bytes()) return {};
  const CollectiveCost cost = all_reduce_cost(cluster, group, bytes);
  const Duration limit(kCellLimit);
  return std::min(std::min(cost.hold, limit) + std::min(cost.latency, limit), limit);
}

Duration update_time(const KindOverhead& overhead, OptimizerKind optimizer, Bytes parameters) {
  if (parameters == Bytes()) return Duration();
  for (const KindOverhead::Update& update : overhead.updates) {
    if (update.optimizer != optimizer) continue;
    return std::min(Duration(kLimit), time_per_byte(parameters, update.picoseconds_per_byte) + update.fixed);
  }
  return Duration();
}

Duration update_overhead(const KindOverhead& overhead, OptimizerKind optimizer) {
  for (const KindOverhead::Update& update : overhead.updates) {
    if (update.optimizer == optimizer) return update.fixed;
  }
  return Duration();
}

void refuse_missing_cell(const Operator& op, const DeviceKind& kind, Variant variant) {
  throw InputError("operator '" + op.name + "' (class '" + op.op_class + "') has no cost on device kind '" +
                   kind.name + "'" +
                   (variant.tensor_parallel == 1
                        ? std::string()
                        : " for " + std::to_string(variant.tensor_parallel) + " devices") +
                   "; profile the model on that kind, or leave the cost file out");
}

namespace {

struct ChosenCell {
  OperatorCost cost;  // of the part that the operator runs
  const CostRow* row = nullptr;
};

// The fastest implementation's (implementations.h).
std::optional<ChosenCell> chosen_cell(const CostTable& table, std::string_view op_class,
                                      const DeviceKind& kind, Variant variant, Part part,
                                      BatchSize micro_batch) {
  const std::span<const CostRow> rows = table.rows(op_class, kind.name, variant);
  if (rows.empty()) return std::nullopt;
  const bool with_its_pair =
      part == Part::kForwardAlone || part == Part::kBackwardWeights || part == Part::kBackwardBoth;
  std::optional<ChosenCell> best;
  std::pair<Duration, Bytes> least;
  for (const CostRow& row : rows) {
    const OperatorCost cell = cost_at(row, micro_batch);
    ChosenCell here{part_of(cell, part, kind.speed), &row};
    if (rows.size() == 1) return here;
    const OperatorCost& judged = with_its_pair ? cell : here.cost;
    const std::pair price(judged.forward + judged.backward(), cell.private_bytes + cell.workspace);
    if (best && price >= least) continue;
    least = price;
    best = std::move(here);
  }
  return best;
}

}  // namespace

std::vector<std::string> implementations_of(const Graph& graph, const DeviceKind& kind,
                                            const CostTable& table, BatchSize micro_batch, Variant variant) {
  const Columns columns(graph);
  std::vector<std::string> of_column;
  for (const auto& [index, part] : columns.first) {
    const auto cell = chosen_cell(table, graph.operators()[index].op_class, kind, variant, part, micro_batch);
    of_column.push_back(cell ? cell->row->implementation : "");
  }
  std::vector<std::string> names;
  names.reserve(columns.of_operator.size());
  for (const std::uint32_t column : columns.of_operator) names.push_back(of_column[column]);
  return names;
}

std::vector<std::uint32_t> tensor_parallel_degrees(const CostTable& table, std::size_t most) {
  std::set<std::uint32_t> degrees{1};
  for (const CostRow& row : table.parts().rows) {
    if (!row.variant.recompute && row.variant.tensor_parallel <= most)
      degrees.insert(row.variant.tensor_parallel);
  }
  return {degrees.begin(), degrees.end()};
}

OperatorCosts::OperatorCosts(const Graph& graph, const Cluster& cluster, const CostTable& table,
                             BatchSize micro_batch, Variant variant) {
  Columns columns(graph);
  class_of_ = std::move(columns.of_operator);
  classes_ = columns.first.size();
  costs_.reserve(classes_ * cluster.kinds().size());
  for (const DeviceKind& kind : cluster.kinds()) {
    for (const auto& [index, part] : columns.first) {
      const Operator& op = graph.operators()[index];
      std::optional<ChosenCell> cell = chosen_cell(table, op.op_class, kind, variant, part, micro_batch);
      if (!cell) refuse_missing_cell(op, kind, variant);
      costs_.push_back(std::move(cell->cost));
    }
  }
}

KindCosts::KindCosts(const Graph& graph, const DeviceKind& kind, const CostTable& table,
                     BatchSize micro_batch, Variant variant) {
  Columns columns(graph);
  class_of_ = std::move(columns.of_operator);
  for (const auto& [index, part] : columns.first) {
    const std::string& op_class = graph.operators()[index].op_class;
    costs_.emplace_back();
    if (auto cell = chosen_cell(table, op_class, kind, variant, part, micro_batch)) {
      costs_.back() = std::move(cell->cost);
    }
  }
}

}  // namespace espalier
