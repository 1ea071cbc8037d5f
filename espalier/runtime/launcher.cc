#include "espalier/runtime/launcher.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <optional>

#include "espalier/base/check.h"
#include "espalier/base/json.h"

extern char** environ;

namespace espalier {
namespace {

using Clock = std::chrono::steady_clock;

std::uint16_t free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* raw = reinterpret_cast<sockaddr*>(&address);
  const bool bound = fd >= 0 && ::bind(fd, raw, sizeof address) == 0 && ::getsockname(fd, raw, &length) == 0;
  if (fd >= 0) ::close(fd);
  if (!bound)
    throw InputError(std::string("no free port on the loopback interface: ") + std::strerror(errno));
  return ntohs(address.sin_port);
}

// A folder for the workers' error files, removed at the end.
class ErrorFolder {
 public:
  ErrorFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "espalier-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr)
      throw InputError(name + ": cannot make this folder: " + std::strerror(errno));
    path_ = name;
  }
  ErrorFolder(const ErrorFolder&) = delete;
  ErrorFolder& operator=(const ErrorFolder&) = delete;
  ~ErrorFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string file(std::uint32_t rank) const { return path_ + "/" + std::to_string(rank) + ".json"; }

  // What a worker wrote, if it wrote anything readable.
  std::string message(std::uint32_t rank) const {
    std::ifstream in(file(rank));
    const std::string text((std::istreambuf_iterator<char>(in)), {});
    try {
      const Json json = parse_json(text, file(rank));
      return JsonCursor(json, "").at("message").at("message").string();
    } catch (const InputError&) {
      return "";
    }
  }

 private:
  std::string path_;
};

struct Worker {
  pid_t pid = -1;
  bool running = false;
  std::optional<Clock::time_point> stopped_since;
  int status = 0;
};

// SIGINT, SIGTERM and SIGCHLD are blocked while workers run and taken from a queue instead; the mask is
// restored at the end.
class Signals {
 public:
  Signals() {
    sigemptyset(&set_);
    for (const int signal : {SIGINT, SIGTERM, SIGCHLD}) sigaddset(&set_, signal);
    ::pthread_sigmask(SIG_BLOCK, &set_, &before_);
  }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;
  ~Signals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

  // The next one, or nothing within `milliseconds`.
  std::optional<int> next(long milliseconds) const {
    const timespec timeout{milliseconds / 1000, milliseconds % 1000 * 1'000'000};
    const int signal = ::sigtimedwait(&set_, nullptr, &timeout);
    return signal > 0 ? std::optional(signal) : std::nullopt;
  }
  const sigset_t& before() const { return before_; }

 private:
  sigset_t set_{}, before_{};
};

std::vector<std::string> worker_environment(const LaunchOptions& options, std::uint32_t rank,
                                            std::uint16_t port, const ErrorFolder& folder) {
  std::vector<std::pair<std::string, std::string>> own{
      {"RANK", std::to_string(rank)},
      {"LOCAL_RANK", std::to_string(rank)},
      {"WORLD_SIZE", std::to_string(options.workers)},
      {"LOCAL_WORLD_SIZE", std::to_string(options.workers)},
      {"GROUP_RANK", "0"},
      {"MASTER_ADDR", "127.0.0.1"},
      {"MASTER_PORT", std::to_string(port)},
      {"TORCHELASTIC_ERROR_FILE", folder.file(rank)},
      {"TORCHELASTIC_USE_AGENT_STORE", ""},
      {"TORCHELASTIC_RESTART_COUNT", "0"},
      {"ESPALIER_LAUNCHER", "1"},
  };
  if (std::getenv("OMP_NUM_THREADS") == nullptr) own.emplace_back("OMP_NUM_THREADS", "1");
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    bool replaced = false;
    for (const auto& [key, value] : own) replaced = replaced || key == name;
    if (!replaced) result.emplace_back(text);
  }
  for (const auto& [key, value] : own) {
    if (!value.empty()) result.push_back(key + "=" + value);
  }
  return result;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

// fork and exec; a failed exec is reported through a pipe that a successful one closes.
pid_t start(std::vector<std::string> command, std::vector<std::string> environment, const sigset_t& mask) {
  int report[2];
  if (::pipe2(report, O_CLOEXEC) != 0)
    throw InputError(std::string("cannot start a worker: ") + std::strerror(errno));
  const std::vector<char*> arguments = pointers(command);
  const std::vector<char*> variables = pointers(environment);
  const pid_t pid = ::fork();
  if (pid == 0) {  // only calls that are safe between fork and exec
    ::setpgid(0, 0);
    ::pthread_sigmask(SIG_SETMASK, &mask, nullptr);
    const int null = ::open("/dev/null", O_RDONLY);
    if (null >= 0) ::dup2(null, STDIN_FILENO);
    ::execve(arguments[0], arguments.data(), variables.data());
    const int error = errno;
    [[maybe_unused]] const ssize_t n = ::write(report[1], &error, sizeof error);
    ::_exit(127);
  }
  ::close(report[1]);
  int error = pid < 0 ? errno : 0;
  if (pid > 0) {
    ssize_t n;
    do n = ::read(report[0], &error, sizeof error);
    while (n < 0 && errno == EINTR);
    if (n != static_cast<ssize_t>(sizeof error)) error = 0;
  }
  ::close(report[0]);
  if (error == 0) return pid;
  if (pid > 0) ::waitpid(pid, nullptr, 0);
  throw InputError(command[0] + ": cannot start it as a worker: " + std::strerror(error));
}

