#pragma once

// What an update of a policy maximises: PPO's clipped objective (Schulman et al., arXiv 1707.06347, eq. 7)
// with an advantage for each rollout, part by part of its action (learner.h).
//
//   (1 / rollouts · nodes) · Σ over parts: A · p where A > 0: p at most 1 + ε, A < 0: p at least 1 - ε
//
// p is a part's probability now over that when it was drawn. Parts are devices of nodes, or of groups where
// the policy coarsens; levels of nodes; whom nodes join.
//
// Includes libtorch; learned/ only.

#include <ATen/ATen.h>

#include <optional>
#include <span>
#include <vector>

#include "espalier/learned/policy_parts.h"

namespace espalier::placement {

class RolloutObjective {
 public:
  // `old`: what the samples were drawn from; `join`: of a policy that coarsens, else null. A sample without
  // levels or choices has no part of them.
  RolloutObjective(std::span<const Sample> samples, std::span<const double> advantage, const HeadLogits& old,
                   const JoinInput* join);

  // What is minimised, less `entropy_weight` times the entropy of each head. With gradients of `now`.
  at::Tensor loss(const HeadLogits& now, double clip, double entropy_weight) const;

 private:
  // By row and entry of a head the advantages of those that chose it.
  struct Choices {
    at::Tensor gained, lost;  // [rows, entries]: sums of positive and of negative advantages
  };
  // One head and what the rollouts chose of it.
  struct Head {
    at::Tensor HeadLogits::*logits;
    std::optional<Groups> groups;  // of the rollouts: rows are theirs, one after the other; none: nodes
    at::Tensor old = {};           // logarithms of probabilities
    Choices choices = {};
    at::Tensor rows(const HeadLogits& of) const;
  };
  void add(Head head, std::span<const std::vector<std::int64_t>> chosen, std::span<const double> advantage,
           const HeadLogits& old);

  std::vector<Head> heads_;
};

// Logarithms by row. Zero where an entry is barred: its probability is 0 and its logarithm -inf, which no
// gradient may meet.
at::Tensor log_probabilities(const at::Tensor& logits);

// Devices as entries of a row.
std::vector<std::int64_t> indices(const NodeDevices& devices);

}  // namespace espalier::placement
