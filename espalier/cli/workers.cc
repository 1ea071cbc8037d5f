#include "espalier/cli/workers.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "espalier/base/check.h"

namespace espalier::cli {
namespace {

constexpr auto kGrace = std::chrono::seconds(10);

// A port nobody listens on at this moment. Another program may take it before rank 0 does; then rank 0 says
// so.
int free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  const bool found = socket >= 0 && ::bind(socket, reinterpret_cast<sockaddr*>(&address), length) == 0 &&
                     ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length) == 0;
  if (socket >= 0) ::close(socket);
  if (!found) throw InputError(std::string("no free port on 127.0.0.1: ") + std::strerror(errno));
  return ntohs(address.sin_port);
}

int exit_code(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Between fork and exec only calls that are safe there: everything is prepared before.
struct Command {
  std::vector<std::string> texts;
  std::vector<char*> pointers;

  void finish() {
    for (std::string& text : texts) pointers.push_back(text.data());
    pointers.push_back(nullptr);
  }
};

Command worker_environment(int rank, int count, int port) {
  Command environment;
  for (char** entry = environ; *entry; ++entry) environment.texts.emplace_back(*entry);
  for (const std::string& set :
       {fmt::format("RANK={}", rank), fmt::format("LOCAL_RANK={}", rank), fmt::format("WORLD_SIZE={}", count),
        std::string("MASTER_ADDR=127.0.0.1"), fmt::format("MASTER_PORT={}", port)}) {
    environment.texts.push_back(set);
  }
  environment.finish();
  return environment;
}

pid_t start(const std::string& program, Command& arguments, Command& environment) {
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) throw InputError(std::string("cannot start a worker: ") + std::strerror(errno));
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);  // no orphans: a worker ends with its launcher
    if (::getppid() != parent) ::_exit(128 + SIGTERM);
    ::signal(SIGINT, SIG_DFL);
    ::execve(program.c_str(), arguments.pointers.data(), environment.pointers.data());
    ::_exit(127);
  }
  return child;
}

std::string this_program() {
  std::string path(4096, '\0');
  const ssize_t length = ::readlink("/proc/self/exe", path.data(), path.size());
  if (length <= 0) throw InputError("cannot find this program's own file through /proc/self/exe");
  path.resize(static_cast<std::size_t>(length));
  return path;
}

int wait_for(std::vector<pid_t> running) {
  int result = 0;
  bool ended = false;
  auto deadline = std::chrono::steady_clock::time_point::max();
  while (!running.empty()) {
    int status = 0;
    const pid_t done = ::waitpid(-1, &status, result == 0 ? 0 : WNOHANG);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) break;
    if (done > 0) {
      std::erase(running, done);
      if (result == 0 && exit_code(status) != 0) {
        result = exit_code(status);
        deadline = std::chrono::steady_clock::now() + kGrace;
      }
      continue;
    }
    if (!ended && std::chrono::steady_clock::now() > deadline) {
      for (const pid_t child : running) ::kill(child, SIGTERM);
      ended = true;
      deadline += kGrace;
    } else if (ended && std::chrono::steady_clock::now() > deadline) {
      for (const pid_t child : running) ::kill(child, SIGKILL);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return result;
}

}  // namespace

bool is_worker() {
  return std::getenv("RANK") != nullptr;
}

int start_workers(int count, const std::vector<std::string>& arguments) {
  ESP_CHECK(count >= 1, count);
  const std::string program = this_program();
  const int port = free_port();
  Command command;
  command.texts.push_back(program);
  command.texts.insert(command.texts.end(), arguments.begin(), arguments.end());
  command.finish();
  // Ctrl-C reaches the workers through the terminal; this process waits for them.
  ::signal(SIGINT, SIG_IGN);
  std::vector<pid_t> running;
  for (int rank = 0; rank < count; ++rank) {
    Command environment = worker_environment(rank, count, port);
    running.push_back(start(program, command, environment));
  }
  const int result = wait_for(std::move(running));
  ::signal(SIGINT, SIG_DFL);
  return result;
}

}  // namespace espalier::cli
