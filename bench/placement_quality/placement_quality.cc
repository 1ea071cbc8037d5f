// How far from the bound is each search of placements, with equal budgets?
//
//   bench_placement_quality FILE.csv BUDGET SEEDS WORKLOAD…
//
// A workload is a model of the zoo (its training graph: expand_backward), or a published profile's file. Each
// is placed on 2, 4 and 8 equal devices, with memory that is free or binds (1.3 times an even share of what
// one device would hold), on links of 1.25 and 12.5 GB/s, by each constructive placer, and by each search
// from the same placers' placements. The budget counts assignments that are looked at, those of the starts
// too. Rows that the file has are skipped: what was stopped goes on.
//
// Appends CSV: workload, tasks, units, devices, memory, bandwidth, method, seed, evaluations, step and bound
// in ns; no step where nothing fits was found. bench/placement_quality/run makes the table.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <string_view>

#include "bench/run_benchmark.h"
#include "espalier/base/check.h"
#include "espalier/frontend/imported.h"
#include "espalier/graph/expand_backward.h"
#include "espalier/planners/placement/default_search.h"
#include "espalier/planners/placement/placement_bounds.h"
#include "espalier/planners/placement/ranks.h"
#include "espalier/planners/placement/search_placer.h"
#include "espalier/planners/placement/simple.h"
#include "espalier/zoo/zoo.h"

namespace espalier {
namespace {

using placement::Assignment;
using placement::DeviceOrders;
using placement::Engine;
using placement::Instance;
using placement::make_instance;
using placement::Placed;
using placement::PlacementSearchOptions;
using placement::Rules;
using placement::SearchMethod;

Cluster one_switch(const DeviceKind& kind, std::size_t devices, std::int64_t bandwidth) {
  ClusterParts parts;
  parts.kinds = {kind};
  Group network;
  network.name = "network";
  network.bandwidth = bandwidth;
  network.latency = microseconds(5);
  parts.groups = {network};
  for (std::size_t d = 0; d < devices; ++d)
    parts.devices.push_back({kind.name + ":" + std::to_string(d), KindId(0), GroupId(0), kind.memory});
  return Cluster(std::move(parts));
}

struct Case {
  std::string workload;
  std::size_t devices = 2;
  std::int64_t bandwidth = 0;
  bool binding = false;
};

struct Workload {
  Graph graph;
  Instance instance;
};

Workload of_zoo(const Case& which) {
  Graph graph = expand_backward(build_zoo_model(which.workload));
  const Cluster cluster = one_switch(device_preset("V100-16GB"), which.devices, which.bandwidth);
  const BatchSize batch = std::max(BatchSize(8), graph.batch().min);
  const CostTable costs = complete_costs(graph, cluster, CostTable({}), std::span(&batch, 1));
  Training training;
  training.batch = batch;
  training.micro_batches = {batch};
  Instance instance = make_instance(graph, cluster, costs, training, {.micro_batch = batch});
  return {std::move(graph), std::move(instance)};
}

Workload of_profile(const Case& which) {
  Imported model = import_file(which.workload);
  if (!model.costs || !model.cluster) throw InputError(which.workload + ": expected a profile with costs");
  const DeviceKind& kind = model.cluster->kinds().front();
  const Cluster cluster = one_switch(kind, which.devices, which.bandwidth);
  const BatchSize batch = model.graph.batch().min;
  Training training;
  training.batch = batch;
  training.micro_batches = {batch};
  Instance instance =
      make_instance(model.graph, cluster, costs_on(*model.costs, cluster), training, {.micro_batch = batch});
  return {std::move(model.graph), std::move(instance)};
}

// Devices with all the memory there is, or with little.
Workload workload_of(const Case& which) {
  Workload made = std::filesystem::exists(which.workload) ? of_profile(which) : of_zoo(which);
  Instance& instance = made.instance;
  std::fill(instance.memory.begin(), instance.memory.end(), Bytes(std::int64_t{1} << 50));
  if (!which.binding) return made;
  const Engine engine(instance, {});
  const std::vector<Bytes> peak = timeline(engine, Assignment(instance.units(), DeviceId(0))).peak;
  const Bytes share(peak.front().count() * 13 / 10 / static_cast<std::int64_t>(which.devices));
  std::fill(instance.memory.begin(), instance.memory.end(), share);
  return made;
}

std::string stem(const std::string& workload) {
  if (!std::filesystem::exists(workload)) return workload;
  const std::filesystem::path path(workload);
  return path.stem() == "graph" ? path.parent_path().filename().string() : path.stem().string();
}

class Table {
 public:
  explicit Table(const std::string& file) : file_(file) {
    std::ifstream in(file);
    for (std::string line; std::getline(in, line);) done_.insert(key_of(line));
  }
  bool has(const std::string& key) const { return done_.contains(key); }
  void add(const std::string& line) { std::ofstream(file_, std::ios::app) << line << "\n"; }

