#include "espalier/base/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>

#include "espalier/base/check.h"
#include "espalier/base/files.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

std::string packed(std::string_view header, std::string_view data) {
  std::string bytes(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(header.size() >> 8 * i & 0xff);
  return bytes + std::string(header) + std::string(data);
}

std::string error_of(const std::string& bytes) {
  return testing::refusal([&] { const SafetensorsReader reader(bytes, "w"); });
}

class Folder {
 public:
  Folder() {
    std::string name = ::testing::TempDir() + "/safetensorsXXXXXX";
    path_ = ::mkdtemp(name.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string operator/(const char* name) const { return path_ + "/" + name; }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(path_), {}));
  }

 private:
  std::string path_;
};

TEST(Safetensors, WhatIsWrittenIsReadBack) {
  const Folder folder;
  const std::string path = folder / "a.safetensors";
  SafetensorsWriter writer(path, {{"w", "F32", {2, 1}}, {"empty", "I64", {0, 3}}, {"b", "U8", {}}},
                           {{"format", "pt"}});
  writer.write("abcd");
  writer.write("efghX");
  writer.finish();
  const std::string bytes = read_file(path);
  const SafetensorsReader reader(bytes, "a");
  EXPECT_THAT(reader.metadata(), ElementsAre(Pair("format", "pt")));
  ASSERT_EQ(reader.entries().size(), 3u);
  EXPECT_EQ(reader.get("w").data, "abcdefgh");
  EXPECT_EQ(reader.get("w").dtype, "F32");
  EXPECT_THAT(reader.get("w").shape, ElementsAre(2, 1));
  EXPECT_EQ(reader.get("w").offset % 8, 0u);
  EXPECT_EQ(reader.get("b").data, "X");
  EXPECT_EQ(reader.get("empty").data, "");
  EXPECT_EQ(reader.find("c"), nullptr);
  EXPECT_EQ(folder.files(), 1u);
}

TEST(Safetensors, PyTorchsOwnFileIsRead) {
  const std::string bytes = read_file(ESPALIER_SOURCE_DIR "/tests/fixtures/dlrm.expected.safetensors");
  const SafetensorsReader reader(bytes, "dlrm");
  EXPECT_EQ(reader.get("input.ids").dtype, "I64");
  EXPECT_THAT(reader.get("input.ids").shape, ElementsAre(4, 3, 2));
  EXPECT_THAT(reader.get("grad.click.bias").shape, ElementsAre(1));
}

TEST(Safetensors, AMissingTensorIsAnsweredWithThoseThereAre) {
  const std::string bytes = packed(R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "x");
  const SafetensorsReader reader(bytes, "f");
  EXPECT_EQ(testing::refusal([&] { reader.get("v"); }), "f: has no tensor 'v'; it has 'w'");
}

TEST(Safetensors, EveryLieOfTheHeaderIsRefused) {
  const auto header = [](const char* w, const char* more = "") {
    return "{\"w\":" + std::string(w) + more + "}";
  };
  EXPECT_THAT(error_of("short"), HasSubstr("shorter than 8 bytes"));
  EXPECT_THAT(error_of(std::string(8, '\xff')), HasSubstr("cut off"));
  EXPECT_THAT(error_of(packed("[]", "")), HasSubstr("not a JSON object"));
  EXPECT_THAT(error_of(packed("{", "")), HasSubstr("not JSON"));
  EXPECT_THAT(error_of(packed(header(R"({"dtype":"F31","shape":[1],"data_offsets":[0,4]})"), "abcd")),
              HasSubstr("which the format does not have"));
  EXPECT_THAT(error_of(packed(header(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})"), "abcd")),
              HasSubstr("type and shape do not fill"));
  EXPECT_THAT(error_of(packed(header(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})"), "abc")),
              HasSubstr("cut off"));
  EXPECT_THAT(error_of(packed(header(R"({"dtype":"F32","shape":[1],"data_offsets":[4,0]})"), "abcd")),
              HasSubstr("expected a whole number"));
  EXPECT_THAT(error_of(packed(header(R"({"dtype":"U8","shape":[1],"data_offsets":[1,2]})"), "ab")),
              HasSubstr("hole"));
  EXPECT_THAT(error_of(packed(header(R"({"dtype":"U8","shape":[2],"data_offsets":[0,2]})",
                                     R"(,"v":{"dtype":"U8","shape":[2],"data_offsets":[1,3]})"),
                              "abc")),
              HasSubstr("overlaps"));
  EXPECT_THAT(error_of(packed(header(R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]})"), "ab")),
              HasSubstr("belong to no tensor"));
  EXPECT_THAT(error_of(packed(header(R"({"dtype":"U8","shape":[-1],"data_offsets":[0,1]})"), "a")),
              HasSubstr("expected a whole number"));
  EXPECT_THAT(
      error_of(packed(
          header(R"({"dtype":"F64","shape":[1152921504606846976,1152921504606846976],"data_offsets":[0,1]})"),
          "a")),
      HasSubstr("do not fill"));
}

TEST(Safetensors, AnAbandonedWriterLeavesTheOldFileAndNoOther) {
  const Folder folder;
  const std::string path = folder / "a";
  write_file_atomically(path, "old");
  {
    SafetensorsWriter writer(path, {{"w", "U8", {4}}}, {});
    writer.write("ab");
  }
  EXPECT_EQ(read_file(path), "old");
  EXPECT_EQ(folder.files(), 1u);
}

TEST(Safetensors, AFullDiskIsAnInputErrorAndLeavesNoTemporaryFile) {
  const Folder folder;
  const std::string path = folder / "a";
  write_file_atomically(path, "old");
  // A limit on the size of files stands in for a full disk.
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit small = before;
  small.rlim_cur = 1 << 16;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string message = testing::refusal([&] {
    SafetensorsWriter writer(path, {{"w", "U8", {1 << 20}}}, {});
    writer.write(std::string(1 << 20, 'x'));
    writer.finish();
  });
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(message, HasSubstr(path + ": cannot write: "));
  EXPECT_EQ(read_file(path), "old");
  EXPECT_EQ(folder.files(), 1u);
}

TEST(Safetensors, AMissingFolderIsNamed) {
  EXPECT_THROW(SafetensorsWriter("/nonexistent/a", {}, {}), InputError);
}

}  // namespace
}  // namespace espalier
