#include "espalier/runtime/data.h"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>
#include <utility>
#include <vector>

#include "espalier/base/check.h"
#include "espalier/base/rng.h"
#include "espalier/runtime/checkpoint.h"

namespace espalier {
namespace {

const Tensor& tensor_of(const ExportedProgram& exported, std::size_t input) {
  return exported.imported.graph.tensor(exported.inputs[input].tensor);
}

// Whether an input has the samples in its first dimension; the others are given whole to each micro-batch.
bool has_samples(const ExportedProgram& exported, std::size_t input) {
  const Tensor& tensor = tensor_of(exported, input);
  const BatchRange range = exported.imported.graph.batch();
  if (tensor.sizes.empty()) return false;
  return range.fixed() ? tensor.sizes[0].at(range.min) == range.min.count() : !tensor.sizes[0].constant();
}

std::vector<std::int64_t> sizes_at(const Tensor& tensor, BatchSize batch) {
  std::vector<std::int64_t> sizes;
  for (const SizeExpr& size : tensor.sizes) sizes.push_back(size.at(batch));
  return sizes;
}

std::string shape_text(at::IntArrayRef sizes) {
  std::string text;
  for (const std::int64_t size : sizes) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "]";
}

class FileData final : public DataSource {
 public:
  FileData(const std::string& path, const ExportedProgram& exported, BatchSize batch, std::uint64_t seed)
      : batch_(batch), seed_(seed) {
    const auto file = read_tensors(path);
    std::string first_name;
    for (std::size_t i = 0; i < exported.inputs.size(); ++i) {
      const std::string& name = exported.inputs[i].name;
      const auto found = file.find(name);
      if (found == file.end())
        throw InputError(path + ": has no tensor '" + name + "', an input of the model");
      check(path, exported, i, found->second);
      has_samples_.push_back(has_samples(exported, i));
      tensors_.push_back(found->second);
      if (!has_samples_.back()) continue;
      if (first_name.empty()) {
        first_name = name;
        samples_ = found->second.size(0);
      } else if (found->second.size(0) != samples_) {
        throw InputError(path + ": '" + name + "' has " + std::to_string(found->second.size(0)) +
                         " samples, '" + first_name + "' has " + std::to_string(samples_));
      }
    }
    if (!first_name.empty() && samples_ < batch.count()) {
      throw InputError(path + ": has " + std::to_string(samples_) + " samples, a batch needs " +
                       std::to_string(batch.count()));
    }
  }

  at::Tensor read(std::uint64_t step, std::size_t input, BatchSize first, BatchSize count) const override {
    if (!has_samples_[input]) return tensors_[input];
    const auto batches = static_cast<std::uint64_t>(samples_ / batch_.count());
    const auto order = order_of(step / batches);
    const auto begin = static_cast<std::int64_t>(step % batches) * batch_.count() + first.count();
    return tensors_[input].index_select(0, order.narrow(0, begin, count.count()));
  }

  std::uint64_t dropped_samples() const override {
    return static_cast<std::uint64_t>(samples_ % batch_.count());
  }

 private:
  static void check(const std::string& path, const ExportedProgram& exported, std::size_t input,
                    const at::Tensor& value) {
    const Tensor& expected = tensor_of(exported, input);
    std::vector<std::int64_t> sizes = sizes_at(expected, exported.imported.graph.batch().min);
    if (has_samples(exported, input) && value.dim() > 0) sizes[0] = value.size(0);
    if (value.sizes() != at::IntArrayRef(sizes)) {
      throw InputError(path + ": '" + exported.inputs[input].name + "' has shape " +
                       shape_text(value.sizes()) + ", the model takes " + shape_text(sizes) +
                       " (the first number is free)");
    }
    if (value.scalar_type() != torch_type(expected.dtype)) {
      throw InputError(path + ": '" + exported.inputs[input].name + "' has type " +
                       c10::toString(value.scalar_type()) + ", the model takes " +
                       std::string(to_text(expected.dtype)));
    }
  }

  // A shuffle of all samples (Fisher, Yates) that depends on seed and epoch alone.
  at::Tensor order_of(std::uint64_t epoch) const {
    const std::lock_guard guard(lock_);
    if (!order_.defined() || epoch != epoch_) {
      order_ = at::empty({samples_}, at::kLong);
      const std::span<std::int64_t> order(order_.mutable_data_ptr<std::int64_t>(),
                                          static_cast<std::size_t>(samples_));
      std::iota(order.begin(), order.end(), 0);
      Rng rng(stream_key(seed_, {epoch}));
      for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng.below(i)]);
      epoch_ = epoch;
    }
    return order_;
  }

  BatchSize batch_;
  std::uint64_t seed_;
  std::int64_t samples_ = 0;
  std::vector<at::Tensor> tensors_;
  std::vector<bool> has_samples_;
  mutable std::mutex lock_;  // of the two below
  mutable std::uint64_t epoch_ = 0;
  mutable at::Tensor order_;
};

// Each sample has a random stream of its own, so it does not matter who asks for how many.
class SyntheticData final : public DataSource {
 public:
  SyntheticData(const ExportedProgram& exported, std::uint64_t seed) : exported_(exported), seed_(seed) {}

  at::Tensor read(std::uint64_t step, std::size_t input, BatchSize first, BatchSize count) const override {
    const Tensor& tensor = tensor_of(exported_, input);
    std::vector<std::int64_t> sizes = sizes_at(tensor, count);
    if (has_samples(exported_, input)) sizes[0] = count.count();  // also where the export has a fixed batch
    at::Tensor values = at::empty(sizes, torch_type(tensor.dtype));
    if (!has_samples(exported_, input)) {
      fill(values, exported_.inputs[input], stream_key(seed_, {~std::uint64_t{0}, input}));
      return values;
    }
    for (std::int64_t i = 0; i < count.count(); ++i) {
      const auto sample = static_cast<std::uint64_t>(first.count() + i);
      fill(values.select(0, i), exported_.inputs[input], stream_key(seed_, {step, input, sample}));
    }
    return values;
  }

 private:
  static void fill(at::Tensor values, const UserInput& input, std::uint64_t key) {
    const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(key);
    if (values.is_floating_point() || values.is_complex()) {
      values.normal_(0, 1, generator);
    } else if (values.scalar_type() == at::kBool) {
      values.random_(0, 2, generator);
    } else {
      values.random_(input.sample_min.value_or(0), input.sample_max.value_or(1) + 1, generator);
    }
  }

  const ExportedProgram& exported_;
  std::uint64_t seed_;
};

}  // namespace

std::unique_ptr<DataSource> open_data(const std::string& path, const ExportedProgram& exported,
                                      BatchSize batch, std::uint64_t seed) {
  return std::make_unique<FileData>(path, exported, batch, seed);
}

std::unique_ptr<DataSource> synthetic_data(const ExportedProgram& exported, std::uint64_t seed) {
  return std::make_unique<SyntheticData>(exported, seed);
}

std::unique_ptr<DataSource> data_of_run(const std::string& path, const ExportedProgram& exported,
                                        BatchSize batch, std::uint64_t seed) {
  return path.empty() ? synthetic_data(exported, seed) : open_data(path, exported, batch, seed);
}

}  // namespace espalier
