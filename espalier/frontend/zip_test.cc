#include "espalier/frontend/zip.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "espalier/base/check.h"
#include "espalier/base/files.h"
#include "espalier/frontend/archive_for_tests.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

std::string opening_error(const std::string& bytes) {
  return testing::refusal([&] { const ZipReader reader(bytes, "f"); });
}

// `bytes` with the little-endian number at `at` replaced.
std::string patched(std::string bytes, std::size_t at, std::uint64_t value, std::size_t width) {
  for (std::size_t i = 0; i < width; ++i) bytes[at + i] = static_cast<char>(value >> 8 * i & 0xff);
  return bytes;
}

const std::string kZip = make_zip({{"a", "hello"}, {"d/b", "world!"}}, "r/");
const std::size_t kEnd = kZip.size() - 22;             // end record
const std::size_t kCentral = kZip.find("PK\x01\x02");  // first entry
const std::size_t kCentral2 = kZip.find("PK\x01\x02", kCentral + 1);

TEST(Zip, EntriesAreFoundWithoutTheirRootFolder) {
  const ZipReader reader(kZip, "f");
  ASSERT_EQ(reader.entries().size(), 2u);
  EXPECT_EQ(reader.get("a"), "hello");
  EXPECT_EQ(reader.get("d/b"), "world!");
  EXPECT_EQ(kZip.substr(reader.offset("d/b"), 6), "world!");
  EXPECT_EQ(reader.find("c"), std::nullopt);
  EXPECT_THROW(reader.get("c"), InputError);
}

TEST(Zip, WithoutACommonFolderNamesStayWhole) {
  const std::string zip = make_zip({{"a/x", "1"}, {"b/x", "2"}}, "");
  const ZipReader reader(zip, "f");
  EXPECT_EQ(reader.get("b/x"), "2");
}

TEST(Zip, PyTorchsOwnArchiveIsRead) {
  const MappedFile file(ESPALIER_SOURCE_DIR "/tests/fixtures/dlrm.pt2");
  const ZipReader reader(file.bytes(), "dlrm.pt2");
  EXPECT_EQ(reader.get("byteorder"), "little");
  EXPECT_EQ(reader.offset("data/weights/weight_0") % 64, 0u);
}

TEST(Zip, EveryCutIsRefused) {
  for (std::size_t size = 0; size < kZip.size(); ++size) {
    const std::string message = opening_error(kZip.substr(0, size));
    EXPECT_THAT(message, HasSubstr("f: ")) << size;
    EXPECT_EQ(message.find('\n'), std::string::npos);
  }
}

TEST(Zip, ACommentMayFollow) {
  std::string zip = patched(kZip, kEnd + 20, 3, 2) + "bye";
  EXPECT_EQ(ZipReader(zip, "f").get("a"), "hello");
  EXPECT_THAT(opening_error(kZip + "bye"), HasSubstr("end record is missing"));
}

TEST(Zip, EachLieIsNamed) {
  EXPECT_THAT(opening_error(patched(kZip, kEnd + 16, 0xfffffff0, 4)),
              HasSubstr("central directory lies at byte"));
  EXPECT_THAT(opening_error(patched(kZip, kEnd + 12, 0xfffffff0, 4)),
              HasSubstr("central directory lies at byte"));
  EXPECT_THAT(opening_error(patched(kZip, kEnd + 10, 7, 2)),
              HasSubstr("has 2 entries, its end record says 7"));
  EXPECT_THAT(opening_error(patched(kZip, kEnd + 16, 1, 4)), HasSubstr("central directory is broken"));
  EXPECT_THAT(opening_error(patched(kZip, kCentral + 8, 9, 2)), HasSubstr("encrypted"));
  EXPECT_THAT(opening_error(patched(kZip, kCentral + 20, 4, 4)),
              HasSubstr("stored in 4 bytes and should have 5"));
  EXPECT_THAT(opening_error(patched(patched(kZip, kCentral + 20, 900, 4), kCentral + 24, 900, 4)),
              HasSubstr("'r/a' lies at"));
  EXPECT_THAT(opening_error(patched(kZip, kCentral + 42, 3, 4)), HasSubstr("no local header at byte 3"));
  EXPECT_THAT(opening_error(patched(kZip, kCentral + 46, 'x', 1)),
              HasSubstr("another name in its local header"));
  // Long enough to reach into the second entry, and into the directory.
  EXPECT_THAT(opening_error(patched(patched(kZip, kCentral + 20, 30, 4), kCentral + 24, 30, 4)),
              HasSubstr("'r/a' overlaps"));
  EXPECT_THAT(opening_error(patched(patched(kZip, kCentral2 + 20, 40, 4), kCentral2 + 24, 40, 4)),
              HasSubstr("'r/d/b' overlaps"));
}

TEST(Zip, ACompressedEntryIsListedAndNotRead) {
  const std::string zip = patched(kZip, kCentral + 10, 8, 2);
  const ZipReader reader(zip, "f");
  EXPECT_TRUE(reader.contains("a"));
  EXPECT_THROW(reader.get("a"), InputError);
  EXPECT_THROW(reader.find("a"), InputError);
  EXPECT_EQ(reader.get("d/b"), "world!");
}

TEST(Zip, TwoEntriesOnOnePlaceOverlap) {
  const std::string zip = make_zip({{"a", "x"}, {"a", "x"}}, "r/");
  const std::size_t second = zip.find("PK\x01\x02", zip.find("PK\x01\x02") + 1);
  EXPECT_THAT(opening_error(patched(zip, second + 42, 0, 4)), HasSubstr("overlaps"));
}

TEST(Zip, ANameStandsOnce) {
  EXPECT_THAT(opening_error(make_zip({{"a", "x"}, {"a", "y"}}, "r/")), HasSubstr("'a' stands twice"));
}

TEST(Zip, AMissingFileAndAFolderAreNamed) {
  EXPECT_THROW(MappedFile("/nonexistent/x"), InputError);
  EXPECT_THROW(MappedFile("/tmp"), InputError);
}

}  // namespace
}  // namespace espalier
