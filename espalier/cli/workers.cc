#include "espalier/cli/workers.h"

#include <dlfcn.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <iterator>

#include "espalier/app/launcher.h"
#include "espalier/cli/program.h"
#include "espalier/cli/runtime_program.h"

namespace espalier::cli {
namespace {

std::atomic<bool> interrupted{false};

extern "C" void on_interrupt(int) {
  if (interrupted.exchange(true)) ::_exit(130);
}

bool has_one_thread() {
  std::error_code error;
  const std::filesystem::directory_iterator threads("/proc/self/task", error);
  return !error && std::distance(begin(threads), end(threads)) == 1;
}

bool may_be_copied() {
  void* const cuda = ::dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
  if (cuda != nullptr) ::dlclose(cuda);
  return cuda == nullptr && std::getenv("OMP_NUM_THREADS") != nullptr && has_one_thread();
}

}  // namespace

bool is_worker() {
  return std::getenv("RANK") != nullptr;
}

const std::atomic<bool>& watch_for_interrupts() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  action.sa_flags = SA_RESTART;
  for (const int signal : {SIGINT, SIGTERM}) ::sigaction(signal, &action, nullptr);
  return interrupted;
}

int start_workers(const Program& program, int count, const std::vector<std::string>& arguments) {
  LaunchOptions options;
  options.workers = static_cast<std::uint32_t>(count);
  if (program.runtime != nullptr && may_be_copied()) {
    program.console.flush();
    options.copy = [&] { return run_program_again(program, arguments); };
  } else {
    options.command = {runtime_program("launch")};
    options.command.insert(options.command.end(), arguments.begin(), arguments.end());
  }
  options.say = [](const std::string& line) { std::cerr << "espalier: " << line << std::endl; };
  return launch(options);
}

bool tell_launcher(const std::string& message) {
  write_error_file(message);
  return std::getenv("ESPALIER_LAUNCHER") != nullptr;
}

void end_stuck_worker(const std::string& reason) {
  const char* rank = std::getenv("RANK");
  const std::string line = "worker " + std::string(rank != nullptr ? rank : "0") + " stops: " + reason;
  tell_launcher(line);
  std::fprintf(stderr, "espalier: %s\n", line.c_str());
  std::fflush(stderr);
  ::_exit(1);
}

}  // namespace espalier::cli
