// How many placements of a training graph does the engine judge in a second, operator by operator?
//
//   bench_placement_simulator MODEL [SETTING=VALUE …]
//
// A training graph of the zoo's model on four devices. Placements: each unit anywhere; runs of units; moves
// of one unit from runs. Rules: Placeto's, and priorities by bottom levels on routes with contention. A few
// placements are compared with the slow simulator of the tests before anything is timed (up to 5,000
// operators), and each move's incremental verdict with a full one. Devices have memory for everything, or 16
// GB, which some placements fill. Searches accept what is not worse, of moves of one unit: from runs, and
// from where the planner's own search stands after some looks at each unit. Times are of one thread's
// processor time, the best of several rounds; of batches by the clock. Prints CSV without a header: model,
// operators, rules, what, evaluations, seconds.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <limits>
#include <string>

#include "bench/timing.h"
#include "espalier/base/check.h"
#include "espalier/base/rng.h"
#include "espalier/graph/expand_backward.h"
#include "espalier/placement/engine.h"
#include "espalier/planners/placement/guided.h"
#include "espalier/zoo/zoo.h"
#include "testing/placement_reference.h"

namespace espalier {
namespace {

using placement::Assignment;
using placement::DeviceOrders;
using placement::Engine;
using placement::Evaluated;
using placement::Incremental;
using placement::Instance;
using placement::Rules;
using placement::Scratch;
using placement::UnitId;
using placement::ValueId;

Instance instance_of(const std::string& model, const ZooValues& values) {
  const Graph graph = expand_backward(build_zoo_model(model, values));
  const Cluster cluster = parse_cluster("4xV100-16GB");
  const BatchSize batch = std::max(BatchSize(8), graph.batch().min);
  const CostTable costs = complete_costs(graph, cluster, CostTable({}), std::span(&batch, 1));
  Training training;
  training.batch = batch;
  return placement::make_instance(graph, cluster, costs, training, {.micro_batch = batch});
}

Assignment anywhere(const Instance& instance, Rng& rng) {
  Assignment assignment;
  for (std::size_t u = 0; u < instance.units(); ++u) assignment.emplace_back(rng.below(instance.devices()));
  return assignment;
}

// Units one after the other, `runs` cuts between devices.
Assignment in_runs(const Instance& instance, std::size_t runs, Rng& rng) {
  Assignment assignment;
  std::size_t device = 0;
  for (std::size_t u = 0; u < instance.units(); ++u) {
    if (rng.below(instance.units()) < runs) device = rng.below(instance.devices());
    assignment.emplace_back(device);
  }
  return assignment;
}

// The longest path to the end first, without messages.
DeviceOrders by_bottom_level(const Instance& instance) {
  std::vector<std::pair<std::int64_t, std::uint32_t>> levels(instance.tasks());
  std::vector<std::int64_t> level(instance.tasks());
  for (std::size_t task = instance.tasks(); task-- > 0;) {
    for (const ValueId value : instance.produces[task]) {
      for (const auto reader : instance.readers[value.index()]) {
        level[task] = std::max(level[task], level[reader.index()]);
      }
    }
    level[task] += instance.time[task * instance.kinds].count();
    levels[task] = {-level[task], narrow(task)};
  }
  std::sort(levels.begin(), levels.end());
  DeviceOrders orders;
  orders.priority.resize(instance.tasks());
  for (std::size_t i = 0; i < levels.size(); ++i) orders.priority[levels[i].second] = narrow(i);
  return orders;
}

class Bench {
 public:
  Bench(std::string model, const Instance& instance, std::string name, const Rules& rules,
        DeviceOrders orders)
      : model_(std::move(model)),
        instance_(instance),
        name_(std::move(name)),
        orders_(orders),
        engine_(instance, rules, std::move(orders)) {}

