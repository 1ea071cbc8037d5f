#pragma once

// Reading the zip files that PyTorch writes: entries stored, not compressed; sizes only in the central
// directory. A compressed entry is listed and cannot be read: TorchScript has some.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace espalier {

// Whether these may be the bytes of a zip file, as every exported program (.pt2) is.
inline bool is_archive(std::string_view bytes) {
  return bytes.starts_with("PK");
}

// A view on the bytes of an archive, which must outlive it. Every offset and size is checked against the
// bytes there are, overlaps and duplicate names are refused, zip64 is read. Throws InputError "<name>: …".
class ZipReader {
 public:
  ZipReader(std::string_view bytes, std::string name);

  struct Entry {
    std::string name;          // with the root folder stripped
    std::uint64_t offset = 0;  // of its data in the archive
    std::uint64_t size = 0;    // as it lies there
    bool compressed = false;
  };
  const std::vector<Entry>& entries() const { return entries_; }  // sorted by name
  // Nothing, or an error, if it is missing; both throw InputError if it is compressed.
  std::optional<std::string_view> find(std::string_view name) const;
  std::string_view get(std::string_view name) const;
  std::uint64_t offset(std::string_view name) const;
  bool contains(std::string_view name) const { return find_entry(name) != nullptr; }

 private:
  const Entry* find_entry(std::string_view name) const;
  std::string_view data(const Entry& entry) const;

  std::string_view bytes_;
  std::string name_;
  std::vector<Entry> entries_;
};

// A file mapped into memory, read-only: weights of many gigabytes are paged in as they are used. The file
// must not shrink while it is mapped. A moved-from map is empty.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);  // throws InputError
  MappedFile(MappedFile&&) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();
  std::string_view bytes() const { return bytes_; }

 private:
  std::string_view bytes_;
};

}  // namespace espalier
