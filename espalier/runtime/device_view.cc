#include "espalier/runtime/device_view.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "espalier/base/check.h"

namespace espalier {

DeviceView::DeviceView(const StagedModel& staged, const Schedule& schedule,
                       const std::vector<std::string>& names, DeviceId device)
    : staged_(&staged), schedule_(&schedule), names_(&names), device_(device) {
  for (const StagedStage& stage : staged.stages) units_ = std::lcm(units_, std::int64_t{stage.micro_batches});
  for (const Action& action : actions()) {
    if (action.kind == ActionKind::kInputGradient) split_.insert({action.stage(), action.micro_batch});
  }
}

DeviceView::DeviceView(const PlannedJob& job, DeviceId device)
    : DeviceView(job.staged, job.schedule, job.device_names, device) {}

DeviceView::DeviceView(const Job& job, DeviceId device)
    : DeviceView(job.staged, job.schedule, job.device_names, device) {
  program_ = job.programs.at(0);
  samples_of_unit_ = job.plan.batch.count() / units_;
  const auto tensors = program_->graph().tensors();
  std::map<std::string, TensorId, std::less<>> by_name;
  for (std::size_t t = 0; t < tensors.size(); ++t) by_name.emplace(tensors[t].name, TensorId(t));
  for (const Crossing& crossing : job.staged.crossings) {
    tensors_.emplace_back();
    if (crossing.token) continue;
    const auto found = by_name.find(crossing.tensor);
    if (found == by_name.end()) {
      throw InputError("the plan sends a tensor '" + crossing.tensor + "' that the model does not have");
    }
    tensors_.back() = found->second;
  }
}

std::vector<StageId> DeviceView::stages() const {
  std::vector<StageId> here;
  for (std::size_t s = 0; s < staged_->stages.size(); ++s) {
    const auto& replicas = staged_->stages[s].replicas;
    const bool is_here = std::any_of(replicas.begin(), replicas.end(), [&](const StagedReplica& replica) {
      return replica.devices.at(0) == device_;
    });
    if (is_here) here.push_back(StageId(s));
  }
  return here;
}

TensorId DeviceView::tensor(std::uint32_t crossing) const {
  ESP_CHECK(tensors_[crossing].has_value(), crossing);
  return *tensors_[crossing];
}

at::Device DeviceView::computes_on() const {
  return program_ == nullptr ? at::Device(at::kCPU) : program_->device();
}

Payload DeviceView::payload(const Message& message) const {
  if (program_ != nullptr) {
    return {sizes(message.crossing, samples(message)), program_->type(tensor(message.crossing))};
  }
  const Crossing::Reader& to = *reader(message.crossing, message.reader);
  const bool is_gradient = message.direction == Message::Direction::kBackward;
  return {{(is_gradient ? to.gradient : to.bytes).count()}, at::kByte};
}

std::vector<std::int64_t> DeviceView::sizes(std::uint32_t crossing, const SampleRange& samples) const {
  std::vector<std::int64_t> sizes;
  for (const SizeExpr& size : program_->graph().tensor(tensor(crossing)).sizes) {
    sizes.push_back(size.at(BatchSize(samples.size() * samples_of_unit_)));
  }
  return sizes;
}

std::int64_t DeviceView::sample_dimension(std::uint32_t crossing) const {
  const auto dimension = espalier::sample_dimension(program_->graph().tensor(tensor(crossing)));
  ESP_CHECK(dimension.has_value(), crossing);  // require_cuttable
  return static_cast<std::int64_t>(*dimension);
}

at::Tensor DeviceView::part(std::uint32_t crossing, const at::Tensor& value, const SampleRange& of,
                            const SampleRange& wanted) const {
  if (wanted == of) return value;
  return value.narrow(sample_dimension(crossing), (wanted.begin - of.begin) * samples_of_unit_,
                      wanted.size() * samples_of_unit_);
}

SampleRange DeviceView::samples(const Share& share) const {
  const std::int64_t size = units_ / staged_->stages[share.stage.index()].micro_batches;
  return {share.micro_batch * size, (share.micro_batch + std::int64_t{1}) * size};
}

SampleRange DeviceView::samples(const Message& message) const {
  return common(samples({crossing(message.crossing).from, message.producer_micro_batch}),
                samples({message.reader, message.consumer_micro_batch}));
}

std::vector<Share> DeviceView::shares(StageId stage, const SampleRange& samples) const {
  const std::int64_t size = units_ / staged_->stages[stage.index()].micro_batches;
  std::vector<Share> shares;
  for (std::int64_t j = samples.begin / size; j * size < samples.end; ++j) {
    shares.push_back({stage, static_cast<std::uint32_t>(j)});
  }
  return shares;
}

Action DeviceView::backward_start(const Share& share) const {
  const bool split = split_.contains(share);
  return {split ? ActionKind::kInputGradient : ActionKind::kBackward, share.stage, share.micro_batch};
}

Action DeviceView::backward_end(const Share& share) const {
  const bool split = split_.contains(share);
  return {split ? ActionKind::kWeightGradient : ActionKind::kBackward, share.stage, share.micro_batch};
}

bool DeviceView::hosts(const Share& share) const {
  for (const StagedReplica& replica : staged_->stages[share.stage.index()].replicas) {
    if (replica.devices.at(0) != device_) continue;
    return std::binary_search(replica.micro_batches.begin(), replica.micro_batches.end(), share.micro_batch);
  }
  return false;
}

std::vector<Share> DeviceView::readers_here(std::uint32_t index, const SampleRange& samples) const {
  std::vector<Share> here;
  for (const Crossing::Reader& reader : crossing(index).readers) {
    for (const Share& share : shares(reader.stage, samples)) {
      if (hosts(share)) here.push_back(share);
    }
  }
  return here;
}

const Crossing::Reader* DeviceView::reader(std::uint32_t index, StageId stage) const {
  for (const Crossing::Reader& reader : crossing(index).readers) {
    if (reader.stage == stage) return &reader;
  }
  return nullptr;
}

bool DeviceView::gradient_returns(std::uint32_t index, StageId stage) const {
  return crossing(index).returns && reader(index, stage)->gradient > Bytes();
}

std::string DeviceView::describe(const Message& message) const {
  const Crossing& sent = crossing(message.crossing);
  const std::string what =
      sent.token ? "the token of stage " + staged_->stages[sent.from.index()].name : "'" + sent.tensor + "'";
  const bool is_gradient = message.direction == Message::Direction::kBackward;
  return (is_gradient ? "the gradient of " : "") + what + ", micro-batch " +
         std::to_string(message.consumer_micro_batch);
}

}  // namespace espalier
