#include "espalier/runtime/data.h"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <mutex>
#include <numeric>
#include <utility>
#include <vector>

#include "espalier/base/check.h"
#include "espalier/base/rng.h"
#include "espalier/base/shuffle.h"

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

// All of an epoch's samples in their order.
class ShuffledData final : public DataSource {
 public:
  ShuffledData(const std::string& path, const ExportedProgram& exported, BatchSize batch,
               const DataStart& start)
      : file_(path, exported), batch_(batch.count()), start_(start) {
    if (file_.samples() > 0 && file_.samples() < batch_) {
      throw InputError(path + ": has " + std::to_string(file_.samples()) + " samples, a batch needs " +
                       std::to_string(batch_));
    }
    start_.at.samples = static_cast<std::uint64_t>(file_.samples());
  }

  at::Tensor read(std::uint64_t step, std::size_t input, BatchSize first, BatchSize count) const override {
    if (file_.samples() == 0) return file_.read(input, {});
    const DataPosition place = position(step);
    const at::Tensor order = order_of(place.epoch);
    const auto begin = static_cast<std::int64_t>(place.position) + first.count();
    ESP_CHECK(begin + count.count() <= file_.samples(), begin, count.count());
    return file_.read(
        input, {order.const_data_ptr<std::int64_t>() + begin, static_cast<std::size_t>(count.count())});
  }

  DataPosition position(std::uint64_t step) const override {
    ESP_CHECK(step >= start_.step, step, start_.step);
    DataPosition place = start_.at;
    if (file_.samples() == 0) return place;
    const auto samples = *place.samples, batch = static_cast<std::uint64_t>(batch_);
    const std::uint64_t left =
        (samples - std::min(place.position, samples)) / batch;  // batches, of this epoch
    std::uint64_t batches = step - start_.step;
    if (batches < left) {
      place.position += batches * batch;
      return place;
    }
    batches -= left;
    place.epoch += 1 + batches / (samples / batch);
    place.position = batches % (samples / batch) * batch;
    return place;
  }

  std::uint64_t dropped_samples() const override {
    return static_cast<std::uint64_t>(file_.samples() % batch_);
  }

 private:
  // A shuffle of all samples that depends on seed and epoch alone.
  at::Tensor order_of(std::uint64_t epoch) const {
    const std::lock_guard guard(lock_);
    if (!order_.defined() || epoch != epoch_) {
      order_ = at::empty({file_.samples()}, at::kLong);
      const std::span<std::int64_t> order(order_.mutable_data_ptr<std::int64_t>(),
                                          static_cast<std::size_t>(file_.samples()));
      std::iota(order.begin(), order.end(), 0);
      Rng rng(stream_key(start_.at.seed, {epoch}));
      shuffle(order, rng);
      epoch_ = epoch;
    }
    return order_;
  }

  SampleFile file_;
  std::int64_t batch_;
  DataStart start_;
  mutable std::mutex lock_;  // of the two below
  mutable std::uint64_t epoch_ = 0;
  mutable at::Tensor order_;
};

class OrderedData final : public DataSource {
 public:
  OrderedData(std::shared_ptr<const SampleFile> file, std::int64_t first_sample, BatchSize batch)
      : file_(std::move(file)), first_sample_(first_sample), batch_(batch.count()) {}

  at::Tensor read(std::uint64_t step, std::size_t input, BatchSize first, BatchSize count) const override {
    std::vector<std::int64_t> rows(static_cast<std::size_t>(count.count()));
    std::iota(rows.begin(), rows.end(),
              first_sample_ + static_cast<std::int64_t>(step) * batch_ + first.count());
    return file_->read(input, rows);
  }

  DataPosition position(std::uint64_t step) const override {
    return {
        .seed = 0,
        .samples = static_cast<std::uint64_t>(file_->samples()),
        .epoch = 0,
        .position = static_cast<std::uint64_t>(first_sample_) + step * static_cast<std::uint64_t>(batch_)};
  }

 private:
  std::shared_ptr<const SampleFile> file_;
  std::int64_t first_sample_;
  std::int64_t batch_;
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

  DataPosition position(std::uint64_t) const override { return {.seed = seed_}; }

 private:
  static void fill(at::Tensor values, const UserInput& input, std::uint64_t key) {
    const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(key);
    if (values.is_floating_point() && input.sample_min) {
      values.uniform_(0, 1, generator);
      values.clamp_(static_cast<double>(*input.sample_min), static_cast<double>(*input.sample_max));
    } else if (values.is_floating_point() || values.is_complex()) {
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

SampleFile::SampleFile(const std::string& path, const ExportedProgram& exported) : file_(path) {
  std::string first_name;
  for (std::size_t i = 0; i < exported.inputs.size(); ++i) {
    const std::string& name = names_.emplace_back(exported.inputs[i].name);
    if (!file_.contains(name))
      throw InputError(path + ": has no tensor '" + name + "', an input of the model");
    check(exported, i);
    has_samples_.push_back(has_samples(exported, i));
    if (!has_samples_.back()) continue;
    const std::int64_t samples = file_.header().get(name).shape[0];
    if (first_name.empty()) {
      first_name = name;
      samples_ = samples;
    } else if (samples != samples_) {
      throw InputError(path + ": '" + name + "' has " + std::to_string(samples) + " samples, '" + first_name +
                       "' has " + std::to_string(samples_));
    }
  }
}

void SampleFile::check(const ExportedProgram& exported, std::size_t input) const {
  const Tensor& expected = tensor_of(exported, input);
  const std::string& name = exported.inputs[input].name;
  const std::vector<std::int64_t>& shape = file_.header().get(name).shape;
  std::vector<std::int64_t> sizes = sizes_at(expected, exported.imported.graph.batch().min);
  if (has_samples(exported, input) && !shape.empty()) sizes[0] = shape[0];
  if (shape != sizes) {
    throw InputError(file_.path() + ": '" + name + "' has shape " + shape_text(shape) + ", the model takes " +
                     shape_text(sizes) + " (the first number is free)");
  }
  if (file_.type(name) != torch_type(expected.dtype)) {
    throw InputError(file_.path() + ": '" + name + "' has type " + c10::toString(file_.type(name)) +
                     ", the model takes " + std::string(to_text(expected.dtype)));
  }
}

at::Tensor SampleFile::read(std::size_t input, std::span<const std::int64_t> rows) const {
  return has_samples_[input] ? file_.read_rows(names_[input], rows) : file_.read(names_[input]);
}

std::unique_ptr<DataSource> open_data(const std::string& path, const ExportedProgram& exported,
                                      BatchSize batch, const DataStart& start) {
  return std::make_unique<ShuffledData>(path, exported, batch, start);
}

std::unique_ptr<DataSource> synthetic_data(const ExportedProgram& exported, std::uint64_t seed) {
  return std::make_unique<SyntheticData>(exported, seed);
}

std::unique_ptr<DataSource> data_of_run(const std::string& path, const ExportedProgram& exported,
                                        BatchSize batch, const DataStart& start) {
  return path.empty() ? synthetic_data(exported, start.at.seed) : open_data(path, exported, batch, start);
}

std::unique_ptr<DataSource> in_order(std::shared_ptr<const SampleFile> file, std::int64_t first_sample,
                                     BatchSize batch) {
  return std::make_unique<OrderedData>(std::move(file), first_sample, batch);
}

}  // namespace espalier
