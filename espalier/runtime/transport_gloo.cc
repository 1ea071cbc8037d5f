// A message is one Gloo send, its link the tag: Gloo matches sends and receives of one tag in the order in
// which they were posted. The compute thread waits for receives itself. When a send is complete only its wait
// tells, so each link has a thread that waits for its sends, one after the other, and notes the time.

#include "espalier/runtime/transport_gloo.h"

#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>

#include "espalier/base/check.h"
#include "espalier/runtime/scheduler_hints.h"
#include "espalier/runtime/store.h"

namespace espalier {
namespace {

// c10d's and Gloo's words without their source lines and advice: "Read error [127.0.0.1]:2258: Connection
// reset by peer".
std::string reason_of(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  std::string text = torch_error ? torch_error->what_without_backtrace() : error.what();
  text = text.substr(0, text.find('\n'));
  if (text.starts_with("[/")) text.erase(0, std::min(text.find("] ") + 2, text.size()));
  return text.substr(0, text.find(". This is typically"));
}

using WorkPointer = c10::intrusive_ptr<c10d::Work>;

// What has been posted and may be waited for: an abort ends all those waits.
class Outstanding {
 public:
  void add(const WorkPointer& work) {
    const std::lock_guard guard(lock_);
    if (!reason_.empty()) throw WorkerError(reason_);
    works_.insert(work);
  }
  void remove(const WorkPointer& work) {
    const std::lock_guard guard(lock_);
    works_.erase(work);
  }
  void abort(const std::string& reason) {
    const std::lock_guard guard(lock_);
    if (!reason_.empty()) return;
    reason_ = reason.empty() ? "aborted" : reason;
    for (const WorkPointer& work : works_) work->abort();
  }
  std::string reason() const {
    const std::lock_guard guard(lock_);
    return reason_;
  }

 private:
  mutable std::mutex lock_;
  std::set<WorkPointer> works_;
  std::string reason_;
};

// Waits for one piece of work; throws WorkerError in our words.
void wait_for(Outstanding& outstanding, const WorkPointer& work, std::uint32_t peer, Duration timeout) {
  try {
    const bool completed = work->wait(std::chrono::milliseconds(timeout.count() / 1'000'000));
    outstanding.remove(work);
    if (completed) return;
  } catch (const std::exception& error) {
    outstanding.remove(work);
    const std::string reason = outstanding.reason();
    throw WorkerError(reason.empty() ? "worker " + std::to_string(peer) + ": " + reason_of(error) : reason);
  }
  const std::string reason = outstanding.reason();
  throw WorkerError(reason.empty() ? "worker " + std::to_string(peer) + ": aborted" : reason);
}

class Receive final : public Pending {
 public:
  Receive(std::shared_ptr<Outstanding> outstanding, std::shared_ptr<Awake> awake, WorkPointer work,
          at::Tensor buffer, std::uint32_t peer, Duration timeout)
      : outstanding_(std::move(outstanding)),
        awake_(std::move(awake)),
        work_(std::move(work)),
        buffer_(std::move(buffer)),
        peer_(peer),
        timeout_(timeout) {}

  at::Tensor wait() override {
    if (!when_) {
      {
        const Awake::Wait wait(*awake_);
        wait_for(*outstanding_, work_, peer_, timeout_);
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
  std::uint32_t peer_;
  Duration timeout_;
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
  Reaper(std::shared_ptr<Outstanding> outstanding, std::uint32_t peer, Duration timeout, SchedulerHints hints)
      : outstanding_(std::move(outstanding)), peer_(peer), timeout_(timeout), hints_(hints), thread_([this] {
          run();
        }) {}
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
        wait_for(*outstanding_, send->work(), peer_, timeout_);
        send->finish("");
      } catch (const WorkerError& error) {
        send->finish(error.what());
      }
    }
  }

  std::shared_ptr<Outstanding> outstanding_;
  std::uint32_t peer_;
  Duration timeout_;
  SchedulerHints hints_;
  std::mutex lock_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Send>> queue_;
  bool closing_ = false;
  std::thread thread_;
};

class GlooTransport final : public Transport {
 public:
  GlooTransport(const World& world, std::vector<std::uint32_t> rank_of, Duration timeout)
      : rank_(world.rank),
        ranks_(world.size),
        rank_of_(std::move(rank_of)),
        timeout_(timeout),
        hints_(world.scheduler_hints),
        local_(timeout),
        outstanding_(std::make_shared<Outstanding>()) {
    try {
      store_ = open_store(world, timeout, StoreRole::kMember);
      auto options = c10d::ProcessGroupGloo::Options::create(milliseconds_of(timeout));
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
    WorkPointer work = start(peer, [&] { return group_->send(bytes, static_cast<int>(peer), tag(link)); });
    auto send = std::make_shared<Send>(std::move(work), std::move(payload));
    auto& reaper = reapers_[link];
    if (!reaper) reaper = std::make_unique<Reaper>(outstanding_, peer, timeout_, hints_);
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
    WorkPointer work = start(peer, [&] { return group_->recv(bytes, static_cast<int>(peer), tag(link)); });
    return std::make_shared<Receive>(outstanding_, awake_, std::move(work), std::move(buffer), peer,
                                     timeout_);
  }

  void abort(const std::string& reason) noexcept override {
    local_.abort(reason);
    outstanding_->abort(reason);
  }

  std::uint32_t rank_of(DeviceId device) const override { return rank_of_.at(device.index()); }
  std::uint32_t rank() const override { return rank_; }
  std::uint32_t ranks() const override { return ranks_; }

 private:
  static std::chrono::milliseconds milliseconds_of(Duration duration) {
    return std::chrono::milliseconds(duration.count() / 1'000'000);
  }

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
  WorkPointer start(std::uint32_t peer, const Post& post) {
    WorkPointer work;
    try {
      const ShortTurns turns(hints_);
      work = post();
    } catch (const std::exception& error) {
      const std::string reason = outstanding_->reason();
      throw WorkerError(reason.empty() ? "worker " + std::to_string(peer) + ": " + reason_of(error) : reason);
    }
    outstanding_->add(work);
    return work;
  }

  std::uint32_t rank_, ranks_;
  std::vector<std::uint32_t> rank_of_;
  Duration timeout_;
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

std::unique_ptr<Transport> make_gloo_transport(const World& world, std::vector<std::uint32_t> rank_of,
                                               Duration timeout) {
  return std::make_unique<GlooTransport>(world, std::move(rank_of), timeout);
}

}  // namespace espalier
