#include "espalier/base/files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <thread>
#include <vector>

#include "testing/refusal.h"

namespace {
// What this program's calls of fsync were for: its own definition below comes before the C library's.
std::atomic<int> flushed_files{0}, flushed_folders{0};
}  // namespace

extern "C" int fsync(int file) {
  struct stat status {};
  if (::fstat(file, &status) == 0) ++(S_ISDIR(status.st_mode) ? flushed_folders : flushed_files);
  return static_cast<int>(::syscall(SYS_fsync, file));
}

namespace espalier {
namespace {

using ::testing::HasSubstr;
using testing::refusal;

class Files : public ::testing::Test {
 protected:
  Files() {
    std::string name = ::testing::TempDir() + "/espalier-files-XXXXXX";
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  ~Files() override { std::filesystem::remove_all(folder_); }
  std::string at(const std::string& name) const { return folder_ + "/" + name; }
  std::ptrdiff_t count() const {
    return std::distance(std::filesystem::directory_iterator(folder_), std::filesystem::directory_iterator());
  }
  std::string folder_;
};

mode_t permissions(const std::string& path) {
  struct stat status {};
  EXPECT_EQ(::stat(path.c_str(), &status), 0);
  return status.st_mode & 0777;
}

TEST_F(Files, AFileIsFlushedAndThenItsFolderIs) {
  const int files = flushed_files, folders = flushed_folders;
  write_file_atomically(at("a"), "new");
  EXPECT_EQ(flushed_files - files, 1);
  EXPECT_EQ(flushed_folders - folders, 1);
  EXPECT_EQ(read_file(at("a")), "new");
  EXPECT_EQ(count(), 1);
}

TEST_F(Files, ALinkThatSomebodyPlantedUnderATemporaryNameIsNotFollowed) {
  write_file_atomically(at("victim"), "untouched");
  const std::string process = std::to_string(::getpid());
  std::filesystem::create_symlink(at("victim"), at("a.tmp" + process));
  for (int i = 0; i < 1000; ++i) {
    std::filesystem::create_symlink(at("victim"), at(".espalier.tmp" + process + "." + std::to_string(i)));
  }
  write_file_atomically(at("a"), "new");
  EXPECT_EQ(read_file(at("victim")), "untouched");
  EXPECT_EQ(read_file(at("a")), "new");
}

TEST_F(Files, ASymbolicLinkStaysOneAndItsTargetIsReplaced) {
  std::filesystem::create_directory(at("data"));
  write_file_atomically(at("data/real"), "old");
  std::filesystem::create_symlink("data/real", at("link"));
  write_file_atomically(at("link"), "new");
  EXPECT_TRUE(std::filesystem::is_symlink(at("link")));
  EXPECT_EQ(read_file(at("data/real")), "new");

  std::filesystem::create_symlink("data/not yet there", at("ahead"));
  write_file_atomically(at("ahead"), "first");
  EXPECT_EQ(read_file(at("data/not yet there")), "first");

  std::filesystem::create_symlink("round", at("round"));
  EXPECT_THAT(refusal([&] { write_file_atomically(at("round"), "x"); }), HasSubstr("symbolic links"));
}

TEST_F(Files, AReplacedFileKeepsItsPermissionsAndANewOneHasTheUsual) {
  const mode_t mask = ::umask(027);
  write_file_atomically(at("new"), "x");
  ::umask(mask);
  EXPECT_EQ(permissions(at("new")), 0640U);
  ASSERT_EQ(::chmod(at("new").c_str(), 0600), 0);
  write_file_atomically(at("new"), "y");
  EXPECT_EQ(permissions(at("new")), 0600U);
}

TEST_F(Files, AFullDiskAndAMissingFolderAreOneLine) {
  EXPECT_EQ(refusal([&] { write_file_atomically("/dev/full", "x"); }),
            "/dev/full: cannot write: No space left on device");
  EXPECT_EQ(refusal([&] { write_file_atomically(at("nowhere/a"), "x"); }),
            at("nowhere/a") + ": cannot write: there is no folder " + at("nowhere"));
  EXPECT_EQ(refusal([&] { write_file_atomically(folder_, "x"); }),
            folder_ + ": cannot write: it is a folder; expected a file");
}

TEST_F(Files, WhatIsNoRegularFileIsWrittenAndStaysWhatItIs) {
  write_file_atomically("/dev/null", "x");
  struct stat status {};
  ASSERT_EQ(::stat("/dev/null", &status), 0);
  EXPECT_TRUE(S_ISCHR(status.st_mode));
}

TEST_F(Files, WritersOfOneFileDoNotMixTheirBytes) {
  std::vector<std::thread> writers;
  for (const char letter : {'a', 'b', 'c', 'd'}) {
    writers.emplace_back([&, letter] {
      for (int i = 0; i < 20; ++i) write_file_atomically(at("one"), std::string(100'000, letter));
    });
  }
  for (std::thread& writer : writers) writer.join();
  const std::string content = read_file(at("one"));
  EXPECT_EQ(content, std::string(100'000, content.at(0)));
  EXPECT_EQ(count(), 1);
}

}  // namespace
}  // namespace espalier
