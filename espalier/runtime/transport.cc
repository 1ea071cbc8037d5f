#include "espalier/runtime/transport.h"

#include <condition_variable>
#include <map>
#include <mutex>
#include <utility>

#include "espalier/base/check.h"

namespace espalier {

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
  Duration timeout;
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

InProcessTransport::InProcessTransport(Duration timeout) : state_(std::make_shared<State>()) {
  state_->timeout = timeout;
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
      const bool came = state_->changed.wait_for(
          guard, std::chrono::nanoseconds(state_->timeout.count()),
          [&] { return !state_->aborted.empty() || queue.messages.contains(number_); });
      if (!state_->aborted.empty()) throw WorkerError(state_->aborted);
      if (!came) {
        throw WorkerError("no message from " + text(link_) + " within " + to_text(state_->timeout));
      }
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

at::Tensor sum_in_order(Transport& transport, DeviceId self, std::span<const DeviceId> sources,
                        std::span<const DeviceId> members, const std::vector<at::Tensor>& parts,
                        at::ScalarType type, std::int64_t elements) {
  const DeviceId root = sources[0];
  const auto link = [](DeviceId from, DeviceId to) { return Link{from, to, Lane::kCollective}; };
  const auto has_part = [&](DeviceId member) {
    return std::find(sources.begin(), sources.end(), member) != sources.end();
  };
  std::vector<std::shared_ptr<Pending>> sends;
  at::Tensor total;
  if (self == root) {
    for (std::size_t i = 0; i < sources.size(); ++i) {
      const at::Tensor part = parts[i].defined()
                                  ? parts[i]
                                  : transport.post_receive(link(sources[i], root), type, elements)->wait();
      total = total.defined() ? total.add(part) : part.clone();
    }
    for (const DeviceId member : members) {  // those without a part say that they are there
      if (!has_part(member)) transport.post_receive(link(member, root), at::kByte, 1)->wait();
    }
    for (const DeviceId member : members) {
      if (member != root) sends.push_back(transport.post_send(link(root, member), total));
    }
  } else {
    for (const at::Tensor& part : parts) {
      if (part.defined()) sends.push_back(transport.post_send(link(self, root), part));
    }
    if (sends.empty()) sends.push_back(transport.post_send(link(self, root), at::zeros({1}, at::kByte)));
    total = transport.post_receive(link(root, self), type, elements)->wait();
  }
  for (const auto& send : sends) send->wait();
  return total;
}

std::vector<std::vector<double>> exchange(Transport& transport, std::span<const DeviceId> first_devices,
                                          std::span<const double> mine) {
  std::vector<std::vector<double>> all(transport.ranks());
  all[transport.rank()].assign(mine.begin(), mine.end());
  if (transport.ranks() == 1) return all;
  const DeviceId self = first_devices[transport.rank()];
  const auto length = static_cast<std::int64_t>(mine.size());
  at::Tensor payload = at::empty({length}, at::kDouble);
  std::copy(mine.begin(), mine.end(), payload.mutable_data_ptr<double>());
  std::vector<std::shared_ptr<Pending>> receives(transport.ranks()), sends;
  for (std::uint32_t r = 0; r < transport.ranks(); ++r) {
    if (r == transport.rank()) continue;
    receives[r] = transport.post_receive({first_devices[r], self, Lane::kControl}, at::kDouble, length);
    sends.push_back(transport.post_send({self, first_devices[r], Lane::kControl}, payload));
  }
  for (std::uint32_t r = 0; r < transport.ranks(); ++r) {
    if (!receives[r]) continue;
    const at::Tensor received = receives[r]->wait();
    all[r].assign(received.const_data_ptr<double>(), received.const_data_ptr<double>() + length);
  }
  for (const auto& send : sends) send->wait();
  return all;
}

}  // namespace espalier
