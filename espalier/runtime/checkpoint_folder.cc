#include "espalier/runtime/checkpoint_folder.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <set>

#include "espalier/base/check.h"
#include "espalier/base/files.h"

namespace espalier {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kManifest = "checkpoint.json";
constexpr std::string_view kPrefixOfSteps = "step-";

bool has_manifest(const fs::path& checkpoint) {
  std::error_code ignored;
  return fs::is_regular_file(checkpoint / kManifest, ignored);
}

std::optional<std::uint64_t> step_of(const fs::path& checkpoint) {
  const std::string name = checkpoint.filename().string();
  if (!name.starts_with(kPrefixOfSteps)) return std::nullopt;
  std::uint64_t step = 0;
  const char* const end = name.data() + name.size();
  const auto [read, error] = std::from_chars(name.data() + kPrefixOfSteps.size(), end, step);
  return error == std::errc() && read == end ? std::optional(step) : std::nullopt;
}

// Folders "step-…" in there, complete or not, ascending by step.
std::vector<CompleteCheckpoint> all_checkpoints(const std::string& folder) {
  std::vector<CompleteCheckpoint> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code ignored;
    const auto step = step_of(entry->path());
    if (step && entry->is_directory(ignored)) found.push_back({*step, entry->path().string()});
  }
  std::sort(found.begin(), found.end(), [](const CompleteCheckpoint& a, const CompleteCheckpoint& b) {
    return std::pair(a.step, a.path) < std::pair(b.step, b.path);
  });
  return found;
}

std::string parent_of(const std::string& path) {
  const fs::path parent = fs::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

[[noreturn]] void refuse(const std::string& path, const char* what, const std::error_code& error) {
  throw InputError(path + ": cannot " + what + ": " + error.message());
}

void remove_checkpoint(const std::string& checkpoint) {
  std::error_code error;
  if (fs::remove(fs::path(checkpoint) / kManifest, error)) sync_folder(checkpoint);
  if (!error) fs::remove_all(checkpoint, error);
  if (error) refuse(checkpoint, "remove", error);
}

}  // namespace

std::string checkpoint_path(const std::string& folder, std::uint64_t step) {
  char name[40];
  std::snprintf(name, sizeof name, "step-%08llu", static_cast<unsigned long long>(step));
  return (fs::path(folder) / name).string();
}

std::string shard_name(std::uint32_t rank, std::uint32_t ranks) {
  return "shard-" + std::to_string(rank) + "-of-" + std::to_string(ranks) + ".safetensors";
}

std::vector<CompleteCheckpoint> complete_checkpoints(const std::string& folder) {
  std::vector<CompleteCheckpoint> found = all_checkpoints(folder);
  std::erase_if(found, [](const CompleteCheckpoint& each) { return !has_manifest(each.path); });
  return found;
}

std::optional<std::string> find_checkpoint(const std::string& path) {
  if (has_manifest(path)) return path;
  const std::vector<CompleteCheckpoint> found = complete_checkpoints(path);
  return found.empty() ? std::nullopt : std::optional(found.back().path);
}

CheckpointManifest read_manifest(const std::string& checkpoint) {
  const std::string path = (fs::path(checkpoint) / kManifest).string();
  return parse_checkpoint(read_file(path), path);
}

void make_checkpoint_folder(const std::string& checkpoint) {
  std::error_code error;
  fs::create_directories(checkpoint, error);
  if (error) refuse(checkpoint, "make this folder", error);
  sync_folder(parent_of(checkpoint));
}

void complete_checkpoint(const std::string& checkpoint, const CheckpointManifest& manifest) {
  std::set<std::string> expected;
  for (const CheckpointShard& shard : manifest.shards) {
    std::error_code error;
    const auto size = fs::file_size(fs::path(checkpoint) / shard.file, error);
    if (error || size != shard.bytes) {
      throw InputError(checkpoint + ": '" + shard.file +
                       "', which another worker wrote, is not there: all workers need the same folder");
    }
    expected.insert(shard.file);
  }
  std::error_code error;
  for (fs::directory_iterator entry(checkpoint, error), end; !error && entry != end; entry.increment(error)) {
    if (!expected.contains(entry->path().filename().string())) fs::remove(entry->path(), error);
  }
  if (error) refuse(checkpoint, "clean", error);
  sync_folder(checkpoint);
  write_file_atomically((fs::path(checkpoint) / kManifest).string(), print_checkpoint(manifest));
}

void remove_older_checkpoints(const std::string& folder, std::uint64_t step, std::size_t keep) {
  std::vector<CompleteCheckpoint> all = all_checkpoints(folder);
  std::erase_if(all, [&](const CompleteCheckpoint& each) { return each.step > step; });
  std::size_t kept = 0;
  for (std::size_t i = all.size(); i-- > 0;) {
    if (has_manifest(all[i].path) ? kept++ < keep : all[i].step == step) continue;
    remove_checkpoint(all[i].path);
  }
}

void check_no_later_checkpoint(const std::string& folder, std::uint64_t step) {
  const std::vector<CompleteCheckpoint> found = complete_checkpoints(folder);
  if (found.empty() || found.back().step <= step) return;
  throw InputError(folder + ": holds a checkpoint of step " + std::to_string(found.back().step) +
                   ", and training starts at step " + std::to_string(step) +
                   ": go on from it (--resume) or write into another folder (--checkpoints)");
}

}  // namespace espalier
