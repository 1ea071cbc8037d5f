#include "espalier/runtime/checkpointing.h"

#include <algorithm>
#include <set>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/plan/plan_file.h"
#include "espalier/runtime/checkpoint_folder.h"

namespace espalier {
namespace {

// What a worker tells worker 0 of its shard: its size, then the rows.
std::string told(const WrittenShard& written) {
  return std::to_string(written.shard.bytes) + "\n" + print_variables(written.variables);
}

void add_told(CheckpointManifest& manifest, const std::string& text, const std::string& file) {
  const std::size_t line = text.find('\n');
  ESP_CHECK(line != std::string::npos, file);
  manifest.shards.push_back({file, std::stoull(text.substr(0, line))});
  for (CheckpointVariable& variable : parse_variables(std::string_view(text).substr(line + 1), file))
    manifest.variables.push_back(std::move(variable));
}

}  // namespace

std::vector<bool> kept_in_checkpoints(const Graph& graph) {
  std::set<StorageId> written;
  for (const Operator& op : graph.operators()) {
    for (const TensorId id : op.mutates) written.insert(graph.tensor(id).storage);
  }
  std::vector<bool> kept;
  for (const Parameter& parameter : graph.parameters())
    kept.push_back(parameter.persistent || parameter.trainable);
  for (const Tensor& tensor : graph.tensors()) {
    if (tensor.parameter && written.contains(tensor.storage)) kept[tensor.parameter->index()] = true;
  }
  return kept;
}

Checkpointing::Checkpointing(const CheckpointOptions& options, Workers& workers, const Executor& executor,
                             const Session& session, CheckpointManifest about)
    : options_(options),
      workers_(workers),
      executor_(executor),
      session_(session),
      manifest_(std::move(about)),
      kept_(kept_in_checkpoints(session.graph())),
      shard_(workers.transport->rank(), workers.transport->ranks()) {
  const Graph& graph = session.graph();
  manifest_.model = graph.name();
  manifest_.fingerprint = graph.fingerprint();
  for (std::size_t i = 0; i < graph.operators().size(); ++i)
    manifest_.operators.push_back(operator_fingerprint(graph, OperatorId(i)));
  check_no_later_checkpoint(options_.folder, session.step());
}

Checkpointing::~Checkpointing() {
  if (completing_.joinable()) completing_.join();
}

// Worker 0 also writes what no operator reads: nobody holds it.
std::vector<VariableCopy> Checkpointing::owned_variables() const {
  std::vector<VariableCopy> variables;
  const std::span<const Parameter> parameters = session_.graph().parameters();
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const ParameterId id(p);
    if (!kept_[p]) continue;
    if (const Variable* const held = executor_.held(id)) {
      variables.push_back({parameters[p].names[0], held->value.detach(), held->state});
    } else if (!executor_.owner(id) && workers_.transport->rank() == 0) {
      variables.push_back({parameters[p].names[0], session_.initial(id), {}});
    }
  }
  return variables;
}

void Checkpointing::after_step(const DataPosition& data) {
  report_if_complete(false);
  if (shard_.busy() && all_are_ready()) collect();
  if (options_.every > 0 && session_.step() % options_.every == 0) begin(data);
}

void Checkpointing::finish(const DataPosition& data) {
  if (begun_ != session_.step()) begin(data);
  while (shard_.busy()) {
    shard_.wait_for(milliseconds(1'000));
    if (all_are_ready()) collect();
  }
  report_if_complete(true);
}

void Checkpointing::begin(const DataPosition& data) {
  while (shard_.busy()) {  // of the checkpoint before
    shard_.wait_for(milliseconds(1'000));
    if (all_are_ready()) collect();
  }
  begun_ = manifest_.step = session_.step();
  manifest_.data = data;
  started_ = Clock::now();
  shard_.begin(checkpoint_path(options_.folder, manifest_.step), owned_variables());
}

bool Checkpointing::all_are_ready() {
  const double mine = shard_.ready() ? 1 : 0;
  const auto all =
      wait_for_all(workers_, "the checkpoint of step " + std::to_string(manifest_.step), std::span(&mine, 1));
  return std::all_of(all.begin(), all.end(), [](const auto& one) { return one[0] != 0; });
}

void Checkpointing::collect() {
  const std::vector<std::string> all = gather(workers_, told(shard_.take()));
  if (workers_.transport->rank() != 0) return;
  CheckpointManifest manifest = manifest_;
  const auto ranks = static_cast<std::uint32_t>(all.size());
  for (std::uint32_t r = 0; r < ranks; ++r) add_told(manifest, all[r], shard_name(r, ranks));
  std::sort(manifest.variables.begin(), manifest.variables.end(),
            [](const CheckpointVariable& a, const CheckpointVariable& b) { return a.name < b.name; });
  report_if_complete(true);
  complete(std::move(manifest));
}

void Checkpointing::complete(CheckpointManifest manifest) {
  report_ = {.step = manifest.step,
             .path = checkpoint_path(options_.folder, manifest.step),
             .bytes = Bytes(),
             .time = Duration()};
  for (const CheckpointShard& shard : manifest.shards)
    report_.bytes += Bytes(static_cast<std::int64_t>(shard.bytes));
  completed_ = false;
  completing_ = std::thread([this, manifest = std::move(manifest)] {
    try {
      complete_checkpoint(report_.path, manifest);
      report_.time =
          Duration(std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - started_).count());
      if (options_.keep > 0) remove_older_checkpoints(options_.folder, manifest.step, options_.keep);
    } catch (...) {
      error_ = std::current_exception();
    }
    completed_ = true;
  });
}

void Checkpointing::report_if_complete(bool wait) {
  if (!completing_.joinable() || (!wait && !completed_)) return;
  completing_.join();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  if (options_.on_checkpoint) options_.on_checkpoint(report_);
}

}  // namespace espalier
