#pragma once

// Whole files in, whole files out. Writing is atomic: a reader sees the old file or the new one, never a torn
// one, also after the power fails.

#include <cstdint>
#include <string>
#include <string_view>

namespace espalier {

// Throws InputError naming the path and the reason (missing, a folder, not readable, larger than `limit`).
std::string read_file(const std::string& path, std::uint64_t limit = std::uint64_t{4} << 30);

// A file that appears at its path with finish(), complete and flushed to disk, or not at all: until then, and
// when it is abandoned, the path holds what it held before.
//
// The bytes go to a new file of a name that nobody else has, in the folder of the target; finish() renames it
// and flushes the folder. A symbolic link stays one: the file that it points to is replaced. A file that is
// replaced keeps its permissions. What is no regular file (a pipe, /dev/null) is written as it is.
//
// Each function throws InputError with the path and the reason: no such folder, no space left on the device.
// A writer that threw is abandoned.
class FileWriter {
 public:
  explicit FileWriter(const std::string& path);
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;
  ~FileWriter();  // abandons the file unless it is finished

  void write(std::string_view data);
  void finish();

 private:
  void open_beside_target();
  void abandon() noexcept;
  [[noreturn]] void fail(const std::string& problem);

  std::string path_;
  std::string target_;     // what path_ points to
  std::string temporary_;  // empty where the target is written as it is
  int file_ = -1;
};

// FileWriter, in one call.
void write_file_atomically(const std::string& path, std::string_view content);

// `path` as somebody in `folder` (empty: the current one) writes it. Empty stays empty.
std::string path_from(const std::string& folder, const std::string& path);

// Flushes the names in a folder to disk: files that were created, renamed or removed there. Throws InputError
// where the disk fails; a file system that knows no such thing is no failure.
void sync_folder(const std::string& folder);

}  // namespace espalier
