// What is auto's plan where a guide says which steps the search judges first, and where none does?
//
//   bench_guide GUIDE|none STATES MODEL CLUSTER BATCH MICRO-BATCH,… [SETTING=N]…
//
// GUIDE: a file of `espalier learn guide`. One thread. Prints the simulated step in ns and processor seconds.

#include <cstdio>
#include <ctime>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "bench/run_benchmark.h"
#include "espalier/app/catalog.h"
#include "espalier/base/check.h"
#include "espalier/base/files.h"
#include "espalier/cost/cost_table.h"
#include "espalier/planners/candidate.h"
#include "espalier/planners/joint/joint.h"
#include "espalier/zoo/zoo.h"

namespace espalier {
namespace {

int measure(const std::vector<std::string>& words) {
  if (words.size() < 6)
    throw InputError("bench_guide GUIDE|none STATES MODEL CLUSTER BATCH MICRO-BATCH,… [SETTING=N]…");
  ZooValues values;
  for (std::size_t i = 6; i < words.size(); ++i) {
    const std::size_t sign = words[i].find('=');
    values[words[i].substr(0, sign)] = std::stoll(words[i].substr(sign + 1));
  }
  const Graph graph = build_zoo_model(words[2], values);
  const Cluster cluster = parse_cluster(words[3]);
  Training training;
  training.batch = BatchSize(std::stoll(words[4]));
  training.micro_batches.clear();
  std::istringstream sizes(words[5]);
  for (std::string size; std::getline(sizes, size, ',');) {
    training.micro_batches.push_back(BatchSize(std::stoll(size)));
  }
  const CostTable costs = complete_costs(graph, cluster, CostTable({}), training.micro_batches);
  const Problem problem{
      .graph = graph, .cluster = cluster, .costs = costs, .training = training, .lists = true};
  std::optional<joint::MoveGuide> guide;
  if (words[0] != "none") guide = joint::MoveGuide::parse(read_file(words[0]), words[0]);
  const JointOptions options{.orders = joint::OrdersMay::kChange, .guide = guide ? &*guide : nullptr};
  Context context;
  context.budget.max_states = std::stoull(words[1]);
  const std::clock_t begin = std::clock();
  const Outcome found = joint_search(problem, named_planners({}), options, context);
  const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  if (!found.plan) throw InputError("no plan fits");
  Context other;
  Judge judge(problem, other);
  std::printf("%lld %.2f\n", static_cast<long long>(judge.consider(*found.plan).iteration.count()), seconds);
  return 0;
}

}  // namespace
}  // namespace espalier

int main(int count, char** words) {
  return espalier::run_benchmark(espalier::measure, count, words);
}
