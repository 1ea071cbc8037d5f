#include "espalier/runtime/link_profiler.h"

#include <algorithm>
#include <ctime>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/runtime/link_estimate.h"
#include "espalier/runtime/torch_device.h"

namespace espalier {
namespace {

double thread_nanoseconds() {  // of the core's time
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return 1e9 * static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec);
}

double since(Clock::time_point start) {
  return nanoseconds_between(start, Clock::now());
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
  for (std::size_t size = 0; size < kMessageSizes.size(); ++size) {
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
    const at::Tensor payload = at::zeros({kMessageSizes[size]}, at::kByte);
    for (std::size_t i = 0; i < kMessages; ++i) {
      const auto incoming = transport_.post_receive(from_peer(), at::kByte, kMessageSizes[size]);
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
  const at::Tensor payload = at::zeros({kMessageSizes[size]}, at::kByte);
  std::vector<std::shared_ptr<Pending>> sent;
  for (int i = 0; i < kMessages; ++i) {
    if (transport_.rank() == 0) {
      sent.push_back(transport_.post_send(to_peer(), payload));
      compute_();
      continue;
    }
    const auto start = Clock::now();
    const auto incoming = transport_.post_receive(from_peer(), at::kByte, kMessageSizes[size]);
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
  const at::Tensor payload = at::zeros({kMessageSizes[size]}, at::kByte);
  for (int i = 0; i < kMessages; ++i) {
    const double usual = time_off_core();
    if (transport_.rank() == 0) {
      const auto sent = transport_.post_send(to_peer(), payload);
      samples_[size].stolen_by_send.push_back(time_off_core() - usual);
      sent->wait();
      continue;
    }
    const auto incoming = transport_.post_receive(from_peer(), at::kByte, kMessageSizes[size]);
    samples_[size].stolen_by_receive.push_back(time_off_core() - usual);
    incoming->wait();
  }
}

MeasuredLink LinkProfiler::link(Endpoints endpoints) {
  const double threads = endpoints == Endpoints::kCallsAndThreads ? 1 : 0;
  MessageTimes times;
  for (std::size_t size = 0; size < kMessageSizes.size(); ++size) {
    const Samples& taken = samples_[size];
    const double send = mean_of_messages(taken.send);
    times.one_way[size] = shared(mean_of_messages(taken.one_way), 0);
    times.send[size] = (shared(send, 0) + shared(send, 1)) / 2 +
                       threads * shared(std::max(0.0, mean_of_messages(taken.stolen_by_send)), 0);
    times.receive[size] = shared(mean_of_messages(taken.post) + usual_of_messages(taken.take) +
                                     threads * std::max(0.0, mean_of_messages(taken.stolen_by_receive)),
                                 1);
  }
  return estimate_link(times);
}

std::function<void()> some_milliseconds() {
  const at::Tensor numbers = at::ones({1 << 20}), sum = at::zeros({1 << 20});
  const at::Tensor small = at::full({128, 128}, 0.5F), product = at::empty_like(small);
  return [=] {
    for (int i = 0; i < 16; ++i) {
      at::Tensor out = product;
      at::mm_out(out, small, small);
      if (i == 7) sum.add_(numbers);
    }
  };
}

}  // namespace espalier
