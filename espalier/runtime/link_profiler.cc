#include "espalier/runtime/link_profiler.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/runtime/pass_profiler.h"
#include "espalier/runtime/statistics.h"

namespace espalier {
namespace {

constexpr std::array<std::int64_t, 2> kSizes{std::int64_t{4} << 10, std::int64_t{1} << 20};
constexpr double kSpan = static_cast<double>(kSizes[1] - kSizes[0]);

double thread_nanoseconds() {  // of the core's time
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return 1e9 * static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec);
}

// Only who asks or is asked has samples. Ways and calls are slow now and then, and by much: a mean counts
// that, but a few that met a stall of the host are not to decide.
double mean_of(const std::vector<double>& samples) {
  return samples.empty() ? 0 : trimmed_mean(samples, 0.1);
}
// Where some of the samples are of something else: of what came late.
double usual(const std::vector<double>& samples) {
  return samples.empty() ? 0 : median(samples);
}

struct Line {  // through what was measured at the two sizes
  double fixed = 0, per_byte = 0;
};

Line through(const std::array<double, 2>& at) {
  const double per_byte = std::max(0.0, (at[1] - at[0]) / kSpan);
  return {std::max(0.0, at[0] - per_byte * static_cast<double>(kSizes[0])), per_byte};
}

EndpointCost endpoint(const Line& line) {
  EndpointCost cost;
  cost.fixed = round_duration(line.fixed);
  cost.picoseconds_per_byte = std::llround(1000 * line.per_byte);
  return cost;
}

}  // namespace

LinkProfiler::LinkProfiler(Workers& workers, std::function<void()> compute)
    : workers_(workers), transport_(*workers.transport), compute_(std::move(compute)) {
  ESP_CHECK(transport_.ranks() > 1);
}

// What one worker measured, to everybody; also a meeting.
double LinkProfiler::shared(double mine, std::uint32_t from) {
  return exchange(transport_, workers_.first_devices, std::span(&mine, 1))[from][0];
}

void LinkProfiler::round() {
  for (std::size_t size = 0; size < kSizes.size(); ++size) {
    to_and_fro(size);
    one_direction(size);
    during_computation(size);
  }
}

// One way is half of a message and its answer, from the call that sends to the end of the wait, without what
// the other worker computed in between.
void LinkProfiler::to_and_fro(std::size_t size) {
  std::vector<double> round_trips(kMessages), computing(kMessages);
  const bool asks = transport_.rank() == 0;
  shared(0, 0);
  if (transport_.rank() < 2) {
    const at::Tensor payload = at::zeros({kSizes[size]}, at::kByte);
    for (std::size_t i = 0; i < kMessages; ++i) {
      const auto incoming = transport_.post_receive(from_peer(), at::kByte, kSizes[size]);
      if (!asks) incoming->wait();
      const auto before = Clock::now();
      compute_();
      computing[i] = since(before);
      const auto start = Clock::now();
      const auto sent = transport_.post_send(to_peer(), payload);
      samples_[size].send.push_back(since(start));
      if (asks) {
        incoming->wait();
        round_trips[i] = since(start);
      }
      sent->wait();
    }
  }
  const auto all = exchange(transport_, workers_.first_devices, computing);
  for (std::size_t i = 0; asks && i < kMessages; ++i) {
    samples_[size].one_way.push_back(std::max(0.0, round_trips[i] - all[1][i]) / 2);
  }
}

// Both compute all the time. What a receive takes of its worker: to post it, and to wait for what has come.
void LinkProfiler::one_direction(std::size_t size) {
  shared(0, 0);
  if (transport_.rank() > 1) return;
  const at::Tensor payload = at::zeros({kSizes[size]}, at::kByte);
  std::vector<std::shared_ptr<Pending>> sent;
  for (int i = 0; i < kMessages; ++i) {
    if (transport_.rank() == 0) {
      sent.push_back(transport_.post_send(to_peer(), payload));
      compute_();
      continue;
    }
    const auto start = Clock::now();
    const auto incoming = transport_.post_receive(from_peer(), at::kByte, kSizes[size]);
    const double posting = since(start);
    compute_();
    const auto end = Clock::now();
    incoming->wait();
    samples_[size].post.push_back(posting);
    samples_[size].take.push_back(since(end));
  }
  for (const auto& pending : sent) pending->wait();
}

// A message that leaves or arrives while its worker computes is moved by other threads, but by the same core:
// the time that they take of the computing thread is the endpoint's cost too.
void LinkProfiler::during_computation(std::size_t size) {
  const auto time_off_core = [compute = some_milliseconds()] {
    const auto start = Clock::now();
    const double busy = thread_nanoseconds();
    compute();
    return since(start) - (thread_nanoseconds() - busy);
  };
  shared(0, 0);
  if (transport_.rank() > 1) return;
  const at::Tensor payload = at::zeros({kSizes[size]}, at::kByte);
  for (int i = 0; i < kMessages; ++i) {
    const double usual = time_off_core();
    if (transport_.rank() == 0) {
      const auto sent = transport_.post_send(to_peer(), payload);
      samples_[size].stolen_by_send.push_back(time_off_core() - usual);
      sent->wait();
      continue;
    }
    const auto incoming = transport_.post_receive(from_peer(), at::kByte, kSizes[size]);
    samples_[size].stolen_by_receive.push_back(time_off_core() - usual);
    incoming->wait();
  }
}

MeasuredLink LinkProfiler::link(Endpoints endpoints) {
  const double threads = endpoints == Endpoints::kCallsAndThreads ? 1 : 0;
  std::array<double, 2> one_way{}, send{}, receive{};
  for (std::size_t size = 0; size < kSizes.size(); ++size) {
    const Samples& taken = samples_[size];
    one_way[size] = shared(mean_of(taken.one_way), 0);
    send[size] = (shared(mean_of(taken.send), 0) + shared(mean_of(taken.send), 1)) / 2 +
                 threads * shared(std::max(0.0, mean_of(taken.stolen_by_send)), 0);
    receive[size] = shared(
        mean_of(taken.post) + usual(taken.take) + threads * std::max(0.0, mean_of(taken.stolen_by_receive)),
        1);
  }
  const Line whole = through(one_way), sender = through(send), receiver = through(receive);
  MeasuredLink link;
  link.send = endpoint(sender);
  link.receive = endpoint(receiver);
  // On the wire is what is left of a message's way when both ends have had their part.
  const double per_byte = std::max(whole.per_byte - sender.per_byte - receiver.per_byte, 1e-3);
  link.bandwidth = std::llround(1e9 / per_byte);
  link.latency = round_duration(std::max(whole.fixed - sender.fixed - receiver.fixed, 1000.0));
  return link;
}

}  // namespace espalier
