#pragma once

// Devices as chain planners hand them out: one row, stages on runs of neighbours. What a run costs depends on
// little: how many replicas, of which kinds, over which links. Runs that agree in it are one class, so a row
// of equal devices on equal hosts has a few classes where it has thousands of runs, and a table by class
// serves all of them.
//
//     hosts      h0: 0 1 2 3    h1: 4 5 6 7
//     0-1, 2-3, 4-5, 6-7, 1-2, 5-6    one class: two replicas over the inner link
//     3-4                             another: over the network

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "espalier/planners/pipeline/chain.h"
#include "espalier/planners/planner.h"

namespace espalier {

// How a device computes, and what messages take of its time.
struct ComputeClass {
  KindId kind;
  Crowd crowd = Crowd::kAlone;
  Duration actions;  // overhead of one forward and one backward
  EndpointCost send, receive;
  friend bool operator==(const ComputeClass&, const ComputeClass&) = default;
};

// A way from one device to another, without the links it holds.
struct Hop {
  std::optional<std::int64_t> bandwidth;  // none: unlimited
  Duration latency;
  EndpointCost send, receive;
  Duration hold(Bytes bytes) const { return bandwidth ? transfer_time(bytes, *bandwidth) : Duration(); }
  friend bool operator==(const Hop&, const Hop&) = default;
};

// Every device and every way of a problem's cluster, by class. O(devices² · depth of the cluster).
class DeviceTable {
 public:
  explicit DeviceTable(const Problem& problem);

  const Problem& problem() const { return problem_; }
  std::size_t devices() const { return class_of_.size(); }
  std::uint32_t class_of(DeviceId device) const { return class_of_[device.index()]; }
  const std::vector<ComputeClass>& classes() const { return classes_; }
  std::uint32_t hop_of(DeviceId from, DeviceId to) const {
    return hop_of_[from.index() * class_of_.size() + to.index()];
  }
  const std::vector<Hop>& hops() const { return hops_; }
  Bytes memory(DeviceId device) const { return problem_.cluster.device(device).memory; }

  // One optimizer step over so many bytes of parameters.
  Duration update(KindId kind, Bytes parameters) const;

 private:
  const Problem& problem_;
  std::vector<std::uint32_t> class_of_, hop_of_;
  std::vector<ComputeClass> classes_;
  std::vector<Hop> hops_;
  std::vector<KindOverhead> overheads_;  // by kind
};

struct RunClass {
  struct Load {
    std::uint32_t compute = 0;  // ComputeClass
    std::int64_t share = 0;     // the most micro-batches that a replica of it takes
    friend auto operator<=>(const Load&, const Load&) = default;
  };
  std::int64_t replicas = 1;
  std::int64_t share = 0;           // of the replica with most
  std::vector<Load> loads;          // ascending
  std::vector<std::uint32_t> ring;  // hops of an all-reduce among them, ascending, each once
  Bytes memory;                     // of the device with least
  friend auto operator<=>(const RunClass&, const RunClass&) = default;

  // in_flight_before (plan.h) of one micro-batch size: of a stage here, in groups of k micro-batches, before
  // `stages` others, the next of which holds so many; at most the largest share.
  std::int64_t in_flight(std::int64_t k, std::size_t stages, std::int64_t held) const {
    return std::min(share, stages == 0 ? k : (k * replicas + held + replicas - 1) / replicas);
  }

  // What the replicas add up their gradients in: all_reduce_cost of the run, hold and latency.
  Duration all_reduce(const DeviceTable& table, Bytes bytes) const;
};

// A row with the classes of its runs, for a number of micro-batches. Runs have at most that many devices, and
// at most `most_replicas`. Replicas share micro-batches evenly by `times`, what one takes on a device of each
// compute class (deal_evenly); without times they get equal numbers. O(devices² + mixtures · log time).
class DeviceRow {
 public:
  DeviceRow(const DeviceTable& table, std::vector<DeviceId> devices, std::int64_t micro_batches,
            std::size_t most_replicas = kMaxMicroBatches, const std::vector<Duration>& times = {});

  const DeviceTable& table() const { return table_; }
  std::int64_t micro_batches() const { return micro_batches_; }
  std::size_t size() const { return devices_.size(); }
  DeviceId operator[](std::size_t place) const { return devices_[place]; }
  std::vector<DeviceId> run(std::size_t begin, std::size_t end) const {
    return {devices_.begin() + static_cast<std::ptrdiff_t>(begin),
            devices_.begin() + static_cast<std::ptrdiff_t>(end)};
  }
  std::size_t longest_run() const { return longest_; }
  std::uint32_t class_of(std::size_t begin, std::size_t replicas) const {
    return class_of_[begin * longest_ + replicas - 1];
  }
  const std::vector<RunClass>& classes() const { return classes_; }
  // Of a device alone, in the row or not: adds it where it is new.
  std::uint32_t class_of_single(DeviceId device);

 private:
  std::uint32_t number(RunClass&& run);
  // A run's replicas of one compute class: how many, and how many that take as long stand before the first.
  struct Members {
    std::uint32_t compute = 0;
    std::int64_t count = 0, before = 0;
    friend auto operator<=>(const Members&, const Members&) = default;
  };
  void add_member(std::uint32_t compute, const std::vector<Duration>& times, std::vector<Members>& run) const;
  std::vector<RunClass::Load> loads(const std::vector<Members>& run, const std::vector<Duration>& times);

  const DeviceTable& table_;
  std::vector<DeviceId> devices_;
  std::int64_t micro_batches_;
  std::size_t longest_;
  std::vector<std::uint32_t> class_of_;
  std::vector<RunClass> classes_;
  std::vector<std::pair<std::uint64_t, std::uint32_t>> by_hash_;          // ascending
  std::map<std::vector<Members>, std::vector<RunClass::Load>> mixtures_;  // as dealt
};

// Rows that are worth a try: the devices of `devices`, hosts kept together.
//   - as the cluster lists them;
// and where they differ in kind, memory or link:
//   - fastest hosts first, fastest devices first within them; the reverse;
//   - largest memory first: early stages hold most micro-batches.
// Each row once. `work` is what a device of each kind takes for the whole graph, by KindId.
std::vector<std::vector<DeviceId>> device_rows(const Cluster& cluster, const std::vector<DeviceId>& devices,
                                               const std::vector<Duration>& work);

// Those that no pin names, ascending: pinned devices have their stage already.
std::vector<DeviceId> unpinned_devices(const Problem& problem);

}  // namespace espalier
