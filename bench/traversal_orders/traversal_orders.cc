// Which traversal order suits which placer, family by family?
//
//   bench_traversal_orders FILE.csv MEMBERS SEEDS EPISODES MOST_LOOKS THREADS [PROFILE…]
//
// Members of every family of task graphs (espalier/zoo/task_families.h), their communication 5, 50 and 300
// percent in turn; profiles are placed on three devices and are the family "published". Each is judged in
// both set-ups of espalier/app/order_advice.h, by each ordered placer, in each order. Rows that the file has
// are skipped: what was stopped goes on.
//
// Appends CSV: set-up, family, member, placer, order, seeds, episodes, looks, mean and deviation of the step
// over seeds in ns, step of one device, features. bench/traversal_orders/run makes the table.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include "bench/run_benchmark.h"
#include "espalier/app/order_study.h"
#include "espalier/base/check.h"
#include "espalier/zoo/task_families.h"

namespace espalier {
namespace {

constexpr std::int64_t kCommunication[] = {5, 50, 300};

bool has_setting(const TaskFamily& family, const std::string& name) {
  return std::any_of(family.settings.begin(), family.settings.end(),
                     [&](const ZooSetting& setting) { return setting.name == name; });
}

ZooValues values_of(const TaskFamily& family, std::int64_t member) {
  ZooValues values{{"communication", kCommunication[member % 3]}};
  if (has_setting(family, "seed")) values["seed"] = member;
  if (has_setting(family, "network")) values["network"] = member;
  if (has_setting(family, "tiles")) values["tiles"] = 4 + member % 5;
  if (family.name == "layered") values["width"] = 4 + member % 9;
  if (family.name == "fork-join") values["branches"] = 2 + member % 7;
  return values;
}

OrderCase published(const std::string& file) {
  Imported model = import_file(file);
  if (!model.costs || !model.cluster) throw InputError(file + ": expected a profile with costs");
  ClusterParts parts;
  parts.kinds = {model.cluster->kinds().front()};
  Group network;
  network.name = "network";
  network.bandwidth = 7'600'000'000;
  parts.groups = {network};
  for (int d = 0; d < 3; ++d) {
    Device device;
    device.name = "device" + std::to_string(d);
    device.memory = gibibytes(1024);
    parts.devices.push_back(device);
  }
  model.cluster = Cluster(std::move(parts));
  model.costs = costs_on(*model.costs, *model.cluster);
  return order_case(model);
}

std::string stem(const std::string& file) {
  const std::filesystem::path path(file);
  return path.stem() == "graph" ? path.parent_path().filename().string() : path.stem().string();
}

class Results {
 public:
  explicit Results(const std::string& file) : file_(file) {
    std::ifstream in(file);
    for (std::string line; std::getline(in, line);) {
      std::size_t end = 0;
      for (int column = 0; column < 4 && end != std::string::npos; ++column)
        end = line.find(',', end + (column > 0 ? 1 : 0));
      if (end != std::string::npos) ++rows_[line.substr(0, end + 1)];
    }
  }
  bool has(const std::string& key, std::size_t rows) const {
    const auto found = rows_.find(key);
    return found != rows_.end() && found->second >= rows;
  }
  void add(const std::string& lines) { std::ofstream(file_, std::ios::app) << lines << std::flush; }

 private:
  std::string file_;
  std::map<std::string, std::size_t> rows_;
};

void measure(const OrderCase& asked, const std::string& family, const std::string& member,
             OrderStudyOptions options, ThreadPool& pool, Results& results) {
  for (const OrderSetUp set_up : {OrderSetUp::kPlaceto, OrderSetUp::kLinks}) {
    options.set_up = set_up;
    const placement::Engine engine = order_engine(asked, set_up);
    placement::Scratch scratch;
    placement::Assignment one;
    for (std::size_t u = 0; u < asked.instance.units(); ++u) one.push_back(asked.instance.allowed[u].front());
    const Duration single = engine.evaluate(one, scratch).time;
    const OrderFeatures features = order_features(engine);
    for (const placement::OrderedPlacer placer : options.placers) {
      const std::string key = std::string(to_text(set_up)) + "," + family + "," + member + "," +
                              std::string(to_text(placer)) + ",";
      if (results.has(key, options.orders.size())) continue;
      const OrderSteps steps = run_orders(asked, placer, options, &pool);
      std::ostringstream lines;
      for (std::size_t o = 0; o < steps.size(); ++o) {
        double mean = 0, squares = 0;
        bool all = true;
        for (const auto& step : steps[o]) {
          all = all && step;
          if (step) mean += static_cast<double>(step->count()) / static_cast<double>(options.seeds);
        }
        for (const auto& step : steps[o]) {
          const double off = step ? static_cast<double>(step->count()) - mean : 0;
          squares += off * off;
        }
        const double deviation =
            options.seeds > 1 ? std::sqrt(squares / static_cast<double>(options.seeds - 1)) : 0;
        lines << key << to_text(options.orders[o]) << ',' << options.seeds << ',' << options.episodes << ','
              << std::min(options.most_looks, options.episodes * asked.instance.units() + 1) << ',';
        if (all) lines << std::llround(mean);
        lines << ',' << std::llround(deviation) << ',' << single.count();
        for (const double value : features.value) lines << ',' << std::round(value * 1e4) / 1e4;
        lines << '\n';
      }
      results.add(lines.str());
    }
  }
}

int run(const std::vector<std::string>& arguments) {
  if (arguments.size() < 6)
    throw InputError("expected FILE.csv MEMBERS SEEDS EPISODES MOST_LOOKS THREADS [PROFILE…]");
  Results results(arguments[0]);
  const std::int64_t members = std::stoll(arguments[1]);
  OrderStudyOptions options;
  options.orders.assign(traversal_orders().begin(), traversal_orders().end());
  options.placers = placement::ordered_placers();
  options.seeds = std::stoull(arguments[2]);
  options.episodes = std::stoull(arguments[3]);
  options.most_looks = std::stoull(arguments[4]);
  ThreadPool pool(std::stoull(arguments[5]));
  for (std::int64_t member = 1; member <= members; ++member) {
    for (const TaskFamily& family : task_families()) {
      const OrderCase asked = order_case(build_task_family(family, values_of(family, member)));
      measure(asked, family.name, std::to_string(member), options, pool, results);
    }
  }
  for (std::size_t i = 6; i < arguments.size(); ++i)
    measure(published(arguments[i]), "published", stem(arguments[i]), options, pool, results);
  return 0;
}

}  // namespace
}  // namespace espalier

int main(int count, char** words) {
  return espalier::run_benchmark(espalier::run, count, words);
}