 private:
  // All columns up to the seed.
  static std::string key_of(const std::string& line) {
    std::size_t end = 0;
    for (int column = 0; column < 8 && end != std::string::npos; ++column) end = line.find(',', end + 1);
    return line.substr(0, end);
  }
  std::string file_;
  std::set<std::string> done_;
};

// Not the search as a placer, nor those that look for another objective.
bool is_constructive(std::string_view placer) {
  if (placer == "local-search") return false;
  const std::vector<placement::Objective>& all = placement::objectives();
  return std::none_of(all.begin(), all.end(), [&](placement::Objective objective) {
    return placement::to_text(objective) == placer;
  });
}

// The placer that accepts moves in a traversal order has the name of a search.
std::string row_name(std::string_view placer) {
  const std::vector<SearchMethod>& all = placement::search_methods();
  const bool taken =
      std::any_of(all.begin(), all.end(), [&](SearchMethod method) { return to_text(method) == placer; });
  return std::string(placer) + (taken ? "-in-order" : "");
}

void measure(const Case& which, std::uint64_t budget, std::uint64_t seeds, Table& table) {
  const Workload workload = workload_of(which);
  const Instance& instance = workload.instance;
  const Rules rules;
  const Duration bound = placement::placement_bound(instance, rules).time;
  const auto row = [&](std::string_view method, std::uint64_t seed, auto run_it) {
    std::ostringstream key;
    key << stem(which.workload) << ',' << instance.tasks() << ',' << instance.units() << ',' << which.devices
        << ',' << (which.binding ? "binding" : "free") << ',' << which.bandwidth << ',' << method << ','
        << seed;
    if (table.has(key.str())) return;
    Context context;
    context.budget.max_states = budget;
    const std::optional<Duration> step = run_it(context);
    key << ',' << context.states << ',';
    if (step) key << step->count();
    key << ',' << bound.count();
    table.add(key.str());
  };
  const placement::PlacerInput input{workload.graph, instance};
  const std::vector<std::uint32_t> priority =
      placement::priorities_by(placement::upward_ranks(instance, placement::MeanCosts(instance)));
  const Engine engine(instance, rules, {priority, {}});
  for (const placement::Placer& placer : placement::placement_placers()) {
    if (!is_constructive(placer.name)) continue;
    row(row_name(placer.name), 1, [&](Context& context) -> std::optional<Duration> {
      const Placed placed = placement::place_in_live_memory(input, placer, context);
      if (!placed.assignment) return std::nullopt;
      placement::Scratch scratch;
      const placement::Evaluated seen = engine.evaluate(*placed.assignment, scratch);
      return seen.fits ? std::optional(seen.time) : std::nullopt;
    });
  }
  PlacementSearchOptions options;
  Context of_starts;
  of_starts.budget.max_states = budget;
  options.starts = placement::placer_starts(input, rules, of_starts);
  const std::vector<placement::DeviceOrders> by_rank = {{priority, {}}};
  options.levels = placement::search_levels(instance, placement::layers_of(instance, input.graph));
  const auto search = [&](std::string_view name, SearchMethod method, const auto& orders) {
    options.method = method;
    options.orders = orders;
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
      options.seed = seed;
      row(name, seed, [&](Context& context) {
        context.states = of_starts.states;
        return placement::placement_search(instance, rules, options, context).estimate;
      });
    }
  };
  for (const SearchMethod method : placement::search_methods()) {
    if (method != SearchMethod::kDefault) search(to_text(method), method, by_rank);
  }
  search("default-by-rank", SearchMethod::kDefault, by_rank);
  // As the placer has it, without and with --learned.
  const std::vector<placement::DeviceOrders> both = placement::usual_orders(instance);
  search("default", SearchMethod::kDefault, both);
  options.guide = &placement::usual_proposals();
  search("learned", SearchMethod::kDefault, both);
}

int run(const std::vector<std::string>& arguments) {
  if (arguments.size() < 4) throw InputError("expected FILE.csv BUDGET SEEDS WORKLOAD…");
  Table table(arguments[0]);
  const std::uint64_t budget = std::stoull(arguments[1]), seeds = std::stoull(arguments[2]);
  for (std::size_t i = 3; i < arguments.size(); ++i) {
    for (const std::size_t devices : {2U, 4U, 8U}) {
      for (const bool binding : {false, true}) {
        for (const std::int64_t bandwidth : {1'250'000'000LL, 12'500'000'000LL})
          measure({arguments[i], devices, bandwidth, binding}, budget, seeds, table);
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace espalier

int main(int count, char** words) {
  return espalier::run_benchmark(espalier::run, count, words);
}
