#pragma once

// AutoPipe's partition (Liu et al., "AutoPipe: A Fast Pipeline Parallelism Approach with Balanced
// Partitioning and Micro-batch Slicing", CLUSTER 2022), as its authors' program does it: a chain of blocks
// cut into as many stages as asked for, one device each, so that a synchronous 1F1B step of twice as many
// micro-batches as stages is short. The slicer of warm-up micro-batches is left out.
//
// A stage with n - 1 - s forwards of warm-up (s from 0) does pairs of one forward and one backward from then
// on. With f, b the times of a stage, messages free, pair k of stage s begins at
//
//   F(s, k) = max(F(s-1, k-1) + f(s-1),  B(s, k-1) + b(s))
//   B(s, k) = max(B(s+1, k) + b(s+1),    F(s, k) + f(s))       k = 1 … m - n + s, m = 2n
//   B(s, 0) = sum of all f + sum of b behind s
//
// The master stage is the last one whose pairs follow each other without a gap. The step is F of its last
// pair, the longest way from there through the stages behind it and back, and the backwards of the master
// stage and all before it. That is at most what the actions take one by one, and equal in most cases.
//
// The search begins with the least largest f + b and goes through partitions first in, first out. From each:
//   behind the master stage   while the stages up to one hold more than the master's backwards leave room
//   for,
//                             the first of them with room for it takes a block of its follower
//   to the front              the master's first block joins the stages before it, which are balanced anew
//   to the back               its last block joins its follower, all up to the master are balanced anew; kept
//                             if the master stage of that does not lie further back
// The two latter are gone through in turn, unless the master is the first stage. The answer is the partition
// with the shortest step of all that were kept: where the first move leads to another master stage before it
// is through, that partition is not.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "espalier/frontend/published.h"

namespace espalier::literal {

// Times of one micro-batch in nanoseconds, by stage and block: a block may take another time on another
// stage's device. As many rows as stages, at least one, all of one length, not fewer blocks than stages.
struct AutopipeTimes {
  std::vector<std::vector<std::int64_t>> forward, backward;
};

struct AutopipeStep {
  std::int64_t nanoseconds = 0;
  std::size_t master = 0;  // stage
  friend bool operator==(const AutopipeStep&, const AutopipeStep&) = default;
};

// Of a partition by where its stages end, ascending, the last the number of blocks. O(stages²).
AutopipeStep autopipe_step(const AutopipeTimes& times, const std::vector<std::size_t>& ends);

struct AutopipeSearch {
  std::vector<std::size_t> ends;  // of the best
  AutopipeStep step;
  std::uint64_t priced = 0;  // partitions
  bool complete = true;      // else more than the limit were to be priced
};

// A partition is balanced by the least largest f + b of its first stages, among those that are equal the one
// with the longest last stage, and so on towards the front. Where the authors' program would take a stage's
// only block it is left there. O(stages · blocks²) and O(stages²) for each partition.
AutopipeSearch autopipe_search(const AutopipeTimes& times, std::uint64_t max_partitions);

struct AutopipeStage {
  std::vector<std::size_t> nodes;    // numbers in the profile, in the order of the sequence
  double forward = 0, backward = 0;  // ms
  friend bool operator==(const AutopipeStage&, const AutopipeStage&) = default;
};
struct AutopipeResult {
  std::vector<AutopipeStage> stages;
  double time = 0;         // of a step of 2 · stages micro-batches, ms
  double one_device = 0;   // the same work on one device, ms
  std::size_t master = 0;  // stage
  std::uint64_t partitions = 0;
  std::string why;  // no answer: the reason; else empty
  bool found() const { return why.empty(); }
};

// Of a profile's nodes as a sequence (layer_sequence.h), times rounded to nanoseconds. Throws InputError for
// a graph with a cycle.
AutopipeResult autopipe(const PipedreamProfile& profile, std::size_t stages,
                        std::uint64_t max_partitions = 100'000);

// What is wrong with a result, from the profile alone; empty if nothing is. Carries out the step's actions
// one by one too, which takes no less than the result says.
std::vector<std::string> check_autopipe(const PipedreamProfile& profile, std::size_t stages,
                                        const AutopipeResult& result);

}  // namespace espalier::literal
