// Max-load over chains of downsets (Tarnawski et al., NeurIPS 2020, section 5.1).
//
//   paper           here
//   I               a downset, `Row`
//   dp[I][k][l]     best of a row at state (CPUs, accelerators), "at most so many"
//   cpu(I \ I')     Row::cpu − Row::cpu
//   acc(I \ I')     the same of accelerator, and the border
//
// The border. An output costs a device that holds some but not all of the items that touch it. With T the
// items of an output, and a device holding S = D − D': call an output partial in D if D holds some of T, but
// not all. Summed over outputs,
//
//   cost(S) = partial(D) + partial(D') − Σ of those partial in both of cost · (T∩D = T∩D' ? 2 : 1)
//
// because an output partial in D alone meets S and is not within it; likewise in D' alone; and one partial in
// both is paid once if D' gained of it on the way to D, else not at all. So a pair is priced from the short
// lists of partial outputs of two rows, never from sets.
//
// How we deviate: first DPL, whose max-load bounds the search. A pair whose time alone reaches the bound is
// never priced (rows stand in order of time), and a state is dropped where what is left could not be done
// below the bound by the devices that are left. What remains holds every better placement, so the optimum is
// the authors'; of several placements with it, another may come out. Their program prices and keeps all
// pairs.
//
// Bad cases: communication so dear that DPL is far above the mean load. Then all pairs within a device's time
// are priced.

#include "espalier/planners/literal/max_load.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "espalier/base/check.h"
#include "espalier/planners/literal/contraction.h"

namespace espalier::literal {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kRounding = 1e-9;  // relative: what bounds may be off by

struct Machine {
  std::size_t accelerators = 0, cpus = 0;
  double memory = 0;
};

Machine machine_of(const MsrProfile& profile, const MaxLoadOptions& options) {
  const std::int64_t accelerators = options.accelerators.value_or(profile.accelerators);
  const std::int64_t cpus = options.cpus.value_or(profile.cpus);
  const double memory = options.memory.value_or(profile.memory);
  if (accelerators < 0 || cpus < 0 || accelerators + cpus == 0 || accelerators > 10'000 || cpus > 10'000) {
    throw InputError(profile.file + ": " + std::to_string(accelerators) + " accelerators and " +
                     std::to_string(cpus) + " CPUs; expected from 1 to 10000 devices");
  }
  if (!(memory >= 0)) throw InputError(profile.file + ": expected the memory of an accelerator in bytes");
  return {static_cast<std::size_t>(accelerators), static_cast<std::size_t>(cpus), memory};
}

struct ChainStage {
  bool accelerator = true;
  std::vector<std::uint32_t> items;
};

struct Chain {
  double max_load = kNever;  // kNever: there is none below the bound
  std::vector<ChainStage> stages;
};

class MaxLoadSearch {
 public:
  MaxLoadSearch(const ContractedGraph& graph, const Machine& machine)
      : graph_(graph), machine_(machine), states_((machine.cpus + 1) * (machine.accelerators + 1)) {
    for (const ContractedGraph::Item& item : graph.items) {
      total_ += item.accelerator;
      const double ratio = item.accelerator <= 0 ? 0 : item.cpu > 0 ? item.accelerator / item.cpu : kNever;
      cpu_speed_ = std::max(cpu_speed_, ratio);
    }
    if (machine.cpus == 0) cpu_speed_ = 0;
  }

  // The best chain among `sets` with a max-load below `bound`.
  Chain best_chain(const Downsets& sets, double bound) {
    bound_ = bound;
    words_ = sets.words();
    rows_.clear(), bits_.clear(), partials_.clear(), best_.clear(), last_.clear();
    count_.assign(graph_.outputs.size(), 0);
    for (const Candidate& candidate : in_order_of_time(sets)) {
      if (may_lie_on_chain(candidate.time)) add(sets, candidate);
    }
    Chain chain;
    if (rows_.empty() || rows_.back().set + 1 != sets.size()) return chain;
    chain.max_load = best_.back();
    trace_back(chain);
    return chain;
  }

  std::uint64_t pairs() const { return pairs_; }

 private:
  struct Candidate {
    double time = 0;  // on an accelerator
    int items = 0;
    std::uint32_t set = 0;
  };
  struct Row {
    double accelerator = 0, cpu = 0, bytes = 0;
    double partial = 0;                // cost of the outputs that are partial here
    std::uint32_t cpu_only = 0;        // items
    std::uint32_t begin = 0, end = 0;  // its partial outputs
    std::uint32_t set = 0;
  };
  struct Partial {
    std::uint32_t output = 0;
    std::uint32_t held = 0;  // items of it
  };
  // How a row's state is best reached: the last stage.
  struct Last {
    std::uint32_t row = 0;
    bool accelerator = false;
  };

