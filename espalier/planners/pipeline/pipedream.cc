#include "espalier/planners/pipeline/pipedream.h"

#include <algorithm>
#include <map>

#include "espalier/planners/candidate.h"

// Problem. Blocks 0 … n-1 in a chain, devices 0 … D-1 in a row, m micro-batches. Cut the chain into
// contiguous stages, give each a run of consecutive devices as replicas, minimise the largest time per step
// over stages and over the links between them.
//
//   PipeDream (SOSP'19, §3.1)        here
//   A(j, m), best for 1…j on m       best[i][d]: answers for blocks i … n-1 on devices d … D-1
//   T(i→j, m), stage time            chain_stage_time
//   2·a_i/B, activation traffic      link_time, a term of the maximum of its own
//
// How we deviate. (1) From the end to the start, because the in-flight count of a stage, hence its memory,
// depends on what follows it (docs/semantics.md, in-flight): with r replicas before a rest that holds s
// micro-batches, w = ⌈(r + s)/r⌉. (2) Each state keeps all answers that are not worse in all of (bottleneck,
// stages, s). (3) Devices may differ: runs follow the cluster's order, and any device may be left out. (4)
// Weights are not stashed; the all-reduce is paid once per step. (5) Skip tensors are charged at every cut
// they cross, though they travel once.
//
// Known bad case: a graph whose branches are equal towers. Any chain order makes stages wait for branches
// that do not feed them.

namespace espalier {
namespace {

struct Answer {
  Duration bottleneck;
  std::size_t stages = 0;
  std::int64_t held = 0;  // replicas × in-flight limit of the first stage
  // The first stage: blocks up to `cut` on devices [begin, end); the rest is answer `next` of best[cut][end].
  std::size_t cut = 0, begin = 0, end = 0, next = 0;
};

bool dominates(const Answer& a, const Answer& b) {
  return a.bottleneck <= b.bottleneck && a.stages <= b.stages && a.held <= b.held;
}

void insert(std::vector<Answer>& answers, const Answer& fresh) {
  for (const Answer& a : answers) {
    if (dominates(a, fresh)) return;
  }
  std::erase_if(answers, [&](const Answer& a) { return dominates(fresh, a); });
  answers.push_back(fresh);
}

// Time of one step that the link between two neighbouring stages is busy, the busier direction.
Duration link_time(const Problem& problem, const Chain& chain, std::size_t cut, DeviceId from, DeviceId to,
                   std::int64_t share) {
  const Duration forward = problem.cluster.route(from, to).hold(chain.forward_bytes(cut));
  const Duration backward = problem.cluster.route(to, from).hold(chain.backward_bytes(cut));
  return share * std::max(forward, backward);
}

class ChainSearch {
 public:
  ChainSearch(const Problem& problem, const Chain& chain, const std::vector<DeviceId>& devices,
              std::int64_t micro_batches, Context& context)
      : problem_(problem),
        chain_(chain),
        devices_(devices),
        m_(micro_batches),
        context_(context),
        best_((chain.blocks() + 1) * (devices.size() + 1)) {
    for (std::size_t d = 0; d <= devices.size(); ++d) at(chain.blocks(), d).push_back(Answer{});
  }

  void run() {
    for (std::size_t i = chain_.blocks(); i-- > 0;) {
      for (std::size_t d = devices_.size(); d-- > 0;) {
        if (context_.budget_spent || context_.stop()) return;
        solve(i, d);
      }
    }
  }

  std::vector<ChainSplit> answers() {
    std::vector<Answer> found = at(0, 0);
    std::sort(found.begin(), found.end(), [](const Answer& a, const Answer& b) {
      return std::tuple(a.bottleneck, a.stages, a.held) < std::tuple(b.bottleneck, b.stages, b.held);
    });
    std::vector<ChainSplit> splits;
    for (const Answer& answer : found) {
      ChainSplit split;
      split.bottleneck = answer.bottleneck;
      const Answer* a = &answer;
      std::size_t block = 0;
      while (block < chain_.blocks()) {
        split.stages.push_back({block, a->cut, run_of(a->begin, a->end)});
        block = a->cut;
        a = &at(a->cut, a->end)[a->next];
      }
      splits.push_back(std::move(split));
    }
    return splits;
  }

 private:
  std::vector<Answer>& at(std::size_t block, std::size_t device) {
    return best_[block * (devices_.size() + 1) + device];
  }
  std::vector<DeviceId> run_of(std::size_t begin, std::size_t end) const {
    return {devices_.begin() + static_cast<std::ptrdiff_t>(begin),
            devices_.begin() + static_cast<std::ptrdiff_t>(end)};
  }

  void solve(std::size_t i, std::size_t d) {
    std::vector<Answer>& here = at(i, d);
    if (d + 1 < devices_.size()) here = at(i, d + 1);  // device d left out; its answers say where they begin
    const std::size_t most = std::min(devices_.size() - d, static_cast<std::size_t>(m_));
    for (std::size_t r = 1; r <= most; ++r) {
      const std::vector<DeviceId> run = run_of(d, d + r);
      for (std::size_t j = i + 1; j <= chain_.blocks(); ++j) {
        const std::vector<Answer>& rest = at(j, d + r);
        if (rest.empty()) continue;
        if (r > 1 && problem_.written_buffers == WrittenBuffers::kOneReplica && chain_.writes_buffers(i, j))
          break;  // and so do all longer stages
        if (!context_.take_state()) return;
        const Duration stage = chain_stage_time(problem_, chain_, i, j, run, m_);
        for (std::size_t k = 0; k < rest.size(); ++k) extend(here, rest[k], k, i, j, d, r, stage);
      }
    }
  }

