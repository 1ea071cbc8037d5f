// Preset tsan compiles this file: its suites run under ThreadSanitizer too.

#include "espalier/runtime/transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <thread>

#include "espalier/base/rng.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

// One of several workers that are threads of this process, with a device each.
class ThreadWorker final : public Transport {
 public:
  ThreadWorker(Transport& between, std::uint32_t rank, std::uint32_t ranks)
      : between_(between), rank_(rank), ranks_(ranks) {}
  std::shared_ptr<Pending> post_send(const Link& link, at::Tensor payload) override {
    ++sent_;
    return between_.post_send(link, std::move(payload));
  }
  std::shared_ptr<Pending> post_receive(const Link& link, at::ScalarType type,
                                        std::int64_t elements) override {
    return between_.post_receive(link, type, elements);
  }
  void abort(const std::string& reason) noexcept override { between_.abort(reason); }
  std::uint32_t rank_of(DeviceId device) const override { return static_cast<std::uint32_t>(device.index()); }
  std::uint32_t rank() const override { return rank_; }
  std::uint32_t ranks() const override { return ranks_; }
  int sent() const { return sent_; }

 private:
  Transport& between_;
  std::uint32_t rank_, ranks_;
  int sent_ = 0;
};

TEST(Exchange, EveryWorkerGetsEverybodysBitsWithFewMessages) {
  Rng rng(5);
  for (std::uint32_t n = 1; n <= 9; ++n) {
    for (const std::size_t length : {0, 1, 3}) {
      std::vector<DeviceId> devices;
      std::vector<std::vector<double>> told(n);
      for (std::uint32_t r = 0; r < n; ++r) {
        devices.push_back(DeviceId(r));
        for (std::size_t i = 0; i < length; ++i) told[r].push_back(std::bit_cast<double>(rng.next()));
      }
      InProcessTransport between(milliseconds(60'000));
      std::vector<std::vector<std::vector<std::uint64_t>>> heard(n);
      std::vector<int> sent(n);
      std::vector<std::thread> workers;
      for (std::uint32_t r = 0; r < n; ++r) {
        workers.emplace_back([&, r] {
          ThreadWorker worker(between, r, n);
          for (int again = 0; again < 3; ++again) {  // the next exchange does not mix with the one before
            heard[r].clear();
            for (const auto& numbers : exchange(worker, devices, std::span<const double>(told[r]))) {
              heard[r].emplace_back();
              for (const double number : numbers)
                heard[r].back().push_back(std::bit_cast<std::uint64_t>(number));
            }
          }
          sent[r] = worker.sent();
        });
      }
      for (std::thread& worker : workers) worker.join();
      std::vector<std::vector<std::uint64_t>> expected(n);
      for (std::uint32_t r = 0; r < n; ++r) {
        for (const double number : told[r]) expected[r].push_back(std::bit_cast<std::uint64_t>(number));
      }
      for (std::uint32_t r = 0; r < n; ++r) {
        EXPECT_EQ(heard[r], expected) << n << " workers, worker " << r;
        EXPECT_EQ(sent[r], 3 * std::bit_width(n - 1)) << n << " workers";  // ⌈log2 n⌉ each time
      }
    }
  }
}

TEST(InProcess, AWaitDoesNotRunOutWhileSomebodyIsBusy) {
  const auto busy = std::make_shared<std::atomic<bool>>(true);
  InProcessTransport transport(Patience{milliseconds(20), busy});
  const Link link{DeviceId(0), DeviceId(1)};
  const auto receive = transport.post_receive(link, at::kByte, 1);
  std::thread sender([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    transport.post_send(link, at::ones({1}, at::kByte));
  });
  EXPECT_EQ(receive->wait().item<int>(), 1);
  sender.join();
  busy->store(false);
  EXPECT_THAT(testing::refusal<WorkerError>([&] { transport.post_receive(link, at::kByte, 1)->wait(); }),
              HasSubstr("no message from device 0 to device 1 within 20.0 ms"));
}

}  // namespace
}  // namespace espalier
