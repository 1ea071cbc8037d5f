#pragma once

// What running, verifying and profiling set up alike. Includes libtorch; runtime/ only.

#include <ATen/ATen.h>

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "espalier/frontend/exported_program.h"
#include "espalier/frontend/zip.h"
#include "espalier/runtime/data.h"
#include "espalier/runtime/executor.h"
#include "espalier/runtime/runtime.h"
#include "espalier/runtime/transport.h"
#include "espalier/runtime/watchdog.h"

namespace espalier {

struct LoadedModel {
  explicit LoadedModel(const std::string& path);
  MappedFile file;  // weights are copied out of it when a stage first needs them
  ExportedProgram exported;
  const Graph& graph() const { return exported.imported.graph; }
};

// "cpu", "cuda", "cuda:1"; empty: cuda where there is one. Throws InputError naming those there are.
at::Device parse_device(const std::string& text);

// Memory that was freed stays with the process: page faults would cost 15 to 19 % of a step.
void keep_freed_memory();

// A plan with all that executing it takes.
struct PlannedJob {
  PipelinePlan plan;
  StagedModel staged;
  Schedule schedule;
  std::vector<std::string> device_names;
  std::vector<Bytes> device_memory;
};
PlannedJob planned_job(const PlanFile& file, const Graph& graph);

// Everything on one device, one micro-batch after the other: the reference.
PlannedJob one_stage_job(const Graph& graph, BatchSize batch, BatchSize micro_batch);

// The transport of a run, and where each worker's control messages go.
struct Workers {
  std::unique_ptr<Transport> transport;
  std::vector<DeviceId> first_devices;  // by rank
  std::unique_ptr<Watchdog> watchdog;   // of several processes; leaves before the transport does
};
// Throws InputError where there are more workers than devices with work.
Workers join_workers(const World& world, const PlannedJob& job, Duration timeout);

std::unique_ptr<DataSource> make_data(const std::string& path, const ExportedProgram& exported,
                                      BatchSize batch, std::uint64_t seed);

// Everybody's text, by rank, on rank 0; elsewhere empty. One caller per worker.
std::vector<std::string> gather(Workers& workers, const std::string& mine);

// A tensor of another worker, on rank 0: `owner` calls it with the tensor, rank 0 without; others do nothing.
at::Tensor fetch(Workers& workers, DeviceId owner, const at::Tensor& mine, at::ScalarType type,
                 const std::vector<std::int64_t>& sizes);

// Parameters and persistent buffers by name, complete on rank 0. Collective.
std::map<std::string, at::Tensor> gather_state(Workers& workers, const Graph& graph,
                                               const Executor& executor);

// Writes them on rank 0. Tied names stand in the metadata, further name to first, as the safetensors package
// does it. Collective.
void save_state(const std::string& path, Workers& workers, const Graph& graph, const Executor& executor);

// One trace from all workers' spans and samples, on rank 0. Collective.
std::optional<Trace> gather_trace(Workers& workers, const PlannedJob& job, StepOutcome outcome,
                                  Clock::time_point start);

// exchange; if another worker is gone, the error says what this one was waiting for: "the end of step 3".
std::vector<std::vector<double>> meet(Workers& workers, const std::string& where,
                                      std::span<const double> mine);

// One step between two barriers; the same report everywhere. Collective.
struct TimedStep {
  StepReport report;
  StepOutcome outcome;
  Clock::time_point start;
  bool stop = false;  // some worker was asked to
};
TimedStep timed_step(Workers& workers, Executor& executor, std::uint64_t step, BatchSize batch,
                     std::uint32_t micro_batches, const std::atomic<bool>* stop = nullptr);

// Runs `work`; what it throws is told to the other workers first, so that they name the cause and not its
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
