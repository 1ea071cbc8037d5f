#include "espalier/cli/workers.h"

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "espalier/base/check.h"

#if ESPALIER_TORCH
#include "espalier/runtime/launcher.h"
#endif

namespace espalier::cli {
namespace {

std::atomic<bool> interrupted{false};

extern "C" void on_interrupt(int) {
  if (interrupted.exchange(true)) ::_exit(130);
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

#if ESPALIER_TORCH

int start_workers(int count, const std::vector<std::string>& arguments) {
  std::string program(4096, '\0');
  const ssize_t length = ::readlink("/proc/self/exe", program.data(), program.size());
  if (length <= 0) throw InputError("cannot find this program's own file through /proc/self/exe");
  program.resize(static_cast<std::size_t>(length));
  LaunchOptions options;
  options.workers = static_cast<std::uint32_t>(count);
  options.command = {program};
  options.command.insert(options.command.end(), arguments.begin(), arguments.end());
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

#else

void end_stuck_worker(const std::string&) {
  throw InternalError("workers need the runtime");
}

int start_workers(int, const std::vector<std::string>&) {
  throw InternalError("workers need the runtime");
}

bool tell_launcher(const std::string&) {
  return false;
}

#endif

}  // namespace espalier::cli
