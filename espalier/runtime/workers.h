#pragma once

// The workers of a run: how they meet, and what they tell each other beside the messages of the schedule.
// Includes libtorch; runtime/ only.
//
// "Collective" means that every worker calls the function, in the same order, from one thread each.

#include <ATen/ATen.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "espalier/runtime/agreement.h"
#include "espalier/runtime/planned_job.h"
#include "espalier/runtime/runtime.h"
#include "espalier/runtime/transport.h"
#include "espalier/runtime/watchdog.h"

namespace espalier {

struct Workers {
  std::unique_ptr<Transport> transport;
  std::vector<DeviceId> first_devices;  // by rank: where its control messages go
  std::vector<Acquaintance> all;        // by rank
  std::unique_ptr<Watchdog> watchdog;   // of several processes; leaves before the transport does
};

struct JoinOptions {
  Duration timeout = milliseconds(300'000);               // longest wait for a message (patience.h)
  std::vector<Fact> facts = {};                           // that all workers must have alike (agreement.h)
  std::function<void(const std::string&)> on_stuck = {};  // WatchdogOptions::stuck
};

// Deals the plan's devices to the workers, and waits until all are there: at least a minute, longer if the
// time-out is. Throws InputError where there are more workers than devices with work, or where workers differ
// in their facts.
Workers join_workers(const World& world, const PlannedJob& job, const JoinOptions& options);

// One device for each worker, with no plan.
Workers join_workers(const World& world, const JoinOptions& options);

// A barrier: everybody's `mine`, by rank, to everybody. If another worker is gone, the error says what this
// one waited for: "the end of step 3". Collective.
std::vector<std::vector<double>> wait_for_all(Workers& workers, const std::string& where,
                                              std::span<const double> mine = {});

// Everybody's text, by rank, on rank 0; elsewhere empty. Throws WorkerError naming who tells a length that
// cannot be. Collective.
std::vector<std::string> gather(Workers& workers, const std::string& mine);

// A tensor of another worker, on rank 0: `owner` calls it with the tensor, rank 0 without; others do nothing.
at::Tensor fetch(Workers& workers, DeviceId owner, const at::Tensor& mine, at::ScalarType type,
                 const std::vector<std::int64_t>& sizes);

// Runs `work`. What it throws is told to the other workers first, so that they name the cause and not its
// effects. Nobody is waited for after that: whoever is left cannot say goodbye.
template <class Work>
void guarded(Workers& workers, const Work& work) {
  try {
    work();
  } catch (const std::exception& error) {
    if (workers.watchdog) workers.watchdog->failed(error.what());
    workers.transport->abort(error.what());
    throw;
  }
}

}  // namespace espalier
