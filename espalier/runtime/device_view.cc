#include "espalier/runtime/device_view.h"

#include <algorithm>
#include <map>

#include "espalier/base/check.h"

namespace espalier {

DeviceView::DeviceView(const Job& job, DeviceId device) : job_(job), device_(device) {
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
  for (std::size_t s = 0; s < job_.staged.stages.size(); ++s) {
    const auto& replicas = job_.staged.stages[s].replicas;
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

bool DeviceView::hosts(StageId stage, std::uint32_t micro_batch) const {
  for (const StagedReplica& replica : job_.staged.stages[stage.index()].replicas) {
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
  const std::string what = sent.token ? "the token of stage " + job_.staged.stages[sent.from.index()].name
                                      : "'" + sent.tensor + "'";
  const bool is_gradient = message.direction == Message::Direction::kBackward;
  return (is_gradient ? "the gradient of " : "") + what + ", micro-batch " +
         std::to_string(message.consumer_micro_batch);
}

}  // namespace espalier