  template <class Visit>
  void for_each_item(const std::uint64_t* row, Visit&& visit) const {
    for (std::size_t w = 0; w < words_; ++w) {
      for (std::uint64_t left = row[w]; left != 0; left &= left - 1)
        visit(w * 64 + static_cast<std::size_t>(std::countr_zero(left)));
    }
  }

  // Sums run over items by number, so that a subset's time is never larger, whatever is rounded.
  std::vector<Candidate> in_order_of_time(const Downsets& sets) const {
    std::vector<Candidate> result(sets.size());
    for (std::uint32_t s = 0; s < result.size(); ++s) {
      result[s].set = s;
      for_each_item(sets.row(s), [&](std::size_t item) {
        result[s].time += graph_.items[item].accelerator;
        ++result[s].items;
      });
    }
    std::sort(result.begin(), result.end(), [](const Candidate& a, const Candidate& b) {
      return std::tie(a.time, a.items, a.set) < std::tie(b.time, b.items, b.set);
    });
    return result;
  }

  // What `accelerators` and `cpus` do below the bound, in accelerator time.
  double capacity(std::size_t cpus, std::size_t accelerators) const {
    const double slow = cpus == 0 || cpu_speed_ == 0 ? 0 : static_cast<double>(cpus) * cpu_speed_;
    const double devices = static_cast<double>(accelerators) + slow;
    return devices == 0 ? 0 : bound_ * devices * (1 + kRounding);
  }
  bool can_finish(double time, std::size_t cpus, std::size_t accelerators) const {
    const double slack = kRounding * total_;
    return total_ - time <= capacity(machine_.cpus - cpus, machine_.accelerators - accelerators) + slack;
  }
  bool may_lie_on_chain(double time) const {
    for (std::size_t c = 0; c <= machine_.cpus; ++c) {
      for (std::size_t a = 0; a <= machine_.accelerators; ++a) {
        if (time <= capacity(c, a) + kRounding * total_ && can_finish(time, c, a)) return true;
      }
    }
    return false;
  }

  void add(const Downsets& sets, const Candidate& candidate) {
    const Row row = describe(sets, candidate);
    const std::uint64_t* const bits = sets.row(candidate.set);
    const std::size_t first = best_.size();
    best_.resize(first + states_, candidate.items == 0 ? 0 : kNever);
    last_.resize(first + states_);
    const double reach = bound_ * std::max(1.0, cpu_speed_) * (1 + kRounding);
    for (std::size_t p = rows_.size(); p-- > 0;) {
      if (row.accelerator - rows_[p].accelerator > reach) break;
      if (is_subset(bits_.data() + p * words_, bits, words_)) extend(p, row, first);
    }
    bool alive = false;
    for (std::size_t c = 0, state = first; c <= machine_.cpus; ++c) {
      for (std::size_t a = 0; a <= machine_.accelerators; ++a, ++state) {
        if (best_[state] != kNever && !can_finish(row.accelerator, c, a)) best_[state] = kNever;
        alive = alive || best_[state] != kNever;
      }
    }
    for (std::uint32_t i = row.begin; i < row.end; ++i) count_[partials_[i].output] = 0;
    if (alive) {
      rows_.push_back(row);
      bits_.insert(bits_.end(), bits, bits + words_);
    } else {
      best_.resize(first);
      last_.resize(first);
      partials_.resize(row.begin);
    }
  }

  // Fills `count_` for the row's partial outputs as well.
  Row describe(const Downsets& sets, const Candidate& candidate) {
    Row row;
    row.set = candidate.set;
    row.accelerator = candidate.time;
    for_each_item(sets.row(candidate.set), [&](std::size_t i) {
      const ContractedGraph::Item& item = graph_.items[i];
      row.cpu += item.cpu;
      row.bytes += item.bytes;
      row.cpu_only += item.cpu_only ? 1 : 0;
    });
    row.begin = static_cast<std::uint32_t>(partials_.size());
    for (std::uint32_t o = 0; o < graph_.outputs.size(); ++o) {
      const ContractedGraph::Output& output = graph_.outputs[o];
      std::uint32_t held = 0;
      for (const std::uint32_t item : output.items) held += sets.has(candidate.set, item) ? 1 : 0;
      if (held == 0 || held == output.items.size()) continue;
      partials_.push_back({o, held});
      count_[o] = held;
      row.partial += output.cost;
    }
    row.end = static_cast<std::uint32_t>(partials_.size());
    return row;
  }

