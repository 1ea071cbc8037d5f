// A message is one Gloo send. Its link is the tag: Gloo matches the sends and the receives of one tag in the
// order in which they were posted.
//
// The compute thread waits for receives itself. Only the wait for a send tells when it is complete, so each
// link has a thread that waits for its sends, one after the other, and notes the time. One thread for all
// links cannot do it: while it waits for a send whose receive is not posted yet, sends of other links
// complete unnoticed, and a device that waits for one of them may be the one that the receive is waiting for.
//
// Gloo's own time-outs are not used. The first that passes closes every connection of the process, and they
// count while the process stands still. A thread looks at all waits a few times in each time-out instead.

#include "espalier/runtime/transport_gloo.h"

#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/runtime/scheduler_hints.h"
#include "espalier/runtime/store.h"

namespace espalier {
namespace {

using WorkPointer = c10::intrusive_ptr<c10d::Work>;

enum class Direction : std::uint8_t { kFrom, kTo };

// What has been posted and may be waited for. An abort ends all those waits, and one that lasts too long
// aborts.
class Outstanding {
 public:
  explicit Outstanding(Patience patience) : patience_(std::move(patience)), thread_([this] { look(); }) {}
  Outstanding(const Outstanding&) = delete;
  Outstanding& operator=(const Outstanding&) = delete;
  ~Outstanding() {
    {
      const std::lock_guard guard(lock_);
      closing_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }

  void add(const WorkPointer& work, Direction direction, std::uint32_t peer) {
    const std::lock_guard guard(lock_);
    if (!reason_.empty()) throw WorkerError(reason_);
    posted_.emplace(work, Posted{direction, peer, std::nullopt});
  }

  // Waits for it; throws WorkerError in our words.
  void wait_for(const WorkPointer& work) {
    const std::uint32_t peer = begin(work);
    std::string failure = "aborted";
    try {
      const bool completed = work->wait(kVeryLong);
      end(work);
      if (completed) return;
    } catch (const std::exception& error) {
      end(work);
      failure = reason_of(error);
    }
    const std::string why = reason();
    throw WorkerError(why.empty() ? "worker " + std::to_string(peer) + ": " + failure : why);
  }

  void abort(const std::string& reason) {
    const std::lock_guard guard(lock_);
    abort_now(reason.empty() ? "aborted" : reason);
  }

  std::string reason() const {
    const std::lock_guard guard(lock_);
    return reason_;
  }

 private:
  static constexpr std::chrono::milliseconds kVeryLong = std::chrono::hours(24 * 365);

  struct Posted {
    Direction direction;
    std::uint32_t peer;
    std::optional<Waited> waited;  // while a thread waits for it
  };

  std::uint32_t begin(const WorkPointer& work) {
    const std::lock_guard guard(lock_);
    const auto posted = posted_.find(work);
    if (posted == posted_.end()) throw WorkerError(reason_.empty() ? "waited for in vain before" : reason_);
    posted->second.waited.emplace();
    return posted->second.peer;
  }
  void end(const WorkPointer& work) {
    const std::lock_guard guard(lock_);
    posted_.erase(work);
  }

  void abort_now(const std::string& reason) {  // with lock_
    if (!reason_.empty()) return;
    reason_ = reason;
    for (const auto& [work, posted] : posted_) work->abort();
  }

  void look() {
    const std::chrono::nanoseconds between(patience_.between_looks().count());
    std::unique_lock guard(lock_);
    auto last = Clock::now();
    while (!changed_.wait_for(guard, between, [&] { return closing_; })) {
      const auto now = Clock::now();
      const Duration passed(std::chrono::nanoseconds(now - std::exchange(last, now)).count());
      for (auto& [work, posted] : posted_) {
        if (!posted.waited) continue;
        posted.waited->add(patience_, passed);
        if (!posted.waited->too_long(patience_)) continue;
        const std::string peer = "worker " + std::to_string(posted.peer);
        const std::string within = " within " + to_text(patience_.timeout);
        abort_now(posted.direction == Direction::kFrom ? "no message from " + peer + within
                                                       : peer + " took no message" + within);
        break;
      }
    }
  }

  Patience patience_;
  mutable std::mutex lock_;
  std::condition_variable changed_;
  std::map<WorkPointer, Posted> posted_;
  std::string reason_;
  bool closing_ = false;
  std::thread thread_;
};

class Receive final : public Pending {
 public:
  Receive(std::shared_ptr<Outstanding> outstanding, std::shared_ptr<Awake> awake, WorkPointer work,
          at::Tensor buffer)
      : outstanding_(std::move(outstanding)),
        awake_(std::move(awake)),
        work_(std::move(work)),
        buffer_(std::move(buffer)) {}

