#pragma once

// Where samples come from. Includes libtorch; runtime/ only.
//
// The order of samples is a function of seed and epoch alone, so every worker reads what its own stages need
// and all agree. An epoch is as many whole batches as the samples give; the rest is dropped and counted.

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <string>

#include "espalier/runtime/program.h"

namespace espalier {

class DataSource {
 public:
  virtual ~DataSource() = default;

  // Samples [first, first + count) of the batch of that step, of one input, in host memory.
  // Thread-safe.
  virtual at::Tensor read(std::uint64_t step, std::size_t input, BatchSize first, BatchSize count) const = 0;

  virtual std::uint64_t dropped_samples() const { return 0; }
};

// A safetensors file with one tensor per input, samples in the first dimension. Throws InputError naming the
// input that is missing or has another type or shape.
std::unique_ptr<DataSource> open_data(const std::string& path, const ExportedProgram& exported,
                                      BatchSize batch, std::uint64_t seed);

// The data of a run: that file, or synthetic data where `path` is empty.
std::unique_ptr<DataSource> data_of_run(const std::string& path, const ExportedProgram& exported,
                                        BatchSize batch, std::uint64_t seed);

// Floats from a normal distribution, integers within the range of the archive's own sample; never the same
// batch twice.
std::unique_ptr<DataSource> synthetic_data(const ExportedProgram& exported, std::uint64_t seed);

}  // namespace espalier
