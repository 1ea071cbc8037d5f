#include "espalier/runtime/link_profiler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "espalier/runtime/pass_profiler.h"

namespace espalier {
namespace {

constexpr std::array<std::int64_t, 2> kSizes{std::int64_t{1} << 10, std::int64_t{1} << 20};
constexpr int kMessages = 16;

double since(Clock::time_point start) {
  return static_cast<double>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count());
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class LinkMeter {
 public:
  explicit LinkMeter(Workers& workers) : workers_(workers), transport_(*workers.transport) {}

  MeasuredLink run() {
    std::array<double, 2> one_way{}, sender{}, receiver{};
    for (std::size_t i = 0; i < kSizes.size(); ++i) {
      one_way[i] = round_trip(kSizes[i]) / 2;
      const auto [send, receive] = endpoints(kSizes[i]);
      sender[i] = send;
      receiver[i] = receive;
    }
    const double bytes = static_cast<double>(kSizes[1] - kSizes[0]);
    MeasuredLink link;
    link.send = cost(sender);
    link.receive = cost(receiver);
    const double per_byte = std::max((one_way[1] - one_way[0]) / bytes, 1e-3);
    link.bandwidth = std::llround(1e9 / per_byte);
    // On the wire is what is left of a message's way when both ends have had their part.
    const double ends = static_cast<double>(link.send.fixed.count() + link.receive.fixed.count());
    link.latency = round_duration(std::max(one_way[0] - ends, one_way[0] / 4));
    return link;
  }

 private:
  bool talks() const { return transport_.rank() < 2; }
  Link to_peer() const { return {self(), peer(), Lane::kMessages}; }
  Link from_peer() const { return {peer(), self(), Lane::kMessages}; }
  DeviceId self() const { return workers_.first_devices[transport_.rank()]; }
  DeviceId peer() const { return workers_.first_devices[1 - transport_.rank()]; }

  // What rank 0 or 1 measured, to everybody.
  double shared(double mine, std::uint32_t from) {
    return exchange(transport_, workers_.first_devices, std::span(&mine, 1))[from][0];
  }

  static EndpointCost cost(const std::array<double, 2>& at) {
    const double bytes = static_cast<double>(kSizes[1] - kSizes[0]);
    const double per_byte = std::max(0.0, (at[1] - at[0]) / bytes);
    EndpointCost cost;
    cost.picoseconds_per_byte = std::llround(1000 * per_byte);
    cost.fixed = round_duration(std::max(0.0, at[0] - per_byte * static_cast<double>(kSizes[0])));
    return cost;
  }

  double round_trip(std::int64_t bytes) {
    std::vector<double> times;
    const at::Tensor payload = at::zeros({bytes}, at::kByte);
    for (int i = 0; i < kMessages && talks(); ++i) {
      const auto reply = transport_.post_receive(from_peer(), at::kByte, bytes);
      const auto start = Clock::now();
      if (transport_.rank() == 0) {
        const auto sent = transport_.post_send(to_peer(), payload);
        reply->wait();
        times.push_back(since(start));
        sent->wait();
      } else {
        reply->wait();
        transport_.post_send(to_peer(), payload)->wait();
      }
    }
    return shared(times.empty() ? 0 : median(times), 0);
  }

  // Both ends compute; one sends between its computations, the other takes what came.
  std::pair<double, double> endpoints(std::int64_t bytes) {
    double sending = 0, receiving = 0;
    std::vector<double> quiet, busy;
    const at::Tensor payload = at::zeros({bytes}, at::kByte);
    for (int round = 0; round < 5; ++round) {
      shared(0, 0);  // start together
      if (talks()) quiet.push_back(loop(nullptr, bytes));
      shared(0, 0);
      if (talks()) busy.push_back(loop(&payload, bytes));
    }
    if (talks()) {
      const double each = std::max(0.0, (median(busy) - median(quiet)) / kMessages);
      (transport_.rank() == 0 ? sending : receiving) = each;
    }
    return {shared(sending, 0), shared(receiving, 1)};
  }

  double loop(const at::Tensor* payload, std::int64_t bytes) {
    std::vector<std::shared_ptr<Pending>> posted;
    const auto start = Clock::now();
    for (int i = 0; i < kMessages; ++i) {
      if (payload != nullptr) {
        posted.push_back(transport_.rank() == 0 ? transport_.post_send(to_peer(), *payload)
                                                : transport_.post_receive(from_peer(), at::kByte, bytes));
      }
      speed_probe();
    }
    const double time = since(start);
    for (const auto& pending : posted) pending->wait();
    return time;
  }

  Workers& workers_;
  Transport& transport_;
};

}  // namespace

MeasuredLink measure_link(Workers& workers) {
  return LinkMeter(workers).run();
}

}  // namespace espalier
