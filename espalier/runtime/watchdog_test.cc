// Preset tsan compiles this file: its suites run under ThreadSanitizer too.

#include "espalier/runtime/watchdog.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <thread>

#include "espalier/base/check.h"
#include "espalier/runtime/store.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

// The meeting place of two workers, both of which live in this process.
class Watched : public ::testing::Test {
 protected:
  Watched() {
    socket_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(socket_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
  }
  ~Watched() override { ::close(socket_); }

  World world(std::uint32_t rank) const {
    World world;
    world.rank = rank;
    world.size = 2;
    world.port = port_;
    if (rank == 0) world.store_socket = socket_;
    return world;
  }
  WatchdogOptions options(std::uint32_t rank) const {
    WatchdogOptions options{.world = world(rank), .workers = {"worker 0 (cpu:0)", "worker 1 (cpu:1)"}};
    options.beat = milliseconds(20);
    options.silence = milliseconds(60'000);  // on a loaded machine a beat may come late
    options.grace = milliseconds(20);
    return options;
  }
  void host() { store_ = open_store(world(0), milliseconds(60'000), StoreRole::kMember); }

 private:
  int socket_ = -1;
  std::uint16_t port_ = 0;
  c10::intrusive_ptr<c10d::Store> store_;
};

std::string soon(std::future<std::string>& answer) {
  return answer.wait_for(std::chrono::seconds(60)) == std::future_status::ready ? answer.get() : "nothing";
}

bool becomes(const std::atomic<bool>& flag, bool value) {
  for (int i = 0; i < 6'000 && flag.load() != value; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return flag.load() == value;
}

TEST_F(Watched, AFailureEndsTheWaitsOfTheOthersAndALibraryUsersProcessLivesOn) {
  host();
  std::promise<std::string> aborted, stuck;
  WatchdogOptions mine = options(0);
  mine.abort = [&](const std::string& reason) { aborted.set_value(reason); };
  mine.stuck = [&](const std::string& reason) { stuck.set_value(reason); };
  const Watchdog watchdog(mine);
  Watchdog other(options(1));
  other.failed("operator 'conv1' has no more memory");
  auto first = aborted.get_future(), second = stuck.get_future();
  EXPECT_EQ(soon(first), "worker 1 (cpu:1) failed: operator 'conv1' has no more memory");
  EXPECT_EQ(soon(second), "worker 1 (cpu:1) failed: operator 'conv1' has no more memory");
  EXPECT_EQ(watchdog.alarm(), "worker 1 (cpu:1) failed: operator 'conv1' has no more memory");
}

TEST_F(Watched, WhoSaysThatItIsBusyIsKnownToTheOthersUntilItIsDone) {
  host();
  const auto busy = std::make_shared<std::atomic<bool>>(false);
  WatchdogOptions mine = options(0);
  mine.somebody_busy = busy;
  const Watchdog watchdog(mine);
  Watchdog other(options(1));
  {
    const Busy saving(&other, "saving model.safetensors");
    EXPECT_TRUE(becomes(*busy, true));
  }
  EXPECT_TRUE(becomes(*busy, false));
  EXPECT_EQ(watchdog.alarm(), "");
}

TEST_F(Watched, AMeetingPlaceThatDoesNotAnswerIsAWorkerErrorWithItsReason) {
  WatchdogOptions mine = options(1);
  mine.silence = milliseconds(200);
  EXPECT_THAT(testing::refusal<WorkerError>([&] { const Watchdog watchdog(mine); }),
              HasSubstr("does not answer; worker 0 (cpu:0) hosts it: "));
}

TEST_F(Watched, TheStoreSaysWhyItCannotBeHosted) {
  World nobody = world(0);
  nobody.store_socket = 1 << 19;
  EXPECT_THAT(testing::refusal([&] { open_store(nobody, milliseconds(200), StoreRole::kMember); }),
              HasSubstr("ESPALIER_STORE_SOCKET=524288: no such open file"));
  World taken = world(0);  // whose port this test's own socket holds
  taken.store_socket.reset();
  EXPECT_THAT(
      testing::refusal<std::exception>([&] { open_store(taken, milliseconds(200), StoreRole::kMember); }),
      HasSubstr("EADDRINUSE"));
}

}  // namespace
}  // namespace espalier
