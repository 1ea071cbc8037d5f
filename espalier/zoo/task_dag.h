#pragma once

// Task graphs that carry their own times: a task is an operator of known duration, one tensor is what it
// gives, and nothing is said of floating-point operations. Families of them are what placers are studied on.
//
// A family writes weights; scaled() turns them into times and bytes, so that two knobs mean the same in every
// family:
//
//   microseconds    mean forward time of a task
//   communication   in percent: the time of all outputs that somebody reads over one link of 7.6 GB/s (what
//                   public code of Placeto has), divided by the forward time of all tasks
//
// All arithmetic is + − × ÷ on doubles, rounded once: the same bytes on every machine.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "espalier/base/rng.h"
#include "espalier/frontend/imported.h"

namespace espalier {

inline constexpr std::int64_t kTaskLinkBytesPerSecond = 7'600'000'000;

class TaskDag {
 public:
  explicit TaskDag(std::string name) : name_(std::move(name)) {}

  struct Task {
    std::string name = {};    // unique
    std::string target = {};  // what sort of task: "gemm"
    double time = 1;          // in any unit that all tasks of the graph share
    double bytes = 1;         // of its output, likewise
    Bytes stored = {};        // weights or data that lie where it runs; not scaled
    // Of devices on which alone it can run, by name, ascending; empty: on all.
    std::vector<std::string> kinds = {};
  };
  // A task that reads the outputs of earlier ones; one that is named twice is read once.
  std::size_t add(Task task, std::vector<std::size_t> reads = {});
  void restrict_to(std::size_t task, std::vector<std::string> kinds);

  std::size_t tasks() const { return tasks_.size(); }
  std::size_t edges() const;
  const Task& task(std::size_t i) const { return tasks_[i]; }
  const std::vector<std::size_t>& reads(std::size_t i) const { return reads_[i]; }
  // The tasks that nobody reads.
  std::vector<std::size_t> loose() const;
  Bytes stored() const;  // of all

  struct Scale {
    std::int64_t microseconds = 500, communication = 50;
    // With a backward pass of twice the time: half for what came in, half for weights, which are trained.
    enum class Passes : std::uint8_t { kForward, kForwardAndBackward } passes = Passes::kForward;
  };
  // Opaque tensors of one micro-batch, a cost row for each task and kind of the cluster that can run it.
  Imported scaled(const Scale& scale, Cluster cluster) const;

 private:
  std::string name_;
  std::vector<Task> tasks_;
  std::vector<std::vector<std::size_t>> reads_;
};

// Equal devices on one switch of that link.
Cluster task_cluster(std::size_t devices, Bytes memory);

// Uniform in [least, most], both of them whole numbers that may come out.
std::int64_t drawn(Rng& rng, std::int64_t least, std::int64_t most);

}  // namespace espalier
