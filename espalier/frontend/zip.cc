#include "espalier/frontend/zip.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "espalier/base/check.h"

namespace espalier {
namespace {

constexpr std::uint32_t kLocalSignature = 0x04034b50;
constexpr std::uint32_t kCentralSignature = 0x02014b50;
constexpr std::uint32_t kEndSignature = 0x06054b50;
constexpr std::uint32_t kZip64EndSignature = 0x06064b50;
constexpr std::uint32_t kZip64LocatorSignature = 0x07064b50;
constexpr std::uint64_t kEndSize = 22;
constexpr std::uint64_t kMaxComment = 0xffff;

// The archive's bytes with checked little-endian reads.
class Bytestream {
 public:
  Bytestream(std::string_view bytes, const std::string& name) : bytes_(bytes), name_(name) {}

  std::uint64_t size() const { return bytes_.size(); }

  std::string_view slice(std::uint64_t offset, std::uint64_t size, const char* what) const {
    if (offset > bytes_.size() || size > bytes_.size() - offset) {
      fail(std::string(what) + " lies at byte " + std::to_string(offset) + " with " + std::to_string(size) +
           " bytes, and the file has " + std::to_string(bytes_.size()) + "; is it cut off?");
    }
    return bytes_.substr(offset, size);
  }

  std::uint64_t number(std::uint64_t offset, std::uint64_t width, const char* what) const {
    const std::string_view text = slice(offset, width, what);
    std::uint64_t value = 0;
    for (std::uint64_t i = width; i-- > 0;) value = value << 8 | static_cast<unsigned char>(text[i]);
    return value;
  }

  [[noreturn]] void fail(const std::string& problem) const { throw InputError(name_ + ": " + problem); }

 private:
  std::string_view bytes_;
  const std::string& name_;
};

struct Directory {
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
  std::uint64_t entries = 0;
};

// The end record stands at the very end, before a comment whose length it states.
std::uint64_t find_end_record(const Bytestream& in) {
  if (in.size() >= kEndSize) {
    const std::uint64_t last = in.size() - kEndSize;
    const std::uint64_t first = last > kMaxComment ? last - kMaxComment : 0;
    for (std::uint64_t at = last + 1; at-- > first;) {
      if (in.number(at, 4, "end record") == kEndSignature &&
          in.number(at + 20, 2, "end record") == last - at) {
        return at;
      }
    }
  }
  in.fail("is not a complete zip archive: its end record is missing; is the file cut off?");
}

Directory find_directory(const Bytestream& in) {
  const std::uint64_t end = find_end_record(in);
  Directory result{.offset = in.number(end + 16, 4, "end record"),
                   .size = in.number(end + 12, 4, "end record"),
                   .entries = in.number(end + 10, 2, "end record")};
  const bool zip64 = end >= 20 && in.number(end - 20, 4, "zip64 locator") == kZip64LocatorSignature;
  if (zip64) {
    const std::uint64_t at = in.number(end - 12, 8, "zip64 locator");
    if (in.number(at, 4, "zip64 end record") != kZip64EndSignature) {
      in.fail("zip64 end record is missing at byte " + std::to_string(at));
    }
    result = {.offset = in.number(at + 48, 8, "zip64 end record"),
              .size = in.number(at + 40, 8, "zip64 end record"),
              .entries = in.number(at + 32, 8, "zip64 end record")};
  }
  in.slice(result.offset, result.size, "central directory");
  return result;
}

struct Record {
  std::string name;
  std::uint64_t local = 0;  // of its local header
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
  bool compressed = false;
};

// Fields of 0xffffffff are replaced by those of the zip64 extra field, in this order.
void read_zip64_extra(const Bytestream& in, std::uint64_t at, std::uint64_t length, std::uint64_t& size,
                      std::uint64_t& stored, std::uint64_t& local) {
  const std::uint64_t end = at + length;
  while (at + 4 <= end) {
    const std::uint64_t id = in.number(at, 2, "extra field");
    const std::uint64_t field_end = at + 4 + in.number(at + 2, 2, "extra field");
    if (field_end > end) return;
    std::uint64_t field = at + 4;
    if (id == 1) {
      for (std::uint64_t* value : {&size, &stored, &local}) {
        if (*value != 0xffffffff) continue;
        if (field + 8 > field_end) return;
        *value = in.number(field, 8, "zip64 extra field");
        field += 8;
      }
      return;
    }
    at = field_end;
  }
}

// Reads the entry at `at` and moves `at` behind it.
Record read_record(const Bytestream& in, std::uint64_t& at) {
  constexpr const char* kWhat = "central directory";
  if (in.number(at, 4, kWhat) != kCentralSignature) {
    in.fail("central directory is broken at byte " + std::to_string(at));
  }
  const std::uint64_t flags = in.number(at + 8, 2, kWhat);
  const std::uint64_t method = in.number(at + 10, 2, kWhat);
  std::uint64_t stored = in.number(at + 20, 4, kWhat);
  const std::uint64_t name_length = in.number(at + 28, 2, kWhat);
  const std::uint64_t extra_length = in.number(at + 30, 2, kWhat);
  const std::uint64_t comment_length = in.number(at + 32, 2, kWhat);
  Record record{.name = std::string(in.slice(at + 46, name_length, kWhat)),
                .local = in.number(at + 42, 4, kWhat),
                .size = in.number(at + 24, 4, kWhat)};
  const std::string quoted = "entry '" + record.name.substr(0, 100) + "'";
  read_zip64_extra(in, at + 46 + name_length, extra_length, record.size, stored, record.local);
  if ((flags & 1) != 0) in.fail(quoted + " is encrypted; expected a plain archive");
  record.compressed = method != 0;
  if (method == 0 && stored != record.size) {
    in.fail(quoted + " is stored in " + std::to_string(stored) + " bytes and should have " +
            std::to_string(record.size));
  }
  record.size = stored;
  in.slice(record.local, 30, quoted.c_str());
  if (in.number(record.local, 4, quoted.c_str()) != kLocalSignature) {
    in.fail(quoted + " has no local header at byte " + std::to_string(record.local));
  }
  const std::uint64_t local_name = in.number(record.local + 26, 2, quoted.c_str());
  const std::uint64_t local_extra = in.number(record.local + 28, 2, quoted.c_str());
  if (in.slice(record.local + 30, local_name, quoted.c_str()) != record.name) {
    in.fail(quoted + " has another name in its local header");
  }
  record.offset = record.local + 30 + local_name + local_extra;
  in.slice(record.offset, record.size, quoted.c_str());
  at += 46 + name_length + extra_length + comment_length;
  return record;
}

void refuse_overlaps(const Bytestream& in, std::vector<Record>& records, std::uint64_t directory) {
  std::sort(records.begin(), records.end(),
            [](const Record& a, const Record& b) { return a.local < b.local; });
  for (std::size_t i = 0; i < records.size(); ++i) {
    const std::uint64_t limit = i + 1 < records.size() ? records[i + 1].local : directory;
    if (records[i].offset + records[i].size > limit) {
      in.fail("entry '" + records[i].name.substr(0, 100) + "' overlaps what stands behind it");
    }
  }
}

// The folder that holds every entry, with its slash; empty if there is none.
std::string root_folder(const std::vector<Record>& records) {
  if (records.empty()) return {};
  const std::size_t slash = records.front().name.find('/');
  if (slash == std::string::npos) return {};
  const std::string root = records.front().name.substr(0, slash + 1);
  const bool all = std::all_of(records.begin(), records.end(),
                               [&](const Record& record) { return record.name.starts_with(root); });
  return all ? root : std::string();
}

}  // namespace

ZipReader::ZipReader(std::string_view bytes, std::string name) : bytes_(bytes), name_(std::move(name)) {
  const Bytestream in(bytes_, name_);
  const Directory directory = find_directory(in);
  std::vector<Record> records;
  std::uint64_t at = directory.offset;
  while (at < directory.offset + directory.size) records.push_back(read_record(in, at));
  if (records.size() != directory.entries) {
    in.fail("central directory has " + std::to_string(records.size()) + " entries, its end record says " +
            std::to_string(directory.entries));
  }
  refuse_overlaps(in, records, directory.offset);
  const std::size_t root = root_folder(records).size();
  for (Record& record : records) {
    entries_.push_back({.name = record.name.substr(root),
                        .offset = record.offset,
                        .size = record.size,
                        .compressed = record.compressed});
  }
  std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) { return a.name < b.name; });
  const auto twice = std::adjacent_find(entries_.begin(), entries_.end(),
                                        [](const Entry& a, const Entry& b) { return a.name == b.name; });
  if (twice != entries_.end()) in.fail("entry '" + twice->name.substr(0, 100) + "' stands twice");
}