  void extend(std::vector<Answer>& here, const Answer& rest, std::size_t next, std::size_t i, std::size_t j,
              std::size_t d, std::size_t r, Duration stage) {
    const auto replicas = static_cast<std::int64_t>(r);
    const std::int64_t share = (m_ + replicas - 1) / replicas;
    const std::int64_t in_flight =
        rest.stages == 0 ? 1 : std::min(share, (replicas + rest.held + replicas - 1) / replicas);
    for (std::size_t k = d; k < d + r; ++k) {
      if (chain_.memory(problem_.training.optimizer, i, j, in_flight) >
          problem_.cluster.device(devices_[k]).memory)
        return;
    }
    Answer answer{std::max(stage, rest.bottleneck), rest.stages + 1, replicas * in_flight, j, d, d + r, next};
    if (rest.stages > 0) {
      answer.bottleneck = std::max(answer.bottleneck, link_time(problem_, chain_, j, devices_[d + r - 1],
                                                                devices_[rest.begin], share));
    }
    insert(here, answer);
  }

  const Problem& problem_;
  const Chain& chain_;
  const std::vector<DeviceId>& devices_;
  std::int64_t m_;
  Context& context_;
  std::vector<std::vector<Answer>> best_;
};

void consider_split(Judge& judge, const Chain& chain, const ChainSplit& split, BatchSize micro_batch,
                    const OrderRule& schedule) {
  std::vector<StageDraft> drafts;
  for (std::size_t s = 0; s < split.stages.size(); ++s) {
    const ChainStage& stage = split.stages[s];
    StageDraft draft{chain.operators(stage.first_block, stage.last_block), stage.devices, {}};
    if (s > 0) draft.after = {s - 1};
    drafts.push_back(std::move(draft));
  }
  judge.consider(drafts, micro_batch, schedule, split.bottleneck);
}

}  // namespace

Duration chain_stage_time(const Problem& problem, const Chain& chain, std::size_t first, std::size_t last,
                          const std::vector<DeviceId>& devices, std::int64_t micro_batches) {
  const auto replicas = static_cast<std::int64_t>(devices.size());
  Duration worst;
  for (std::int64_t r = 0; r < replicas; ++r) {
    const std::int64_t share = micro_batches / replicas + (r < micro_batches % replicas ? 1 : 0);
    const DeviceId device = devices[static_cast<std::size_t>(r)];
    const KindId kind = problem.cluster.device(device).kind;
    Duration per_micro_batch = chain.work(kind, first, last);
    const Group& host = problem.cluster.group(problem.cluster.device(device).group);
    if (first > 0) {
      per_micro_batch +=
          host.receive.of(chain.forward_bytes(first)) + host.send.of(chain.backward_bytes(first));
    }
    if (last < chain.blocks()) {
      per_micro_batch +=
          host.send.of(chain.forward_bytes(last)) + host.receive.of(chain.backward_bytes(last));
    }
    const Duration update = update_time(problem.costs.overhead(problem.cluster.kind(kind).name),
                                        problem.training.optimizer.kind, chain.trainable(first, last));
    worst = std::max(worst, share * per_micro_batch + update);
  }
  if (replicas > 1) {
    const CollectiveCost reduce = all_reduce_cost(problem.cluster, devices, chain.trainable(first, last));
    worst += reduce.hold + reduce.latency;
  }
  return worst;
}

std::vector<ChainSplit> min_max_splits(const Problem& problem, const Chain& chain,
                                       const std::vector<DeviceId>& devices, std::int64_t micro_batches,
                                       Context& context) {
  ChainSearch search(problem, chain, devices, micro_batches, context);
  search.run();
  return search.answers();
}

Outcome pipedream(const Problem& problem, const PipeDreamOptions& options, Context& context) {
  Judge judge(problem);
  std::vector<DeviceId> devices;
  for (std::size_t d = 0; d < problem.cluster.devices().size(); ++d) devices.push_back(DeviceId(d));
  std::vector<std::vector<OperatorId>> orders;
  if (options.order != PipeDreamOptions::Order::kDepthFirst) orders.push_back(chain_order(problem.graph));
  if (options.order != PipeDreamOptions::Order::kGraph)
    orders.push_back(branch_by_branch_order(problem.graph));
  if (orders.size() == 2 && orders[0] == orders[1]) orders.pop_back();

  for (const BatchSize micro_batch : usable_micro_batches(problem)) {
    const std::int64_t m = problem.training.batch.count() / micro_batch.count();
    for (const std::vector<OperatorId>& order : orders) {
      const Chain chain(problem, order, micro_batch);
      std::vector<ChainSplit> splits = min_max_splits(problem, chain, devices, m, context);
      if (options.choice == PipeDreamOptions::Choice::kBottleneck && splits.size() > 1) splits.resize(1);
      for (const ChainSplit& split : splits)
        consider_split(judge, chain, split, micro_batch, options.schedule);
    }
  }
  return judge.outcome(context);
}

}  // namespace espalier
