#include "espalier/base/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

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

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

// What `path` points to, through symbolic links whose last target need not exist yet.
std::string follow_links(const std::string& path) {
  constexpr int kMostLinks = 40;  // as the kernel's
  std::string target = path;
  for (int i = 0; i < kMostLinks; ++i) {
    std::error_code error;
    const std::string next = std::filesystem::read_symlink(target, error).string();
    if (error) return target;
    target = next.starts_with('/') ? next : folder_of(target) + "/" + next;
  }
  throw InputError(path + ": cannot write: it is a chain of too many symbolic links");
}

constexpr mode_t kPermissions = 07777;

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

FileWriter::FileWriter(const std::string& path) : path_(path), target_(follow_links(path)) {
  struct stat status {};
  const bool exists = ::stat(target_.c_str(), &status) == 0;
  if (exists && S_ISDIR(status.st_mode)) fail("it is a folder; expected a file");
  if (exists && !S_ISREG(status.st_mode)) {
    file_ = ::open(target_.c_str(), O_WRONLY | O_CLOEXEC);
    if (file_ < 0) fail(std::strerror(errno));
    return;
  }
  open_beside_target();
  if (exists) {
    // Refused where the old file is somebody else's: then the new one has the usual permissions.
    [[maybe_unused]] const int kept = ::fchmod(file_, status.st_mode & kPermissions);
  }
}

// A name that exists is never opened, so no file or link that somebody left or planted there is written.
void FileWriter::open_beside_target() {
  static std::atomic<std::uint64_t> count{0};
  const std::string folder = folder_of(target_);
  while (true) {
    temporary_ = folder + "/.espalier.tmp" + std::to_string(::getpid()) + "." + std::to_string(count++);
    file_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file_ >= 0) return;
    if (errno == EEXIST || errno == EINTR) continue;
    const int error = errno;
    temporary_.clear();
    struct stat status {};
    if (error == ENOENT && ::stat(folder.c_str(), &status) != 0) fail("there is no folder " + folder);
    fail(std::strerror(error));
  }
}

FileWriter::~FileWriter() {
  abandon();
}

void FileWriter::abandon() noexcept {
  if (file_ >= 0) ::close(file_);
  file_ = -1;
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  temporary_.clear();
}

void FileWriter::fail(const std::string& problem) {
  abandon();
  throw InputError(path_ + ": cannot write: " + problem);
}

void FileWriter::write(std::string_view data) {
  ESP_CHECK(file_ >= 0);
  while (!data.empty()) {
    const ssize_t n = ::write(file_, data.data(), data.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(std::strerror(errno));
    data.remove_prefix(static_cast<std::size_t>(n));
  }
}

void FileWriter::finish() {
  ESP_CHECK(file_ >= 0);
  // Pipes and some file systems cannot be flushed.
  if (::fsync(file_) != 0 && errno != EINVAL && errno != EROFS) fail(std::strerror(errno));
  if (::close(std::exchange(file_, -1)) != 0) fail(std::strerror(errno));
  if (temporary_.empty()) return;
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) fail(std::strerror(errno));
  temporary_.clear();
  sync_folder(folder_of(target_));
}

void write_file_atomically(const std::string& path, std::string_view content) {
  FileWriter file(path);
  file.write(content);
  file.finish();
}

void sync_folder(const std::string& folder) {
  const Descriptor opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (opened.get() < 0) {
    if (errno == EACCES) return;  // who may write in a folder need not be able to read it
    fail(folder, "open");
  }
  if (::fsync(opened.get()) != 0 && errno != EINVAL && errno != EROFS) fail(folder, "flush to disk");
}

std::string path_from(const std::string& folder, const std::string& path) {
  if (path.empty()) return path;
  const std::filesystem::path from(folder.empty() ? "." : folder);
  return std::filesystem::proximate(std::filesystem::absolute(path), std::filesystem::absolute(from))
      .generic_string();
}

}  // namespace espalier
