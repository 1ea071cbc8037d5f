#include "espalier/runtime/tensor_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "espalier/base/check.h"

namespace espalier {
namespace {

constexpr std::array<std::pair<std::string_view, at::ScalarType>, 16> kTypes{{
    {"F64", at::kDouble},
    {"F32", at::kFloat},
    {"F16", at::kHalf},
    {"BF16", at::kBFloat16},
    {"C64", at::kComplexFloat},
    {"F8_E4M3", at::kFloat8_e4m3fn},
    {"F8_E5M2", at::kFloat8_e5m2},
    {"I64", at::kLong},
    {"I32", at::kInt},
    {"I16", at::kShort},
    {"I8", at::kChar},
    {"U8", at::kByte},
    {"BOOL", at::kBool},
    {"U16", at::kUInt16},
    {"U32", at::kUInt32},
    {"U64", at::kUInt64},
}};

at::ScalarType type_of(const SafetensorsReader::Entry& entry, const std::string& path) {
  for (const auto& [name, type] : kTypes) {
    if (name == entry.dtype) return type;
  }
  throw InputError(path + ": tensor '" + entry.name + "' has type " + entry.dtype +
                   ", which cannot be computed with");
}

}  // namespace

TensorFile::TensorFile(const std::string& path) : path_(path), file_(path), header_(file_.bytes(), path) {}

at::ScalarType TensorFile::type(const std::string& name) const {
  return type_of(header_.get(name), path_);
}

// Alignment is not promised by the format, so bytes are copied, never viewed.
at::Tensor TensorFile::read(const std::string& name) const {
  const SafetensorsReader::Entry& entry = header_.get(name);
  at::Tensor tensor = at::empty(entry.shape, type_of(entry, path_));
  ESP_CHECK(tensor.nbytes() == entry.data.size(), entry.name);
  if (!entry.data.empty()) std::memcpy(tensor.mutable_data_ptr(), entry.data.data(), entry.data.size());
  return tensor;
}

at::Tensor TensorFile::read_rows(const std::string& name, std::span<const std::int64_t> rows) const {
  const SafetensorsReader::Entry& entry = header_.get(name);
  ESP_CHECK(!entry.shape.empty(), name);
  std::vector<std::int64_t> shape = entry.shape;
  const std::int64_t all = shape[0];
  shape[0] = static_cast<std::int64_t>(rows.size());
  at::Tensor tensor = at::empty(shape, type_of(entry, path_));
  if (tensor.numel() == 0) return tensor;
  const std::size_t row_bytes = entry.data.size() / static_cast<std::size_t>(all);
  auto* to = static_cast<char*>(tensor.mutable_data_ptr());
  for (const std::int64_t row : rows) {
    ESP_CHECK(row >= 0 && row < all, name, row, all);
    std::memcpy(to, entry.data.data() + static_cast<std::size_t>(row) * row_bytes, row_bytes);
    to += row_bytes;
  }
  return tensor;
}

std::map<std::string, at::Tensor> read_tensors(const std::string& path) {
  const TensorFile file(path);
  std::map<std::string, at::Tensor> tensors;
  for (const SafetensorsReader::Entry& entry : file.header().entries()) {
    tensors.emplace(entry.name, file.read(entry.name));
  }
  return tensors;
}

void write_tensors(const std::string& path, const std::map<std::string, at::Tensor>& tensors,
                   const std::map<std::string, std::string>& metadata) {
  std::vector<SafetensorsWriter::Entry> entries;
  for (const auto& [name, tensor] : tensors) {
    entries.push_back({name, safetensors_type(tensor.scalar_type(), path + ": tensor '" + name + "'"),
                       tensor.sizes().vec()});
  }
  SafetensorsWriter writer(path, entries, {metadata.begin(), metadata.end()});
  for (const auto& [name, tensor] : tensors) writer.write(raw_bytes(tensor.cpu().contiguous()));
  writer.finish();
}

std::string safetensors_type(at::ScalarType type, const std::string& where) {
  for (const auto& [name, known] : kTypes) {
    if (known == type) return std::string(name);
  }
  throw InputError(where + " has type " + c10::toString(type) + ", which safetensors files do not have");
}

std::string_view raw_bytes(const at::Tensor& dense) {
  ESP_CHECK(dense.device().is_cpu() && dense.is_contiguous());
  return {static_cast<const char*>(dense.const_data_ptr()), dense.nbytes()};
}

}  // namespace espalier