  // Offers the states of row p, with the items that `row` has more on one device more.
  void extend(std::size_t p, const Row& row, std::size_t first) {
    ++pairs_;
    const Row& from = rows_[p];
    const double cpu = machine_.cpus > 0 ? row.cpu - from.cpu : kNever;
    const bool fits = row.cpu_only == from.cpu_only && row.bytes - from.bytes <= machine_.memory;
    double accelerator = kNever;
    if (fits && machine_.accelerators > 0) {
      accelerator = row.accelerator - from.accelerator + row.partial + from.partial;
      for (std::uint32_t i = from.begin; i < from.end; ++i) {
        const std::uint32_t held = count_[partials_[i].output];
        if (held == 0) continue;
        accelerator -= graph_.outputs[partials_[i].output].cost * (held == partials_[i].held ? 2 : 1);
      }
    }
    const std::size_t width = machine_.accelerators + 1, before = p * states_;
    const Last by_accelerator{static_cast<std::uint32_t>(p), true},
        by_cpu{static_cast<std::uint32_t>(p), false};
    if (accelerator < bound_) {
      for (std::size_t s = 0; s < states_; ++s) {
        if (s % width == 0) continue;
        const double load = std::max(best_[before + s - 1], accelerator);
        if (load < best_[first + s]) best_[first + s] = load, last_[first + s] = by_accelerator;
      }
    }
    if (cpu < bound_) {
      for (std::size_t s = width; s < states_; ++s) {
        const double load = std::max(best_[before + s - width], cpu);
        if (load < best_[first + s]) best_[first + s] = load, last_[first + s] = by_cpu;
      }
    }
  }

  void trace_back(Chain& chain) const {
    std::size_t row = rows_.size() - 1, state = states_ - 1;
    while (row > 0) {
      const Last last = last_[row * states_ + state];
      ChainStage stage;
      stage.accelerator = last.accelerator;
      for_each_item(bits_.data() + row * words_, [&](std::size_t item) {
        if ((bits_[last.row * words_ + item / 64] >> (item % 64) & 1) == 0)
          stage.items.push_back(static_cast<std::uint32_t>(item));
      });
      chain.stages.push_back(std::move(stage));
      state -= last.accelerator ? 1 : machine_.accelerators + 1;
      row = last.row;
    }
    std::reverse(chain.stages.begin(), chain.stages.end());
  }

  const ContractedGraph& graph_;
  Machine machine_;
  std::size_t states_;
  double total_ = 0;      // accelerator time of all items
  double cpu_speed_ = 0;  // the most accelerator time that a CPU does in a unit of its own
  double bound_ = kNever;
  std::size_t words_ = 0;
  std::vector<Row> rows_;            // those that a chain may pass, in order of time
  std::vector<std::uint64_t> bits_;  // of rows_
  std::vector<Partial> partials_;    // of rows_
  std::vector<double> best_;         // by row and state (CPUs × accelerators)
  std::vector<Last> last_;
  std::vector<std::uint32_t> count_;  // by output: items of it in the row that is added, if partial there
  std::uint64_t pairs_ = 0;
};

// Loads by the definition, from nodes and edges. `place`: the device of each node.
void price_devices(const MsrProfile& profile, const std::vector<std::size_t>& place,
                   std::vector<MaxLoadDevice>& devices) {
  for (std::size_t i = 0; i < place.size(); ++i) {
    MaxLoadDevice& device = devices[place[i]];
    device.nodes.push_back(i);
    device.bytes += profile.nodes[i].bytes;
    device.load += device.accelerator ? profile.nodes[i].accelerator : profile.nodes[i].cpu;
  }
  std::vector<std::vector<std::size_t>> readers(place.size());  // devices of a node's readers elsewhere
  std::vector<double> cost(place.size());
  for (const MsrProfile::Edge& edge : profile.edges) {
    cost[edge.from] = edge.cost;
    if (place[edge.from] != place[edge.to]) readers[edge.from].push_back(place[edge.to]);
  }
  for (std::size_t source = 0; source < place.size(); ++source) {
    std::vector<std::size_t>& paying = readers[source];
    if (paying.empty()) continue;
    paying.push_back(place[source]);
    std::sort(paying.begin(), paying.end());
    paying.erase(std::unique(paying.begin(), paying.end()), paying.end());
    for (const std::size_t d : paying) devices[d].communication += devices[d].accelerator ? cost[source] : 0;
  }
  for (MaxLoadDevice& device : devices) device.load += device.communication;
}

double largest_load(const std::vector<MaxLoadDevice>& devices) {
  double load = 0;
  for (const MaxLoadDevice& device : devices) load = std::max(load, device.load);
  return load;
}

}  // namespace

