#include "espalier/app/launcher.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <optional>

#include "espalier/base/check.h"
#include "espalier/base/files.h"
#include "espalier/base/json.h"

extern char** environ;

namespace espalier {
namespace {

using SteadyClock = std::chrono::steady_clock;

// A port of the loopback interface on which nobody listens yet and which nobody else gets: the socket is
// bound to it, and worker 0 inherits it. Should worker 0 die, nobody listens, and the others are refused at
// once.
class ReservedPort {
 public:
  ReservedPort() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    auto* raw = reinterpret_cast<sockaddr*>(&address);
    if (socket_ < 0 || ::bind(socket_, raw, sizeof address) != 0 ||
        ::getsockname(socket_, raw, &length) != 0) {
      const int error = errno;
      release();
      throw InputError(std::string("no free port on the loopback interface: ") + std::strerror(error));
    }
    port_ = ntohs(address.sin_port);
  }
  ReservedPort(const ReservedPort&) = delete;
  ReservedPort& operator=(const ReservedPort&) = delete;
  ~ReservedPort() { release(); }

  int socket() const { return socket_; }
  std::uint16_t port() const { return port_; }
  void release() {
    if (socket_ >= 0) ::close(socket_);
    socket_ = -1;
  }

 private:
  int socket_;
  std::uint16_t port_ = 0;
};

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
  std::optional<SteadyClock::time_point> stopped_since;
  int status = 0;
};

