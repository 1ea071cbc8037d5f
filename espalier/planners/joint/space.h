#pragma once

// What the joint search asks of a problem at every step, made once: the work of any set of operators on any
// kind of device and in tensor-parallel groups, where a stage may be cut, who reads from whom. Sums over
// tables; the simulator judges.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "espalier/planners/candidate.h"
#include "espalier/planners/orders/order_moves.h"

namespace espalier::joint {

// Which operators read from which, both not duplicable; for components and neighbours.
struct Link {
  std::uint32_t from = 0, to = 0;
};

class Space {
 public:
  // Refers to the problem. O(micro-batch sizes · degrees · kinds · operators).
  explicit Space(const Problem& problem);

  const Problem& problem() const { return problem_; }
  const std::vector<BatchSize>& sizes() const { return sizes_; }  // of micro-batches, ascending
  std::size_t operators() const { return problem_.graph.operators().size(); }
  // Of tensor parallelism, for which there are cells: 1 is the first, ascending.
  const std::vector<std::uint32_t>& degrees() const { return degrees_; }

  // Forward and backward of one micro-batch of operators first … last on one device, without the overhead of
  // actions; nothing for cells that are missing and for duplicable operators.
  Duration work(OperatorRun run, KindId kind, BatchSize micro_batch) const;
  Duration work(const OperatorSet& set, KindId kind, BatchSize micro_batch) const;
  // Likewise in the stage's groups, with what it computes again; what groups reduce does not count.
  Duration work(const StageDraft& stage, KindId kind, BatchSize micro_batch) const;
  // Of forward alone.
  Duration forward(const StageDraft& stage, KindId kind, BatchSize micro_batch) const;
  // Of a replica: its slowest device's.
  Duration work_of_replica(const StageDraft& stage, std::size_t replica, BatchSize micro_batch) const;

  // Bytes of one sample that cross from operators below `gap` to `gap` and later ones, each tensor once;
  // nothing where operators that belong together stand on both sides.
  std::optional<Bytes> crossing(std::size_t gap) const { return crossing_[gap]; }

  std::span<const Link> links() const { return links_; }  // ascending (from, to)
  bool is_own(std::size_t op) const { return own_[op] != 0; }
  bool has_writer(const OperatorSet& set) const;  // of buffers, and the problem allows it one replica
  const OperatorSet& repeatable() const {
    return repeatable_;
  }  // that may be recomputed: what mutates nothing
  // What the two halves of backward take, if the costs say so. Published profiles have one time for both:
  // their halves are a guess (frontend/pipedream.h), and nothing is built on it.
  Halves halves() const { return halves_; }

 private:
  std::size_t table(KindId kind, BatchSize micro_batch, std::uint32_t degree) const;

  const Problem& problem_;
  std::vector<BatchSize> sizes_;
  std::vector<std::uint32_t> degrees_;
  std::vector<std::vector<Duration>> work_;     // by size, degree and kind; by operator: of all before it
  std::vector<std::vector<Duration>> forward_;  // likewise, of forward alone
  std::vector<std::optional<Bytes>> crossing_;
  std::vector<Link> links_;
  std::vector<char> own_;
  OperatorSet repeatable_;
  Halves halves_ = Halves::kNever;
};

// Of a set, where `before` has the sum of all operators before each: of times, bytes, anything that adds up.
template <class Sum>
Sum sum_over(const std::vector<Sum>& before, const OperatorSet& set) {
  Sum sum{};
  for (const OperatorRun& run : set.runs()) sum += before[run.last + 1] - before[run.first];
  return sum;
}

// The stage of each operator; the number of stages for those that stand in none.
std::vector<std::size_t> stages_of_operators(const Space& space, const std::vector<StageDraft>& stages);

// What a plan's devices have to do in a step, at least.
struct Load {
  std::vector<Duration> of_stage;   // the busiest replica's work
  std::vector<Duration> of_device;  // by DeviceId
  Duration most() const;
  // Σ load², in seconds: smaller where the same work is spread more evenly.
  double unevenness() const;
};
Load load_of(const Space& space, const Proposal& plan);

// The search's form of a plan: drafts of its stages; `after` has what a stage follows without reading from
// it. A stage that recomputes all that it may has Space::repeatable, so that it goes on to do so when it
// takes operators. Nothing for lists of orders, micro-batches of several sizes and token rules.
std::optional<Proposal> proposal_of(const Space& space, const PipelinePlan& plan);

// Which stages read from a stage, and from which it reads: by stage, ascending.
struct Neighbours {
  std::vector<std::vector<std::size_t>> before, behind;
};
Neighbours neighbours_of(const Space& space, const Proposal& plan);

// States that judging it is charged with: about one for each task of its step, where stages send each other a
// few tensors.
std::uint64_t charge_of(const Space& space, const Proposal& plan);
// What is charged besides where its step turns out to have many more messages, as where each step in time of
// a recurrent layer sends its own.
std::uint64_t charge_of_messages(const Space& space, const Proposal& plan, std::uint64_t messages);

// Equal for proposals that mean the same plan, whatever the order of their stages; else different but by
// accident.
std::uint64_t signature_of(const Proposal& plan);

}  // namespace espalier::joint