  at::Tensor wait() override {
    if (!when_) {
      {
        const Awake::Wait wait(*awake_);
        outstanding_->wait_for(work_);
      }
      when_ = Clock::now();
      work_.reset();
    }
    return buffer_;
  }
  std::optional<Clock::time_point> completed() const override { return when_; }

 private:
  std::shared_ptr<Outstanding> outstanding_;
  std::shared_ptr<Awake> awake_;
  WorkPointer work_;
  at::Tensor buffer_;
  std::optional<Clock::time_point> when_;
};

class Send final : public Pending {
 public:
  Send(WorkPointer work, at::Tensor payload) : work_(std::move(work)), payload_(std::move(payload)) {}

  at::Tensor wait() override {
    std::unique_lock guard(lock_);
    done_.wait(guard, [&] { return when_ || !failure_.empty(); });
    if (!failure_.empty()) throw WorkerError(failure_);
    return {};
  }
  std::optional<Clock::time_point> completed() const override {
    const std::lock_guard guard(lock_);
    return when_;
  }

  const WorkPointer& work() const { return work_; }
  void finish(std::string failure) {
    {
      const std::lock_guard guard(lock_);
      if (failure.empty()) when_ = Clock::now();
      failure_ = std::move(failure);
    }
    done_.notify_all();
  }

 private:
  WorkPointer work_;
  at::Tensor payload_;  // alive until whoever posted it lets go
  mutable std::mutex lock_;
  std::condition_variable done_;
  std::optional<Clock::time_point> when_;
  std::string failure_;
};

// The thread that waits for a link's sends.
class Reaper {
 public:
  Reaper(std::shared_ptr<Outstanding> outstanding, SchedulerHints hints)
      : outstanding_(std::move(outstanding)), hints_(hints), thread_([this] { run(); }) {}
  Reaper(const Reaper&) = delete;
  Reaper& operator=(const Reaper&) = delete;
  ~Reaper() {
    {
      const std::lock_guard guard(lock_);
      closing_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }

  void add(std::shared_ptr<Send> send) {
    {
      const std::lock_guard guard(lock_);
      queue_.push_back(std::move(send));
    }
    changed_.notify_one();
  }

 private:
  void run() {
    const ShortTurns turns(hints_);
    while (true) {
      std::shared_ptr<Send> send;
      {
        std::unique_lock guard(lock_);
        changed_.wait(guard, [&] { return closing_ || !queue_.empty(); });
        if (queue_.empty()) return;
        send = std::move(queue_.front());
        queue_.pop_front();
      }
      try {
        outstanding_->wait_for(send->work());
        send->finish("");
      } catch (const WorkerError& error) {
        send->finish(error.what());
      }
    }
  }

  std::shared_ptr<Outstanding> outstanding_;
  SchedulerHints hints_;
  std::mutex lock_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Send>> queue_;
  bool closing_ = false;
  std::thread thread_;
};

class GlooTransport final : public Transport {
 public:
  GlooTransport(c10::intrusive_ptr<c10d::Store> store, const World& world, std::vector<std::uint32_t> rank_of,
                Duration join, const Patience& patience)
      : rank_(world.rank),
        ranks_(world.size),
        rank_of_(std::move(rank_of)),
        hints_(world.scheduler_hints),
        local_(patience),
        outstanding_(std::make_shared<Outstanding>(patience)),
        store_(std::move(store)) {
    try {
      auto options =
          c10d::ProcessGroupGloo::Options::create(std::chrono::milliseconds(join.count() / 1'000'000));
      const ShortTurns turns(hints_);  // Gloo's thread inherits them
      options->devices.push_back(device_for(world));
      group_ = c10::make_intrusive<c10d::ProcessGroupGloo>(store_, static_cast<int>(rank_),
                                                           static_cast<int>(ranks_), options);
    } catch (const std::exception& error) {
      throw WorkerError("the workers did not meet at " + world.address + ":" + std::to_string(world.port) +
                        ": " + reason_of(error));
    }
  }

