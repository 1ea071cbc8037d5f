#include "espalier/base/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "espalier/base/check.h"

namespace espalier {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { close(); }

  int get() const { return fd_; }
  int close() {
    const int result = fd_ >= 0 ? ::close(fd_) : 0;
    fd_ = -1;
    return result;
  }

 private:
  int fd_;
};

[[noreturn]] void fail(const std::string& path, const char* verb) {
  throw InputError(path + ": cannot " + verb + ": " + std::strerror(errno));
}

}  // namespace

std::string read_file(const std::string& path, std::uint64_t limit) {
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) fail(path, "open");
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail(path, "read");
  if (S_ISDIR(status.st_mode)) throw InputError(path + ": is a folder; expected a file");
  if (static_cast<std::uint64_t>(status.st_size) > limit) {
    throw InputError(path + ": is larger than " + std::to_string(limit) +
                     " bytes, the most that is read here");
  }
  std::string content;
  content.reserve(static_cast<std::size_t>(status.st_size));
  char buffer[1 << 16];
  while (true) {
    const ssize_t n = ::read(file.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(path, "read");
    if (n == 0) return content;
    content.append(buffer, static_cast<std::size_t>(n));
    if (content.size() > limit)
      throw InputError(path + ": grew beyond " + std::to_string(limit) + " bytes while read");
  }
}

void write_file_atomically(const std::string& path, std::string_view content) {
  const std::string temporary = path + ".tmp" + std::to_string(::getpid());
  Descriptor file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (file.get() < 0) fail(path, "write");
  const auto abandon = [&] {
    const int error = errno;
    ::unlink(temporary.c_str());
    errno = error;
    fail(path, "write");
  };
  while (!content.empty()) {
    const ssize_t n = ::write(file.get(), content.data(), content.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) abandon();
    content.remove_prefix(static_cast<std::size_t>(n));
  }
  if (::fsync(file.get()) != 0 && errno != EINVAL && errno != EROFS) abandon();
  if (file.close() != 0) abandon();
  if (::rename(temporary.c_str(), path.c_str()) != 0) abandon();
}

}  // namespace espalier
