#include "espalier/runtime/transport.h"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <utility>

#include "espalier/base/check.h"

namespace espalier {

at::Tensor token() {
  return at::zeros({1}, at::kByte);
}

std::vector<std::uint32_t> deal_devices(std::size_t devices, std::uint32_t ranks) {
  ESP_CHECK(ranks > 0 && ranks <= devices, ranks, devices);
  std::vector<std::uint32_t> rank(devices);
  for (std::size_t d = 0; d < devices; ++d) rank[d] = static_cast<std::uint32_t>(d * ranks / devices);
  return rank;
}

std::vector<DeviceId> local_devices(const Transport& transport, std::size_t devices) {
  std::vector<DeviceId> local;
  for (std::size_t d = 0; d < devices; ++d) {
    if (transport.rank_of(DeviceId(d)) == transport.rank()) local.push_back(DeviceId(d));
  }
  return local;
}

// The k-th receive of a link takes the k-th message, whichever receive is waited for first. Messages are
// references: the receiver reads the sender's memory.
struct InProcessTransport::State {
  struct Message {
    at::Tensor payload;
    Clock::time_point sent;
  };
  struct Queue {
    std::map<std::uint64_t, Message> messages;  // by number, until they are taken
    std::uint64_t sent = 0;
    std::uint64_t posted = 0;  // receives
  };

  std::mutex lock;
  std::condition_variable changed;
  std::map<Link, Queue> queues;
  std::string aborted;
  Patience patience;
};

namespace {

std::string text(const Link& link) {
  return "device " + std::to_string(link.from.index()) + " to device " + std::to_string(link.to.index());
}

class Sent final : public Pending {
 public:
  at::Tensor wait() override { return {}; }
  std::optional<Clock::time_point> completed() const override { return when_; }

