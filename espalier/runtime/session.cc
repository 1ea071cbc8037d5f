#include "espalier/runtime/session.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <set>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/base/spelling.h"

namespace espalier {
namespace {

bool is_without_decay(const Parameter& parameter, const Optimizer& optimizer) {
  return std::any_of(optimizer.no_decay.begin(), optimizer.no_decay.end(), [&](const std::string& pattern) {
    return std::any_of(parameter.names.begin(), parameter.names.end(),
                       [&](const std::string& name) { return matches_pattern(pattern, name); });
  });
}

}  // namespace

Session::Session(const ExportedProgram& exported, std::string_view archive, Optimizer optimizer,
                 std::uint64_t seed, at::Device device)
    : exported_(&exported), archive_(archive), optimizer_(optimizer), seed_(seed), device_(device) {
  constants_.resize(graph().tensors().size());
  stored_.resize(graph().parameters().size());
  for (const StoredTensor& stored : exported.stored) {
    const Tensor& tensor = graph().tensor(stored.tensor);
    if (!tensor.parameter) {
      constants_[stored.tensor.index()] = load_stored(stored, archive, device);
    } else if (stored_[tensor.parameter->index()] == nullptr) {
      stored_[tensor.parameter->index()] = &stored;
    }
  }
}

Optimizer Session::optimizer_of_step() const {
  Optimizer optimizer = optimizer_;
  optimizer.learning_rate *= learning_rate_factor(optimizer.schedule, step_);
  return optimizer;
}

void Session::start_from(std::shared_ptr<const StateSource> source, std::uint64_t steps_done) {
  ESP_CHECK(holdings_.empty());
  source_ = std::move(source);
  step_ = first_step_ = steps_done;
}

void Session::give_up_holdings() {
  const std::lock_guard guard(lock_);
  for (auto& [place, holding] : holdings_) {
    for (auto* list : {&holding.parameters, &holding.buffers}) {
      for (Variable& variable : *list) given_up_.try_emplace(variable.id, std::move(variable));
    }
  }
  holdings_.clear();
}

// With the strides that load_stored gives the archive's value: operators and updates go through memory in its
// order, and their last bits depend on that.
at::Tensor Session::laid_out(ParameterId id, const at::Tensor& value) const {
  const StoredTensor* const stored = stored_[id.index()];
  if (stored == nullptr || value.sizes() != at::IntArrayRef(stored->sizes))
    return value.to(at::TensorOptions(device_), false, true);
  const at::Tensor shape = at::empty_strided(stored->sizes, stored->strides,
                                             at::TensorOptions(value.scalar_type()).device(at::kMeta));
  return at::empty_like(shape, at::TensorOptions(device_), at::MemoryFormat::Preserve).copy_(value);
}

at::Tensor Session::initial(ParameterId id) const {
  if (source_) {
    const at::Tensor value = source_->value(id);
    if (value.defined()) return laid_out(id, value);
  }
  const StoredTensor* stored = stored_[id.index()];
  if (stored == nullptr) {
    throw InputError(graph().name() + ": has no values for '" + graph().parameter(id).names[0] + "'");
  }
  return load_stored(*stored, archive_, device_);
}

namespace {

const Variable* find_in(const Holding& holding, ParameterId id) {
  for (const auto* list : {&holding.parameters, &holding.buffers}) {
    for (const Variable& variable : *list) {
      if (variable.id == id) return &variable;
    }
  }
  return nullptr;
}

}  // namespace

const Variable* Session::find_held(ParameterId id) const {
  for (const auto& [place, holding] : holdings_) {
    if (const Variable* const found = find_in(holding, id)) return found;
  }
  return nullptr;
}

// Of the stages of a device that share one copy.
const Variable* Session::find_held_below(StageId stage, DeviceId device, ParameterId id) const {
  for (const auto& [place, holding] : holdings_) {
    if (place.second != device) continue;
    ESP_CHECK(place.first < stage, place.first, stage);
    if (const Variable* const found = find_in(holding, id)) return found;
  }
  return nullptr;
}

Variable Session::make_variable(ParameterId id) {
  const auto given_up = given_up_.find(id);
  if (given_up != given_up_.end()) {
    Variable variable = std::move(given_up->second);
    given_up_.erase(given_up);
    return variable;
  }
  if (const Variable* const other = find_held(id); other != nullptr && step_ != first_step_) {
    Variable variable{id, other->value.detach().clone(), {}};
    for (const at::Tensor& state : other->state) variable.state.push_back(state.clone());
    return variable;
  }
  if (step_ != first_step_) {
    throw InputError("'" + graph().parameter(id).names[0] + "' is held by another worker after step " +
                     std::to_string(step_) + ": go on under this plan from a checkpoint");
  }
  Variable variable{id, initial(id), {}};
  if (!source_) return variable;
  for (const at::Tensor& state : source_->state(id)) variable.state.push_back(laid_out(id, state));
  return variable;
}

Session::Undisturbed::Undisturbed(Session& session) : session_(session), step_(session.step_) {
  std::set<StorageId> written;
  for (const Operator& op : session.graph().operators()) {
    for (const TensorId id : op.mutates) written.insert(session.graph().tensor(id).storage);
  }
  std::set<ParameterId> disturbed;
  for (const Tensor& tensor : session.graph().tensors()) {
    if (tensor.parameter && written.contains(tensor.storage)) disturbed.insert(*tensor.parameter);
  }
  for (const auto& [place, holding] : session.holdings_) {
    for (const Variable& variable : holding.buffers) {
      if (disturbed.contains(variable.id)) buffers_.emplace_back(variable.value, variable.value.clone());
    }
  }
}

Session::Undisturbed::~Undisturbed() {
  const at::NoGradGuard no_grad;
  for (const auto& [value, before] : buffers_) value.copy_(before);
  session_.step_ = step_;
}

Holding& Session::holding(StageId stage, DeviceId device, const std::vector<ParameterId>& parameters,
                          StateCopies copies) {
  const std::lock_guard guard(lock_);
  const auto found = holdings_.find({stage, device});
  if (found != holdings_.end()) return found->second;
  Holding holding;
  for (const ParameterId id : parameters) {
    if (copies == StateCopies::kOfEachDevice) {
      if (const Variable* const held = find_held_below(stage, device, id)) {
        holding.shared.push_back({id, held->value, {}, held->decay});
        continue;
      }
    }
    Variable variable = make_variable(id);
    if (is_without_decay(graph().parameter(id), optimizer_)) variable.decay = Variable::Decay::kNone;
    if (graph().parameter(id).trainable) {
      variable.value.requires_grad_(true);
      holding.parameters.push_back(std::move(variable));
    } else {
      holding.buffers.push_back(std::move(variable));
    }
  }
  return holdings_.try_emplace({stage, device}, std::move(holding)).first->second;
}

}  // namespace espalier
