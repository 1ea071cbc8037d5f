#include "espalier/runtime/device_loop.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <string>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/runtime/blame.h"
#include "espalier/schedule/dependencies.h"

namespace espalier {
namespace {

// What a device was doing when another worker failed; an error that says what it waits for knows better.
template <class Work>
void explained(const std::string& device, const std::string& doing, const Work& work) {
  try {
    work();
  } catch (const WorkerError& error) {
    const std::string what = error.what();
    if (what.find(" waits for ") != std::string::npos) throw;
    throw WorkerError("device " + device + " waits for others in " + doing + ": " + what);
  } catch (const std::exception& error) {
    throw_if_out_of_memory("device " + device + " in " + doing, error);
    throw;
  }
}

}  // namespace

DeviceLoop::DeviceLoop(DeviceView view, Transport& transport)
    : view_(std::move(view)),
      meter_(view_.computes_on()),
      recorder_(view_, meter_),
      inbox_(view_, transport, recorder_),
      outbox_(view_, transport, recorder_),
      sums_(std::make_unique<SumThread>([&](const std::string& reason) { transport.abort(reason); })) {
  for (const StageId id : view_.stages()) {
    Traffic here{id, {}, {}, {}, {}};
    for (std::uint32_t c = 0; c < view_.crossings(); ++c) {
      const bool token = view_.crossing(c).token;
      if (view_.reader(c, id) != nullptr) (token ? here.token_reads : here.reads).push_back(c);
      if (view_.crossing(c).from == id) (token ? here.token_sends : here.sends).push_back(c);
    }
    traffic_.push_back(std::move(here));
  }
}

const DeviceLoop::Traffic& DeviceLoop::traffic(StageId stage) const {
  const auto found = std::find_if(traffic_.begin(), traffic_.end(),
                                  [&](const Traffic& here) { return here.stage == stage; });
  ESP_CHECK(found != traffic_.end(), stage, view_.device());
  return *found;
}

void DeviceLoop::start_step() {
  done_.clear();
  summing_.clear();
  summed_ = 0;
  outbox_.start_step();
  inbox_.start_step();
  recorder_.start_step();
  inbox_.post(done_);
}

void DeviceLoop::finish_sends() {
  explained(view_.name(view_.device()), "the end of its sends", [&] { outbox_.finish(); });
}

void DeviceLoop::run(Part part) {
  const MemoryMeter::Scope scope(meter_);
  for (const Action& action : view_.actions()) {
    const bool is_update = action.kind == ActionKind::kUpdate;
    if (part == Part::kAllButUpdates && is_update) continue;
    if (part == Part::kUpdates && !is_update) continue;
    carry_out(action);
  }
  await_sums(summing_.size());
}

void DeviceLoop::carry_out(const Action& action) {
  if (is_sum(action.kind)) return begin_sum(action);
  if (action.kind == ActionKind::kUpdate) await_sums(sums_before_update(action.stage()));
  explained(view_.name(view_.device()), letter(action.kind) + std::to_string(action.micro_batch), [&] {
    perform(action);
    done_.insert(action);
    release(action);
    outbox_.post(action);
    inbox_.post(done_);
  });
}

void DeviceLoop::begin_sum(const Action& action) {
  done_.insert(action);
  summing_.push_back({action, {}, {}});
  sums_->begin([this, &here = summing_.back(), sum = sum_of(action)] {
    const MemoryMeter::Scope scope(meter_);
    here.start = recorder_.now();
    explained(view_.name(view_.device()), letter(here.action.kind) + std::to_string(here.action.micro_batch),
              sum);
    here.end = recorder_.now();
  });
}

// The first `count` of this step.
void DeviceLoop::await_sums(std::size_t count) {
  sums_->await(sums_->begun() - summing_.size() + count);
  for (; summed_ < count; ++summed_) {
    const Summing& sum = summing_[summed_];
    recorder_.sum(sum.action, sum.start, sum.end);
    summed(sum.action);
  }
}

std::size_t DeviceLoop::sums_before_update(StageId stage) const {
  std::size_t count = summing_.size();
  while (count > 0 && !concerns(view_.staged(), summing_[count - 1].action, stage)) --count;
  return count;
}

bool DeviceLoop::is_last_to_return(std::uint32_t crossing, const SampleRange& samples,
                                   const Share& now) const {
  const auto readers = view_.readers_here(crossing, samples);
  return std::all_of(readers.begin(), readers.end(), [&](const Share& reader) {
    const bool returns = view_.crossing(crossing).token || view_.gradient_returns(crossing, reader.stage);
    return !returns || reader == now || done_.contains(view_.backward_start(reader));
  });
}

void DeviceLoop::pass_tokens_on(const Share& share) {
  for (const std::uint32_t c : traffic(share.stage).token_sends) {
    outbox_.hand_in(kForwardWay, c, share.micro_batch, [](const Message&) { return token(); });
  }
}

void DeviceLoop::return_tokens(const Share& share) {
  for (const std::uint32_t c : traffic(share.stage).token_reads) {
    if (!view_.crossing(c).returns) continue;
    for (const Share& producer : view_.shares(view_.crossing(c).from, view_.samples(share))) {
      outbox_.hand_in(kBackwardWay, c, producer.micro_batch, [&](const Message& message) {
        return is_last_to_return(c, view_.samples(message), share) ? token() : at::Tensor();
      });
    }
  }
}

// F gives back what is not saved; of the rest I what W does not need, and B or W all else.
bool DeviceLoop::gives_slot_back(const Action& action, const Crossing::Reader& reader) const {
  const Share share{action.stage(), action.micro_batch};
  if (!reader.saved) return action.kind == ActionKind::kForward;
  return action == (reader.for_input_only ? view_.backward_start(share) : view_.backward_end(share));
}

void DeviceLoop::release(const Action& action) {
  if (once_per_step(action.kind)) return;
  const Traffic& here = traffic(action.stage());
  const SampleRange samples = view_.samples({action.stage(), action.micro_batch});
  for (const auto* list : {&here.reads, &here.token_reads}) {
    for (const std::uint32_t c : *list) {
      // The data itself is wanted until every stage here has run forward on it; autograd holds what it saved.
      if (action.kind == ActionKind::kForward) inbox_.read(c, samples);
      if (gives_slot_back(action, *view_.reader(c, here.stage))) inbox_.release(c, samples);
    }
  }
}

void run_devices(ThreadTeam& threads, Transport& transport, const std::function<void(std::size_t)>& work) {
  std::mutex lock;
  std::exception_ptr first_error;
  threads.run([&](std::size_t i) {
    try {
      work(i);
    } catch (const std::exception& error) {
      {
        const std::lock_guard guard(lock);
        if (!first_error) first_error = std::current_exception();
      }
      transport.abort(error.what());
    }
  });
  if (first_error) std::rethrow_exception(first_error);
}

}  // namespace espalier
