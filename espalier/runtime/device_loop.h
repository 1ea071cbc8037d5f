#pragma once

// What a device does with its list of actions, whatever they compute. Includes libtorch; runtime/ only.
//
// Nothing but an action waits. After each action, first come the sends whose turn it is, then the receives
// whose slot became free; both in channel order (docs/semantics.md, time; the slots are those of trace.h).
// Sums of gradients go on in a thread of their own. Two kinds of devices share it: those that train
// (DeviceWorker) and those that only keep the plan's times (PacedDevice).

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "espalier/runtime/device_view.h"
#include "espalier/runtime/inbox.h"
#include "espalier/runtime/memory_meter.h"
#include "espalier/runtime/outbox.h"
#include "espalier/runtime/step_recorder.h"
#include "espalier/runtime/sum_thread.h"
#include "espalier/runtime/thread_team.h"

namespace espalier {

class DeviceLoop {
 public:
  DeviceLoop(const DeviceLoop&) = delete;
  DeviceLoop& operator=(const DeviceLoop&) = delete;
  virtual ~DeviceLoop() = default;

  // Carries out a part of the list: a step may stop before its updates, when all gradients are final.
  enum class Part : std::uint8_t { kAll, kAllButUpdates, kUpdates };
  void run(Part part);

 protected:
  struct Traffic {  // of a stage here: crossings
    StageId stage;
    std::vector<std::uint32_t> reads, sends;              // with a tensor
    std::vector<std::uint32_t> token_reads, token_sends;  // without
  };

  // `transport` must outlive it.
  DeviceLoop(DeviceView view, Transport& transport);

  // Waits for what the action needs, carries it out and hands in what it sends. F, R, B, I, W or U.
  virtual void perform(const Action& action) = 0;
  // What the sum is, as the list comes to it: it is carried out in the thread of sums, where others of this
  // device may be before it.
  virtual std::function<void()> sum_of(const Action& action) = 0;
  // The list waits no longer for the sum: it is over.
  virtual void summed(const Action&) {}
  // Derived destructors call it: a sum uses what they destroy.
  void end_sums() { sums_.reset(); }

  void start_step();
  void finish_sends();  // waits

  const std::vector<Traffic>& traffic() const { return traffic_; }
  const Traffic& traffic(StageId stage) const;
  // Have all that send these samples back along this crossing from here done so, with `now` as the last?
  bool is_last_to_return(std::uint32_t crossing, const SampleRange& samples, const Share& now) const;
  // Of a stage here, as the action has ended.
  void pass_tokens_on(const Share& share);
  void return_tokens(const Share& share);

  const DeviceView view_;
  MemoryMeter meter_;
  StepRecorder recorder_;
  Inbox inbox_;
  Outbox outbox_;

 private:
  void carry_out(const Action& action);
  void begin_sum(const Action& action);
  void await_sums(std::size_t count);
  std::size_t sums_before_update(StageId stage) const;
  void release(const Action& action);
  bool gives_slot_back(const Action& action, const Crossing::Reader& reader) const;

  std::vector<Traffic> traffic_;
  std::unique_ptr<SumThread> sums_;

  // Of the running step.
  std::set<Action> done_;
  struct Summing {
    Action action;
    Clock::time_point start, end;
  };
  std::deque<Summing> summing_;  // all sums that the list has come to
  std::size_t summed_ = 0;       // how many the list has waited for
};

// Calls work(i) in each device's own thread. The first error aborts the transport and is rethrown.
void run_devices(ThreadTeam& threads, Transport& transport, const std::function<void(std::size_t)>& work);

}  // namespace espalier
