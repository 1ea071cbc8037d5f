#pragma once

// When checkpoints are written during a run, and what the workers must agree on for that. Includes libtorch;
// runtime/ only.
//
//   step        99   100                 101      102
//   each worker      copies what it owns   its thread writes its shard
//   all              -                   "is yours written?" … all are: rows and sizes go to worker 0
//   worker 0                                      its thread writes the manifest, then removes older ones
//
// So training waits for the copy, and for a small exchange at the end of each step while shards are written.

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "espalier/runtime/checkpoint.h"
#include "espalier/runtime/executor.h"
#include "espalier/runtime/session.h"
#include "espalier/runtime/workers.h"

namespace espalier {

// By ParameterId: whether a checkpoint keeps it. Not kept: what the archive has and nobody writes, such as a
// table that the model does not save.
std::vector<bool> kept_in_checkpoints(const Graph& graph);

class Checkpointing {
 public:
  // What is borrowed must outlive it. `about`: model, seed and training of the manifests.
  Checkpointing(const CheckpointOptions& options, Workers& workers, const Executor& executor,
                const Session& session, CheckpointManifest about);
  ~Checkpointing();

  // After each step; starts a checkpoint where one is due. Collective.
  void after_step(const DataPosition& data);

  // Writes the session's state unless its checkpoint was begun, and waits until all is on disk. Collective.
  void finish(const DataPosition& data);

 private:
  void begin(const DataPosition& data);
  bool all_are_ready();
  void collect();
  void complete(CheckpointManifest manifest);
  void report_if_complete(bool wait);
  std::vector<VariableCopy> owned_variables() const;

  CheckpointOptions options_;
  Workers& workers_;
  const Executor& executor_;
  const Session& session_;
  CheckpointManifest manifest_;  // of the checkpoint that is being written
  std::vector<bool> kept_;
  std::optional<std::uint64_t> begun_;  // the step whose checkpoint was begun last
  ShardWriter shard_;
  Clock::time_point started_;
  std::thread completing_;  // on worker 0
  std::atomic<bool> completed_{false};
  std::exception_ptr error_;
  CheckpointReport report_;
};

}  // namespace espalier