 private:
  Clock::time_point when_ = Clock::now();
};

}  // namespace

InProcessTransport::InProcessTransport(Duration timeout) : InProcessTransport(Patience{timeout}) {}

InProcessTransport::InProcessTransport(Patience patience) : state_(std::make_shared<State>()) {
  state_->patience = std::move(patience);
}

InProcessTransport::~InProcessTransport() = default;

std::shared_ptr<Pending> InProcessTransport::post_send(const Link& link, at::Tensor payload) {
  {
    const std::lock_guard guard(state_->lock);
    State::Queue& queue = state_->queues[link];
    queue.messages.emplace(queue.sent++, State::Message{std::move(payload), Clock::now()});
  }
  state_->changed.notify_all();
  return std::make_shared<Sent>();
}

std::shared_ptr<Pending> InProcessTransport::post_receive(const Link& link, at::ScalarType type,
                                                          std::int64_t elements) {
  class Receive final : public Pending {
   public:
    Receive(std::shared_ptr<State> state, const Link& link, std::uint64_t number, at::ScalarType type,
            std::int64_t elements)
        : state_(std::move(state)), link_(link), number_(number), type_(type), elements_(elements) {}

    at::Tensor wait() override {
      if (when_) return payload_;
      std::unique_lock guard(state_->lock);
      State::Queue& queue = state_->queues[link_];
      const auto came = [&] { return !state_->aborted.empty() || queue.messages.contains(number_); };
      Waited waited;
      while (!came()) {
        const auto before = Clock::now();
        state_->changed.wait_for(guard, std::chrono::nanoseconds(state_->patience.between_looks().count()),
                                 came);
        waited.add(state_->patience, Duration(std::chrono::nanoseconds(Clock::now() - before).count()));
        if (!came() && waited.too_long(state_->patience)) {
          throw WorkerError("no message from " + text(link_) + " within " +
                            to_text(state_->patience.timeout));
        }
      }
      if (!state_->aborted.empty()) throw WorkerError(state_->aborted);
      auto message = queue.messages.extract(number_);
      guard.unlock();
      payload_ = std::move(message.mapped().payload);
      when_ = message.mapped().sent;
      ESP_CHECK(payload_.scalar_type() == type_ && payload_.numel() == elements_, text(link_),
                payload_.numel(), elements_);
      return payload_;
    }
    std::optional<Clock::time_point> completed() const override { return when_; }

   private:
    std::shared_ptr<State> state_;
    Link link_;
    std::uint64_t number_;
    at::ScalarType type_;
    std::int64_t elements_;
    at::Tensor payload_;
    std::optional<Clock::time_point> when_;
  };
  const std::lock_guard guard(state_->lock);
  return std::make_shared<Receive>(state_, link, state_->queues[link].posted++, type, elements);
}

void InProcessTransport::abort(const std::string& reason) noexcept {
  {
    const std::lock_guard guard(state_->lock);
    if (state_->aborted.empty()) state_->aborted = reason.empty() ? "aborted" : reason;
  }
  state_->changed.notify_all();
}

// The values are cut into one chunk per member. In n - 1 steps each chunk travels round the ring, summed up
// by one member after the other, until member i holds the whole sum of chunk i + 1; in n - 1 more steps the
// sums travel round. The order of additions depends on the chunk alone, so all members get the same bits.
void all_reduce(Transport& transport, DeviceId self, std::span<const DeviceId> members, at::Tensor values) {
  const auto n = static_cast<std::int64_t>(members.size());
  const auto found = std::find(members.begin(), members.end(), self);
  ESP_CHECK(found != members.end() && values.dim() == 1 && values.is_contiguous());
  if (n == 1) return;
  const std::int64_t me = found - members.begin();
  const Link to{self, members[static_cast<std::size_t>((me + 1) % n)], Lane::kCollective};
  const Link from{members[static_cast<std::size_t>((me + n - 1) % n)], self, Lane::kCollective};
  const auto chunk = [&](std::int64_t i) {
    i = ((i % n) + n) % n;
    const std::int64_t begin = values.numel() * i / n;
    return values.narrow(0, begin, values.numel() * (i + 1) / n - begin);
  };
  for (std::int64_t step = 0; step < 2 * (n - 1); ++step) {
    const bool summing = step < n - 1;
    const at::Tensor out = chunk(summing ? me - step : me + 1 - (step - (n - 1)));
    at::Tensor in = chunk(summing ? me - step - 1 : me - (step - (n - 1)));
    std::shared_ptr<Pending> received;
    if (in.numel() > 0) received = transport.post_receive(from, in.scalar_type(), in.numel());
    std::shared_ptr<Pending> sent;
    // A copy: a reference to it may still be read when the chunk is written in a later step.
    if (out.numel() > 0) sent = transport.post_send(to, out.clone());
    if (received) {
      const at::Tensor payload = received->wait();
      if (summing) {
        in.add_(payload);
      } else {
        in.copy_(payload);
      }
    }
    if (sent) sent->wait();
  }
}

namespace {

bool among(DeviceId device, const std::vector<DeviceId>& devices) {
  return std::find(devices.begin(), devices.end(), device) != devices.end();
}

at::Tensor added_in_order(const std::vector<at::Tensor>& parts) {
  at::Tensor total = parts.at(0).clone();
  for (std::size_t i = 1; i < parts.size(); ++i) total.add_(parts[i]);
  return total;
}

// At sources[0]: what the others send is added up, if not all is here, and goes back to who needs it.
at::Tensor sum_for_all(Transport& transport, DeviceId self, const OrderedSum& sum,
                       const std::vector<at::Tensor>& parts, at::ScalarType type, std::int64_t elements) {
  const auto receive = [&](DeviceId from, at::ScalarType what, std::int64_t count) {
    return transport.post_receive({from, self, Lane::kCollective}, what, count)->wait();
  };
  const bool all_here = among(self, sum.alone);
  at::Tensor total = all_here ? added_in_order(parts) : parts.at(0).clone();
  if (!all_here) {
    for (std::size_t i = 1; i < parts.size(); ++i) {
      total = total.add(sum.sources[i] == self ? parts[i] : receive(sum.sources[i], type, elements));
    }
  }
  for (const DeviceId member : sum.members) {  // those that sent no part say that they are there
    if (member != self && (all_here || !among(member, sum.sources))) receive(member, at::kByte, 1);
  }
  std::vector<std::shared_ptr<Pending>> sends;
  for (const DeviceId member : sum.members) {
    if (member == self) continue;
    sends.push_back(
        transport.post_send({self, member, Lane::kCollective}, among(member, sum.alone) ? token() : total));
  }
  for (const auto& send : sends) send->wait();
  return total;
}

}  // namespace

at::Tensor sum_in_order(Transport& transport, DeviceId self, const OrderedSum& sum,
                        const std::vector<at::Tensor>& parts, at::ScalarType type, std::int64_t elements) {
  const DeviceId root = sum.sources.at(0);
  if (self == root) return sum_for_all(transport, self, sum, parts, type, elements);
  std::vector<std::shared_ptr<Pending>> sends;
  const auto send = [&](const at::Tensor& value) {
    sends.push_back(transport.post_send({self, root, Lane::kCollective}, value));
  };
  if (among(self, sum.sources) && !among(root, sum.alone)) {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (sum.sources[i] == self) send(parts[i]);
    }
  } else {
    send(token());
  }
  const bool alone = among(self, sum.alone);
  const auto back = alone ? transport.post_receive({root, self, Lane::kCollective}, at::kByte, 1)
                          : transport.post_receive({root, self, Lane::kCollective}, type, elements);
  at::Tensor total = back->wait();
  for (const auto& each : sends) each->wait();
  return alone ? added_in_order(parts) : total;
}

