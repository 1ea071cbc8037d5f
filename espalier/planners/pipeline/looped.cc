#include "espalier/planners/pipeline/looped.h"

#include <algorithm>

#include "espalier/planners/candidate.h"
#include "espalier/planners/pipeline/chain.h"
#include "espalier/planners/pipeline/chain_split.h"
#include "espalier/planners/pipeline/device_row.h"

namespace espalier {
namespace {

using Layout = StageLine::Layout;
using Maker = NamedOrders::Maker;

struct Laid {  // a layout and what is made for it
  Layout layout = Layout::kLoop;
  std::size_t chunks = 1;
  std::vector<NamedOrders> orders;
};

constexpr std::int64_t kBriefMicroBatches = 2;  // for each device

std::vector<Laid> layouts(const LoopedOptions& options) {
  std::vector<Laid> all;
  if (options.briefly) {
    for (std::size_t chunks = 2; chunks <= options.max_chunks; ++chunks) {
      all.push_back({Layout::kLoop, chunks, {{.maker = Maker::kInterleaved}}});
      if (options.may_split) all.back().orders.push_back({.maker = Maker::kInterleaved, .split = true});
    }
    if (options.may_split) all.push_back({Layout::kV, 2, {{.maker = Maker::kZbV}}});
    return all;
  }
  all.push_back(
      {Layout::kLoop, 1, {{.maker = Maker::kZbH1}, {.maker = Maker::kZbH2}, {.maker = Maker::kZbGreedy}}});
  for (std::size_t chunks = 2; chunks <= options.max_chunks; ++chunks) {
    all.push_back({Layout::kLoop,
                   chunks,
                   {{.maker = Maker::kInterleaved}, {.maker = Maker::kInterleaved, .split = true}}});
  }
  all.push_back({Layout::kV,
                 2,
                 {{.maker = Maker::kZbV},
                  {.maker = Maker::kVHalf},
                  {.maker = Maker::kVMin},
                  {.maker = Maker::kDualPipeV}}});
  if (!options.orders) return all;
  const NamedOrders& only = *options.orders;
  std::vector<Laid> some;
  if (only.maker == Maker::kInterleaved && only.chunks) return {{Layout::kLoop, *only.chunks, {only}}};
  for (Laid& laid : all) {
    const bool made_for =
        !only.layout() ? laid.chunks == 1 : *only.layout() == laid.layout && laid.chunks > 1;
    if (made_for) some.push_back({laid.layout, laid.chunks, {only}});
  }
  return some;
}

// The stages of a line on a row of devices, none longer than `most` on its device; nothing if that is too
// short.
std::optional<ChainSplit> split_within(const Chain& chain, const StageLine& line, Duration most) {
  const std::size_t stages = line.places() * line.chunks;
  std::vector<DeviceId> device_of(stages);
  for (std::size_t place = 0; place < line.places(); ++place) {
    for (std::size_t chunk = 0; chunk < line.chunks; ++chunk) {
      device_of[line.stage(place, chunk).index()] = line.devices[place];
    }
  }
  ChainSplit split;
  std::size_t cut = 0;
  for (std::size_t s = 0; s < stages; ++s) {
    const KindId kind = chain.line().problem().cluster.device(device_of[s]).kind;
    const std::size_t last = chain.blocks() - (stages - s - 1);  // a block for each stage to come
    std::size_t next = cut + 1;
    if (chain.work(kind, Crowd::kAlone, cut, next) > most) return std::nullopt;
    while (next < last && chain.work(kind, Crowd::kAlone, cut, next + 1) <= most) ++next;
    split.stages.push_back({cut, next, {device_of[s]}});
    cut = next;
  }
  return cut == chain.blocks() ? std::optional(split) : std::nullopt;
}

// The least longest stage, by bisection over its time; a stage takes as many blocks as it may, so the last
// ones are the shortest. Needs a block for each stage.
ChainSplit shortest_stages(const Chain& chain, const StageLine& line) {
  Duration most;
  for (const Duration time : chain.times_by_kind()) most = std::max(most, time);
  Duration least;
  while (least < most) {
    const Duration middle = least + (most - least) / 2;
    if (split_within(chain, line, middle)) {
      most = middle;
    } else {
      least = middle + nanoseconds(1);
    }
  }
  return split_within(chain, line, most).value();
}

class Search {
 public:
  Search(const Problem& problem, Context& context)
      : problem_(problem), context_(context), judge_(problem, context) {}

  void consider(const Chain& chain, const std::vector<DeviceId>& row, const Laid& laid) {
    const StageLine line{.layout = laid.layout, .devices = row, .chunks = laid.chunks};
    if (chain.blocks() < row.size() * laid.chunks) {
      why_ = "the model has " + std::to_string(chain.blocks()) + " blocks for " +
             std::to_string(row.size() * laid.chunks) + " stages";
      return;
    }
    std::vector<StageDraft> drafts = drafts_of(chain, shortest_stages(chain, line));
    for (std::size_t s = 1; s < drafts.size(); ++s) drafts[s].after = {s - 1};
    std::optional<PipelinePlan> plan = complete_plan(problem_.graph, drafts, problem_.training.batch,
                                                     chain.micro_batch(), ScheduleKind::kOneFOneB);
    if (!plan) return;
    const StagedModel model =
        stage_model(problem_.graph, problem_.cluster, problem_.costs, problem_.training, *plan);
    for (const NamedOrders& orders : laid.orders) {
      if (context_.stop() || !context_.take_state()) return;
      GeneratedOrders made = make_orders(orders, model, problem_.cluster);
      if (!made.lists) {
        why_ = to_text(orders) + ": " + made.why_not;
        continue;
      }
      plan->orders = Orders(std::move(*made.lists));
      const std::vector<std::uint32_t> limits = in_flight_limits(*plan);
      for (std::size_t s = 0; s < limits.size(); ++s) plan->stages[s].in_flight = limits[s];
      judge_.consider(Plan(*plan));
      considered_ = true;
    }
  }

  Outcome outcome() const {
    if (considered_ || context_.stop() || context_.budget_spent) return judge_.outcome();
    return {.status = Status::kUnsupported, .why = "no schedule applies; " + why_};
  }

 private:
  const Problem& problem_;
  Context& context_;
  Judge judge_;
  bool considered_ = false;
  std::string why_;  // the last schedule that did not apply
};

}  // namespace

Outcome looped(const Problem& problem, const LoopedOptions& options, Context& context) {
  const std::vector<DeviceId> devices = unpinned_devices(problem);
  if (devices.size() < problem.cluster.devices().size()) {
    return {.status = Status::kUnsupported, .why = "planner 'looped' does not keep pins"};
  }
  Search search(problem, context);
  const Linearization line(problem, chain_order(problem.graph));
  for (const BatchSize micro_batch : usable_micro_batches(problem)) {
    const std::int64_t micro_batches = problem.training.batch.count() / micro_batch.count();
    if (options.briefly && micro_batches > kBriefMicroBatches * std::int64_t{narrow(devices.size())})
      continue;
    const Chain chain(line, micro_batch);
    if (chain.blocks() == 0) break;
    std::vector<std::vector<DeviceId>> rows = device_rows(problem.cluster, devices, chain.times_by_kind());
    if (options.briefly) rows.resize(1);
    for (const std::vector<DeviceId>& row : rows) {
      for (const Laid& laid : layouts(options)) search.consider(chain, row, laid);
    }
  }
  return search.outcome();
}

}  // namespace espalier
