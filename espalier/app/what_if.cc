#include "espalier/app/what_if.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <numeric>
#include <set>
#include <utility>

#include "espalier/app/catalog.h"
#include "espalier/app/cluster_change.h"
#include "espalier/base/thread_pool.h"

namespace espalier {
namespace {

constexpr double kWorthTelling = 1.02;
constexpr std::uint64_t kShareFromAPlan =
    4;  // of the budget: whoever starts from a plan has most of the way behind

std::optional<double> gain_of(const WhatIf& change, std::optional<Duration> now) {
  if (!change.iteration || !now) return std::nullopt;
  return static_cast<double>(now->count()) /
         static_cast<double>(std::max<std::int64_t>(1, change.iteration->count()));
}

// Numbers of the changes, those first that take longest to plan: clusters of several kinds of devices, then
// those of more devices.
std::vector<std::size_t> longest_first(const PlanningJob& job, const std::vector<WhatIf>& changes) {
  std::vector<std::pair<std::size_t, std::size_t>> weights;
  for (const WhatIf& each : changes) {
    const Cluster cluster = with_change(job, each.change).cluster;
    std::set<KindId> kinds;
    for (const Device& device : cluster.devices()) kinds.insert(device.kind);
    weights.emplace_back(kinds.size(), cluster.devices().size());
  }
  std::vector<std::size_t> order(changes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return weights[a] > weights[b]; });
  return order;
}

// One listener for searches side by side: it hears how far all of them are.
class SharedProgress {
 public:
  SharedProgress(const SearchWatch::Listener& listener, std::size_t searches)
      : listener_(listener), far_(searches, 0) {}

  SearchWatch::Listener of(std::size_t search) {
    if (!listener_) return {};
    return [this, search](const SearchProgress& own) {
      const std::lock_guard guard(mutex_);
      far_[search] = own.fraction;
      SearchProgress all = own;
      all.fraction = std::accumulate(far_.begin(), far_.end(), 0.0) / static_cast<double>(far_.size());
      listener_(all);
    };
  }

  void ended(std::size_t search) {
    const std::lock_guard guard(mutex_);
    far_[search] = 1;
  }

 private:
  const SearchWatch::Listener& listener_;
  std::mutex mutex_;
  std::vector<double> far_;
};

}  // namespace

void check_changes(const PlanningJob& job, const std::vector<WhatIf>& asked) {
  for (const WhatIf& each : asked) with_change(job, each.change);
}

std::vector<WhatIf> what_if(const PlanningJob& job, const std::vector<WhatIf>& asked,
                            const PlanOptions& options, const Planned* now) {
  std::vector<WhatIf> answers = asked;
  PlanningJob from = job;
  const bool planned_before = now != nullptr && now->judged && !now->judged->overflow;
  if (planned_before && options.planner == kAutomatic && !now->judged->placement && !now->costs) {
    from.start = now->judged->plan;
  }
  // Side by side: one search has parts that keep one thread busy. Policies have their own threads.
  const std::size_t threads = options.search.threads;
  const bool beside = !options.learned && answers.size() > 1;
  SharedProgress progress(options.search.progress, answers.size());
  ThreadPool pool(beside ? std::min(threads, answers.size()) : 1);
  const std::vector<std::size_t> order = longest_first(from, answers);
  pool.for_each(answers.size(), [&](std::size_t turn) {
    const std::size_t i = order[turn];
    WhatIf& answer = answers[i];
    if (options.search.cancelled != nullptr && *options.search.cancelled) {
      answer.status = Status::kInterrupted;
      return;
    }
    const PlanningJob changed = with_change(from, answer.change);
    PlanOptions plain = options;
    plain.remedies = false;
    plain.brief = true;
    plain.search.progress = progress.of(i);
    if (beside) plain.search.threads = std::max<std::size_t>(1, threads / answers.size());
    const std::uint64_t all = options.budget.max_states;
    plain.budget.max_states = changed.start && options.planner == kAutomatic
                                  ? std::max<std::uint64_t>(1, all / kShareFromAPlan)
                                  : all;
    const Planned planned = plan_model(changed, plain);
    progress.ended(i);
    answer.status = planned.outcome.status;
    if (!planned.judged || planned.judged->overflow) return;
    answer.iteration = planned.judged->trace.iteration;
    answer.planner = planned.planner;
  });
  return answers;
}

std::vector<WhatIf> usual_changes(const PlanningJob& job, const Planned& planned) {
  const std::span<const Device> devices = job.cluster.devices();
  const std::string& last = devices.back().name;
  std::vector<WhatIf> changes;
  const auto add = [&](std::string change, std::string text, std::string binds) {
    WhatIf each;
    each.change = std::move(change);
    each.text = std::move(text);
    each.binds = std::move(binds);
    changes.push_back(std::move(each));
  };
  add("*=+1GiB", "1 GiB more on each device", "memory");
  add(last + "=+1", "one more device like " + last, "the number of devices");
  if (devices.size() < 2) return changes;
  add("links=2x", "links twice as fast", "the links");
  if (!planned.judged) return changes;
  const std::vector<Duration> busy = busy_time(planned.judged->trace);
  const auto busiest = static_cast<std::size_t>(std::max_element(busy.begin(), busy.end()) - busy.begin());
  add(devices[busiest].name + "=2x", devices[busiest].name + ", the busiest, twice as fast",
      "the speed of " + devices[busiest].name);
  return changes;
}

std::string binding_text(const std::vector<WhatIf>& changes, std::optional<Duration> now) {
  const WhatIf* best = nullptr;
  for (const WhatIf& change : changes) {
    if (change.binds.empty() || !change.iteration) continue;
    if (best == nullptr || *change.iteration < *best->iteration) best = &change;
  }
  if (best == nullptr) return "none of these changes makes it fit";
  const std::optional<double> gain = gain_of(*best, now);
  if (!gain) return fmt::format("{}: with {} it fits", best->binds, best->text);
  if (*gain < kWorthTelling) return "none of these alone: each gives less than 2 %";
  return fmt::format("{}: with {} {:.2f}x as fast", best->binds, best->text, *gain);
}

Table what_if_table(const std::vector<WhatIf>& changes, std::optional<Duration> now) {
  Table table{
      {{"change", "change"}, {"iteration", "per iteration"}, {"faster", "as fast"}, {"status", "status"}},
      {}};
  for (const WhatIf& change : changes) {
    const std::optional<double> gain = gain_of(change, now);
    table.rows.push_back({change.text.empty() ? change.change : change.text,
                          change.iteration ? Cell(*change.iteration) : Cell(),
                          gain ? Cell(Factor{*gain}) : Cell(),
                          change.iteration ? std::string("fits") : std::string(to_text(change.status))});
  }
  return table;
}

}  // namespace espalier
