#pragma once

// What messages between two workers cost, with the run's own transport. Includes libtorch; runtime/ only.
//
// Workers compute before each message: a message between two stages finds the transport's code, its threads
// and its buffers cold, and takes two to four times as long as one that follows another (docs/cost-model.md).
// Rounds are short, so that they can stand between other measurements; figures are over all of them.

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "espalier/cost/cost_table.h"
#include "espalier/runtime/workers.h"

namespace espalier {

// Some milliseconds of work that goes through more memory than a core's own caches hold.
std::function<void()> some_milliseconds();

class LinkProfiler {
 public:
  static constexpr int kMessages = 4;  // of each size and kind in a round

  // `workers` must outlive it and be two at least. `compute`: what stands before each message.
  LinkProfiler(Workers& workers, std::function<void()> compute);

  // What an endpoint counts: the calls that send and receive, and what other threads take meanwhile of the
  // worker's computations. Measured times of actions contain the second already.
  enum class Endpoints : std::uint8_t { kCallsAndThreads, kCalls };

  // The first two workers talk. Collective, as is the next; there the result is the same everywhere.
  void round();
  MeasuredLink link(Endpoints endpoints);

 private:
  struct Samples {                                  // nanoseconds
    std::vector<double> one_way, send, post, take;  // calls: to send, to post a receive, to take what came
    std::vector<double> stolen_by_send, stolen_by_receive;
  };

  void to_and_fro(std::size_t size);
  void one_direction(std::size_t size);
  void during_computation(std::size_t size);
  Link to_peer() const { return {self(), peer(), Lane::kMessages}; }
  Link from_peer() const { return {peer(), self(), Lane::kMessages}; }
  DeviceId self() const { return workers_.first_devices[transport_.rank()]; }
  DeviceId peer() const { return workers_.first_devices[1 - transport_.rank()]; }
  double shared(double mine, std::uint32_t from);

  Workers& workers_;
  Transport& transport_;
  std::array<Samples, 2> samples_;  // by size
  std::function<void()> compute_;
};

}  // namespace espalier