const ZipReader::Entry* ZipReader::find_entry(std::string_view name) const {
  const auto found = std::lower_bound(entries_.begin(), entries_.end(), name,
                                      [](const Entry& entry, std::string_view n) { return entry.name < n; });
  return found != entries_.end() && found->name == name ? &*found : nullptr;
}

std::string_view ZipReader::data(const Entry& entry) const {
  if (entry.compressed) {
    throw InputError(
        name_ + ": entry '" + entry.name.substr(0, 100) +
        "' is compressed; PyTorch stores what is read here uncompressed, so save the file again");
  }
  return bytes_.substr(entry.offset, entry.size);
}

std::optional<std::string_view> ZipReader::find(std::string_view name) const {
  const Entry* const entry = find_entry(name);
  if (entry == nullptr) return std::nullopt;
  return data(*entry);
}

std::string_view ZipReader::get(std::string_view name) const {
  const Entry* const entry = find_entry(name);
  if (entry == nullptr) throw InputError(name_ + ": entry '" + std::string(name) + "' is missing");
  return data(*entry);
}

std::uint64_t ZipReader::offset(std::string_view name) const {
  const Entry* const entry = find_entry(name);
  if (entry == nullptr) throw InputError(name_ + ": entry '" + std::string(name) + "' is missing");
  return entry->offset;
}

MappedFile::MappedFile(const std::string& path) {
  const auto fail = [&] { throw InputError(path + ": cannot open: " + std::strerror(errno)); };
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail();
  struct stat status {};
  const int result = ::fstat(fd, &status);
  const bool folder = result == 0 && S_ISDIR(status.st_mode);
  void* memory = nullptr;
  if (result == 0 && !folder && status.st_size > 0) {
    memory = ::mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ, MAP_PRIVATE, fd, 0);
  }
  const int error = errno;
  ::close(fd);
  if (folder) throw InputError(path + ": is a folder; expected a file");
  errno = error;
  if (result != 0 || memory == MAP_FAILED) fail();
  if (memory != nullptr) {
    bytes_ = {static_cast<const char*>(memory), static_cast<std::size_t>(status.st_size)};
  }
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<char*>(bytes_.data()), bytes_.size());
}

}  // namespace espalier
