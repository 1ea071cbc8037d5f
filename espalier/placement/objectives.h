#pragma once

// What a placement is good for, by name: the time of one step, the load that limits a full pipeline of steps,
// the price of a step, and a step's time where operators do not always take equally long.
//
//   latency              the engine's step
//   max-load             the busiest device or link: of many steps in a pipeline one ends each so often
//                        (Tarnawski et al., NeurIPS'20, section 5: throughput)
//   contiguous-max-load  the same, of placements whose devices can be put in an order that no value of the
//                        forward pass goes against
//   price                the step times the price of all devices that have a task (AutoDeep, ToN'24)
//   expected             the mean step of samples under noise (READYS, CLUSTER'21)
//   p95                  the step that 95 of 100 samples do not exceed
//
// Max-load. A device works for the time of its tasks and copies of duplicable operators, and for what
// messages take of it at either end. With Communication::kOverlapped messages hold the links of their way,
// all at once, and the busiest device or link counts; kUnlimited sends hold nothing, kSenderBus holds the
// sender's bus. With kAdded a device also spends the time of what it sends, each value once over the slowest
// of its ways, and of what it receives (dnn-partitioning's model, with two ends in place of a host's memory).
//
// Noise. In sample s the times of task t are multiplied by 1 + deviation · z(seed, s, t), at least 0, where z
// is the sum of twelve uniform numbers less six: mean 0, deviation 1, no logarithm whose last bit differs
// between machines. Samples and tasks are independent; messages and duplicable operators have no noise. All
// placements are judged by the same samples. The p95 of n samples is the ⌈0.95 n⌉-th smallest.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "espalier/placement/engine.h"

namespace espalier::placement {

enum class Objective : std::uint8_t { kLatency, kMaxLoad, kContiguousMaxLoad, kPrice, kExpected, kTail };
std::string_view to_text(Objective objective);
const std::vector<Objective>& objectives();
// Throws InputError with the nearest name.
Objective parse_objective(std::string_view name);

enum class Communication : std::uint8_t { kOverlapped, kAdded };

struct Noise {
  double deviation = 0.2;  // of a task's time, relative
  std::uint32_t samples = 40;
  std::uint64_t seed = 1;
};

struct ObjectiveOptions {
  Objective objective = Objective::kLatency;
  Communication communication = Communication::kOverlapped;
  std::vector<double> price_per_hour = {};  // by device; empty: 1 each
  Noise noise = {};
  // By task, for contiguity: not 0 where it belongs to the forward pass. Empty: Instance::pass.
  std::vector<char> forward = {};
};

struct ObjectiveValue {
  // Nanoseconds; of a price what the prices are in.
  double value = 0;
  bool fits = true;  // as the engine says under its rules
  Bytes lack = {};
  bool contiguous = true;  // where the objective asks for it
  bool feasible() const { return fits && contiguous; }
  friend bool operator==(const ObjectiveValue&, const ObjectiveValue&) = default;
};

// Judges assignments of one instance by one objective. Refers to the instance. With noise it holds an engine
// for each sample: memory O(samples · instance).
class ObjectiveJudge {
 public:
  // Throws InputError where prices are not one for each device, or negative; where the deviation is negative,
  // or there is no sample.
  ObjectiveJudge(const Instance& instance, const Rules& rules, const DeviceOrders& orders,
                 ObjectiveOptions options);
  ~ObjectiveJudge();
  ObjectiveJudge(ObjectiveJudge&&) noexcept;

  const Instance& instance() const;
  const Rules& rules() const;
  const ObjectiveOptions& options() const;

  // O(evaluation), with noise once for each sample. For one thread at a time.
  ObjectiveValue judge(std::span<const DeviceId> assignment);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Loads of a full pipeline.
struct PipelineLoads {
  std::vector<Duration> device;  // by device
  std::vector<Duration> link;    // by link, or by device with kSenderBus; with kAdded empty
  Duration largest() const;
};
PipelineLoads pipeline_loads(const Instance& instance, const Rules& rules, Communication communication,
                             std::span<const DeviceId> assignment);

// Whether the devices of the tasks that are marked can be put in an order that no value between two such
// tasks goes against. O(tasks + reads + devices²).
bool is_contiguous(const Instance& instance, std::span<const char> marked,
                   std::span<const DeviceId> assignment);

// By task, not 0 for Pass::kForward.
std::vector<char> forward_tasks(const Instance& instance);

}  // namespace espalier::placement