  void run() {
    check();
    Rng rng(1);
    std::vector<Assignment> random, runs;
    const std::size_t count = std::max<std::size_t>(4, 200'000 / instance_.tasks());
    for (std::size_t i = 0; i < count; ++i) {
      random.push_back(anywhere(instance_, rng));
      runs.push_back(in_runs(instance_, 16, rng));
    }
    full("anywhere", random);
    full("runs", runs);
    batch("batch on one thread", runs, 1);
    batch("batch on two threads", runs, 2);
    moves(runs.front(), count);
    search("search", runs.front(), std::max<std::size_t>(400, 4 * count));
    search("late search", after_a_search(runs.front()), std::max<std::size_t>(400, 4 * count));
  }

 private:
  void print(const char* what, std::size_t count, double seconds) const {
    std::printf("%s,%zu,%s,%s,%zu,%.9f\n", model_.c_str(), instance_.tasks(), name_.c_str(), what, count,
                seconds);
    std::fflush(stdout);
  }

  void check() {
    if (instance_.tasks() > 5'000) return;
    Rng rng(2);
    const Assignment assignment = in_runs(instance_, 16, rng);
    const placement::Timeline expected =
        testing::reference_timeline(instance_, engine_.rules(), orders_, assignment);
    const placement::Timeline line = timeline(engine_, assignment);
    ESP_CHECK(line.start == expected.start && line.messages == expected.messages);
    ESP_CHECK(check_timeline(instance_, engine_.rules(), assignment, line).empty());
  }

  void full(const char* what, const std::vector<Assignment>& assignments) {
    Scratch scratch;
    engine_.evaluate(assignments.front(), scratch);
    const auto work = [&] {
      for (const Assignment& assignment : assignments) engine_.evaluate(assignment, scratch);
    };
    print(what, assignments.size(), best_of(7, work));
  }

  // By the clock on the wall: other work on the machine counts.
  void batch(const char* what, const std::vector<Assignment>& assignments, std::size_t threads) {
    ThreadPool pool(threads);
    double best = std::numeric_limits<double>::max();
    for (int i = 0; i < 7; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      engine_.evaluate_all(assignments, &pool);
      best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    print(what, assignments.size(), best);
  }

  // Moves of one unit, each judged in full and from where it begins to differ.
  void moves(const Assignment& base, std::size_t count) {
    Rng rng(3);
    std::vector<Incremental::Move> all;
    for (std::size_t i = 0; i < count; ++i) {
      all.push_back({UnitId(rng.below(instance_.units())), DeviceId(rng.below(instance_.devices()))});
    }
    Incremental incremental(engine_, base);
    Scratch scratch;
    double slowest = 0, most = 0;
    const double in_full = best_of(3, [&] {
      most = 0;
      for (const Incremental::Move& move : all) {
        Assignment changed = base;
        changed[move.unit.index()] = move.device;
        const double begin = thread_seconds();
        engine_.evaluate(changed, scratch);
        most = std::max(most, thread_seconds() - begin);
      }
    });
    const double looked = best_of(3, [&] {
      slowest = 0;
      for (const Incremental::Move& move : all) {
        const double begin = thread_seconds();
        incremental.look({&move, 1});
        slowest = std::max(slowest, thread_seconds() - begin);
      }
    });
    for (const Incremental::Move& move : all) {
      Assignment changed = base;
      changed[move.unit.index()] = move.device;
      ESP_CHECK(incremental.look({&move, 1}) == engine_.evaluate(changed, scratch), move.unit.index());
    }
    print("move in full", count, in_full);
    print("move looked at", count, looked);
    print("slowest move in full", 1, most);
    print("slowest move looked at", 1, slowest);
  }

  // Where the planner's own search stands after some looks at each unit.
  Assignment after_a_search(const Assignment& start) const {
    const placement::Neighbourhood around(instance_);
    Context context;
    context.budget.max_states = std::min<std::size_t>(20'000, 40'000'000 / instance_.tasks());
    placement::Walk walk(engine_, around, start, context);
    Rng rng(5);
    placement::guided_accept(walk, rng);
    return walk.nearest();
  }

  // Accept what is not worse, of moves of one unit; then the same moves by full evaluations.
  void search(const std::string& name, const Assignment& start, std::size_t count) {
    Rng rng(4);
    Incremental incremental(engine_, start);
    std::vector<Look> looks;
    const double begin = thread_seconds();
    while (looks.size() < count) {
      Look look{{UnitId(rng.below(instance_.units())), DeviceId(rng.below(instance_.devices()))}};
      if (incremental.assignment()[look.move.unit.index()] == look.move.device) continue;
      look.limit = incremental.evaluated().time + nanoseconds(1);
      const double before = thread_seconds();
      look.seen = incremental.look({&look.move, 1}, look.limit);
      look.seconds = thread_seconds() - before;
      look.taken = !look.seen.cut_off && (look.seen.fits || !incremental.evaluated().fits);
      if (look.taken) incremental.take();
      looks.push_back(look);
    }
    const double all = thread_seconds() - begin;
    std::size_t taken = 0;
    for (const Look& look : looks) taken += look.taken ? 1 : 0;
    print((name + ": looks and takes").c_str(), count, all);
    print((name + ": moves taken").c_str(), taken, 0);
    print((name + ": median look").c_str(), 1, median_of(looks));
    const auto judge_in_full = [&](bool limited) {
      Assignment now = start;
      Scratch scratch;
      for (Look& look : looks) {
        const DeviceId back = now[look.move.unit.index()];
        now[look.move.unit.index()] = look.move.device;
        const double before = thread_seconds();
        const Evaluated full = engine_.evaluate(now, scratch, limited ? look.limit : Duration::max());
        look.seconds = thread_seconds() - before;
        ESP_CHECK(full == look.seen || (look.seen.cut_off && full.time >= look.limit), name);
        if (!look.taken) now[look.move.unit.index()] = back;
      }
    };
    judge_in_full(false);
    print((name + ": median in full").c_str(), 1, median_of(looks));
    judge_in_full(true);
    print((name + ": median in full with the limit").c_str(), 1, median_of(looks));
  }

  struct Look {
    Incremental::Move move;
    Duration limit = {};
    Evaluated seen = {};
    bool taken = false;
    double seconds = 0;
  };
  static double median_of(const std::vector<Look>& looks) {
    std::vector<double> times;
    for (const Look& look : looks) times.push_back(look.seconds);
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

  std::string model_;
  const Instance& instance_;
  std::string name_;
  DeviceOrders orders_;
  Engine engine_;
};

int run(int count, char** arguments) {
  if (count < 2) return std::fprintf(stderr, "usage: bench_placement_simulator MODEL [SETTING=VALUE …]\n"), 2;
  const std::string model = arguments[1];
  ZooValues values;
  for (int i = 2; i < count; ++i) {
    const std::string text = arguments[i];
    const std::size_t equals = text.find('=');
    ESP_CHECK(equals != std::string::npos, text);
    values[text.substr(0, equals)] = std::stoll(text.substr(equals + 1));
  }
  const Instance instance = instance_of(model, values);
  ESP_CHECK(check_instance(instance).empty());
  Instance ample = instance;
  std::fill(ample.memory.begin(), ample.memory.end(), Bytes(std::int64_t{1} << 60));
  Bench(model, ample, "Placeto's", placement::placeto_rules(), {}).run();
  Bench(model, ample, "routes by priority", {}, by_bottom_level(instance)).run();
  Bench(model, instance, "Placeto's with 16 GB", placement::placeto_rules(), {}).run();
  Bench(model, instance, "routes by priority with 16 GB", {}, by_bottom_level(instance)).run();
  return 0;
}

}  // namespace
}  // namespace espalier

int main(int count, char** arguments) {
  return espalier::run(count, arguments);
}
