#pragma once

// Tensors by name in a safetensors file. Includes libtorch; runtime/ only.

#include <ATen/ATen.h>

#include <map>
#include <span>
#include <string>
#include <string_view>

#include "espalier/base/safetensors.h"
#include "espalier/frontend/zip.h"

namespace espalier {

// A mapped file: opening it reads its header, and each tensor is read when somebody asks for it, so a worker
// pays for what it needs. Immutable; any number of threads may read. All functions throw InputError naming
// file and tensor.
class TensorFile {
 public:
  explicit TensorFile(const std::string& path);

  const std::string& path() const { return path_; }
  std::uint64_t bytes() const { return file_.bytes().size(); }
  const SafetensorsReader& header() const { return header_; }
  bool contains(std::string_view name) const { return header_.find(name) != nullptr; }

  // Reads nothing but the header.
  at::ScalarType type(const std::string& name) const;

  // A copy, in host memory.
  at::Tensor read(const std::string& name) const;
  // Of those rows of the first dimension, in that order; they exist.
  at::Tensor read_rows(const std::string& name, std::span<const std::int64_t> rows) const;

 private:
  std::string path_;
  MappedFile file_;
  SafetensorsReader header_;
};

// All tensors of a file.
std::map<std::string, at::Tensor> read_tensors(const std::string& path);

// Atomically. `metadata` goes into the header.
void write_tensors(const std::string& path, const std::map<std::string, at::Tensor>& tensors,
                   const std::map<std::string, std::string>& metadata);

// "F32". Throws InputError "<where>: …" for a type that safetensors files do not have.
std::string safetensors_type(at::ScalarType type, const std::string& where);

// The bytes of a dense tensor in host memory.
std::string_view raw_bytes(const at::Tensor& dense);

}  // namespace espalier