std::vector<std::size_t> places_in(const MsrProfile& profile, const MsrPlacement& placement) {
  const auto fail = [&](std::int64_t node, const char* problem) {
    throw InputError(placement.file + ": node " + std::to_string(node) + " " + problem);
  };
  std::unordered_map<std::int64_t, std::size_t> device_of;
  for (std::size_t d = 0; d < placement.devices.size(); ++d) {
    for (const std::int64_t node : placement.devices[d].nodes) {
      if (!device_of.emplace(node, d).second) fail(node, "is placed twice");
    }
  }
  std::unordered_map<std::int64_t, std::size_t> of_colour;
  std::vector<std::optional<std::size_t>> place;
  std::size_t placed = 0;
  for (const MsrProfile::Node& node : profile.nodes) {
    const auto found = device_of.find(node.id);
    place.push_back(found == device_of.end() ? std::nullopt : std::optional(found->second));
    placed += place.back() ? 1 : 0;
    if (place.back() && node.colour &&
        of_colour.emplace(*node.colour, *place.back()).first->second != *place.back())
      fail(node.id, "stands on another device than others of its colour");
  }
  if (placed < device_of.size())
    throw InputError(placement.file + ": places a node that is not in " + profile.file);
  std::vector<std::size_t> result;
  for (std::size_t i = 0; i < place.size(); ++i) {
    const std::optional<std::int64_t> colour = profile.nodes[i].colour;
    if (!place[i] && colour && of_colour.contains(*colour)) place[i] = of_colour.at(*colour);
    if (!place[i]) fail(profile.nodes[i].id, "is not placed, nor is one of its colour");
    result.push_back(*place[i]);
  }
  return result;
}

std::vector<double> output_costs(const MsrProfile& profile) {
  std::vector<std::optional<double>> cost(profile.nodes.size());
  for (const MsrProfile::Edge& edge : profile.edges) {
    if (cost[edge.from].value_or(edge.cost) != edge.cost) {
      throw InputError(profile.file + ": node " + std::to_string(profile.nodes[edge.from].id) +
                       ": its edges differ in cost; expected one cost for its output");
    }
    cost[edge.from] = edge.cost;
  }
  std::vector<double> result;
  for (const std::optional<double>& one : cost) result.push_back(one.value_or(0));
  return result;
}

MaxLoadResult max_load(const MsrProfile& profile, const MaxLoadOptions& options) {
  ESP_CHECK(options.space != MaxLoadSpace::kAnywhere);
  const Machine machine = machine_of(profile, options);
  const ContractedGraph graph = contract(profile);
  MaxLoadSearch search(graph, machine);
  MaxLoadResult result;
  result.items = graph.items.size();
  const Downsets line = prefixes(graph.order);
  Chain best = search.best_chain(line, kNever);
  result.downsets = line.size();
  if (options.space == MaxLoadSpace::kDownsets) {
    const std::optional<Downsets> sets = enumerate_downsets(graph.before, options.max_downsets);
    if (!sets) {
      result.why = "the graph has more than " + std::to_string(options.max_downsets) +
                   " downsets; DPL needs one linear order only";
      return result;
    }
    result.downsets = sets->size();
    Chain better = search.best_chain(*sets, best.max_load);
    if (better.max_load < best.max_load) best = std::move(better);
  }
  result.pairs = search.pairs();
  if (best.max_load == kNever) {
    result.why = "no chain of downsets fits " + std::to_string(machine.accelerators) + " accelerators and " +
                 std::to_string(machine.cpus) + " CPUs";
    return result;
  }
  std::vector<std::size_t> device_of_item(graph.items.size()), place;
  for (std::size_t d = 0; d < best.stages.size(); ++d) {
    result.devices.push_back({.accelerator = best.stages[d].accelerator, .nodes = {}});
    for (const std::uint32_t item : best.stages[d].items) device_of_item[item] = d;
  }
  for (const std::uint32_t item : graph.item_of) place.push_back(device_of_item[item]);
  price_devices(profile, place, result.devices);
  result.max_load = largest_load(result.devices);
  return result;
}