// SIGINT, SIGTERM, SIGTSTP and SIGCHLD are blocked while workers run and taken from a queue instead; the mask
// is restored at the end. A SIGTSTP that the program ignores or handles itself is left alone.
class Signals {
 public:
  Signals() {
    sigemptyset(&set_);
    for (const int signal : {SIGINT, SIGTERM, SIGCHLD}) sigaddset(&set_, signal);
    struct sigaction action {};
    if (::sigaction(SIGTSTP, nullptr, &action) == 0 && action.sa_handler == SIG_DFL)
      sigaddset(&set_, SIGTSTP);
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

  // Stops this process as Ctrl-Z does, and returns when it goes on: at once where nobody could tell it to,
  // because no shell watches over it.
  void stop_here() const {
    sigset_t stop;
    sigemptyset(&stop);
    sigaddset(&stop, SIGTSTP);
    ::raise(SIGTSTP);
    ::pthread_sigmask(SIG_UNBLOCK, &stop, nullptr);
    ::pthread_sigmask(SIG_BLOCK, &stop, nullptr);
  }

 private:
  sigset_t set_{}, before_{};
};

std::vector<std::string> worker_environment(const LaunchOptions& options, std::uint32_t rank,
                                            const ReservedPort& port, const ErrorFolder& folder) {
  std::vector<std::pair<std::string, std::string>> own{
      {"RANK", std::to_string(rank)},
      {"LOCAL_RANK", std::to_string(rank)},
      {"WORLD_SIZE", std::to_string(options.workers)},
      {"LOCAL_WORLD_SIZE", std::to_string(options.workers)},
      {"GROUP_RANK", "0"},
      {"MASTER_ADDR", "127.0.0.1"},
      {"MASTER_PORT", std::to_string(port.port())},
      {"ESPALIER_STORE_SOCKET", rank == 0 ? std::to_string(port.socket()) : ""},
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

// In a worker that was just born: a group of its own, the launcher's signal mask as it was, nothing to read.
// Only calls that are safe after fork.
void become_worker(const sigset_t& mask) {
  ::setpgid(0, 0);
  ::pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  const int null = ::open("/dev/null", O_RDONLY);
  if (null < 0) return;
  ::dup2(null, STDIN_FILENO);
  if (null != STDIN_FILENO) ::close(null);
}

// fork and exec; a failed exec is reported through a pipe that a successful one closes. The worker inherits
// one file beside the standard ones, if there is one.
pid_t start(std::vector<std::string> command, std::vector<std::string> environment, const sigset_t& mask,
            std::optional<int> inherited) {
  int report[2];
  if (::pipe2(report, O_CLOEXEC) != 0)
    throw InputError(std::string("cannot start a worker: ") + std::strerror(errno));
  const std::vector<char*> arguments = pointers(command);
  const std::vector<char*> variables = pointers(environment);
  const pid_t pid = ::fork();
  if (pid == 0) {
    become_worker(mask);
    if (inherited) ::fcntl(*inherited, F_SETFD, 0);
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

// fork alone: the worker has what this process has loaded. It never returns from here, so nothing of the
// launcher is destroyed in it.
pid_t start_copy(const std::function<int()>& worker, const std::vector<std::string>& environment,
                 const std::string& name, const sigset_t& mask) {
  std::fflush(nullptr);  // what is buffered would be written twice
  const pid_t pid = ::fork();
  if (pid < 0) throw InputError(std::string("cannot start a worker: ") + std::strerror(errno));
  if (pid > 0) return pid;
  become_worker(mask);
  ::prctl(PR_SET_NAME, name.c_str());
  ::clearenv();
  for (const std::string& variable : environment) {
    const std::size_t equals = variable.find('=');
    ::setenv(variable.substr(0, equals).c_str(), variable.substr(equals + 1).c_str(), 1);
  }
  std::exit(worker());
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
    start_all();
    auto last = SteadyClock::now();
    while (anybody()) {
      if (const auto signal = signals_.next(100); signal == SIGTSTP) {
        stop_and_go_on();
      } else if (signal && *signal != SIGCHLD) {
        pass_on(*signal);
      }
      // Who was stopped itself cannot know how long the workers were.
      const auto now = SteadyClock::now();
      if (now - last >
          std::max(span(options_.stopped) / 2, std::chrono::nanoseconds(std::chrono::seconds(1)))) {
        go_on_counting(now - last);
      }
      last = now;
      reap();
      look_after_stopped();
      if (deadline_ && now > *deadline_) {
        say("the workers that are left did not stop in time and are killed");
        kill_all(SIGKILL);
        deadline_.reset();
      }
    }
    return exit_status();
  }

 private:
  static std::chrono::nanoseconds span(Duration duration) {
    return std::chrono::nanoseconds(duration.count());
  }

  void start_all() {
    ReservedPort port;
    for (std::uint32_t rank = 0; rank < options_.workers; ++rank) {
      const std::vector<std::string> environment = worker_environment(options_, rank, port, folder_);
      workers_[rank].pid = options_.copy ? start_copy(options_.copy, environment,
                                                      "espalier:" + std::to_string(rank), signals_.before())
                                         : start(options_.command, environment, signals_.before(),
                                                 rank == 0 ? std::optional(port.socket()) : std::nullopt);
      workers_[rank].running = true;
      if (rank == 0) port.release();
    }
  }

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

  // Workers have process groups of their own, which Ctrl-Z does not reach.
  void signal_groups(int signal) const {
    for (const Worker& worker : workers_) {
      if (worker.running) ::kill(-worker.pid, signal);
    }
  }

  void stop_and_go_on() {
    const auto begin = SteadyClock::now();
    signal_groups(SIGTSTP);
    signals_.stop_here();
    signal_groups(SIGCONT);
    go_on_counting(SteadyClock::now() - begin);
  }

  // The time that passed counts neither for workers that stand still nor for those that are to end.
  void go_on_counting(std::chrono::nanoseconds passed) {
    for (Worker& worker : workers_) {
      if (worker.stopped_since) *worker.stopped_since += passed;
    }
    if (deadline_) *deadline_ += passed;
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
    deadline_ = SteadyClock::now() + span(options_.grace);
  }

  void reap() {
    for (std::uint32_t rank = 0; rank < workers_.size(); ++rank) {
      Worker& worker = workers_[rank];
      int status = 0;
      while (worker.running &&
             ::waitpid(worker.pid, &status, WNOHANG | WUNTRACED | WCONTINUED) == worker.pid) {
        if (WIFSTOPPED(status)) {
          worker.stopped_since = SteadyClock::now();
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
      if (SteadyClock::now() - *worker.stopped_since < span(options_.stopped)) continue;
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
  std::optional<SteadyClock::time_point> deadline_;
  int interrupts_ = 0;
};

}  // namespace

int launch(const LaunchOptions& options) {
  ESP_CHECK(options.workers > 0 && options.command.empty() == static_cast<bool>(options.copy),
            options.workers);
  const ErrorFolder folder;
  Watch watch(options, folder);
  return watch.run();
}

void write_error_file(const std::string& message) noexcept {
  try {
    const char* path = std::getenv("TORCHELASTIC_ERROR_FILE");
    if (path == nullptr) return;
    Json extra{{"py_callstack", message}, {"timestamp", std::to_string(std::time(nullptr))}};
    write_file_atomically(path,
                          Json{{"message", {{"message", message}, {"extraInfo", std::move(extra)}}}}.dump());
  } catch (...) {
    // The message also goes to standard error; a launcher that cannot be told must not hide it.
  }
}

}  // namespace espalier
