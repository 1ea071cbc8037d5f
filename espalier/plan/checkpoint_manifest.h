#pragma once

// Where training stands, as a value: checkpoint.json, the last file that is written into a checkpoint's
// folder. "format": "espalier.checkpoint/1".
//
//   checkpoint.json            this
//   shard-0-of-2.safetensors   what worker 0 wrote: parameters, buffers, and the optimizer's state of them
//   shard-1-of-2.safetensors
//
// State is kept by the names of parameters and buffers, never by stage or device, so that it can be read
// under another plan. A parameter stands in the shard of one worker, its owner's. Seed and step give every
// random number; data's epoch and position give the next sample.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/plan/training.h"

namespace espalier {

class Graph;

struct StoredContent {        // of one tensor in a shard
  std::string dtype = "F32";  // as safetensors files say it
  std::vector<std::int64_t> shape;
  std::uint64_t hash = 0;  // content_hash of its bytes
  friend bool operator==(const StoredContent&, const StoredContent&) = default;
};

struct CheckpointVariable {
  std::string name;       // of the parameter or buffer: the name of its value in the shard, too
  std::size_t shard = 0;  // index into CheckpointManifest::shards
  StoredContent value;
  std::vector<StoredContent> state;  // of the optimizer, in its order: called state_name(name, i) there
  friend bool operator==(const CheckpointVariable&, const CheckpointVariable&) = default;
};
std::string state_name(const std::string& variable, std::size_t index);  // "optimizer.state.0/fc.weight"

struct CheckpointShard {
  std::string file;  // beside checkpoint.json
  std::uint64_t bytes = 0;
  friend bool operator==(const CheckpointShard&, const CheckpointShard&) = default;
};

// The next sample to be read, in the shuffled order of its epoch.
struct DataPosition {
  std::uint64_t seed = 0;
  std::optional<std::uint64_t> samples = {};  // of the file; none: data are made up from seed and step
  std::uint64_t epoch = 0;
  std::uint64_t position = 0;
  friend bool operator==(const DataPosition&, const DataPosition&) = default;
};

struct CheckpointManifest {
  std::string model;                     // the graph's name, for people
  std::uint64_t fingerprint = 0;         // of the graph
  std::vector<std::uint16_t> operators;  // operator_fingerprint of each, to name the first that differs
  std::uint64_t step = 0;                // steps done
  std::uint64_t seed = 0;                // of random numbers
  Training training;
  DataPosition data;
  std::vector<CheckpointShard> shards;
  std::vector<CheckpointVariable> variables;  // sorted by name, each once
  friend bool operator==(const CheckpointManifest&, const CheckpointManifest&) = default;
};

// Null if there is none. O(log variables).
const CheckpointVariable* find_variable(const CheckpointManifest& manifest, std::string_view name);

std::string print_checkpoint(const CheckpointManifest& manifest);  // JSON text
// Throws InputError naming the place.
CheckpointManifest parse_checkpoint(std::string_view text, const std::string& where);

// The rows of one worker's variables on their way to the worker that writes the manifest.
std::string print_variables(const std::vector<CheckpointVariable>& variables);
std::vector<CheckpointVariable> parse_variables(std::string_view text, const std::string& where);

// Throws InputError "<where>: …" where the checkpoint is not of this model: naming the first parameter or
// operator that differs, and what would be right.
void check_model(const CheckpointManifest& manifest, const Graph& graph, const std::string& where);

// Throws InputError "<where>: …" where what the checkpoint's optimizer kept is not what this one needs.
void check_optimizer(const CheckpointManifest& manifest, const Optimizer& optimizer,
                     const std::string& where);

// What the run does differently from the checkpoint's: one line each, "learning rate 0.001, 0.01 before".
std::vector<std::string> training_changes(const CheckpointManifest& manifest, const Training& training);

}  // namespace espalier
