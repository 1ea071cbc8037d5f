// Proves the libtorch set-up: an operator called by name records its gradient, and two processes meet at a
// TCPStore and talk through Gloo (cmake/torch/stubs stands in for Gloo's headers).

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <torch/csrc/autograd/autograd.h>
#include <torch/version.h>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

namespace {

TEST(TorchBuild, OperatorCalledByNameRecordsItsGradient) {
  // y = x · wᵀ with x = [1 2], w = [[3 4]]: y = 11, dy/dw = x, dy/dx = w.
  at::Tensor x = at::tensor({1.0F, 2.0F}).reshape({1, 2}).requires_grad_(true);
  at::Tensor w = at::tensor({3.0F, 4.0F}).reshape({1, 2}).requires_grad_(true);
  auto linear = c10::Dispatcher::singleton().findSchemaOrThrow("aten::linear", "");
  torch::jit::Stack stack{x, w, c10::IValue()};
  linear.callBoxed(stack);
  at::Tensor y = stack.at(0).toTensor();
  EXPECT_EQ(y.item<float>(), 11.0F);
  torch::autograd::backward({y.sum()});
  EXPECT_TRUE(at::equal(w.grad(), x));
  EXPECT_TRUE(at::equal(x.grad(), w));
}

// By it `espalier`, which does not load libtorch, finds what was measured with it.
TEST(TorchBuild, TheVersionThatTheBuildFoundIsTheHeaders) {
  EXPECT_STREQ(ESPALIER_TORCH_VERSION, TORCH_VERSION);
}

// Not torch's copy of it, whatever compiler built torch.
TEST(TorchBuild, TheStandardLibrarysFilesAreItsOwn) {
  void* const remove_all =
      ::dlsym(RTLD_DEFAULT, "_ZNSt10filesystem10remove_allERKNS_7__cxx114pathERSt10error_code");
  ASSERT_NE(remove_all, nullptr);
  Dl_info where{};
  ASSERT_NE(::dladdr(remove_all, &where), 0);
  EXPECT_NE(std::string(where.dli_fname).find("libstdc++"), std::string::npos) << where.dli_fname;
}

// A build of libtorch without libuv throws when asked for it.
c10::intrusive_ptr<c10d::TCPStore> open_store(c10d::TCPStoreOptions options) {
  try {
    return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  } catch (const std::exception&) {
    options.useLibUV = false;
    return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  }
}

c10::intrusive_ptr<c10d::ProcessGroupGloo> join(const c10::intrusive_ptr<c10d::Store>& store, int rank) {
  auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(20));
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, 2, options);
}

// Rank 0 sends [1 2 3]; rank 1 doubles it and sends it back; both add up what they hold, [1 2 3] + [2 4 6].
at::Tensor talk(c10d::Backend& group, int rank) {
  std::vector<at::Tensor> mine{at::tensor({1.0F, 2.0F, 3.0F})};
  if (rank == 0) {
    group.send(mine, 1, 0)->wait();
    std::vector<at::Tensor> answer{at::zeros({3})};
    group.recv(answer, 1, 0)->wait();
    TORCH_CHECK(at::equal(answer[0], mine[0] * 2), "rank 0 received something else");
  } else {
    mine[0].zero_();
    group.recv(mine, 0, 0)->wait();
    mine[0].mul_(2);
    group.send(mine, 0, 0)->wait();
  }
  group.allreduce(mine)->wait();
  group.barrier()->wait();
  return mine[0];
}

c10d::TCPStoreOptions store_options(bool server, std::uint16_t port) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.isServer = server;
  options.numWorkers = 2;
  options.waitWorkers = false;
  options.timeout = std::chrono::seconds(20);
  return options;
}

// What the second process runs instead of the tests. It throws, and so exits with another code, on failure.
int second_process(std::uint16_t port) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // nothing is left behind where the first process fails
  auto group = join(open_store(store_options(false, port)), 1);
  return at::equal(talk(*group, 1), at::tensor({3.0F, 6.0F, 9.0F})) ? 0 : 1;
}

TEST(TorchBuild, TwoProcessesTalkThroughGloo) {
  auto store = open_store(store_options(true, 0));
  // A thread pool does not survive a fork, so the second process is this program started afresh.
  ASSERT_EQ(setenv("ESPALIER_TEST_PORT", std::to_string(store->getPort()).c_str(), 1), 0);
  std::string name = "torch_build_test";
  char* arguments[] = {name.data(), nullptr};
  pid_t child = 0;
  ASSERT_EQ(posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, arguments, environ), 0);
  unsetenv("ESPALIER_TEST_PORT");

  EXPECT_TRUE(at::equal(talk(*join(store, 0), 0), at::tensor({3.0F, 6.0F, 9.0F})));
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace

int main(int argc, char** argv) {
  if (const char* port = std::getenv("ESPALIER_TEST_PORT")) {
    return second_process(static_cast<std::uint16_t>(std::atoi(port)));
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
