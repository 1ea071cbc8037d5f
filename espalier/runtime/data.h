#pragma once

// Where samples come from. Includes libtorch; runtime/ only.
//
// The order of samples is a function of seed and epoch alone, so every worker reads what its own stages need,
// out of the mapped file, and all agree. An epoch is as many whole batches as the samples give; the rest is
// dropped and counted.

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "espalier/plan/checkpoint_manifest.h"
#include "espalier/runtime/program.h"
#include "espalier/runtime/tensor_file.h"

namespace espalier {

class DataSource {
 public:
  virtual ~DataSource() = default;

  // Samples [first, first + count) of the batch of that step, of one input, in host memory.
  // Thread-safe.
  virtual at::Tensor read(std::uint64_t step, std::size_t input, BatchSize first, BatchSize count) const = 0;

  // Where the batch of that step begins: what a checkpoint keeps.
  virtual DataPosition position(std::uint64_t step) const = 0;

  virtual std::uint64_t dropped_samples() const { return 0; }  // of one epoch
};

// A safetensors file with one tensor per input, samples in the first dimension. Immutable.
class SampleFile {
 public:
  // Throws InputError naming the input that is missing or has another type or shape.
  SampleFile(const std::string& path, const ExportedProgram& exported);

  std::int64_t samples() const { return samples_; }  // 0 if no input has samples
  const std::string& path() const { return file_.path(); }

  // Of one input; whole where it has no samples.
  at::Tensor read(std::size_t input, std::span<const std::int64_t> rows) const;

 private:
  void check(const ExportedProgram& exported, std::size_t input) const;

  TensorFile file_;
  std::int64_t samples_ = 0;
  std::vector<std::string> names_;  // of inputs
  std::vector<bool> has_samples_;
};

// Where reading starts: at which step, and with which sample.
struct DataStart {
  std::uint64_t step = 0;
  DataPosition at = {};
};
inline DataStart from_the_beginning(std::uint64_t seed) {
  return {.step = 0, .at = {.seed = seed}};
}

// Shuffled by seed and epoch (Fisher, Yates). Throws InputError as SampleFile does, and where the file has
// not one whole batch.
std::unique_ptr<DataSource> open_data(const std::string& path, const ExportedProgram& exported,
                                      BatchSize batch, const DataStart& start);

// The data of a run: that file, or synthetic data where `path` is empty.
std::unique_ptr<DataSource> data_of_run(const std::string& path, const ExportedProgram& exported,
                                        BatchSize batch, const DataStart& start);

// Floats from a normal distribution, integers within the range of the archive's own sample; never the same
// batch twice.
std::unique_ptr<DataSource> synthetic_data(const ExportedProgram& exported, std::uint64_t seed);

// The samples of a file in their order, each once: the batch of step i begins at sample i · batch.
std::unique_ptr<DataSource> in_order(std::shared_ptr<const SampleFile> file, std::int64_t first_sample,
                                     BatchSize batch);

}  // namespace espalier
