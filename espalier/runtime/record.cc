#include "espalier/runtime/record.h"

#include <array>
#include <charconv>
#include <filesystem>

#include "espalier/runtime/tensor_file.h"
#include "espalier/runtime/whole_state.h"

namespace espalier {
namespace {

// The shortest text that reads back as the same number.
std::string exact_text(double value) {
  std::array<char, 32> text{};
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value);
  return {text.data(), end};
}

void add(std::map<std::string, at::Tensor>& all, const std::string& prefix,
         const std::map<std::string, at::Tensor>& tensors) {
  for (const auto& [name, tensor] : tensors) all[prefix + name] = tensor.cpu();
}

}  // namespace

void record_step(const std::string& folder, Workers& workers, const ExportedProgram& exported,
                 const DataSource& data, const Executor& executor, const TimedStep& step) {
  const Graph& graph = exported.imported.graph;
  const auto gradients = gather_gradients(workers, graph, executor, step.outcome);
  const auto state = gather_state(workers, graph, executor);
  if (workers.transport->rank() != 0) return;
  std::map<std::string, at::Tensor> all;
  for (std::size_t i = 0; i < exported.inputs.size(); ++i) {
    all["input." + exported.inputs[i].name] =
        data.read(step.report.step, i, BatchSize(0), step.report.samples);
  }
  add(all, "gradient.", gradients);
  add(all, "state.", state);
  std::error_code ignored;  // write_tensors names the folder that is not there
  std::filesystem::create_directories(folder, ignored);
  const std::string number = std::to_string(step.report.step);
  write_tensors(folder + "/step" + number + ".safetensors", all,
                {{"format", "espalier.record/1"},
                 {"step", number},
                 {"loss", exact_text(step.report.loss)},
                 {"gradient_norm", exact_text(step.report.gradient_norm)}});
}

}  // namespace espalier
