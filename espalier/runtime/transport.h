#pragma once

// How tensors travel between devices: ordered channels, nothing else. Includes libtorch; runtime/ only.
//
// A channel is (from, to, lane); messages on it arrive in the order in which they were posted, so they carry
// no tag. Posting never blocks; only wait() does. Two implementations: InProcessTransport hands references
// between threads of one process; GlooTransport (transport_gloo.h) moves bytes between processes and uses the
// first for devices of its own. Thread-safe: each device posts from its own thread.

#include <ATen/ATen.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "espalier/base/ids.h"
#include "espalier/runtime/patience.h"
#include "espalier/runtime/runtime.h"

namespace espalier {

using Clock = std::chrono::steady_clock;

enum class Lane : std::uint8_t { kMessages, kCollective, kControl };

struct Link {
  DeviceId from;
  DeviceId to;
  Lane lane = Lane::kMessages;
  friend auto operator<=>(const Link&, const Link&) = default;
};

// One posted send or receive. Destroying it does not cancel it.
class Pending {
 public:
  virtual ~Pending() = default;

  // Blocks until it is complete. A receive returns the payload, a send an undefined tensor. Throws
  // WorkerError on abort, when the peer is gone or when the transport's patience is at its end.
  virtual at::Tensor wait() = 0;

  // When it completed; empty before, or where the transport cannot tell.
  virtual std::optional<Clock::time_point> completed() const = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;

  // `payload`: one-dimensional, contiguous, of any type; not written by anybody until the send is complete.
  // The transport keeps it alive. Empty payloads are not sent: a token has one byte.
  virtual std::shared_ptr<Pending> post_send(const Link& link, at::Tensor payload) = 0;

  // Takes the next message of the link, which must have that type and length. The memory is allocated now.
  virtual std::shared_ptr<Pending> post_receive(const Link& link, at::ScalarType type,
                                                std::int64_t elements) = 0;

  // All present and future waits throw WorkerError with this reason. Never blocks, never throws.
  virtual void abort(const std::string& reason) noexcept = 0;

  // Which worker hosts a device; this worker's rank.
  virtual std::uint32_t rank_of(DeviceId device) const = 0;
  virtual std::uint32_t rank() const = 0;
  virtual std::uint32_t ranks() const = 0;
};

// What is sent where there is nothing to tell but that it is time: one byte.
at::Tensor token();

// Workers of the devices: consecutive blocks whose sizes differ by one at most; ranks ≤ devices.
std::vector<std::uint32_t> deal_devices(std::size_t devices, std::uint32_t ranks);

// The devices of this transport that this worker hosts, ascending.
std::vector<DeviceId> local_devices(const Transport& transport, std::size_t devices);

class InProcessTransport final : public Transport {
 public:
  explicit InProcessTransport(Duration timeout);
  explicit InProcessTransport(Patience patience);
  ~InProcessTransport() override;
  std::shared_ptr<Pending> post_send(const Link& link, at::Tensor payload) override;
  std::shared_ptr<Pending> post_receive(const Link& link, at::ScalarType type,
                                        std::int64_t elements) override;
  void abort(const std::string& reason) noexcept override;
  std::uint32_t rank_of(DeviceId) const override { return 0; }
  std::uint32_t rank() const override { return 0; }
  std::uint32_t ranks() const override { return 1; }

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// Sums `values` over `members` in place, every member with the same bits: a ring, in member order, over the
// collective lane (Patarasuk, Yuan, JPDC'09). Each member calls it from its own thread with equal sizes.
void all_reduce(Transport& transport, DeviceId self, std::span<const DeviceId> members, at::Tensor values);

// Who takes part in a sum of parts.
struct OrderedSum {
  std::vector<DeviceId> sources;  // sources[i] has the i-th part; sources[0] adds up for others
  std::vector<DeviceId> members;
  std::vector<DeviceId> alone;  // members that have all parts and add up by themselves
};

// The sum of parts in their order, on every member, with the same bits: `parts[i]` is defined on `sources[i]`
// and where all are. sources[0] sends the total to those that do not add up alone. Nobody leaves before all
// have come.
at::Tensor sum_in_order(Transport& transport, DeviceId self, const OrderedSum& sum,
                        const std::vector<at::Tensor>& parts, at::ScalarType type, std::int64_t elements);

// Everybody's `mine`, by rank, to everybody; also a barrier of the workers. One caller per worker, in the
// same order everywhere; equal sizes. Uses the control lane between the workers' first devices. Of n workers
// each sends ⌈log2 n⌉ messages.
std::vector<std::vector<double>> exchange(Transport& transport, std::span<const DeviceId> first_devices,
                                          std::span<const double> mine);
std::vector<std::vector<std::int64_t>> exchange(Transport& transport, std::span<const DeviceId> first_devices,
                                                std::span<const std::int64_t> mine);

}  // namespace espalier