MaxLoadResult price_placement(const MsrProfile& profile, const MsrPlacement& placement,
                              const MaxLoadOptions& options) {
  const Machine machine = machine_of(profile, options);
  std::size_t used[2] = {0, 0};
  MaxLoadResult result;
  for (const MsrPlacement::Device& device : placement.devices) {
    used[device.accelerator ? 0 : 1] += device.nodes.empty() ? 0 : 1;
    result.devices.push_back({.accelerator = device.accelerator, .nodes = {}});
  }
  if (used[0] > machine.accelerators || used[1] > machine.cpus) {
    throw InputError(placement.file + ": uses " + std::to_string(used[0]) + " accelerators and " +
                     std::to_string(used[1]) + " CPUs; there are " + std::to_string(machine.accelerators) +
                     " and " + std::to_string(machine.cpus));
  }
  price_devices(profile, places_in(profile, placement), result.devices);
  std::erase_if(result.devices, [](const MaxLoadDevice& device) { return device.nodes.empty(); });
  result.max_load = largest_load(result.devices);
  return result;
}

std::vector<std::string> check_max_load(const MsrProfile& profile, const MaxLoadOptions& options,
                                        const MaxLoadResult& result) {
  std::vector<std::string> wrong;
  const auto say = [&](bool holds, const std::string& what) {
    if (!holds) wrong.push_back(what);
  };
  const auto close = [](double a, double b) { return std::abs(a - b) <= 1e-9 * std::max(1.0, std::abs(b)); };
  if (!result.found()) return wrong;
  constexpr std::size_t kNowhere = ~std::size_t{0};
  std::vector<std::size_t> place(profile.nodes.size(), kNowhere);
  std::int64_t accelerators = 0, cpus = 0;
  for (std::size_t d = 0; d < result.devices.size(); ++d) {
    ++(result.devices[d].accelerator ? accelerators : cpus);
    for (const std::size_t node : result.devices[d].nodes) {
      if (node >= place.size() || place[node] != kNowhere) {
        wrong.push_back("device " + std::to_string(d) +
                        " names a node that is not there or stands elsewhere");
        return wrong;
      }
      place[node] = d;
    }
  }
  if (std::find(place.begin(), place.end(), kNowhere) != place.end()) return {"a node stands nowhere"};
  say(accelerators <= options.accelerators.value_or(profile.accelerators), "too many accelerators are used");
  say(cpus <= options.cpus.value_or(profile.cpus), "too many CPUs are used");
  std::unordered_map<std::int64_t, std::size_t> of_colour;
  std::vector<double> time(result.devices.size()), paid(result.devices.size()), bytes(result.devices.size());
  for (std::size_t i = 0; i < place.size(); ++i) {
    const MsrProfile::Node& node = profile.nodes[i];
    const bool fast = result.devices[place[i]].accelerator;
    say(!fast || node.on_accelerator, "node " + std::to_string(node.id) + " runs on CPUs only");
    if (node.colour)
      say(of_colour.emplace(*node.colour, place[i]).first->second == place[i],
          "colour " + std::to_string(*node.colour) + " stands on two devices");
    time[place[i]] += fast ? node.accelerator : node.cpu;
    bytes[place[i]] += node.bytes;
  }
  // A source and a device of its readers: paid once there, and once where the source is.
  std::vector<std::unordered_set<std::size_t>> sent_to(profile.nodes.size());
  for (const MsrProfile::Edge& edge : profile.edges) {
    const std::size_t from = place[edge.from], to = place[edge.to];
    if (!profile.nodes[edge.to].backward && options.space != MaxLoadSpace::kAnywhere)
      say(from <= to, "a forward edge leads to an earlier device");
    if (from == to) continue;
    if (sent_to[edge.from].empty()) paid[from] += edge.cost;
    if (sent_to[edge.from].insert(to).second) paid[to] += edge.cost;
  }
  double largest = 0;
  for (std::size_t d = 0; d < result.devices.size(); ++d) {
    const MaxLoadDevice& device = result.devices[d];
    const double load = time[d] + (device.accelerator ? paid[d] : 0);
    say(close(device.load, load), "device " + std::to_string(d) + " has another load");
    say(close(device.bytes, bytes[d]), "device " + std::to_string(d) + " holds other bytes");
    say(!device.accelerator || bytes[d] <= options.memory.value_or(profile.memory) * (1 + 1e-12),
        "device " + std::to_string(d) + " lacks memory");
    largest = std::max(largest, load);
  }
  say(close(result.max_load, largest), "the max-load is another");
  return wrong;
}

}  // namespace espalier::literal
