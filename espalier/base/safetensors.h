#pragma once

// safetensors files: named tensors as raw little-endian bytes behind a JSON header. What PyTorch and the
// tools around it load; our checkpoints and data files.
//
//   u64 N | N bytes of JSON: {"name": {"dtype": "F32", "shape": [2,3], "data_offsets": [0,24]}, …} | data
//
// Types stay texts here ("F32", "I64", …): what they mean to a graph is the caller's business.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "espalier/base/files.h"

namespace espalier {

// Bytes of one element of "F32" and the like; 0 for a type that the format does not have.
std::int64_t safetensors_element_size(std::string_view dtype);

using SafetensorsMetadata = std::vector<std::pair<std::string, std::string>>;

// A view on the bytes of a file, which must outlive it. The header is bounded (100 MB), types and shapes
// agree with the bytes, the tensors lie one behind the other without hole or overlap and fill the file.
// Throws InputError "<name>: …" naming the tensor.
class SafetensorsReader {
 public:
  SafetensorsReader(std::string_view bytes, const std::string& name);

  struct Entry {
    std::string name;
    std::string dtype;
    std::vector<std::int64_t> shape;
    std::string_view data;
    std::uint64_t offset = 0;  // of the data in the file
  };
  const std::vector<Entry>& entries() const { return entries_; }     // sorted by name
  const SafetensorsMetadata& metadata() const { return metadata_; }  // as written
  const Entry* find(std::string_view name) const;                    // null if there is none
  const Entry& get(std::string_view name) const;  // throws InputError naming those there are

 private:
  std::string file_;
  std::vector<Entry> entries_;
  SafetensorsMetadata metadata_;
};

// Writes a file piece by piece, so that a checkpoint never stands twice in memory. Announce all tensors, then
// write their bytes in the same order, then finish. The file appears at its path with finish(), complete and
// flushed, or not at all: an abandoned writer leaves what was there before, and no temporary file.
class SafetensorsWriter {
 public:
  struct Entry {
    std::string name;
    std::string dtype;
    std::vector<std::int64_t> shape;
  };

  // Throws InputError naming the path and the reason (no such folder, …). Names must be unique, types known.
  SafetensorsWriter(const std::string& path, const std::vector<Entry>& entries,
                    const SafetensorsMetadata& metadata);

  // The next bytes of the tensors; any cut is right. Throws InputError when the disk is full.
  void write(std::string_view data);

  // Throws InputError when the disk is full.
  void finish();

 private:
  std::optional<FileWriter> file_;
  std::uint64_t due_ = 0;  // bytes that are still to come
};

}  // namespace espalier
