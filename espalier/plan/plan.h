#pragma once

// Two honest types of plan: a Placement (a device for each operator, any interleaving) and a PipelinePlan (a
// DAG of convex stages, each with its devices, micro-batch, in-flight limit and recompute choice). Both are
// lowered to one Schedule; nothing after that tells them apart.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/base/ids.h"
#include "espalier/base/units.h"
#include "espalier/cluster/cluster.h"
#include "espalier/graph/graph.h"
#include "espalier/plan/orders.h"
#include "espalier/plan/training.h"

namespace espalier {

// What a stage edge without a tensor means at run time (docs/semantics.md, time).
enum class TokenRule : std::uint8_t {
  kBothWays,     // an empty token forward and backward, at link latency: the meaning of `after`
  kForwardOnly,  // no token on the way back
  kFree,         // both ways, but without latency: order alone
  kNone,         // data edges only
};
std::string_view to_text(TokenRule rule);  // "both", "forward", "free", "none"
std::optional<TokenRule> parse_token_rule(std::string_view text);

struct Replica {
  std::vector<DeviceId> devices;             // one, or a tensor-parallel group
  std::vector<std::uint32_t> micro_batches;  // those it takes, ascending
  friend bool operator==(const Replica&, const Replica&) = default;
};

struct Stage {
  std::string name;
  std::vector<OperatorId> operators;  // ascending
  std::vector<Replica> replicas;      // share the stage's micro-batches among them
  std::vector<StageId> after;         // ascending: stages that it reads from, and those it merely follows
  BatchSize micro_batch;
  std::uint32_t in_flight = 1;  // micro-batches per replica between F's start and B's end, at most
  std::optional<std::uint32_t> slots = {};  // receive slots of each incoming edge; none: in_flight + 1
  std::vector<OperatorId> recompute =
      {};  // ascending; their saved tensors are dropped and computed again before B
  friend bool operator==(const Stage&, const Stage&) = default;

  std::uint32_t largest_share() const;  // micro-batches of the replica with most, at least 1
};

// Of one stage, and of all stages of a plan together.
inline constexpr std::int64_t kMaxMicroBatches = 1 << 20;
inline constexpr std::int64_t kMaxMicroBatchesOfAllStages = 1 << 21;

struct PipelinePlan {
  std::vector<Stage> stages;  // inputs first: `after` names smaller ids only
  BatchSize batch;
  Orders orders;
  TokenRule tokens = TokenRule::kBothWays;
  friend bool operator==(const PipelinePlan&, const PipelinePlan&) = default;

  std::uint32_t micro_batches(StageId stage) const {  // how many the batch has in that stage
    const std::int64_t size = stages[stage.index()].micro_batch.count();
    return size > 0 ? static_cast<std::uint32_t>(batch.count() / size) : 0;
  }
};

// Micro-batches j with j mod replicas = r, the planners' way to share them.
std::vector<std::uint32_t> round_robin(std::uint32_t micro_batches, std::size_t replica,
                                       std::size_t replicas);

// The rule below for one stage before one other: micro-batches that each of its r replicas, which work in
// groups of k micro-batches of b samples, has in flight, where the other holds `held` samples of micro-batch
// b_next. All positive.
std::int64_t in_flight_before(std::int64_t r, std::int64_t k, std::int64_t b, std::int64_t held,
                              std::int64_t b_next);

// In-flight limits for equal micro-batch sizes, by stage: w_x = ⌈(r_x + max over successors y of r_y·w_y) /
// r_x⌉, 1 without successor, capped by the largest share of a replica (docs/semantics.md, micro-batches).
// GPipe: the whole share. kFkB: k_x·r_x in place of the first r_x, k_x without successor. For unequal sizes
// the count is taken in samples, with one more where a small reader must fill a larger micro-batch's
// gradient. Lists: what they hold (in_flight_of).
std::vector<std::uint32_t> in_flight_limits(const PipelinePlan& plan);

// For lists of this plan's orders. What ties it will have is not known here: any may be named.
OrderNames order_names(const PipelinePlan& plan, const Cluster& cluster);

inline constexpr std::int64_t kMostLevel = std::int64_t{1} << 31;

// A device for each operator, and where fragments end (plan/fragments.h): operators of one device and one
// level make one. Without levels each operator has the smallest that it can have.
struct Placement {
  std::vector<DeviceId> device;           // by operator
  std::vector<std::uint32_t> level = {};  // by operator, duplicable ones' do not count; empty: the smallest
  // What devices do in order, with one micro-batch and unless another order is asked for. Steps name
  // fragments by their place. Empty: forward passes by level, backward passes from the last level to the
  // first; without levels by the rule.
  OrderLists orders = {};
  friend bool operator==(const Placement&, const Placement&) = default;
};

// Rules of a PipelinePlan; each violation is one line that begins with the rule's name:
//   named        stages have names, in UTF-8, each once
//   covered      a stage has operators, and only the graph's; every operator stands in exactly one stage, a
//                duplicable one in at least one and beside each reader
//   ordered      `after` names smaller stages; `after` and operators ascend, each once
//   data-edge    where an operator reads across stages, the producer's stage is in the consumer's `after`
//                (stages that read from each other are left to the next rule)
//   convex       no stages read from each other, directly or through others; so no path of operators leaves a
//                stage and returns to it
//   devices      at least one replica; devices exist; none twice within a stage; groups of one size
//   micro-batch  positive, divides the batch into at most 2^20 (all stages' together: 2^21), within the
//                graph's batch range; joined stages' sizes divide one another
//   shares       the replicas' micro-batches are a partition of the stage's, each ascending and not empty
//   in-flight    at least 1 and at most the largest share; at least one receive slot
//   orders       k is positive, one for all stages or one for each; lists are for the cluster's devices and
//   name
//                the plan's stages
//   colocation   operators of one colocation group stand in one stage
//   recompute    only the stage's own operators, ascending, each once, none that mutates
std::vector<std::string> check_plan(const Graph& graph, const Cluster& cluster, const PipelinePlan& plan);

// Rules of a Placement: a device for every operator, existing devices, colocation groups together. Levels, if
// there are any: one for each operator, at least that of each operator that must come first, and more where
// that one stands on another device.
std::vector<std::string> check_placement(const Graph& graph, const Cluster& cluster,
                                         const Placement& placement);

// The operators for which a smaller micro-batch trains something else: the loss depends on them, and they
// relate the samples of a batch to each other. BatchNorm is not among them: pipelines keep its statistics per
// micro-batch, with a warning. Ascending.
std::vector<OperatorId> operators_that_need_the_whole_batch(const Graph& graph);

// Whether the operator writes a buffer (BatchNorm's running statistics): in replicas each would write its
// own.
bool writes_buffer(const Graph& graph, OperatorId op);

// What one process would compute otherwise: operators that mix samples, buffers mutated in replicas, a loss
// that averages over a varying count, … One line each, for people, at plan time.
std::vector<std::string> semantic_warnings(const Graph& graph, const PipelinePlan& plan);

}  // namespace espalier