namespace {

// Bruck's all-gather (Bruck, Ho, Kipnis, Upfal, Weathersby, IEEE TPDS 8(11), 1997). Before the round of
// distance d a worker holds what the d workers from itself on have; it sends that d workers back and gets as
// much from d workers ahead:
//
//   n = 5, worker 0 holds after d = 1: 0 1 | after d = 2: 0 1 2 3 | after d = 4: 0 1 2 3 4
//
// With two workers that is one message each way at the same time.
template <class Number>
std::vector<std::vector<Number>> exchange_numbers(Transport& transport,
                                                  std::span<const DeviceId> first_devices,
                                                  std::span<const Number> mine) {
  const auto n = static_cast<std::int64_t>(transport.ranks());
  const auto me = static_cast<std::int64_t>(transport.rank());
  const auto length =
      static_cast<std::int64_t>(std::max<std::size_t>(mine.size(), 1));  // a barrier has one number
  const auto device = [&](std::int64_t rank) { return first_devices[static_cast<std::size_t>(rank % n)]; };
  const at::ScalarType type = c10::CppTypeToScalarType<Number>::value;
  at::Tensor held = at::zeros({n * length}, type);  // from worker me on, round the end
  std::copy(mine.begin(), mine.end(), held.mutable_data_ptr<Number>());

  std::vector<std::shared_ptr<Pending>> receives, sends;
  for (std::int64_t d = 1; d < n; d *= 2) {
    receives.push_back(transport.post_receive({device(me + d), device(me), Lane::kControl}, type,
                                              std::min(d, n - d) * length));
  }
  std::size_t round = 0;
  for (std::int64_t d = 1; d < n; d *= 2) {
    const std::int64_t count = std::min(d, n - d) * length;
    sends.push_back(
        transport.post_send({device(me), device(me + n - d), Lane::kControl}, held.narrow(0, 0, count)));
    held.narrow(0, d * length, count).copy_(receives[round++]->wait());
  }
  for (const auto& send : sends) send->wait();

  std::vector<std::vector<Number>> all(static_cast<std::size_t>(n));
  const Number* numbers = held.const_data_ptr<Number>();
  for (std::int64_t i = 0; i < n; ++i) {
    const Number* first = numbers + i * length;
    all[static_cast<std::size_t>((me + i) % n)].assign(first, first + mine.size());
  }
  return all;
}

}  // namespace

std::vector<std::vector<double>> exchange(Transport& transport, std::span<const DeviceId> first_devices,
                                          std::span<const double> mine) {
  return exchange_numbers(transport, first_devices, mine);
}

std::vector<std::vector<std::int64_t>> exchange(Transport& transport, std::span<const DeviceId> first_devices,
                                                std::span<const std::int64_t> mine) {
  return exchange_numbers(transport, first_devices, mine);
}

}  // namespace espalier
