#pragma once

// The state of training on disk, by name: written by all workers while they train on, read under any plan.
// Includes libtorch; runtime/ only. The files are those of plan/checkpoint_manifest.h.
//
// Each worker writes what it owns, so nobody holds more than under training, but for one copy of what it owns
// while that is written: the copy is taken between two steps, and a thread writes it.

#include <ATen/ATen.h>

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "espalier/plan/checkpoint_manifest.h"
#include "espalier/runtime/state_source.h"
#include "espalier/runtime/tensor_file.h"

namespace espalier {

// One variable's copy in host memory, dense.
struct VariableCopy {
  std::string name;
  at::Tensor value;
  std::vector<at::Tensor> state;
};

// Writes and flushes a shard; the rows of what is in it.
struct WrittenShard {
  CheckpointShard shard;
  std::vector<CheckpointVariable> variables;
};
WrittenShard write_shard(const std::string& checkpoint, std::uint32_t rank, std::uint32_t ranks,
                         const std::vector<VariableCopy>& variables);

// A complete checkpoint. Immutable; any number of threads may read. Each tensor is checked against its hash
// when it is read. Throws InputError naming the file: a shard is missing or has another size, a tensor's
// content is not what was written.
class Checkpoint final : public StateSource {
 public:
  // `path`: a checkpoint, or a folder of them, whose newest is taken. Throws InputError where there is none,
  // or if it is of another model.
  Checkpoint(const std::string& path, const Graph& graph);

  const std::string& path() const { return path_; }
  const CheckpointManifest& manifest() const { return manifest_; }

  bool has(ParameterId id) const override { return variables_.at(id.index()) != nullptr; }
  at::Tensor value(ParameterId id) const override;
  std::vector<at::Tensor> state(ParameterId id) const override;

 private:
  at::Tensor read(const CheckpointVariable& variable, const std::string& name,
                  const StoredContent& content) const;

  std::string path_;
  CheckpointManifest manifest_;
  std::vector<std::unique_ptr<TensorFile>> shards_;
  std::vector<const CheckpointVariable*> variables_;  // by ParameterId; null where it has none
};

// How one worker's part of a checkpoint is written while it trains on. What the workers must agree on, the
// caller exchanges: begin everywhere; ask `ready` everywhere until all are; take everywhere.
class ShardWriter {
 public:
  ShardWriter(std::uint32_t rank, std::uint32_t ranks) : rank_(rank), ranks_(ranks) {}
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;
  ~ShardWriter();  // waits for the thread

  // Copies, then writes in a thread. The one before was taken.
  void begin(const std::string& checkpoint, const std::vector<VariableCopy>& variables);
  bool busy() const { return thread_.joinable(); }
  bool ready() const;                     // written, or failed
  void wait_for(Duration longest) const;  // until ready, at most that long
  WrittenShard take();                    // waits; throws what failed

 private:
  std::uint32_t rank_, ranks_;
  std::vector<VariableCopy> copies_;  // their memory is used again
  std::thread thread_;
  mutable std::mutex lock_;  // of done_
  mutable std::condition_variable changed_;
  bool done_ = false;
  std::exception_ptr error_;
  WrittenShard written_;
};

}  // namespace espalier
