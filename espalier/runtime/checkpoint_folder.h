#pragma once

// A folder of checkpoints, one folder each: which are complete, and how they come and go.
//
//   checkpoints/step-00000100/   checkpoint.json, shard-0-of-2.safetensors, …
//   checkpoints/step-00000200/   shard-0-of-2.safetensors            not complete: as if it were not there
//
// A checkpoint is complete once it has its manifest, which appears whole, after all shards are on disk. It is
// removed manifest first. So whatever moment a process dies at, what is complete can be read. No libtorch.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "espalier/plan/checkpoint_manifest.h"

namespace espalier {

std::string checkpoint_path(const std::string& folder, std::uint64_t step);  // "<folder>/step-00000100"
std::string shard_name(std::uint32_t rank, std::uint32_t ranks);             // "shard-0-of-2.safetensors"

struct CompleteCheckpoint {
  std::uint64_t step = 0;
  std::string path;
  friend bool operator==(const CompleteCheckpoint&, const CompleteCheckpoint&) = default;
};

// Ascending by step; none where there is no such folder.
std::vector<CompleteCheckpoint> complete_checkpoints(const std::string& folder);

// `path` itself if it is a checkpoint, else the newest complete one in it; nothing where there is none.
std::optional<std::string> find_checkpoint(const std::string& path);

// Throws InputError.
CheckpointManifest read_manifest(const std::string& checkpoint);

// Makes the checkpoint's folder. Any number of workers may.
void make_checkpoint_folder(const std::string& checkpoint);

// The shards are written and flushed. Checks that they are there, removes what an earlier try left, writes
// the manifest, flushes the folders. Throws InputError naming a shard that is missing: not all workers see
// the same folder.
void complete_checkpoint(const std::string& checkpoint, const CheckpointManifest& manifest);

// Leaves the `keep` newest complete checkpoints up to `step`, and no incomplete one before it.
void remove_older_checkpoints(const std::string& folder, std::uint64_t step, std::size_t keep);

// Throws InputError where `folder` holds a complete checkpoint beyond `step`: going on from there would mix
// two trainings.
void check_no_later_checkpoint(const std::string& folder, std::uint64_t step);

}  // namespace espalier