constexpr const char* kQuiet = "failed with exit status 1";

class Watch {
 public:
  Watch(const LaunchOptions& options, const ErrorFolder& folder)
      : options_(options), folder_(folder), workers_(options.workers) {}
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  ~Watch() {
    kill_all(SIGKILL);
    for (Worker& worker : workers_) {
      if (worker.running) ::waitpid(worker.pid, nullptr, 0);
    }
  }

  int run() {
    const std::uint16_t port = free_port();
    for (std::uint32_t rank = 0; rank < options_.workers; ++rank) {
      workers_[rank].pid =
          start(options_.command, worker_environment(options_, rank, port, folder_), signals_.before());
      workers_[rank].running = true;
    }
    while (anybody()) {
      if (const auto signal = signals_.next(100); signal && *signal != SIGCHLD) pass_on(*signal);
      reap();
      look_after_stopped();
      if (deadline_ && Clock::now() > *deadline_) {
        say("the workers that are left did not stop in time and are killed");
        kill_all(SIGKILL);
        deadline_.reset();
      }
    }
    return exit_status();
  }

 private:
  bool anybody() const {
    for (const Worker& worker : workers_) {
      if (worker.running) return true;
    }
    return false;
  }

  void say(const std::string& line) const {
    if (options_.say) options_.say(line);
  }

  void kill_all(int signal) const {
    for (const Worker& worker : workers_) {
      if (worker.running) ::kill(worker.pid, signal);
    }
  }

  void pass_on(int signal) {
    if (++interrupts_ == 1) {
      kill_all(signal);
    } else {
      kill_all(SIGKILL);
    }
  }

  void failed(std::uint32_t rank, const std::string& what) {
    if (first_failed_) return;
    first_failed_ = rank;
    const std::string reason = folder_.message(rank);
    // A worker that found what it looked for, as verify does, has said so itself.
    if (what != kQuiet || !reason.empty())
      say("worker " + std::to_string(rank) + " " + what + (reason.empty() ? "" : ": " + reason));
    deadline_ = Clock::now() + std::chrono::nanoseconds(options_.grace.count());
  }

  void reap() {
    for (std::uint32_t rank = 0; rank < workers_.size(); ++rank) {
      Worker& worker = workers_[rank];
      int status = 0;
      while (worker.running &&
             ::waitpid(worker.pid, &status, WNOHANG | WUNTRACED | WCONTINUED) == worker.pid) {
        if (WIFSTOPPED(status)) {
          worker.stopped_since = Clock::now();
        } else if (WIFCONTINUED(status)) {
          worker.stopped_since.reset();
        } else {
          worker.running = false;
          worker.status = status;
          report(rank, status);
        }
      }
    }
  }

  void report(std::uint32_t rank, int status) {
    if (WIFSIGNALED(status)) {
      failed(rank, std::string("was killed by ") + strsignal(WTERMSIG(status)) + " (signal " +
                       std::to_string(WTERMSIG(status)) + ")");
    } else if (const int code = WEXITSTATUS(status); code != 0 && code != 130) {
      failed(rank, "failed with exit status " + std::to_string(code));
    }
  }

  void look_after_stopped() {
    for (std::uint32_t rank = 0; rank < workers_.size(); ++rank) {
      const Worker& worker = workers_[rank];
      if (!worker.running || !worker.stopped_since) continue;
      if (Clock::now() - *worker.stopped_since < std::chrono::nanoseconds(options_.stopped.count())) continue;
      failed(rank, "was stopped by a signal and did not go on within " + to_text(options_.stopped));
      ::kill(worker.pid, SIGKILL);
    }
  }

  int exit_status() const {
    if (first_failed_) {
      const int status = workers_[*first_failed_].status;
      return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    }
    for (const Worker& worker : workers_) {
      if (WIFEXITED(worker.status) && WEXITSTATUS(worker.status) == 130) return 130;
    }
    return 0;
  }

  const LaunchOptions& options_;
  const ErrorFolder& folder_;
  Signals signals_;
  std::vector<Worker> workers_;
  std::optional<std::uint32_t> first_failed_;
  std::optional<Clock::time_point> deadline_;
  int interrupts_ = 0;
};

}  // namespace

int launch(const LaunchOptions& options) {
  ESP_CHECK(options.workers > 0 && !options.command.empty(), options.workers);
  const ErrorFolder folder;
  Watch watch(options, folder);
  return watch.run();
}

void write_error_file(const std::string& message) noexcept {
  try {
    const char* path = std::getenv("TORCHELASTIC_ERROR_FILE");
    if (path == nullptr) return;
    Json extra{{"py_callstack", message}, {"timestamp", std::to_string(std::time(nullptr))}};
    std::ofstream(path) << Json{{"message", {{"message", message}, {"extraInfo", std::move(extra)}}}}.dump();
  } catch (...) {
    // The message also goes to standard error; a launcher that cannot be told must not hide it.
  }
}

}  // namespace espalier
