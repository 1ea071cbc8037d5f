#include "espalier/runtime/device_view.h"

#include <algorithm>
#include <map>

#include "espalier/base/check.h"

namespace espalier {

DeviceView::DeviceView(const StagedModel& staged, const Schedule& schedule,
                       const std::vector<std::string>& names, DeviceId device)
    : staged_(&staged), schedule_(&schedule), names_(&names), device_(device) {
  for (const Action& action : actions()) {
    if (action.kind == ActionKind::kInputGradient) split_.emplace(action.stage(), action.micro_batch);
  }
}

DeviceView::DeviceView(const PlannedJob& job, DeviceId device)
    : DeviceView(job.staged, job.schedule, job.device_names, device) {}

DeviceView::DeviceView(const Job& job, DeviceId device)
    : DeviceView(job.staged, job.schedule, job.device_names, device) {
  program_ = &job.program;
  const auto tensors = job.program.graph().tensors();
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
    return {program_->sizes(tensor(message.crossing)), program_->type(tensor(message.crossing))};
  }
  const Crossing::Reader& to = *reader(message.crossing, message.reader);
  const bool is_gradient = message.direction == Message::Direction::kBackward;
  return {{(is_gradient ? to.gradient : to.bytes).count()}, at::kByte};
}

Action DeviceView::backward_start(StageId stage, std::uint32_t micro_batch) const {
  const bool split = split_.contains({stage, micro_batch});
  return {split ? ActionKind::kInputGradient : ActionKind::kBackward, stage, micro_batch};
}

Action DeviceView::backward_end(StageId stage, std::uint32_t micro_batch) const {
  const bool split = split_.contains({stage, micro_batch});
  return {split ? ActionKind::kWeightGradient : ActionKind::kBackward, stage, micro_batch};
}

bool DeviceView::hosts(StageId stage, std::uint32_t micro_batch) const {
  for (const StagedReplica& replica : staged_->stages[stage.index()].replicas) {
    if (replica.devices.at(0) != device_) continue;
    return std::binary_search(replica.micro_batches.begin(), replica.micro_batches.end(), micro_batch);
  }
  return false;
}

std::vector<StageId> DeviceView::readers_here(std::uint32_t index, std::uint32_t micro_batch) const {
  std::vector<StageId> here;
  for (const Crossing::Reader& reader : crossing(index).readers) {
    if (hosts(reader.stage, micro_batch)) here.push_back(reader.stage);
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
