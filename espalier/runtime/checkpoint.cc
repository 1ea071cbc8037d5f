#include "espalier/runtime/checkpoint.h"

#include <chrono>
#include <filesystem>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/base/hash.h"
#include "espalier/runtime/checkpoint_folder.h"
#include "espalier/runtime/program.h"

namespace espalier {
namespace {

StoredContent content_of(const at::Tensor& tensor, const std::string& where) {
  return {safetensors_type(tensor.scalar_type(), where), tensor.sizes().vec(),
          content_hash(raw_bytes(tensor))};
}

// `to` has memory of its own, which is used again where it fits.
void copy_dense(const at::Tensor& from, at::Tensor& to) {
  if (!to.defined() || to.sizes() != from.sizes() || to.scalar_type() != from.scalar_type())
    to = at::empty(from.sizes(), at::TensorOptions(from.scalar_type()));
  to.copy_(from);
}

}  // namespace

WrittenShard write_shard(const std::string& checkpoint, std::uint32_t rank, std::uint32_t ranks,
                         const std::vector<VariableCopy>& variables) {
  WrittenShard written;
  written.shard.file = shard_name(rank, ranks);
  const std::string path = (std::filesystem::path(checkpoint) / written.shard.file).string();
  std::vector<SafetensorsWriter::Entry> entries;
  for (const VariableCopy& variable : variables) {
    CheckpointVariable& row = written.variables.emplace_back();
    row.name = variable.name;
    row.shard = rank;
    row.value = content_of(variable.value, path + ": '" + variable.name + "'");
    entries.push_back({row.name, row.value.dtype, row.value.shape});
    for (const at::Tensor& state : variable.state) {
      const std::string name = state_name(row.name, row.state.size());
      row.state.push_back(content_of(state, path + ": '" + name + "'"));
      entries.push_back({name, row.state.back().dtype, row.state.back().shape});
    }
  }
  SafetensorsWriter writer(path, entries, {{"format", "pt"}});
  for (const VariableCopy& variable : variables) {
    writer.write(raw_bytes(variable.value));
    for (const at::Tensor& state : variable.state) writer.write(raw_bytes(state));
  }
  writer.finish();
  written.shard.bytes = std::filesystem::file_size(path);
  return written;
}

Checkpoint::Checkpoint(const std::string& path, const Graph& graph) {
  const std::optional<std::string> found = find_checkpoint(path);
  if (!found) {
    throw InputError(path +
                     ": holds no complete checkpoint; expected a folder that --checkpoints named, or one of "
                     "the folders in it");
  }
  path_ = *found;
  manifest_ = read_manifest(path_);
  check_model(manifest_, graph, path_);
  for (const CheckpointShard& shard : manifest_.shards) {
    const std::string file = (std::filesystem::path(path_) / shard.file).string();
    std::error_code error;
    const auto size = std::filesystem::file_size(file, error);
    if (error) throw InputError(file + ": a shard of the checkpoint is missing (" + error.message() + ")");
    if (size != shard.bytes) {
      throw InputError(file + ": this shard of the checkpoint is torn: it has " + std::to_string(size) +
                       " bytes, " + std::to_string(shard.bytes) + " were written");
    }
    shards_.push_back(std::make_unique<TensorFile>(file));
  }
  for (const Parameter& parameter : graph.parameters()) {
    const CheckpointVariable* const variable = find_variable(manifest_, parameter.names[0]);
    variables_.push_back(variable);
    if (variable == nullptr) continue;
    const std::string type = safetensors_type(torch_type(parameter.dtype), parameter.names[0]);
    if (variable->value.dtype != type) {
      throw InputError(path_ + ": is a checkpoint of another model: '" + parameter.names[0] + "' has type " +
                       variable->value.dtype + " there and " + type + " here");
    }
  }
}

at::Tensor Checkpoint::read(const CheckpointVariable& variable, const std::string& name,
                            const StoredContent& content) const {
  const TensorFile& shard = *shards_[variable.shard];
  const SafetensorsReader::Entry& entry = shard.header().get(name);
  if (entry.dtype != content.dtype || entry.shape != content.shape ||
      content_hash(entry.data) != content.hash) {
    throw InputError(shard.path() + ": this shard of the checkpoint is torn: '" + name +
                     "' is not what was written");
  }
  return shard.read(name);
}

at::Tensor Checkpoint::value(ParameterId id) const {
  const CheckpointVariable* const variable = variables_.at(id.index());
  return variable == nullptr ? at::Tensor() : read(*variable, variable->name, variable->value);
}

std::vector<at::Tensor> Checkpoint::state(ParameterId id) const {
  const CheckpointVariable* const variable = variables_.at(id.index());
  std::vector<at::Tensor> state;
  if (variable == nullptr) return state;
  for (const StoredContent& content : variable->state)
    state.push_back(read(*variable, state_name(variable->name, state.size()), content));
  return state;
}

ShardWriter::~ShardWriter() {
  if (thread_.joinable()) thread_.join();
}

void ShardWriter::begin(const std::string& checkpoint, const std::vector<VariableCopy>& variables) {
  ESP_CHECK(!busy());
  copies_.resize(variables.size());
  for (std::size_t i = 0; i < variables.size(); ++i) {
    VariableCopy& copy = copies_[i];
    copy.name = variables[i].name;
    copy_dense(variables[i].value, copy.value);
    copy.state.resize(variables[i].state.size());
    for (std::size_t k = 0; k < copy.state.size(); ++k) copy_dense(variables[i].state[k], copy.state[k]);
  }
  done_ = false;
  error_ = nullptr;
  thread_ = std::thread([this, checkpoint] {
    try {
      make_checkpoint_folder(checkpoint);
      written_ = write_shard(checkpoint, rank_, ranks_, copies_);
    } catch (...) {
      error_ = std::current_exception();
    }
    {
      const std::lock_guard guard(lock_);
      done_ = true;
    }
    changed_.notify_all();
  });
}

bool ShardWriter::ready() const {
  const std::lock_guard guard(lock_);
  return done_;
}

void ShardWriter::wait_for(Duration longest) const {
  std::unique_lock guard(lock_);
  changed_.wait_for(guard, std::chrono::nanoseconds(longest.count()), [&] { return done_; });
}

WrittenShard ShardWriter::take() {
  ESP_CHECK(busy());
  thread_.join();
  if (error_) std::rethrow_exception(error_);
  return std::move(written_);
}

}  // namespace espalier
