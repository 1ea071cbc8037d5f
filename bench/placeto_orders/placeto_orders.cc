// Does Placeto's policy learn, and does it matter in which order it visits the operators?
//
//   bench_placeto_orders FILE.csv MEMBERS SEEDS EPISODES ORDERS PLACER…     ORDERS: all, or names with commas
//   bench_placeto_orders speed                                              steps a second on 500 nodes
//
// Members of the literature's families of task graphs, judged by Placeto's simulator; all placers have the
// same looks, so many episodes. PLACER: uniform-walk, accept, or one that learns (placeto_by_name). Rows that
// the file has are skipped: what was stopped goes on.
//
// Appends CSV: family, member, placer, order, seed, looks, step in ns, step of one device, entropy of the
// policy in its last episode over a uniform one's.

#include <algorithm>
#include <ctime>
#include <fstream>
#include <iostream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "bench/run_benchmark.h"
#include "espalier/app/catalog.h"
#include "espalier/app/order_study.h"
#include "espalier/base/check.h"
#include "espalier/learned/placeto.h"
#include "espalier/zoo/task_families.h"

namespace espalier {
namespace {

constexpr const char* kPlacetoFamilies[] = {"cifar10", "ptb", "nmt"};

struct OrdersAsked {
  std::string file;
  std::int64_t members = 1;
  std::uint64_t seeds = 1, episodes = 1;
  std::vector<TraversalOrder> orders;
  std::vector<std::string> placers;
};

std::vector<TraversalOrder> orders_of(const std::string& text) {
  if (text == "all") return {traversal_orders().begin(), traversal_orders().end()};
  std::vector<TraversalOrder> orders;
  std::istringstream names(text);
  for (std::string name; std::getline(names, name, ',');) orders.push_back(find_order(name));
  return orders;
}

LearnedWalk walk(const std::string& placer, const OrderCase& asked, const placement::Engine& engine,
                 const placement::OrderedOptions& run) {
  Context context;
  if (const auto plain = placement::parse_ordered_placer(placer))
    return {place_in_order(asked.graph, engine, *plain, run, context)};
  std::optional<placement::PlacetoOptions> options = placement::placeto_by_name(placer);
  if (!options) throw InputError("there is no placer '" + placer + "'");
  LearnedWalk walk;
  options->told = [&](const placement::PlacetoPoint& point) { walk.entropy = point.entropy; };
  walk.placed = placeto_in_order(asked.graph, engine, *options, run, context);
  return walk;
}

void measure(const OrderCase& asked, const std::string& member, const OrdersAsked& how,
             const std::set<std::string>& done) {
  const placement::Engine engine = order_engine(asked, OrderSetUp::kPlaceto);
  placement::Scratch scratch;
  placement::Assignment one;
  for (std::size_t u = 0; u < asked.instance.units(); ++u) one.push_back(asked.instance.allowed[u].front());
  const Duration single = engine.evaluate(one, scratch).time;
  for (const std::string& placer : how.placers) {
    for (const TraversalOrder order : how.orders) {
      for (std::uint64_t seed = 1; seed <= how.seeds; ++seed) {
        const std::string key =
            member + "," + placer + "," + std::string(to_text(order)) + "," + std::to_string(seed) + ",";
        if (done.contains(key)) continue;
        const std::uint64_t looks = how.episodes * asked.instance.units() + 1;
        const LearnedWalk found = walk(placer, asked, engine, {.order = order, .seed = seed, .looks = looks});
        std::ofstream(how.file, std::ios::app)
            << key << looks << ',' << (found.placed.estimate ? found.placed.estimate->count() : 0) << ','
            << single.count() << ',' << found.entropy << '\n';
      }
    }
  }
}

std::set<std::string> keys_of(const std::string& file) {
  std::set<std::string> keys;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    std::size_t end = 0;
    for (int column = 0; column < 5 && end != std::string::npos; ++column) end = line.find(',', end + 1);
    if (end != std::string::npos) keys.insert(line.substr(0, end + 1));
  }
  return keys;
}

int speed() {
  const OrderCase asked =
      order_case(build_task_family(*find_task_family("layered"), {{"layers", 250}, {"width", 2}}));
  const placement::Engine engine = order_engine(asked, OrderSetUp::kPlaceto);
  const std::uint64_t looks = 3 * asked.instance.units() + 1;
  const std::clock_t begin = std::clock();
  walk("placeto", asked, engine, {.looks = looks});
  const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  std::cout << asked.instance.units() << " nodes: " << static_cast<double>(looks) / seconds
            << " steps a second of processor time, with what is learnt of them\n";
  return 0;
}

int run(const std::vector<std::string>& arguments) {
  if (arguments.size() == 1 && arguments[0] == "speed") return speed();
  if (arguments.size() < 6) throw InputError("expected FILE.csv MEMBERS SEEDS EPISODES ORDERS PLACER…");
  const OrdersAsked how{.file = arguments[0],
                        .members = std::stoll(arguments[1]),
                        .seeds = std::stoull(arguments[2]),
                        .episodes = std::stoull(arguments[3]),
                        .orders = orders_of(arguments[4]),
                        .placers = {arguments.begin() + 5, arguments.end()}};
  const std::set<std::string> done = keys_of(how.file);
  for (std::int64_t member = 1; member <= how.members; ++member) {
    for (const std::string family : kPlacetoFamilies) {
      const OrderCase asked = order_case(build_task_family(*find_task_family(family), {{"seed", member}}));
      measure(asked, family + "," + std::to_string(member), how, done);
    }
  }
  return 0;
}

}  // namespace
}  // namespace espalier

int main(int count, char** words) {
  return espalier::run_benchmark(espalier::run, count, words);
}
