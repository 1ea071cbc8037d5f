// How long do constructive placers take, beside a plain implementation of the same rule?
//
//   bench_placers heft | etf | gnmt LENGTH
//
// Prints rows "what;size;ours, ms;plain, ms;step, ms" on one thread's processor time, the best of several
// rounds.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <string>

#include "bench/timing.h"
#include "espalier/app/training_graph.h"
#include "espalier/base/check.h"
#include "espalier/base/rng.h"
#include "espalier/planners/placement/baechi.h"
#include "espalier/planners/placement/heft.h"
#include "espalier/planners/placement/multilevel.h"
#include "espalier/planners/placement/placer.h"
#include "espalier/planners/placement/ranks.h"
#include "espalier/zoo/zoo.h"

namespace espalier::placement {
namespace {

double cpu_ms(const std::function<void()>& f, int rounds) {
  return 1e3 * best_of(rounds, f);
}

// Layers of tasks, each reads one to three of the layer before; every device a kind of its own.
Instance layered(std::size_t tasks, std::size_t width, std::size_t devices) {
  Rng rng(1);
  Instance made;
  std::vector<std::vector<std::size_t>> reads(tasks), readers(tasks);
  for (std::size_t t = width; t < tasks; ++t) {
    const std::size_t before = (t / width - 1) * width;
    for (std::size_t i = 0; i < 1 + rng.below(3); ++i) reads[t].push_back(before + rng.below(width));
    std::sort(reads[t].begin(), reads[t].end());
    reads[t].erase(std::unique(reads[t].begin(), reads[t].end()), reads[t].end());
    for (const std::size_t from : reads[t]) readers[from].push_back(t);
  }
  for (std::size_t t = 0; t < tasks; ++t) {
    made.unit.emplace_back(t);
    made.op.emplace_back(t);
    made.pass.push_back(Pass::kForward);
    const std::uint64_t work = 10'000 + rng.below(90'000);
    for (std::size_t d = 0; d < devices; ++d) {
      made.time.emplace_back(static_cast<std::int64_t>(work + rng.below(work)));
    }
    made.workspace.emplace_back();
    made.duplicates.close();
    made.tasks_of.items.emplace_back(t);
    made.tasks_of.close();
    made.resident.items.push_back(narrow(t));
    made.resident.close();
    made.resident_bytes.emplace_back(1'000);
    for (std::size_t d = 0; d < devices; ++d) made.allowed.items.emplace_back(d);
    made.allowed.close();
    if (!readers[t].empty()) {
      made.produces.items.emplace_back(made.values());
      made.producer.emplace_back(t);
      made.bytes.emplace_back(static_cast<std::int64_t>(1'000 + rng.below(50'000)));
      for (const std::size_t reader : readers[t]) made.readers.items.emplace_back(reader);
      made.readers.close();
    }
    made.produces.close();
  }
  for (std::size_t t = 0; t < tasks; ++t) {
    for (const std::size_t from : reads[t]) made.reads.items.push_back(made.produces[from].front());
    made.reads.close();
  }
  for (std::size_t a = 0; a < devices; ++a) {
    made.kind.emplace_back(a);
    made.memory.push_back(gibibytes(1));
    for (std::size_t b = 0; b < devices; ++b) {
      made.ways.push_back(a == b ? Route()
                                 : Route{{narrow(2 * a), narrow(2 * b + 1)}, 1'000'000'000, {}, {}, {}});
    }
  }
  made.kinds = devices;
  made.links = 2 * devices;
  return made;
}

// ---- Plain contenders: the papers' rules word for word, without contention or memory.

struct PlainSchedule {
  explicit PlainSchedule(const Instance& i)
      : instance(i), end(i.tasks()), device(i.tasks()), busy(i.devices()) {}
  Duration arrival(std::size_t task, std::size_t d) const {
    Duration ready;
    for (const ValueId value : instance.reads[task]) {
      const std::size_t from = instance.producer[value.index()].index();
      const bool here = device[from] == d;
      const Route& way = instance.way(DeviceId(device[from]), DeviceId(d));
      ready =
          std::max(ready, end[from] + (here ? Duration() : message_time(way, instance.bytes[value.index()])));
    }
    return ready;
  }
  Duration makespan() const { return *std::max_element(end.begin(), end.end()); }

  const Instance& instance;
  std::vector<Duration> end;
  std::vector<std::size_t> device;
  std::vector<std::vector<std::pair<Duration, Duration>>> busy;  // by device, ascending
};

Duration plain_heft(const Instance& instance) {
  PlainSchedule plain(instance);
  for (const TaskId task : by_rank(upward_ranks(instance, MeanCosts(instance)))) {
    Duration best = Duration::max();
    std::size_t where = 0;
    for (std::size_t d = 0; d < instance.devices(); ++d) {
      const Duration time = instance.time_on(task, DeviceId(d));
      Duration start = plain.arrival(task.index(), d);
      for (const auto& [from, until] : plain.busy[d]) {
        if (start + time <= from) break;
        start = std::max(start, until);
      }
      if (start + time < best) {
        best = start + time;
        where = d;
      }
    }
    plain.end[task.index()] = best;
    plain.device[task.index()] = where;
    auto& busy = plain.busy[where];
    const std::pair slot(best - instance.time_on(task, DeviceId(where)), best);
    busy.insert(std::upper_bound(busy.begin(), busy.end(), slot), slot);
  }
  return plain.makespan();
}

Duration plain_etf(const Instance& instance) {
  PlainSchedule plain(instance);
  const std::vector<Duration> rank = upward_ranks(instance, MeanCosts(instance));
  std::vector<std::size_t> waits(instance.tasks()), ready;
  for (std::size_t t = 0; t < instance.tasks(); ++t) {
    waits[t] = instance.reads[t].size();
    if (waits[t] == 0) ready.push_back(t);
  }
  std::vector<Duration> free(instance.devices());
  while (!ready.empty()) {
    std::tuple<Duration, Duration, std::size_t, std::size_t> best(Duration::max(), {}, 0, 0);
    for (const std::size_t t : ready) {
      for (std::size_t d = 0; d < instance.devices(); ++d) {
        best = std::min(best, std::tuple(std::max(free[d], plain.arrival(t, d)), -rank[t], t, d));
      }
    }
    const auto [start, unused, t, d] = best;
    plain.end[t] = free[d] = start + instance.time_on(TaskId(t), DeviceId(d));
    plain.device[t] = d;
    ready.erase(std::find(ready.begin(), ready.end(), t));
    for (const ValueId value : instance.produces[t]) {
      for (const TaskId reader : instance.readers[value.index()]) {
        if (--waits[reader.index()] == 0) ready.push_back(reader.index());
      }
    }
  }
  return plain.makespan();
}

double ms(Duration duration) {
  return to_milliseconds(duration);
}

void row(const std::string& what, const std::string& size, double ours, double plain, double step,
         double plain_step) {
  std::printf("%s;%s;%.2f;%.2f;%.3f;%.3f\n", what.c_str(), size.c_str(), ours, plain, step, plain_step);
  std::fflush(stdout);
}

void against_plain_heft() {
  const Instance instance = layered(1'000, 20, 16);
  Duration plain_step, step;
  const double plain = cpu_ms([&] { plain_step = plain_heft(instance); }, 5);
  const double free =
      cpu_ms([&] { step = *heft(instance, {.sends = Rules::Sends::kUnlimited}).estimate; }, 20);
  ESP_CHECK(step == plain_step, step, plain_step);
  row("heft, links free", "1,000 tasks, 16 devices", free, plain, ms(step), ms(plain_step));
  const double routes = cpu_ms([&] { step = *heft(instance).estimate; }, 20);
  row("heft, links taken", "1,000 tasks, 16 devices", routes, plain, ms(step), ms(plain_step));
}

void against_plain_etf() {
  const Instance instance = layered(10'000, 40, 4);
  Duration plain_step, step;
  const double plain = cpu_ms([&] { plain_step = plain_etf(instance); }, 3);
  const double free =
      cpu_ms([&] { step = *m_etf(instance, {.sends = Rules::Sends::kUnlimited}).estimate; }, 10);
  row("m-etf, links free", "10,000 operators, 4 devices", free, plain, ms(step), ms(plain_step));
  const double routes = cpu_ms([&] { step = *m_etf(instance).estimate; }, 10);
  row("m-etf, links taken", "10,000 operators, 4 devices", routes, plain, ms(step), ms(plain_step));
  const double sct = cpu_ms([&] { step = *m_sct(instance).estimate; }, 5);
  row("m-sct", "10,000 operators, 4 devices", sct, plain, ms(step), ms(plain_step));
}

// Every placer on GNMT's training graph; the step is the engine's, in microseconds of processor time ours.
void on_gnmt(std::int64_t length) {
  const Graph graph = training_graph(build_zoo_model("gnmt", {{"length", length}}));
  const Cluster cluster = parse_cluster("8xA100-80GB");
  Training training;
  training.batch = BatchSize(16);
  training.micro_batches = {BatchSize(16)};
  const CostTable costs = complete_costs(graph, cluster, CostTable(CostTableParts{}), training.micro_batches);
  const Instance instance = make_instance(graph, cluster, costs, training, {.micro_batch = BatchSize(16)});
  const Engine engine(instance, {});
  Scratch scratch;
  for (const Placer& placer : placement_placers()) {
    Placed placed;
    Context context;
    const double time = cpu_ms([&] { placed = placer.place({graph, instance}, context); }, 1);
    const double step = placed.assignment ? ms(engine.evaluate(*placed.assignment, scratch).time) : 0;
    row(placer.name, "gnmt, " + std::to_string(graph.operators().size()) + " operators, 8 devices", time, 0,
        step, 0);
  }
}

}  // namespace
}  // namespace espalier::placement

int main(int argc, char** argv) {
  using namespace espalier::placement;
  const std::string part = argc > 1 ? argv[1] : "";
  if (part == "heft") against_plain_heft();
  if (part == "etf") against_plain_etf();
  if (part == "gnmt") on_gnmt(argc > 2 ? std::atoll(argv[2]) : 128);
  return 0;
}
