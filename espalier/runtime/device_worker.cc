#include "espalier/runtime/device_worker.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "espalier/base/check.h"

namespace espalier {
namespace {

Duration since_epoch(Clock::time_point time) {
  return Duration(std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count());
}

Bytes bytes_of(const at::Tensor& tensor) {
  return Bytes(static_cast<std::int64_t>(tensor.nbytes()));
}

}  // namespace

DeviceWorker::DeviceWorker(const Job& job, Session& session, const DataSource& data, Transport& transport,
                           const ExecutorOptions& options, DeviceId device)
    : job_(job), session_(session), data_(data), transport_(transport), options_(options), device_(device) {
  const MemoryMeter::Scope scope(meter_);
  const auto tensors = job_.program.graph().tensors();
  for (std::size_t t = 0; t < tensors.size(); ++t) tensor_by_name_.emplace(tensors[t].name, TensorId(t));
  make_stages();
  make_channels();
  make_slots();
}

void DeviceWorker::make_stages() {
  const Graph& graph = job_.program.graph();
  for (std::size_t s = 0; s < job_.plan.stages.size(); ++s) {
    const StageId id(s);
    const auto& replicas = job_.staged.stages[s].replicas;
    const bool mine = std::any_of(replicas.begin(), replicas.end(), [&](const StagedReplica& replica) {
      return replica.devices.at(0) == device_;
    });
    if (!mine) continue;
    StageHere here{.id = id,
                   .holding = nullptr,
                   .runner = nullptr,
                   .reads = {},
                   .sends = {},
                   .token_reads = {},
                   .token_sends = {},
                   .last_received = {}};
    StageRunner::Interface interface {
      job_.plan.stages[s].operators, job_.plan.stages[s].recompute, {}, {}
    };
    for (std::uint32_t c = 0; c < job_.staged.crossings.size(); ++c) {
      const bool reads = reader(c, id) != nullptr;
      const bool sends = crossing(c).from == id;
      if (crossing(c).token) {
        if (reads) here.token_reads.push_back(c);
        if (sends) here.token_sends.push_back(c);
        continue;
      }
      if (!reads && !sends) continue;
      const auto found = tensor_by_name_.find(crossing(c).tensor);
      if (found == tensor_by_name_.end()) {
        throw InputError("the plan sends a tensor '" + crossing(c).tensor + "' that the model does not have");
      }
      if (reads) here.reads.push_back(c), interface.received.push_back(found->second);
      if (sends) here.sends.push_back(c), interface.sent.push_back(found->second);
    }
    here.holding = &session_.holding(id, device_, StageRunner::parameters_of(graph, interface.operators));
    here.runner = std::make_unique<StageRunner>(job_.program, session_, *here.holding, std::move(interface));
    stages_.push_back(std::move(here));
  }
}

void DeviceWorker::make_channels() {
  for (const Channel& channel : job_.schedule.channels) {
    if (channel.to == device_) {
      InChannel& in = in_.emplace_back(InChannel{channel.from, {}, 0});
      for (const Message& message : channel.messages) {
        Incoming item;
        item.message = &message;
        item.from = channel.from;
        in.items.push_back(incoming_.size());
        const Piece piece{message.direction, message.crossing, message.consumer_micro_batch};
        incoming_by_piece_[piece].push_back(incoming_.size());
        incoming_.push_back(std::move(item));
      }
    } else if (channel.from == device_) {
      OutChannel& out = out_.emplace_back(OutChannel{channel.to, {}, 0});
      for (const Message& message : channel.messages) out.items.push_back({&message, {}, false});
    }
  }
  // Gradients that meet here are added up in the order of their readers.
  for (auto& [piece, items] : incoming_by_piece_) {
    std::sort(items.begin(), items.end(), [&](std::size_t a, std::size_t b) {
      return incoming_[a].message->reader < incoming_[b].message->reader;
    });
  }
}

// An edge is (crossing, reader); its i-th micro-batch takes the slot that the (i - w - 1)-th gives back.
void DeviceWorker::make_slots() {
  std::map<std::pair<std::uint32_t, StageId>, std::vector<std::size_t>> edges;
  for (std::size_t i = 0; i < incoming_.size(); ++i) {
    Incoming& item = incoming_[i];
    const Message& message = *item.message;
    if (message.direction == kBackwardWay) {
      item.posted_after =
          Action{ActionKind::kForward, crossing(message.crossing).from, message.producer_micro_batch};
      item.waiter =
          Action{ActionKind::kBackward, crossing(message.crossing).from, message.producer_micro_batch};
      continue;
    }
    edges[{message.crossing, message.reader}].push_back(i);
    item.waiter = Action{ActionKind::kForward, message.reader, message.consumer_micro_batch};
    item.uses =
        static_cast<std::uint32_t>(readers_here(message.crossing, message.consumer_micro_batch).size());
  }
  for (auto& [edge, items] : edges) {
    std::sort(items.begin(), items.end(), [&](std::size_t a, std::size_t b) {
      return incoming_[a].message->consumer_micro_batch < incoming_[b].message->consumer_micro_batch;
    });
    const std::size_t slots = job_.staged.stages[edge.second.index()].in_flight + std::size_t{1};
    for (std::size_t i = slots; i < items.size(); ++i) incoming_[items[i]].slot_of = items[i - slots];
  }
}

DeviceWorker::StageHere& DeviceWorker::stage(StageId id) {
  const auto found =
      std::find_if(stages_.begin(), stages_.end(), [&](const StageHere& here) { return here.id == id; });
  ESP_CHECK(found != stages_.end(), id, device_);
  return *found;
}

bool DeviceWorker::stage_is_here(StageId id, std::uint32_t micro_batch) const {
  for (const StagedReplica& replica : job_.staged.stages[id.index()].replicas) {
    if (replica.devices.at(0) != device_) continue;
    return std::binary_search(replica.micro_batches.begin(), replica.micro_batches.end(), micro_batch);
  }
  return false;
}

std::vector<StageId> DeviceWorker::readers_here(std::uint32_t index, std::uint32_t micro_batch) const {
  std::vector<StageId> here;
  for (const Crossing::Reader& r : crossing(index).readers) {
    if (stage_is_here(r.stage, micro_batch)) here.push_back(r.stage);
  }
  return here;
}

const Crossing::Reader* DeviceWorker::reader(std::uint32_t index, StageId id) const {
  for (const Crossing::Reader& r : crossing(index).readers) {
    if (r.stage == id) return &r;
  }
  return nullptr;
}

bool DeviceWorker::gradient_returns(std::uint32_t index, StageId id) const {
  return crossing(index).returns && reader(index, id)->gradient > Bytes();
}

RandomKey DeviceWorker::key_of(const Action& action) const {
  RandomKey key{session_.seed(), session_.step(), action.micro_batch};
  if (options_.faults.fault == Fault::kWrongSeed && options_.faults.stage == action.stage.index()) ++key.seed;
  return key;
}

void DeviceWorker::start_step() {
  for (Incoming& item : incoming_) {
    item.uses_left = item.uses;
    item.slot_free = item.taken = false;
    item.layout.reset();
    item.payload.reset();
    item.value.reset();
  }
  for (InChannel& channel : in_) channel.next = 0;
  for (OutChannel& channel : out_) {
    channel.next = 0;
    for (Outgoing& item : channel.items) item.ready = false;
  }
  local_.clear();
  gradient_parts_.clear();
  done_.clear();
  flights_.clear();
  outcome_ = {};
}

StepOutcome DeviceWorker::step() {
  const MemoryMeter::Scope scope(meter_);
  at::set_num_threads(static_cast<int>(options_.threads));
  start_step();
  measure_holdings();
  sample_memory(Clock::now(), meter_.live());
  post_receives();
  std::string doing;
  try {
    for (const Action& action : job_.schedule.devices[device_.index()]) {
      doing = letter(action.kind) + std::to_string(action.micro_batch);
      run(action);
      done_.insert(action);
      release(action);
      post(action);
    }
    doing = "the end of its sends";
    finish_sends();
  } catch (const WorkerError& error) {
    const std::string what = error.what();
    if (what.find(" waits for ") != std::string::npos) throw;  // it knows better
    throw WorkerError("device " + job_.device_names[device_.index()] + " waits for others in " + doing +
                      ": " + what);
  }
  return std::move(outcome_);
}

// Gives a value to all messages of that crossing, direction and micro-batch.
void DeviceWorker::deliver(const Message& like, at::Tensor value) {
  for (OutChannel& channel : out_) {
    for (std::size_t i = channel.next; i < channel.items.size(); ++i) {
      const Message& message = *channel.items[i].message;
      if (message.direction != like.direction || message.crossing != like.crossing ||
          message.producer_micro_batch != like.producer_micro_batch) {
        continue;
      }
      channel.items[i].value = value;
      channel.items[i].ready = true;
    }
  }
}

void DeviceWorker::release(const Action& action) {
  const bool is_forward = action.kind == ActionKind::kForward;
  if (!is_forward && action.kind != ActionKind::kBackward) return;
  const StageHere& here = stage(action.stage);
  for (const auto* list : {&here.reads, &here.token_reads}) {
    for (const std::uint32_t c : *list) {
      if (reader(c, here.id)->saved == is_forward) continue;  // F gives back what is not saved, B the rest
      for (const std::size_t i : incoming_of(kForwardWay, c, action.micro_batch)) {
        Incoming& item = incoming_[i];
        ESP_CHECK(item.uses_left > 0, describe(*item.message));
        if (--item.uses_left == 0) item.slot_free = true;
      }
    }
  }
  // The data itself is wanted until every stage here has run forward on it; autograd holds what it saved.
  for (const std::uint32_t c : here.reads) {
    for (const std::size_t i : incoming_of(kForwardWay, c, action.micro_batch)) {
      const auto readers = readers_here(c, action.micro_batch);
      const bool read = std::all_of(readers.begin(), readers.end(), [&](StageId s) {
        return done_.contains({ActionKind::kForward, s, action.micro_batch});
      });
      if (read) incoming_[i].value.reset(), incoming_[i].payload.reset();
    }
  }
}

void DeviceWorker::post(const Action& after) {
  post_sends(after);
  post_receives();
  // Finished sends give their memory back, in this thread.
  std::erase_if(flights_, [&](const Flight& flight) {
    if (!flight.pending->completed()) return false;
    landed(flight);
    return true;
  });
}

void DeviceWorker::post_sends(const Action& after) {
  for (OutChannel& channel : out_) {
    const Link link{device_, channel.to, Lane::kMessages};
    while (channel.next < channel.items.size() && channel.items[channel.next].ready) {
      Outgoing& item = channel.items[channel.next++];
      const Message& message = *item.message;
      at::Tensor payload = std::exchange(item.value, at::Tensor());
      if (!crossing(message.crossing).token) {
        const auto [place, is_new] = sent_layouts_.try_emplace(
            LayoutKey{channel.to, message.direction, message.crossing, message.reader});
        Layout& layout = place->second;
        if (is_new) layout = layout_of(payload);
        if (is_new && !layout.empty()) {
          flights_.push_back({nullptr, channel.to, after, Bytes(), Clock::now(),
                              transport_.post_send(link, at::tensor(layout, at::kLong))});
        }
        payload = to_wire(payload, layout);
      }
      const Bytes bytes = crossing(message.crossing).token ? Bytes() : bytes_of(payload);
      const auto posted = Clock::now();
      if (payload.numel() == 0) continue;
      flights_.push_back({&message, channel.to, after, bytes, posted, transport_.post_send(link, payload)});
    }
  }
}

void DeviceWorker::post_receives() {
  for (InChannel& channel : in_) {
    const Link link{channel.from, device_, Lane::kMessages};
    for (; channel.next < channel.items.size(); ++channel.next) {
      Incoming& item = incoming_[channel.items[channel.next]];
      if (item.slot_of && !incoming_[*item.slot_of].slot_free) break;
      if (item.posted_after && !done_.contains(*item.posted_after)) break;
      const Message& message = *item.message;
      item.posted = Clock::now();
      if (crossing(message.crossing).token) {
        item.payload = transport_.post_receive(link, at::kByte, 1);
        continue;
      }
      const TensorId id = tensor_by_name_.find(crossing(message.crossing).tensor)->second;
      const std::vector<std::int64_t> sizes = job_.program.sizes(id);
      const LayoutKey key{channel.from, message.direction, message.crossing, message.reader};
      if (asked_layouts_.insert(key).second && !sizes.empty()) {
        item.layout = transport_.post_receive(link, at::kLong, static_cast<std::int64_t>(sizes.size()));
      }
      const std::int64_t elements = c10::multiply_integers(sizes);
      if (elements > 0) item.payload = transport_.post_receive(link, job_.program.type(id), elements);
    }
  }
}

at::Tensor DeviceWorker::await(std::size_t index) {
  Incoming& item = incoming_[index];
  const Message& message = *item.message;
  if (item.taken) return item.value;
  const bool is_token = crossing(message.crossing).token;
  const TensorId id = is_token ? TensorId() : tensor_by_name_.find(crossing(message.crossing).tensor)->second;
  const LayoutKey key{item.from, message.direction, message.crossing, message.reader};
  try {
    if (item.layout) {
      const at::Tensor told = item.layout->wait();
      received_layouts_[key].assign(told.const_data_ptr<std::int64_t>(),
                                    told.const_data_ptr<std::int64_t>() + told.numel());
      item.layout.reset();
    }
    at::Tensor flat = item.payload ? item.payload->wait() : at::Tensor();
    item.arrived = std::max(item.posted,
                            (item.payload ? item.payload->completed() : std::nullopt).value_or(Clock::now()));
    if (!is_token) {
      if (!flat.defined()) flat = at::empty({0}, job_.program.type(id));
      item.value = from_wire(flat, job_.program.sizes(id), received_layouts_[key]).to(job_.program.device());
    }
  } catch (const WorkerError& error) {
    throw WorkerError("device " + job_.device_names[device_.index()] + " waits for " + describe(message) +
                      " from device " + job_.device_names[item.from.index()] + ": " + error.what());
  }
  item.taken = true;
  Span span;
  span.device = device_;
  span.stream = Stream::kReceive;
  span.kind = SpanKind::kReceiveWait;
  span.action = item.waiter;
  span.message = message;
  span.peer = item.from;
  span.bytes = is_token ? Bytes() : bytes_of(item.value);
  span.start = since_epoch(item.posted);
  span.end = since_epoch(item.arrived);
  outcome_.spans.push_back(span);
  return item.value;
}

std::vector<std::size_t> DeviceWorker::incoming_of(Message::Direction direction, std::uint32_t index,
                                                   std::uint32_t micro_batch) const {
  const auto found = incoming_by_piece_.find({direction, index, micro_batch});
  return found == incoming_by_piece_.end() ? std::vector<std::size_t>() : found->second;
}

void DeviceWorker::landed(const Flight& flight) {
  if (flight.message == nullptr) return;  // a layout
  Span span;
  span.device = device_;
  span.stream = Stream::kSend;
  span.kind = SpanKind::kTransfer;
  span.action = flight.producer;
  span.message = *flight.message;
  span.peer = flight.to;
  span.bytes = flight.bytes;
  span.start = since_epoch(flight.posted);
  span.end = since_epoch(std::max(flight.posted, flight.pending->completed().value_or(Clock::now())));
  span.posted = span.start;
  outcome_.spans.push_back(span);
}

void DeviceWorker::finish_sends() {
  for (const Flight& flight : flights_) {
    flight.pending->wait();
    landed(flight);
  }
  flights_.clear();
}

void DeviceWorker::record(const Action& action, Stream stream, Clock::time_point start) {
  const auto end = Clock::now();
  Span span;
  span.device = device_;
  span.stream = stream;
  span.kind = stream == Stream::kCollective ? SpanKind::kCollective : SpanKind::kAction;
  span.action = action;
  span.start = since_epoch(start);
  span.end = since_epoch(end);
  if (stream == Stream::kCollective) {
    span.posted = span.start;
    span.bytes = action.kind == ActionKind::kAllReduce ? job_.staged.stages[action.stage.index()].reduced
                                                       : job_.staged.ties[action.stage.index()].bytes;
  }
  outcome_.spans.push_back(span);
  if (action.kind != ActionKind::kForward) measure_holdings();
  sample_memory(start, meter_.take_peak());
  sample_memory(end, meter_.live());
}

// Gradients and the optimizer's state come and go with actions other than F.
void DeviceWorker::measure_holdings() {
  Bytes parameters, buffers, gradients, state;
  for (const StageHere& here : stages_) {
    for (const Variable& variable : here.holding->parameters) {
      parameters += bytes_of(variable.value);
      if (variable.value.grad().defined()) gradients += bytes_of(variable.value.grad());
      for (const at::Tensor& tensor : variable.state) state += bytes_of(tensor);
    }
    for (const Variable& variable : here.holding->buffers) buffers += bytes_of(variable.value);
  }
  const auto set = [&](MemoryCategory category, Bytes bytes) {
    held_.bytes[static_cast<std::size_t>(category)] = bytes;
  };
  set(MemoryCategory::kParameters, parameters);
  set(MemoryCategory::kGradients, gradients);
  set(MemoryCategory::kOptimizer, state);
  set(MemoryCategory::kBuffers, buffers);
}

// The meter sees everything that was allocated by this thread, so what is left beside the holdings are
// activations, with workspace and what is on its way.
void DeviceWorker::sample_memory(Clock::time_point when, Bytes live) {
  MemorySample sample{.device = device_, .time = since_epoch(when), .held = held_};
  sample.held.bytes[static_cast<std::size_t>(MemoryCategory::kActivations)] =
      std::max(Bytes(), live - held_.total());
  auto& samples = outcome_.memory;
  if (!samples.empty() && samples.back().time >= sample.time) {
    sample.time = samples.back().time;
    if (last_sample_ < live) samples.back() = sample, last_sample_ = live;
    return;
  }
  last_sample_ = live;
  samples.push_back(sample);
}

std::string DeviceWorker::describe(const Message& message) const {
  const Crossing& c = crossing(message.crossing);
  const std::string what =
      c.token ? "the token of stage " + job_.staged.stages[c.from.index()].name : "'" + c.tensor + "'";
  return (message.direction == kBackwardWay ? "the gradient of " : "") + what + ", micro-batch " +
         std::to_string(message.consumer_micro_batch);
}

}  // namespace espalier