  // The store's host leaves last: a worker that is still closing would see its connection reset.
  ~GlooTransport() override {
    const bool aborted = !outstanding_->reason().empty();
    reapers_.clear();
    group_.reset();
    if (aborted) return;
    try {
      if (rank_ != 0) {
        store_->add("left", 1);
      } else {
        const auto deadline = Clock::now() + std::chrono::seconds(5);
        while (store_->add("left", 0) < static_cast<std::int64_t>(ranks_) - 1 && Clock::now() < deadline) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
      }
    } catch (const std::exception&) {
      // Whoever hosts the store is gone already: nothing is left to be waited for.
    }
  }

  std::shared_ptr<Pending> post_send(const Link& link, at::Tensor payload) override {
    const std::uint32_t peer = rank_of(link.to);
    if (peer == rank_) return local_.post_send(link, std::move(payload));
    payload = payload.cpu();
    std::vector<at::Tensor> bytes{payload.view(at::kByte)};
    const std::lock_guard guard(lock_);
    WorkPointer work =
        start(Direction::kTo, peer, [&] { return group_->send(bytes, static_cast<int>(peer), tag(link)); });
    auto send = std::make_shared<Send>(std::move(work), std::move(payload));
    auto& reaper = reapers_[link];
    if (!reaper) reaper = std::make_unique<Reaper>(outstanding_, hints_);
    reaper->add(send);
    return send;
  }

  std::shared_ptr<Pending> post_receive(const Link& link, at::ScalarType type,
                                        std::int64_t elements) override {
    const std::uint32_t peer = rank_of(link.from);
    if (peer == rank_) return local_.post_receive(link, type, elements);
    at::Tensor buffer = at::empty({elements}, type);
    std::vector<at::Tensor> bytes{buffer.view(at::kByte)};
    const std::lock_guard guard(lock_);
    WorkPointer work =
        start(Direction::kFrom, peer, [&] { return group_->recv(bytes, static_cast<int>(peer), tag(link)); });
    return std::make_shared<Receive>(outstanding_, awake_, std::move(work), std::move(buffer));
  }

  void abort(const std::string& reason) noexcept override {
    local_.abort(reason);
    outstanding_->abort(reason);
  }

  std::uint32_t rank_of(DeviceId device) const override { return rank_of_.at(device.index()); }
  std::uint32_t rank() const override { return rank_; }
  std::uint32_t ranks() const override { return ranks_; }

 private:
  static std::shared_ptr<gloo::transport::Device> device_for(const World& world) {
    if (std::getenv("GLOO_SOCKET_IFNAME") == nullptr &&
        (world.address == "127.0.0.1" || world.address == "localhost")) {
      return c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1");
    }
    return c10d::ProcessGroupGloo::createDefaultDevice();
  }

  int tag(const Link& link) const {
    const std::size_t n = rank_of_.size();
    return static_cast<int>((static_cast<std::size_t>(link.lane) * n + link.from.index()) * n +
                            link.to.index());
  }

  template <class Post>
  WorkPointer start(Direction direction, std::uint32_t peer, const Post& post) {
    WorkPointer work;
    try {
      const ShortTurns turns(hints_);
      work = post();
    } catch (const std::exception& error) {
      const std::string reason = outstanding_->reason();
      throw WorkerError(reason.empty() ? "worker " + std::to_string(peer) + ": " + reason_of(error) : reason);
    }
    outstanding_->add(work, direction, peer);
    return work;
  }

  std::uint32_t rank_, ranks_;
  std::vector<std::uint32_t> rank_of_;
  SchedulerHints hints_;
  InProcessTransport local_;
  std::shared_ptr<Outstanding> outstanding_;
  std::shared_ptr<Awake> awake_ = std::make_shared<Awake>(hints_);
  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<c10d::Backend> group_;
  std::mutex lock_;  // of posting, and of reapers_
  std::map<Link, std::unique_ptr<Reaper>> reapers_;
};

}  // namespace

std::unique_ptr<Transport> make_gloo_transport(c10::intrusive_ptr<c10d::Store> store, const World& world,
                                               std::vector<std::uint32_t> rank_of, Duration join,
                                               const Patience& patience) {
  return std::make_unique<GlooTransport>(std::move(store), world, std::move(rank_of), join, patience);
}

}  // namespace espalier
